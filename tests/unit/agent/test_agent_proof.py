"""Who may report an outcome: the proof of the job, its review, and the limits of reviews."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bodies
import httpx
import pytest
from click.testing import CliRunner
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from espalier_agent.commands.serve import serve
from espalier_agent.history import decisions
from espalier_agent.policies.policy import Policy
from espalier_agent.service.app import create_app
from espalier_agent.service.middleware import ServiceError
from espalier_agent.service.proof import KEPT, REVIEWS_AT_ONCE, Authentication, Proofs, Review, ReviewError, claimed_job
from espalier_agent.service.serving import ServiceSettings
from espalier_core.types.advice import JobIdentity

Send = Callable[[FastAPI, Sequence[tuple[str, str, dict[str, Any]]]], list[httpx.Response]]

MINE = JobIdentity("team-a", "digits", "uid-1")
OUTCOME, QUESTION = ({**body, "job": MINE.key} for body in (bodies.OUTCOME, bodies.QUESTION))


def token(audience: object = MINE.audience, account: str = "team-a:digits-trainer", mark: str = "") -> str:
    """Return an unsigned token; `ApiServer` below accepts it."""
    claims = {"aud": audience, "sub": f"system:serviceaccount:{account}", "mark": mark}
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{payload}.sig"


class ApiServer:
    """Reviews tokens of `token`, those marked `forged` excepted; counts reviews."""

    def __init__(self) -> None:
        self.reviews: list[str] = []
        self.error: str | None = None

    def __call__(self, token: str, audience: str) -> Review:
        self.reviews.append(audience)
        if self.error:
            raise ReviewError(self.error)
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        if claims["mark"] == "forged":
            return Review(False, error="invalid bearer token")
        if claims["mark"] == "other audience":
            return Review(True, claims["sub"], ("https://kubernetes.default.svc",))
        return Review(True, claims["sub"], (audience,))


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
def report(call: Send, policy: Policy, server: ApiServer) -> Callable[..., httpx.Response]:
    def send(header: str | None, **changes: Any) -> httpx.Response:
        app = create_app(ServiceSettings(authentication=Authentication.TOKEN_REVIEW), policy, server)
        headers = {} if header is None else {"authorization": header}
        return call(app, [("POST", "/v1/outcomes", {"json": {**OUTCOME, **changes}, "headers": headers})])[0]

    return send


def test_the_leader_of_the_job_may_report(report: Callable[..., httpx.Response], server: ApiServer) -> None:
    assert report(f"Bearer {token()}").status_code == 200
    assert report(f"bearer {token([MINE.audience])}").status_code == 200
    assert server.reviews == ["espalier-agent/team-a/digits/uid-1"] * 2


@pytest.mark.parametrize(
    ("header", "status", "message"),
    [
        (None, 401, "file that ESPALIER_AGENT_TOKEN_FILE names"),
        ("Basic YTpi", 401, "send the header `Authorization: Bearer TOKEN`"),
        ("Bearer ", 401, "carries no proof"),
        ("Bearer garbage", 401, "its one audience must be espalier-agent/NAMESPACE/NAME/UID"),
        ("Bearer a.b.c", 401, "names no job"),
        ("Bearer " + "x" * 9000, 401, "has 9000 characters; at most 8192"),
        (f"Bearer {token('https://kubernetes.default.svc')}", 401, "names no job"),
        (f"Bearer {token([MINE.audience, 'api'])}", 401, "names no job"),
        (f"Bearer {token('espalier-agent/team-a//uid')}", 401, "names no job"),
        (f"Bearer {token('espalier-agent/team-a/other/uid')}", 403, "is for job 'team-a/other'"),
        (f"Bearer {token(account='team-b:digits-trainer')}", 403, "a ServiceAccount in namespace 'team-a'"),
        (f"Bearer {token(account='team-a')}", 403, "'system:serviceaccount:team-a'"),
        (f"Bearer {token(mark='forged')}", 401, "does not accept the token: invalid bearer token"),
        (
            f"Bearer {token(mark='other audience')}",
            401,
            "it is not for the audience espalier-agent/team-a/digits/uid-1",
        ),
    ],
)
def test_who_is_not_is_refused_and_reads_why(
    report: Callable[..., httpx.Response], header: str | None, status: int, message: str
) -> None:
    answer = report(header)
    assert (answer.status_code, answer.json()["code"]) == (status, "Unauthenticated" if status == 401 else "Forbidden")
    assert message in answer.json()["message"]
    assert ("www-authenticate" in answer.headers) is (status == 401)


def test_where_the_api_server_cannot_answer_the_report_is_to_be_repeated(
    report: Callable[..., httpx.Response], server: ApiServer
) -> None:
    server.error = "the agent may not review tokens"
    answer = report(f"Bearer {token()}")
    assert (answer.status_code, answer.json()["code"]) == (503, "ProofNotChecked")
    assert "the agent may not review tokens" in answer.json()["message"]


def test_what_is_not_of_a_job_needs_no_proof(call: Send, policy: Policy, server: ApiServer) -> None:
    app = create_app(
        ServiceSettings(authentication=Authentication.TOKEN_REVIEW, advice_needs_token=True), policy, server
    )
    asked = [("GET", "/v1/policy", {}), ("GET", "/readyz", {}), ("GET", "/metrics", {})]
    assert [answer.status_code for answer in call(app, asked)] == [200, 200, 200]
    assert not server.reviews


@pytest.mark.parametrize(
    ("header", "error", "refused", "allowed"),
    [
        (f"Bearer {token()}", None, 200, 200),
        (None, None, 401, 200),
        (f"Bearer {token()}", "the API server is away", 503, 200),
        (f"Bearer {token(mark='forged')}", None, 401, 401),
        ("Basic YTpi", None, 401, 401),
        (f"Bearer {token('espalier-agent/team-a/other/uid')}", None, 403, 403),
        (f"Bearer {token(account='team-b:digits-trainer')}", None, 403, 403),
    ],
)
def test_advice_is_for_the_leader_of_the_job_or_for_now_whoever_shows_no_token(
    call: Send,
    policy: Policy,
    server: ApiServer,
    caplog: pytest.LogCaptureFixture,
    header: str | None,
    error: str | None,
    refused: int,
    allowed: int,
) -> None:
    server.error = error
    headers = {} if header is None else {"authorization": header}
    for needed, status in ((True, refused), (False, allowed)):
        for forecast in (False, True):
            settings = ServiceSettings(authentication=Authentication.TOKEN_REVIEW, advice_needs_token=needed)
            app, question = create_app(settings, policy, server), {**QUESTION, "forecast": forecast}
            caplog.clear()
            answers = call(app, [("POST", "/v1/advice", {"json": question, "headers": headers})] * 3)
            assert {answer.status_code for answer in answers} == {status}
            warned = [each.message for each in caplog.records if "without proof" in each.message]
            assert len(warned) == (status == 200 != refused), "once for each job"
            assert all(MINE.key in each and "the next release refuses" in each for each in warned)


def test_a_laptop_needs_no_proof_and_a_process_outside_of_a_cluster_cannot_ask_for_it(
    call: Send, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (answer,) = call(create_app(None, policy), [("POST", "/v1/outcomes", {"json": OUTCOME})])
    assert answer.status_code == 200
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner().invoke(serve, ["--authentication", "TokenReview", "--port", "0"])
    assert result.exit_code != 0
    assert "--authentication TokenReview needs a cluster" in result.output


def test_nobody_reports_about_a_decision_for_another_job(
    call: Send, policy: Policy, server: ApiServer, tmp_path: Path
) -> None:
    """Neither before nor after the job itself, and whichever replica was asked."""
    theirs = JobIdentity("team-b", "rival", "uid-2")
    bearer = {"headers": {"authorization": f"Bearer {token()}"}}
    rival = {"headers": {"authorization": f"Bearer {token(theirs.audience, 'team-b:rival-trainer')}"}}
    first, second = (
        create_app(
            ServiceSettings(authentication=Authentication.TOKEN_REVIEW, outcomes_path=tmp_path / f"{name}.db"),
            policy,
            server,
        )
        for name in ("first", "second")
    )
    (answer,) = call(first, [("POST", "/v1/advice", {"json": QUESTION})])
    mine = {**OUTCOME, "decisionIds": [answer.json()["decisionId"]]}
    poisoned = {**mine, "job": theirs.key, "finalAccuracy": 0.0}

    def known() -> list[float | None]:
        return [decision.final_accuracy for decision in decisions(tmp_path)]

    for app in (first, second):
        assert call(app, [("POST", "/v1/outcomes", {"json": poisoned, **rival})])[0].status_code == 200
        assert known() == [None]
    assert call(first, [("POST", "/v1/outcomes", {"json": mine, **bearer})])[0].status_code == 200
    assert known() == [0.9]
    for app in (first, second):
        call(app, [("POST", "/v1/outcomes", {"json": poisoned, **rival})])
        assert known() == [0.9]


def outcome_of(proofs: Proofs, sent: str) -> int:
    try:
        asyncio.run(proofs.identity(f"Bearer {sent}", MINE.key))
    except ServiceError as error:
        return error.status
    return 200


def test_a_review_is_kept_for_a_minute_and_reviews_are_limited_in_rate(server: ApiServer) -> None:
    now = 1000.0
    proofs = Proofs(server, lambda: now)
    assert [outcome_of(proofs, token()) for _ in range(100)] == [200] * 100
    assert len(server.reviews) == 1
    now += 61.0
    assert outcome_of(proofs, token()) == 200
    assert len(server.reviews) == 2
    forged = [outcome_of(proofs, token(mark="forged")) for _ in range(100)]
    assert (set(forged), len(server.reviews)) == ({401}, 3)
    now += 61.0
    many = [outcome_of(proofs, token(mark=str(index))) for index in range(100)]
    assert many == [200] * int(REVIEWS_AT_ONCE) + [503] * (100 - int(REVIEWS_AT_ONCE))
    now += 1.0
    assert outcome_of(proofs, token(mark="99")) == 200
    proofs.close()


def test_the_results_that_are_kept_are_bounded(server: ApiServer) -> None:
    now = 0.0
    proofs = Proofs(server, lambda: now)
    for index in range(KEPT + 10):
        now += 0.11
        assert outcome_of(proofs, token(mark=str(index))) == 200
    assert len(proofs) == KEPT
    proofs.close()


@given(text=st.text() | st.binary().map(lambda data: f"a.{base64.urlsafe_b64encode(data).decode()}.b"))
def test_any_text_is_read_as_a_token(text: str) -> None:
    found = claimed_job(text)
    assert found is None or JobIdentity.of_audience(found.audience) == found
