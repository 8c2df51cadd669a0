"""Jobs as nobody should write them, sent to a real API server that knows the CRD."""

from __future__ import annotations

import itertools
import json
import re
import zlib
from collections import Counter
from typing import Any

import httpx
import pytest
from apiserver import ApiServer
from crd_cases import causes, jobs_of
from hypothesis import HealthCheck, given, seed, settings
from mutations import NASTY, Mutated, mutated_jobs
from pydantic import ValidationError

import sweeps
from espalier_core.types.job import KIND, AdaptiveTrainingJob

MUTATED = sweeps.size("mutated jobs sent to the server", 10_000)

_NAMED = re.compile(
    r'unknown field "|duplicate field "|into Go struct field (ObjectMeta)?\.\w+|into Go value of type v1\.ObjectMeta'
    r"|\.(apiVersion|kind) accessor error|the API version in the data|unexpected GroupVersion string|no kind \""
    r"|Object '(Kind|apiVersion)' is missing|the (name|namespace) of the (provided )?object"
)
"""How an answer to a document that cannot be decoded names the field."""
_NUMBER = re.compile(r"cannot unmarshal number (\S+) into Go value of type float64")
SERVER_ALONE = ("metadata", "a fraction as a number", "a number that no computer has", "unread")
"""What the server refuses and the models take: metadata and status are not theirs to check; `cpu: 0.5` must be text in
every custom resource; a key that appears twice, or 1e400, is read by Python."""
TOO_DEEP = "accepted, and refused by the models: json_invalid"
"""No schema can say how deep what is left open may be: the server reads 10,000 levels, the models 200."""


def judge(answer: httpx.Response, sent: Mutated) -> str:
    """Return what became of a document; fail where the answer does not say what is wrong with it."""
    if answer.status_code == 201:
        problems = problems_of(answer.text)
        assert all(problems.values()), problems
        return "accepted" if not problems else f"accepted, and refused by the models: {', '.join(sorted(problems))}"
    message = answer.json()["message"]
    if answer.status_code == 422:
        said = causes(answer)
        assert said
        assert all(field and field in message for field in said), message
        # A rule about two fields names the other one in its words.
        named = (place.removeprefix("spec.") in message for place in sent.places)
        near = (_near(field, place) for field in said for place in sent.places)
        assert not sent.places or any(near) or any(named), (message, sent)
        return "refused by its fields"
    assert answer.status_code == 400, answer.text
    if not _is_mapping(sent.text):
        return "refused as no JSON mapping"
    if _NAMED.search(message.rpartition(f"cannot be handled as a {KIND}: ")[2]):
        return "refused by its shape"
    number = _NUMBER.search(message)
    assert number is not None, message
    assert number[1] in sent.text
    return "refused by a number that no computer has"


def problems_of(text: str) -> dict[str, str]:
    """Return what the models say against a stored job, by field; read as the operator reads it."""
    try:
        AdaptiveTrainingJob.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        return {".".join(map(str, each["loc"])) or each["type"]: each["msg"] for each in error.errors()}
    return {}


def understood(text: str) -> bool:
    """Whether `espalier validate` has nothing against the job of a JSON text."""
    try:
        job = AdaptiveTrainingJob.model_validate_json(text, strict=True, by_alias=True, by_name=False)
        return job.spec.gpus_per_worker() >= 1
    except ValueError:
        return False


def _near(field: str, place: str) -> bool:
    """Whether what is refused is what was changed, what holds it, what it holds or what stands beside it."""
    a, b = field.replace("[", ".").split("."), place.replace("[", ".").split(".")
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    return shared >= min(len(a), len(b)) - 1 and (shared > 0 or min(len(a), len(b)) == 1)


def _is_mapping(text: str) -> bool:
    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        return isinstance(json.loads(text, parse_constant=refuse), dict)
    except (ValueError, RecursionError):
        return False


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_is_sent_is_refused_by_name_or_understood(
    api_server: ApiServer, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs changed at random and some by hand; and what the models take, the server takes."""
    outcomes: Counter[str] = Counter()
    narrower: Counter[str] = Counter()

    def send(sent: Mutated) -> None:
        # Two of three as kubectl does it, the third as a client that does not ask for unknown fields to be refused.
        content = sent.text.encode("utf-8", "surrogatepass")
        validation = "Ignore" if zlib.crc32(content) % 3 == 0 else "Strict"
        answer = api_server.api.post(
            jobs_of(namespace),
            content=content,
            params={"dryRun": "All", "fieldValidation": validation},
            headers={"Content-Type": "application/json"},
        )
        outcomes[judge(answer, sent)] += 1
        if answer.is_error and understood(sent.text):
            narrower[narrower_by(answer)] += 1

    @seed(sweeps.SEED)
    @settings(max_examples=MUTATED, deadline=None, suppress_health_check=list(HealthCheck))
    @given(mutated_jobs())
    def send_mutated(sent: Mutated) -> None:
        send(sent)

    for document in NASTY:
        send(document)
    send_mutated()
    with capsys.disabled():
        print(f"\n{sum(outcomes.values())} jobs sent:")
        for outcome, count in outcomes.most_common():
            print(f"{count:6}  {outcome}")
        for why, count in narrower.most_common():
            print(f"{count:6}  taken by the models, refused by the server: {why}")
    assert sum(outcomes.values()) >= MUTATED
    assert outcomes["accepted"] > MUTATED / 20, "the mutations leave enough jobs right"
    assert outcomes["refused by its fields"] > MUTATED / 20
    assert not {outcome for outcome in outcomes if "refused by the models" in outcome} - {TOO_DEEP}
    assert not set(narrower) - set(SERVER_ALONE)


_FRACTION = re.compile(r"spec\.template\.spec\.containers\[\d+\]\.resources\.(limits|requests)\..*")


def narrower_by(answer: httpx.Response) -> str:
    """Return why the server refuses what the models take, in words of `SERVER_ALONE`; else its message."""
    message = str(answer.json()["message"])
    if answer.status_code == 422:
        said = {field: text for field, text in causes(answer).items() if field != "<nil>"}
        if all(field.startswith("metadata") for field in said):
            return "metadata"
        wrong = 'must be of type integer,string: "number"'
        fractions = all(_FRACTION.fullmatch(field) and wrong in text for field, text in said.items())
        return "a fraction as a number" if fractions else message
    if re.search(r'ObjectMeta|unknown field "metadata', message):
        return "metadata"
    if re.search(r'unknown field "status|duplicate field', message):
        return "unread"
    return "a number that no computer has" if _NUMBER.search(message) else message
