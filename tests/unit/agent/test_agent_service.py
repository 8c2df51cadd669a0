"""The HTTP service, route by route: what it answers, and how it refuses."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from bodies import OUTCOME, QUESTION
from fastapi import FastAPI
from jobs_world import locked
from prometheus_client.parser import text_string_to_metric_families

from espalier_agent.data import named_architecture
from espalier_agent.history import decisions
from espalier_agent.policies.advice import Exploration, decide
from espalier_agent.policies.policy import Policy, save_policy
from espalier_agent.service.app import create_app
from espalier_agent.service.serving import ServiceSettings
from espalier_core.growth.architecture import Architecture, Layer
from espalier_core.growth.deepen import deepened
from espalier_core.types.advice import AdviceRequest, AdviceResponse, OutcomeReceipt

Send = Callable[[FastAPI, Sequence[tuple[str, str, dict[str, Any]]]], list[httpx.Response]]
Ask = Callable[..., httpx.Response]

OPENAPI_FILE = Path(__file__).parents[3] / "docs" / "reference" / "agent.json"


def question(**changes: Any) -> dict[str, Any]:
    return {**QUESTION, **changes}


@pytest.fixture
def ask(policy: Policy, call: Send) -> Ask:
    """Return a function that sends one request to a service with the shipped policy."""

    def send(method: str, url: str, settings: ServiceSettings | None = None, **options: Any) -> httpx.Response:
        return call(create_app(settings, policy), [(method, url, options)])[0]

    return send


def test_advice(ask: Ask, policy: Policy) -> None:
    response = ask("POST", "/v1/advice", json=question())
    assert response.status_code == 200
    answer = AdviceResponse.model_validate(response.json())
    assert answer.action == decide(policy, AdviceRequest.model_validate(question())).action
    assert answer.policy == policy.identity
    assert [str(entry.action) for entry in answer.probabilities][-1] == "Nothing"
    assert sum(entry.probability for entry in answer.probabilities) == pytest.approx(1)
    assert "target" not in response.json()["probabilities"][-1]["action"]


def test_metrics_count_what_was_asked_and_answered(call: Send, policy: Policy) -> None:
    strange = Architecture(
        layers=(Layer(name="input", operator="Input"), Layer(name="a", operator="Quantum")), outputs=("a",)
    )
    unknown = json.loads(strange.model_dump_json(by_alias=True))
    questions = [question(), question(architecture=unknown)]
    asked: list[tuple[str, str, dict[str, Any]]] = [("POST", "/v1/advice", {"json": body}) for body in questions]
    wrong: list[tuple[str, str, dict[str, Any]]] = [("POST", "/v1/advice", {"json": {}}), ("GET", "/else", {})]
    app = create_app(None, policy)
    call(app, [*asked, *wrong, ("POST", "/v1/outcomes", {"json": OUTCOME})])
    (scrape,) = call(app, [("GET", "/metrics", {})])
    assert scrape.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in text_string_to_metric_families(scrape.text)
        for sample in metric.samples
    }
    assert samples["espalier_agent_requests_total", "200", "/v1/advice"] == 2
    assert samples["espalier_agent_requests_total", "422", "/v1/advice"] == 1
    assert samples["espalier_agent_requests_total", "404", "other"] == 1
    assert samples["espalier_agent_advice_seconds_count",] == 2
    assert sum(value for (name, *_), value in samples.items() if name == "espalier_agent_advice_total") == 2
    assert samples["espalier_agent_unknown_layers_total",] >= 1
    assert samples["espalier_agent_outcomes_total",] == 2
    assert samples["espalier_agent_policy_info", policy.identity.name, policy.identity.version] == 1


def test_every_decision_has_its_own_id(call: Send, policy: Policy) -> None:
    responses = call(create_app(None, policy), [("POST", "/v1/advice", {"json": question()})] * 20)
    assert len({response.json()["decisionId"] for response in responses}) == 20


def test_allowed_actions_are_kept_to(ask: Ask) -> None:
    allowed = [{"kind": "Deepen", "target": "block2"}]
    answer = ask("POST", "/v1/advice", json=question(allowedActions=allowed)).json()
    assert [entry["action"] for entry in answer["probabilities"]] == [*allowed, {"kind": "Nothing"}]


def test_only_the_minimum_need_be_said_and_unknown_fields_are_left_aside(ask: Ask) -> None:
    body = {key: question()[key] for key in ("job", "architecture", "timeLeftSeconds", "timeBudgetSeconds")}
    assert ask("POST", "/v1/advice", json=body).status_code == 200
    assert ask("POST", "/v1/advice", json={**body, "fromTheFuture": [1]}).status_code == 200


def test_a_model_it_has_not_seen_is_answered(ask: Ask) -> None:
    branched = Architecture(
        layers=(
            Layer(name="input", operator="Input"),
            Layer(name="left", operator="Quantum", attributes={"\ud800": "é", "size": 10**40}, inputs=("input",)),
            Layer(name="right", operator="Conv3d", attributes={"kernel_size": (1, 2, 3)}, inputs=("input",)),
            Layer(name="sum", operator="Add", inputs=("left", "right")),
        ),
        outputs=("sum", "left"),
    )
    text = json.dumps(question(architecture=branched.model_dump(mode="python", by_alias=True)))
    response = ask("POST", "/v1/advice", content=text.encode(), headers={"content-type": "application/json"})
    assert response.status_code == 200
    assert response.json()["action"] == {"kind": "Nothing"}


def without(key: str) -> dict[str, Any]:
    body = question()
    del body[key]
    return body


def with_architecture(**changes: Any) -> dict[str, Any]:
    return question(architecture={**named_architecture("cnn1").to_json(), **changes})


HALF_A_CHARACTER = {
    "id": "\ud800",
    "kind": "Linear",
    "after": "a",
    "block": "b",
    "insertion": [{"name": "c", "operator": "Linear"}],
}

MALFORMED: dict[str, tuple[str | bytes | dict[str, Any] | list[Any] | None, str | None, str]] = {
    "nothing": (b"", None, "Field required"),
    "not JSON": (b"{'job': 1}", None, "the body is not JSON"),
    "half of it": (json.dumps(question())[:200], None, "the body is not JSON"),
    "a list": ([], None, "valid dictionary"),
    "null": (b"null", None, "valid dictionary"),
    "no job": (without("job"), "job", "Field required"),
    "no architecture": (without("architecture"), "architecture", "Field required"),
    "no time left": (without("timeLeftSeconds"), "timeLeftSeconds", "Field required"),
    "time left is text": (question(timeLeftSeconds="soon"), "timeLeftSeconds", "valid number"),
    "time left is negative": (question(timeLeftSeconds=-1), "timeLeftSeconds", "greater than or equal to 0"),
    "time left is NaN": (json.dumps(question(timeLeftSeconds=float("nan"))), "timeLeftSeconds", "finite"),
    "budget is infinite": (json.dumps(question(timeBudgetSeconds=float("inf"))), "timeBudgetSeconds", "finite"),
    "budget is zero": (question(timeBudgetSeconds=0), "timeBudgetSeconds", "greater than 0"),
    "no layers": (with_architecture(layers=[]), "architecture.layers", "at least 1"),
    "a nested attribute": (
        with_architecture(layers=[{"name": "a", "operator": "ReLU", "attributes": {"x": {"y": 1}}}]),
        "architecture.layers.0.attributes.x",
        "and",
    ),
    "a growth point of half a character": (
        json.dumps(with_architecture(growthPoints=[HALF_A_CHARACTER])),
        "architecture.growthPoints.0.id",
        "valid string",
    ),
    "a group of half a character": (
        json.dumps(
            with_architecture(channels={"groups": [{"id": "\udfff", "width": 1, "makers": [], "carriers": {}}]})
        ),
        "architecture.channels.groups.0.id",
        "valid string",
    ),
    "an unknown kind of action": (
        question(allowedActions=[{"kind": "Explode", "target": "block0"}]),
        "allowedActions.0.kind",
        "'Deepen', 'Widen', 'AddBlock' or 'Nothing'",
    ),
    "targets of an operation that is not installed": (
        with_architecture(targets={"Twice": ["block0"]}),
        "architecture",
        "'Deepen', 'Widen' or 'AddBlock'",
    ),
    "more parameters than a float can count": (
        with_architecture(layers=[{"name": "a", "operator": "Linear", "parameters": 10**400}]),
        "architecture.layers.0.parameters",
        "less than or equal to 1152921504606846976",
    ),
    "deepen without a target": (
        question(allowedActions=[{"kind": "Deepen"}]),
        "allowedActions.0",
        "a Deepen action needs a target",
    ),
    "an unknown direction": (question(allocation={"direction": "sideways"}), "allocation.direction", "'up'"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_cannot_be_understood_is_refused_in_one_shape(ask: Ask, case: str) -> None:
    body, field, message = MALFORMED[case]
    if isinstance(body, str | bytes):
        response = ask("POST", "/v1/advice", content=body, headers={"content-type": "application/json"})
    else:
        response = ask("POST", "/v1/advice", json=body)
    assert response.status_code == 422, response.text
    error = response.json()
    assert set(error) == {"code", "message"} | ({"field"} if field else set())
    assert error["code"] == "InvalidRequest"
    assert error.get("field") is None if field is None else error["field"].startswith(field)
    assert message in error["message"]
    assert len(response.content) < 1000


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/x-www-form-urlencoded"}])
def test_json_that_is_not_called_json_names_the_header_that_is_missing(ask: Ask, headers: dict[str, str]) -> None:
    response = ask("POST", "/v1/advice", content=json.dumps(question()), headers=headers)
    assert response.status_code == 422
    assert response.json() == {
        "code": "InvalidRequest",
        "message": "the body is not read as JSON: send the header `Content-Type: application/json`",
    }


@pytest.mark.parametrize(
    ("method", "url", "status", "code"),
    [
        ("GET", "/v1/advice", 405, "MethodNotAllowed"),
        ("GET", "/v2/advice", 404, "NotFound"),
        ("GET", "/docs", 404, "NotFound"),
    ],
)
def test_other_errors_have_the_same_shape(ask: Ask, method: str, url: str, status: int, code: str) -> None:
    response = ask(method, url)
    assert response.status_code == status
    assert response.json()["code"] == code
    assert response.json()["message"].startswith(f"{method} {url}: ")


def test_a_body_that_is_not_text_is_refused(ask: Ask) -> None:
    response = ask("POST", "/v1/advice", content=b'{"job": "\xff\xfe"}', headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["code"] == "BadRequest"


def test_a_body_too_large_is_refused_before_it_is_parsed(ask: Ask) -> None:
    small = ServiceSettings(max_body_bytes=1000)
    response = ask("POST", "/v1/advice", settings=small, content=b"x" * 1001)
    assert response.status_code == 413
    assert response.json() == {"code": "BodyTooLarge", "message": "the request has more than 1000 bytes"}
    assert ask("GET", "/healthz", settings=small).status_code == 200


def test_a_fault_of_our_own_answers_500_without_its_details_and_is_counted(
    call: Send, policy: Policy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("inner secret")

    monkeypatch.setattr("espalier_agent.service.app.decide", broken)
    app = create_app(None, policy)
    (response,) = call(app, [("POST", "/v1/advice", {"json": question()})])
    assert response.status_code == 500
    assert response.json() == {"code": "InternalError", "message": "the agent failed; its log says why"}
    assert "inner secret" in caplog.text
    (scrape,) = call(app, [("GET", "/metrics", {})])
    assert 'espalier_agent_requests_total{code="500",route="/v1/advice"} 1.0' in scrape.text


def test_policy_shows_its_lineage(ask: Ask, policy: Policy) -> None:
    shown = ask("GET", "/v1/policy").json()
    assert shown["policy"] == {"name": policy.name, "version": policy.version}
    assert shown["growthPoints"] == policy.network.config.growth_points
    assert shown["vocabularySize"] == len(policy.vocabulary)
    assert shown["lineage"] == policy.lineage.to_json()
    assert {"learner", "config", "seed", "tables"} <= set(shown["lineage"])
    assert all(len(table["sha256"]) == 64 for table in shown["lineage"]["tables"])
    assert "shadow" not in shown


def test_health_and_readiness(call: Send, policy: Policy) -> None:
    app = create_app(None, policy)
    health, ready = call(app, [("GET", "/healthz", {}), ("GET", "/readyz", {})])
    assert (health.status_code, ready.status_code) == (200, 200)


def test_without_a_policy_it_lives_but_is_not_ready() -> None:
    async def before_start_up() -> list[httpx.Response]:
        # No lifespan here: the process answers, its policy is not loaded yet.
        transport = httpx.ASGITransport(app=create_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
            return [await client.get(url) for url in ("/healthz", "/readyz", "/v1/policy")]

    health, ready, policy = asyncio.run(before_start_up())
    assert health.status_code == 200
    assert (ready.status_code, policy.status_code) == (503, 503)
    assert ready.json()["code"] == "NotReady"


def test_start_up_loads_the_policy_that_is_set(call: Send, policy: Policy, tmp_path: Path) -> None:
    save_policy(policy, tmp_path / "mine")
    (response,) = call(create_app(ServiceSettings(policy_path=tmp_path / "mine")), [("GET", "/v1/policy", {})])
    assert response.json()["policy"]["version"] == policy.version


def test_outcomes_are_on_disk_when_they_are_acknowledged(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "new" / "outcomes.db"
    settings = ServiceSettings(outcomes_path=path)
    for _ in range(2):
        response = ask("POST", "/v1/outcomes", settings=settings, json=OUTCOME)
        assert OutcomeReceipt.model_validate(response.json()).accepted == 2
    with closing(sqlite3.connect(path)) as connection:
        stored = connection.execute("SELECT decision_id, job, final_accuracy FROM outcomes").fetchall()
    assert stored == [("a", "cifar10", 0.9), ("b", "cifar10", 0.9)]


def test_a_forecast_is_answered_as_advice_is_and_not_kept(call: Send, policy: Policy, tmp_path: Path) -> None:
    path = tmp_path / "outcomes.db"
    settings = ServiceSettings(outcomes_path=path, exploration=Exploration(share=1.0))
    bodies = [question(forecast=True)] * 20 + [question()]
    asked: list[tuple[str, str, dict[str, Any]]] = [("POST", "/v1/advice", {"json": body}) for body in bodies]
    *answers, kept = [response.json() for response in call(create_app(settings, policy), asked)]
    advised = decide(policy, AdviceRequest.model_validate(question())).action
    assert {str(AdviceResponse.model_validate(answer).action) for answer in answers} == {str(advised)}
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT decision_id FROM decisions").fetchall() == [(kept["decisionId"],)]


def test_an_id_that_is_there_twice_counts_once(call: Send, policy: Policy, tmp_path: Path) -> None:
    app = app_with(policy, tmp_path / "outcomes.db")
    report = {**OUTCOME, "decisionIds": ["a", "b", "a"]}
    (response,) = call(app, [("POST", "/v1/outcomes", {"json": report})])
    assert response.json() == {"accepted": 2}
    (scrape,) = call(app, [("GET", "/metrics", {})])
    assert "espalier_agent_outcomes_total 2.0" in scrape.text


def test_each_answer_is_kept_as_it_was_given(call: Send, policy: Policy, tmp_path: Path) -> None:
    path = tmp_path / "outcomes.db"
    strange = Architecture(
        layers=(Layer(name="input", operator="Input"), Layer(name="a", operator="Q", attributes={"\ud800": 10**40})),
        outputs=("a",),
    )
    bodies = [question(), question(architecture=strange.model_dump(mode="python", by_alias=True), job="é")]
    headers = {"content-type": "application/json"}
    calls = [("POST", "/v1/advice", {"content": json.dumps(body).encode(), "headers": headers}) for body in bodies]
    answers = [AdviceResponse.model_validate(each.json()) for each in call(app_with(policy, path), calls)]
    kept = {decision.decision_id: decision for decision in decisions(path)}
    assert len(kept) == 2
    for body, answer in zip(bodies, answers, strict=True):
        decision = kept[answer.decision_id]
        request = AdviceRequest.model_validate(body)
        # As JSON: half a surrogate pair is no text, and is kept as a mark in its place.
        assert decision.architecture.to_json() == request.architecture.to_json()
        assert (decision.job, decision.actions) == (body["job"], request.actions())
        assert (decision.allocation, decision.progress) == (request.allocation, request.progress)
        assert decision.probabilities == tuple(entry.probability for entry in answer.probabilities)
        assert (decision.action, decision.policy) == (answer.action, answer.policy)


def app_with(policy: Policy, path: Path) -> FastAPI:
    return create_app(ServiceSettings(outcomes_path=path), policy)


def test_without_a_database_nothing_is_taken_in(ask: Ask) -> None:
    assert ask("POST", "/v1/outcomes", json=OUTCOME).json() == {"accepted": 0}


def test_an_outcome_that_cannot_be_stored_says_so_and_advice_goes_on(
    call: Send, policy: Policy, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    app = app_with(policy, tmp_path / "file" / "outcomes.db")
    report: tuple[str, str, dict[str, Any]] = ("POST", "/v1/outcomes", {"json": OUTCOME})
    refused, advised = call(app, [report, ("POST", "/v1/advice", {"json": question()})])
    assert refused.status_code == 503
    assert refused.json()["code"] == "OutcomeNotStored"
    assert "not stored: " in refused.json()["message"]
    assert advised.status_code == 200
    (scrape,) = call(app, [("GET", "/metrics", {})])
    assert 'espalier_agent_records_lost_total{error="Unwritable"} 2.0' in scrape.text


def test_a_locked_database_holds_up_a_report_for_a_second_and_advice_not_at_all(
    call: Send, policy: Policy, tmp_path: Path
) -> None:
    path = tmp_path / "outcomes.db"
    app = app_with(policy, path)
    call(app, [("POST", "/v1/outcomes", {"json": OUTCOME})])
    with locked(path):
        report: tuple[str, str, dict[str, Any]] = ("POST", "/v1/outcomes", {"json": {**OUTCOME, "finalAccuracy": 0.1}})
        answers = call(app, [report, *[("POST", "/v1/advice", {"json": question()})] * 5])
    assert [answer.status_code for answer in answers] == [503, *[200] * 5]
    assert "not committed within 0.9 s; report it again" in answers[0].json()["message"]


def test_many_at_once_are_answered_as_one_by_one(call: Send, policy: Policy, tmp_path: Path) -> None:
    app = app_with(policy, tmp_path / "o.db")
    models = [deepened(named_architecture(name), point) for name in ("cnn1", "cnn2") for point in ("block0", "block2")]
    questions = [
        question(architecture=m.to_json(), timeLeftSeconds=left) for m in models for left in range(10, 400, 40)
    ]
    calls = [("POST", "/v1/advice", {"json": body}) for body in questions]
    outcomes = [
        ("POST", "/v1/outcomes", {"json": {**OUTCOME, "job": f"job{index}", "decisionIds": [f"a{index}", f"b{index}"]}})
        for index in range(40)
    ]
    together = call(app, [*calls, *outcomes])
    alone = [call(app, [one])[0] for one in calls]
    assert all(response.status_code == 200 for response in together)
    assert [r.json()["probabilities"] for r in together[: len(calls)]] == [r.json()["probabilities"] for r in alone]
    kept = list(decisions(tmp_path / "o.db"))
    # `alone` was asked of the same service.
    assert len(kept) == 2 * len(calls)
    assert {decision.decision_id for decision in kept} >= {r.json()["decisionId"] for r in together[: len(calls)]}
    with closing(sqlite3.connect(tmp_path / "o.db")) as connection:
        assert connection.execute("SELECT count(*), max(job) FROM outcomes").fetchone() == (80, "job9")


def test_the_openapi_file_is_that_of_the_service() -> None:
    """After a deliberate change: `espalier agent openapi > docs/reference/agent.json`."""
    assert json.loads(OPENAPI_FILE.read_text()) == create_app().openapi()
