"""The CRD as a real API server understands it: what it fills in, what it refuses and in which words."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from apiserver import JOBS, ApiServer
from hypothesis import HealthCheck, given, settings
from mutations import FULL, GPU, MINIMAL, NASTY, Mutated, mutated_jobs
from pydantic import ValidationError

from espalier_api.job import AdaptiveTrainingJob
from espalier_api.validation import load_jobs

PROJECT = Path(__file__).parents[2]
EXAMPLES = sorted((PROJECT / "examples").glob("*.yaml"))
MUTATED = 10_000


@pytest.fixture(scope="module")
def namespace(api_server: ApiServer) -> Iterator[str]:
    """Give a namespace of the tests of this file."""
    api_server.start()
    yield api_server.namespace()
    api_server.clear()


def jobs_of(namespace: str) -> str:
    """Return the path of the jobs in `namespace`."""
    return f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs"


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of `document` with `value` at the dotted `path`; `...` takes the field out."""
    result = copy.deepcopy(document)
    node: Any = result
    *parents, last = [int(part) if part.isdecimal() else part.replace("~", ".") for part in path.split(".")]
    for part in parents:
        node = node.setdefault(part, {}) if isinstance(node, dict) else node[int(part)]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return result


def causes(answer: httpx.Response) -> dict[str, str]:
    """Return what the answer says is wrong, by field."""
    assert answer.status_code == 422, answer.text
    said: dict[str, str] = {}
    for cause in answer.json()["details"]["causes"]:
        said[cause["field"]] = f"{said.get(cause['field'], '')} {cause['message']}".strip()
    return said


# ---- what it fills in


def test_the_server_fills_in_what_the_models_fill_in(api_server: ApiServer, namespace: str) -> None:
    """A minimal job comes back with all defaults, and they are the models'."""
    made = api_server.request("POST", jobs_of(namespace), MINIMAL, dryRun="All")
    ours = AdaptiveTrainingJob.model_validate_json(json.dumps(MINIMAL), strict=True)
    theirs = AdaptiveTrainingJob.model_validate_json(json.dumps(made), strict=True)
    assert theirs.spec == ours.spec
    said = _without_empty(ours.spec.to_json())
    assert made["spec"] == said, "each default is visible, those of nested fields too"
    assert "status" not in made, "a status that nobody wrote is not invented"


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item != {}}
    return value


def test_a_full_job_comes_back_as_it_was(api_server: ApiServer, namespace: str) -> None:
    """Nothing that the models know is pruned, nor what they leave open."""
    made = api_server.request("POST", jobs_of(namespace), FULL, dryRun="All")
    assert made["spec"] == FULL["spec"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_accepted(api_server: ApiServer, namespace: str, example: Path) -> None:
    """As a person applies it."""
    said = api_server.kubectl("apply", "--dry-run=server", "-n", namespace, "-f", str(example))
    assert said.split() == [
        f"adaptivetrainingjob.espalier.dev/{load_jobs(example)[0].metadata.name}",
        *said.split()[1:],
    ]
    assert "created (server dry run)" in said


# ---- what it refuses

WHOLE = "GPUs and other extended resources come in whole numbers; write 1 (or, as text, up to 7 digits)"
NO_GPU = (
    "no container has a limit of a GPU resource (such as nvidia.com/gpu: 1); the GPUs of a worker are read there, "
    "and it needs one"
)
ONE_OF = "needs exactly one of name and entrypoint"
LABEL = (
    "must be lower-case letters, digits and '-', beginning with a letter and ending with a letter or digit, as it is "
    "the name of a Service"
)
LIMITS = "spec.template.spec.containers.0.resources.limits"

BAD: tuple[tuple[str, Any, str, str], ...] = (
    ("spec.maxReplicas", 1, "spec.maxReplicas", "must be at least minReplicas; raise it or lower minReplicas"),
    ("spec.minReplicas", 5, "spec.maxReplicas", "must be at least minReplicas; raise it or lower minReplicas"),
    ("spec.minReplicas", 0, "spec.minReplicas", "should be greater than or equal to 1"),
    ("spec.timeBudgetSeconds", 0, "spec.timeBudgetSeconds", "should be greater than 0"),
    ("spec.timeBudgetSeconds", ..., "spec.timeBudgetSeconds", "Required value"),
    ("spec.timeBudgetSeconds", "60", "spec.timeBudgetSeconds", 'must be of type number: "string"'),
    ("spec.timeBudgetSeconds", 1e9, "spec.timeBudgetSeconds", "should be less than or equal to 3.1536e+07"),
    ("spec.adaptation.mode", "off", "spec.adaptation.mode", 'supported values: "Auto", "DryRun", "Off"'),
    ("spec.adaptation.mode", False, "spec.adaptation.mode", 'must be of type string: "boolean"'),
    ("spec.adaptation.actions", [], "spec.adaptation.actions", "should have at least 1 items"),
    ("spec.adaptation.actions", ["Widen"], "spec.adaptation.actions[0]", 'supported values: "Deepen"'),
    ("spec.adaptation.agent.url", "agent:8080", "spec.adaptation.agent.url", "should match '^https?://"),
    ("spec.training.model", {}, "spec.training.model", ONE_OF),
    ("spec.training.model.name", "cnn1", "spec.training.model", ONE_OF),
    ("spec.training.dataset.entrypoint", "a:b", "spec.training.dataset", ONE_OF),
    ("spec.training.model", {"name": "vgg"}, "spec.training.model.name", "should match '^(digits|cifar8|"),
    (
        "spec.training.dataset.path",
        ...,
        "spec.training.dataset.path",
        "is needed for imagefolder: a folder with one folder of images a class",
    ),
    ("spec.training.seed", 2**32, "spec.training.seed", "should be less than"),
    ("spec.training.optimizer.momentum", 1, "spec.training.optimizer.momentum", "should be less than 1"),
    ("spec.checkpoint.path", "", "spec.checkpoint.path", "should be at least 1 chars long"),
    ("spec.checkpoint.path", "a:b", "spec.checkpoint.path", "should match"),
    ("spec.queue", "Research", "spec.queue", "should match"),
    ("spec.queue", "q" * 53, "spec.queue", "may not be more than 52 bytes"),
    ("spec.priorityClassName", "high priority", "spec.priorityClassName", "should match"),
    (f"{LIMITS}.nvidia~com/gpu", 0, "spec.template.spec.containers", NO_GPU),
    (f"{LIMITS}.nvidia~com/gpu", ..., "spec.template.spec.containers", NO_GPU),
    (f"{LIMITS}.nvidia~com/gpu", -1, "spec.template.spec.containers[0].resources.limits", WHOLE),
    (f"{LIMITS}.nvidia~com/gpu", "500m", "spec.template.spec.containers[0].resources.limits", WHOLE),
    (f"{LIMITS}.nvidia~com/gpu", "1.5", "spec.template.spec.containers[0].resources.limits", WHOLE),
    (f"{LIMITS}.nvidia~com/gpu", 1.5, f"spec.template.spec.containers[0].resources.limits.{GPU}", "of type integer"),
    (f"{LIMITS}.cpu", "lots", "spec.template.spec.containers[0].resources.limits.cpu", "should match"),
    ("spec.template.spec.containers", [], "spec.template.spec.containers", "should have at least 1 items"),
    ("spec.template.spec.containers.1.name", "trainer", "spec.template.spec.containers[1]", "Duplicate value"),
    ("spec.template.spec.containers.0.name", "Trainer", "spec.template.spec.containers[0].name", "should match"),
    ("spec.template.spec.volumes", 5, "spec.template.spec.volumes", 'must be of type array: "integer"'),
    ("spec.template.spec", ..., "spec.template.spec", "Required value"),
    ("spec.template.metadata.labels", ["a"], "spec.template.metadata.labels", 'must be of type object: "array"'),
    ("metadata.name", "a" * 53, "metadata.name", "has more than 52 characters; shorten it, as names of its pods must"),
    ("metadata.name", "1a", "metadata.name", LABEL),
    ("metadata.name", "a.b", "metadata.name", LABEL),
    ("metadata.name", "Upper", "metadata.name", "a lowercase RFC 1123 subdomain must consist of"),
    ("spec", ..., "spec", "Required value"),
)


@pytest.mark.parametrize(
    ("path", "value", "field", "message"), BAD, ids=[f"{row[0]}={str(row[1])[:20]}" for row in BAD]
)
def test_a_bad_job_is_refused_with_field_and_remedy(
    api_server: ApiServer, namespace: str, path: str, value: Any, field: str, message: str
) -> None:
    """Each row changes one field of a job that is right."""
    answer = api_server.api.post(jobs_of(namespace), json=changed(FULL, path, value), params={"dryRun": "All"})
    said = causes(answer)
    assert message in said.get(field, f"nothing; but: {said}")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("spec.timeBudget", "spec.timeBudget"),
        ("spec.time_budget_seconds", "spec.time_budget_seconds"),
        ("spec.training.model.nme", "spec.training.model.nme"),
        ("spec.adaptation.agent.uri", "spec.adaptation.agent.uri"),
    ],
)
def test_an_unknown_field_is_named(api_server: ApiServer, namespace: str, path: str, field: str) -> None:
    """As kubectl asks for it."""
    answer = api_server.kubectl(
        "apply", "-n", namespace, "-f", "-", stdin=json.dumps(changed(FULL, path, 1)), check=False
    )
    assert f'unknown field "{field}"' in answer


def test_a_bare_off_is_answered_with_the_field(api_server: ApiServer, namespace: str) -> None:
    """YAML as kubectl reads it makes `Off` false."""
    text = json.dumps(changed(MINIMAL, "spec.adaptation.mode", "Off")).replace('"Off"', "Off")
    said = api_server.kubectl("apply", "-n", namespace, "-f", "-", stdin=text, check=False)
    assert 'spec.adaptation.mode: Invalid value: "boolean"' in said


# ---- what is fixed

RUNS = {"scheduling": {"admittedAt": "2026-01-01T00:00:00Z"}}
TRAINED = {**RUNS, "startTime": "2026-01-01T00:00:10Z"}
SUSPENDED = {"scheduling": {"admittedAt": None}, "startTime": "2026-01-01T00:00:10Z"}
FIXED = (
    "is fixed from admission on; suspend the job (spec.suspend: true), change it once it is suspended, and resume it; "
    "or apply it under another name"
)
IMAGE = "spec.template.spec.containers.0.image"


@pytest.mark.parametrize(
    ("status", "path", "value", "field", "message"),
    [
        ({}, "spec.training.model", {"name": "cnn1"}, "", ""),
        ({}, IMAGE, "other:1", "", ""),
        (RUNS, IMAGE, "other:1", "spec.template", FIXED),
        (RUNS, "spec.template.spec.nodeSelector.zone", "b", "spec.template", FIXED),
        (RUNS, "spec.template.spec.priority", 7, "spec.template", FIXED),
        (RUNS, "spec.template", ..., "spec.template", FIXED),
        (RUNS, "spec.minReplicas", 1, "spec.minReplicas", FIXED),
        (RUNS, "spec.training.batchSize", 33, "spec.training", FIXED),
        (RUNS, "spec.training.model.options.width", 4, "spec.training", FIXED),
        (RUNS, "spec.training.model.options", {"width": 3, "other": [1, {"deep": None}]}, "spec.training", FIXED),
        (RUNS, "spec.maxReplicas", 9, "", ""),
        (RUNS, "spec.timeBudgetSeconds", 500, "", ""),
        (RUNS, "spec.suspend", False, "", ""),
        (RUNS, "spec.preemption.noticeSeconds", 3, "", ""),
        (SUSPENDED, IMAGE, "other:1", "", ""),
        (SUSPENDED, "spec.training.batchSize", 33, "", ""),
        (
            SUSPENDED,
            "spec.training.model",
            {"name": "cnn1"},
            "spec.training.model",
            "is fixed once the job has trained, as its checkpoints hold this model; apply it under another name",
        ),
        (SUSPENDED, "spec.training.dataset", {"name": "mnist"}, "spec.training.dataset", "is fixed once the job has"),
        (SUSPENDED, "spec.checkpoint.path", "/b", "spec.checkpoint.path", "as its checkpoints lie there"),
        (TRAINED, "spec.checkpoint.intervalSeconds", 2, "", ""),
    ],
)
def test_a_running_job_keeps_what_it_runs_by(
    api_server: ApiServer, namespace: str, status: dict[str, Any], path: str, value: Any, field: str, message: str
) -> None:
    """Template, model and workers; budgets and the most GPUs may change."""
    name = "fixed"
    where = f"{jobs_of(namespace)}/{name}"
    if api_server.api.get(where).status_code == 404:
        api_server.request("POST", jobs_of(namespace), changed(FULL, "metadata.name", name))
    reset = {"scheduling": {"admittedAt": None}, "startTime": None} | status
    stored = api_server.request("PATCH", f"{where}/status", {"status": reset})
    answer = api_server.api.put(where, json=changed(stored, path, value), params={"dryRun": "All"})
    if field:
        assert message in causes(answer).get(field, f"nothing; but: {answer.text}")
    else:
        assert answer.status_code == 200, answer.text
    same = api_server.api.put(where, json=stored, params={"dryRun": "All"})
    assert same.status_code == 200, "a job may always be applied as it is"


def test_a_finished_job_keeps_them_too(api_server: ApiServer, namespace: str) -> None:
    """It stays admitted, as nothing is taken back from its record."""
    api_server.request("POST", jobs_of(namespace), changed(FULL, "metadata.name", "finished"))
    done = {"status": {**TRAINED, "completionTime": "2026-01-01T01:00:00Z"}}
    stored = api_server.request("PATCH", f"{jobs_of(namespace)}/finished/status", done)
    answer = api_server.api.put(f"{jobs_of(namespace)}/finished", json=changed(stored, IMAGE, "other:1"))
    said = causes(answer)["spec.template"]
    assert "the job has finished; delete the job first, or apply it under another name" in said


# ---- how it is seen


def test_kubectl_get_tells_the_story(api_server: ApiServer, namespace: str) -> None:
    """Columns, short name, category, scale."""
    api_server.request("POST", jobs_of(namespace), changed(FULL, "metadata.name", "seen"))
    status = {
        "phase": "Running",
        "allocation": {"gpus": 6},
        "scheduling": {"extra": 1},
        "training": {"depth": 5},
        "adaptationCount": 2,
        "timeBudget": {"remainingSeconds": 351.87},
        "restarts": 4,
        "replicas": 3,
        "selector": "espalier.dev/job=seen",
    }
    api_server.request("PATCH", f"{jobs_of(namespace)}/seen/status", {"status": status})
    head, row = api_server.kubectl("get", "atj", "seen", "-n", namespace).splitlines()
    assert head.split() == ["NAME", "PHASE", "GPUS", "EXTRA", "DEPTH", "ADAPTATIONS", "BUDGET-LEFT", "AGE"]
    assert row.split()[:-1] == ["seen", "Running", "6", "1", "5", "2", "351"]
    head, row = api_server.kubectl("get", "espalier", "seen", "-n", namespace, "-o", "wide", check=False).splitlines()
    assert head.split()[-3:] == ["RESTARTS", "QUEUE", "AGE"]
    assert row.split()[-3:-1] == ["4", "research"]
    api_server.kubectl("scale", "atj/seen", "-n", namespace, "--replicas=9")
    assert api_server.request("GET", f"{jobs_of(namespace)}/seen")["spec"]["maxReplicas"] == 9
    scale = api_server.request("GET", f"{jobs_of(namespace)}/seen/scale")
    assert scale["status"] == {"replicas": 3, "selector": "espalier.dev/job=seen"}


def test_kubectl_explain_says_what_the_models_say(api_server: ApiServer) -> None:
    """Descriptions come from docstrings, those of enum members too."""
    said = api_server.kubectl("explain", "atj.spec.adaptation.mode")
    assert "What is done with the agent's advice." in said
    assert "`DryRun`: Ask and record, change nothing." in said
    assert "preemptions do not count" in api_server.kubectl("explain", "atj.spec.backoffLimit")


# ---- everything else that can be sent


_NAMED = re.compile(
    r'unknown field "|duplicate field "|into Go struct field ObjectMeta\.\w+|into Go value of type v1\.ObjectMeta'
    r"|apiVersion|API version|in version|kind|Kind|the namespace of the provided object|the name of the object"
)
"""How an answer to a document that cannot be decoded names the field."""
_NUMBER = re.compile(r"cannot unmarshal number (\S+) into Go value of type float64")
SERVER_ALONE = ("metadata", "a fraction as a number", "a number that no computer has", "unread")
"""What the server refuses and the models take: metadata and status are not theirs to check; `cpu: 0.5` must be text in
every custom resource; a key that is there twice, or 1e400, is read by Python."""
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
        assert not sent.places or any(_near(field, place) for field in said for place in sent.places), (message, sent)
        return "refused by its fields"
    assert answer.status_code == 400, answer.text
    if not _is_json(sent.text):
        return "refused as no JSON"
    if _NAMED.search(message):
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


def _is_json(text: str) -> bool:
    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        json.loads(text.removeprefix("\ufeff"), parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


@pytest.mark.slow
def test_whatever_is_sent_is_refused_by_name_or_understood(
    api_server: ApiServer, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten thousand jobs changed at random and some by hand; and what the models take, the server takes."""
    outcomes: Counter[str] = Counter()
    narrower: Counter[str] = Counter()

    def send(sent: Mutated) -> None:
        # Two of three as kubectl does it, the third as a client that does not ask for unknown fields to be refused.
        validation = "Ignore" if sum(outcomes.values()) % 3 == 0 else "Strict"
        answer = api_server.api.post(
            jobs_of(namespace),
            content=sent.text.encode("utf-8", "surrogatepass"),
            params={"dryRun": "All", "fieldValidation": validation},
            headers={"Content-Type": "application/json"},
        )
        outcomes[judge(answer, sent)] += 1
        if answer.is_error and understood(sent.text):
            narrower[narrower_by(answer)] += 1

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
