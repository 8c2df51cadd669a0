"""The HTTP service, route by route: what it answers, and how it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from espalier_agent.advice import decide
from espalier_agent.data import named_architecture
from espalier_agent.policy import Policy
from espalier_agent.policy_files import PolicyError, save_policy
from espalier_agent.service import Settings, create_app
from espalier_api.advice import AdviceRequest, AdviceResponse, OutcomeReceipt
from espalier_api.architecture import Architecture, Layer

Send = Callable[[FastAPI, Sequence[tuple[str, str, dict[str, Any]]]], list[httpx.Response]]
Ask = Callable[..., httpx.Response]

OPENAPI_FILE = Path(__file__).parents[3] / "docs" / "openapi" / "agent.json"
OUTCOME = {"job": "digits", "decisionIds": ["a", "b"], "finalAccuracy": 0.9, "timeBudgetSeconds": 20}


def question(**changes: Any) -> dict[str, Any]:
    body = {
        "job": "cifar10",
        "architecture": named_architecture("cnn1").to_json(),
        "timeLeftSeconds": 330.0,
        "timeBudgetSeconds": 400.0,
        "allocation": {"generation": 2, "replicas": 2, "gpus": 2, "direction": "up"},
        "progress": {"epoch": 3, "step": 300, "metrics": [{"name": "accuracy", "value": 0.5}]},
    }
    return {**body, **changes}


@pytest.fixture
def ask(policy: Policy, call: Send) -> Ask:
    """Return a function that sends one request to a service with the shipped policy."""

    def send(method: str, url: str, settings: Settings | None = None, **options: Any) -> httpx.Response:
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
    "a layer twice": (
        with_architecture(layers=[{"name": "a", "operator": "Input"}] * 2),
        "architecture",
        "'a' is there twice",
    ),
    "an edge from nowhere": (
        with_architecture(layers=[{"name": "a", "operator": "ReLU", "inputs": ["b"]}]),
        "architecture",
        "reads 'b', which does not come before it",
    ),
    "an output that is no layer": (with_architecture(outputs=["x"]), "architecture", "output 'x' is not a layer"),
    "a nested attribute": (
        with_architecture(layers=[{"name": "a", "operator": "ReLU", "attributes": {"x": {"y": 1}}}]),
        "architecture.layers.0.attributes.x",
        "and",
    ),
    "an unknown kind of action": (
        question(allowedActions=[{"kind": "Explode", "target": "block0"}]),
        "allowedActions.0.kind",
        "'Deepen' or 'Nothing'",
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
    small = Settings(max_body_bytes=1000)
    response = ask("POST", "/v1/advice", settings=small, content=b"x" * 1001)
    assert response.status_code == 413
    assert response.json() == {"code": "BodyTooLarge", "message": "the request has more than 1000 bytes"}
    assert ask("GET", "/healthz", settings=small).status_code == 200


def test_a_fault_of_our_own_answers_500_without_its_details(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("inner secret")

    monkeypatch.setattr("espalier_agent.service.decide", broken)
    response = ask("POST", "/v1/advice", json=question())
    assert response.status_code == 500
    assert response.json() == {"code": "InternalError", "message": "the agent failed; its log says why"}
    assert "inner secret" in caplog.text


def test_policy_shows_its_lineage(ask: Ask, policy: Policy) -> None:
    shown = ask("GET", "/v1/policy").json()
    assert shown["policy"] == {"name": policy.name, "version": policy.version}
    assert shown["growthPoints"] == policy.network.config.growth_points
    assert shown["vocabularySize"] == len(policy.vocabulary)
    assert shown["lineage"]["learner"] == "reinforce"


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
    (response,) = call(create_app(Settings(policy_path=tmp_path / "mine")), [("GET", "/v1/policy", {})])
    assert response.json()["policy"]["version"] == policy.version


def test_start_up_ends_where_the_policy_cannot_be_read(call: Send, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"policy\.json: cannot be read"):
        call(create_app(Settings(policy_path=tmp_path)), [("GET", "/healthz", {})])


def test_outcomes_are_on_disk_when_they_are_acknowledged(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "new" / "outcomes.jsonl"
    settings = Settings(outcomes_path=path)
    for _ in range(2):
        response = ask("POST", "/v1/outcomes", settings=settings, json=OUTCOME)
        assert OutcomeReceipt.model_validate(response.json()).accepted == 2
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["decisionIds"] for line in lines] == [["a", "b"]] * 2
    assert lines[0]["time"] <= lines[1]["time"]


def test_a_line_cut_off_costs_itself_alone(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_text('{"job": "a"}\n{"job": "b", "decisi')
    ask("POST", "/v1/outcomes", settings=Settings(outcomes_path=path), json=OUTCOME)
    first, cut, last = path.read_text().splitlines()
    assert json.loads(first)["job"] == "a"
    assert cut == '{"job": "b", "decisi'
    assert json.loads(last)["job"] == "digits"


def test_without_a_log_nothing_is_taken_in(ask: Ask) -> None:
    assert ask("POST", "/v1/outcomes", json=OUTCOME).json() == {"accepted": 0}


def test_an_outcome_that_cannot_be_stored_says_so_and_advice_goes_on(ask: Ask) -> None:
    full = Settings(outcomes_path=Path("/dev/full"))
    response = ask("POST", "/v1/outcomes", settings=full, json=OUTCOME)
    assert response.status_code == 503
    assert response.json()["code"] == "OutcomeNotStored"
    assert "No space left" in response.json()["message"]
    assert ask("POST", "/v1/advice", settings=full, json=question()).status_code == 200


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"finalAccuracy": 1.5}, "finalAccuracy"),
        ({"decisionIds": "a"}, "decisionIds"),
        ({"timeBudgetSeconds": 0}, "timeBudgetSeconds"),
    ],
)
def test_an_outcome_that_cannot_be_is_refused(ask: Ask, change: dict[str, Any], field: str) -> None:
    response = ask("POST", "/v1/outcomes", json={**OUTCOME, **change})
    assert (response.status_code, response.json()["field"]) == (422, field)


def test_many_at_once_are_answered_as_one_by_one(call: Send, policy: Policy, tmp_path: Path) -> None:
    app = create_app(Settings(outcomes_path=tmp_path / "o.jsonl"), policy)
    models = [named_architecture(name).deepen(point) for name in ("cnn1", "cnn2") for point in ("block0", "block2")]
    questions = [
        question(architecture=m.to_json(), timeLeftSeconds=left) for m in models for left in range(10, 400, 40)
    ]
    calls = [("POST", "/v1/advice", {"json": body}) for body in questions]
    outcomes = [("POST", "/v1/outcomes", {"json": {**OUTCOME, "job": f"job{index}"}}) for index in range(40)]
    together = call(app, [*calls, *outcomes])
    alone = [call(app, [one])[0] for one in calls]
    assert all(response.status_code == 200 for response in together)
    assert [r.json()["probabilities"] for r in together[: len(calls)]] == [r.json()["probabilities"] for r in alone]
    jobs = [json.loads(line)["job"] for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert sorted(jobs) == sorted(f"job{index}" for index in range(40))


def test_the_openapi_file_is_that_of_the_service() -> None:
    """After a deliberate change: `espalier agent openapi > docs/openapi/agent.json`."""
    assert json.loads(OPENAPI_FILE.read_text()) == create_app().openapi()
