"""The agent over HTTP: what it may do wrong, against a real server on loopback."""

from __future__ import annotations

import socket
import threading

import pytest
import torch

from espalier_core.growth.architecture import Architecture, GrowthPoint, Layer
from espalier_core.types import environment
from espalier_core.types.advice import Action, AdviceRequest, OutcomeReport
from espalier_core.types.advice import Progress as AdviceProgress
from espalier_core.types.job import Fallback
from espalier_core.types.reasons import Reason
from espalier_core.types.report import AdaptationSource
from espalier_trainer.growth.advisor import AdvisorError, FallbackPolicy, HTTPAdvisor, NoAgent, WithFallback
from espalier_trainer.process.settings import TrainerSettings
from espalier_trainer.run.services import build_agent, connect

OUTCOME = OutcomeReport(job="default/t", decision_ids=("d-1",), final_accuracy=0.9, time_budget_seconds=10)


def _architecture() -> Architecture:
    linear = Layer(name="linear", operator="Linear", inputs=("x",))
    points = tuple(
        GrowthPoint(id=f"p{index}", kind="Linear", after="linear", block=f"p{index}", insertion=(linear,))
        for index in range(3)
    )
    return Architecture(layers=(Layer(name="x", operator="Input"), linear), outputs=("linear",), growth_points=points)


def _request(left: float = 5.0, consultations: int = 0, allowed: tuple[Action, ...] | None = None) -> AdviceRequest:
    return AdviceRequest(
        job="default/t",
        architecture=_architecture(),
        time_left_seconds=left,
        time_budget_seconds=10.0,
        progress=AdviceProgress(adaptations=consultations),
        allowed_actions=allowed,
    )


def test_answer_is_taken_with_its_decision_id_and_policy(agent_server, advice_body):
    server = agent_server(lambda body: (200, advice_body("p1", "d-42")))
    decision = HTTPAdvisor(server.url + "/").advise(_request(), 5)
    assert (decision.id, decision.action, decision.source) == ("d-42", Action.deepen("p1"), AdaptationSource.AGENT)
    assert decision.policy == "test@7"
    assert decision.probabilities == {"Deepen(p1)": 1.0}
    path, body = server.requests[0]
    assert path == "/v1/advice"
    assert AdviceRequest.model_validate(body) == _request()


@pytest.mark.parametrize(
    ("answer", "reason", "said"),
    [
        (lambda advice: (200, advice("p7")), Reason.ILLEGAL_ADVICE, "advised Deepen(p7); allowed: Deepen(p0)"),
        (lambda advice: (500, b"Internal error"), Reason.AGENT_UNAVAILABLE, "status 500: 'Internal error'"),
        (lambda advice: (204, b""), Reason.AGENT_UNAVAILABLE, "status 204"),
        (lambda advice: (302, b""), Reason.AGENT_UNAVAILABLE, "status 302"),
        (lambda advice: (200, b"\xff\x00garbage"), Reason.AGENT_UNAVAILABLE, "is not advice"),
        (lambda advice: (200, b"[1, 2]"), Reason.AGENT_UNAVAILABLE, "is not advice"),
        (lambda advice: (200, advice("p1")[:40]), Reason.AGENT_UNAVAILABLE, "is not advice"),
        (lambda advice: (200, b'{"decisionId": "d", "action": {"kind": "Widen"}}'), Reason.AGENT_UNAVAILABLE, "action"),
        (
            lambda advice: (200, advice("p1", "d" * 201)),
            Reason.AGENT_UNAVAILABLE,
            "decisionId: String should have at most",
        ),
        (lambda advice: (200, b" " * (2 << 20)), Reason.AGENT_UNAVAILABLE, "more than 1048576 bytes"),
    ],
    ids=["illegal", "500", "204", "302", "bytes", "list", "half", "unknown-action", "long-id", "huge"],
)
def test_unusable_answers_have_a_reason_and_a_sentence(agent_server, advice_body, answer, reason, said):
    server = agent_server(lambda body: answer(advice_body))
    with pytest.raises(AdvisorError) as error:
        HTTPAdvisor(server.url).advise(_request(), 5)
    assert error.value.reason is reason
    assert said in str(error.value)
    assert server.url in str(error.value)


def test_action_that_the_job_does_not_allow_is_illegal(agent_server, advice_body):
    server = agent_server(lambda body: (200, advice_body("p1")))
    with pytest.raises(AdvisorError, match="advised") as error:
        HTTPAdvisor(server.url).advise(_request(allowed=(Action.deepen("p0"),)), 5)
    assert error.value.reason is Reason.ILLEGAL_ADVICE


def test_late_answer_is_not_waited_for(agent_server, advice_body):
    release = threading.Event()

    def late(body):
        release.wait(60)
        return 200, advice_body("p1")

    server = agent_server(late)
    with pytest.raises(AdvisorError, match="did not answer within") as error:
        HTTPAdvisor(server.url).advise(_request(), 0.2)
    assert error.value.reason is Reason.AGENT_UNAVAILABLE
    first = HTTPAdvisor(server.url)._exchange("/v1/advice", "{}", 0.05, {})
    assert "did not answer within 0.05 s" in str(first), "the same, whichever of the two clocks is first"
    release.set()


def test_dripped_answer_is_bounded_by_the_same_deadline():
    # Each byte comes in time for a read timeout; only a deadline over the whole exchange ends it.
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
                while not stop.wait(0.05):
                    connection.sendall(b" ")
            except OSError:
                return

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(AdvisorError, match="did not answer within 0.3 s"):
        HTTPAdvisor(f"http://127.0.0.1:{listener.getsockname()[1]}").advise(_request(), 0.3)
    stop.set()
    thread.join()
    listener.close()


def test_nobody_listening_is_reported_at_once():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(AdvisorError, match="cannot be reached \\(ConnectError") as error:
        HTTPAdvisor(f"http://127.0.0.1:{port}").advise(_request(), 5)
    assert error.value.reason is Reason.AGENT_UNAVAILABLE


def test_waiting_ends_when_training_does(agent_server, advice_body):
    release = threading.Event()
    server = agent_server(lambda body: (release.wait(60), (200, advice_body("p1")))[1])
    with pytest.raises(AdvisorError, match="training ends"):
        HTTPAdvisor(server.url, cancelled=lambda: bool(server.requests)).advise(_request(), 60)
    release.set()


def test_outcome_is_sent_and_a_failure_is_no_error(agent_server):
    server = agent_server(lambda body: (200, b"{}"))
    HTTPAdvisor(server.url).report_outcome(OUTCOME)
    assert server.requests[0][0] == "/v1/outcomes"
    assert OutcomeReport.model_validate(server.requests[0][1]) == OUTCOME
    failing = agent_server(lambda body: (500, b""))
    HTTPAdvisor(failing.url).report_outcome(OUTCOME)


def test_advice_and_outcomes_carry_the_token_as_it_is_then(agent_server, advice_body, tmp_path):
    server = agent_server(lambda body: (200, advice_body("p1")))
    token = tmp_path / "token"
    advisor = HTTPAdvisor(server.url, token_file=token)
    token.write_bytes(b"zeroth")
    advisor.advise(_request(), 5)
    with pytest.raises(AdvisorError):
        advisor.forecast(_request(), 5)  # this agent knows of none
    for content in (b"first\n", b"second", b"\xff", b"a\nb", b"", b"x" * 10_000):
        token.write_bytes(content)
        advisor.report_outcome(OUTCOME)
    token.unlink()
    advisor.report_outcome(OUTCOME)
    assert server.authorizations == [
        *("Bearer zeroth", "Bearer zeroth", "Bearer first", "Bearer second"),
        *(None, None, None, None, None),
    ]


def test_only_the_agent_of_the_installation_is_sent_the_proof_of_the_job(agent_server, make_job, tmp_path):
    ours, own = (agent_server(lambda body: (200, b"{}")) for _ in range(2))
    token = tmp_path / "token"
    token.write_text("proof")
    for adaptation in ({"mode": "Auto"}, {"mode": "Auto", "agent": {"url": own.url}}):
        advisor = build_agent(make_job(adaptation=adaptation), ours.url, lambda: False, token)
        advisor.report_outcome(OUTCOME)
        with pytest.raises(AdvisorError):
            advisor.advise(_request(), 5)  # what these answer is no advice
    assert (ours.authorizations, own.authorizations) == (["Bearer proof"] * 2, [None] * 2)


def test_the_connections_to_the_agent_are_closed_when_the_run_leaves(agent_server, advice_body, make_job, tmp_path):
    server = agent_server(lambda body: (200, advice_body("p1")))
    variables = {
        environment.JOB_FILE: str(tmp_path / "job.yaml"),
        environment.CHECKPOINT_DIR: str(tmp_path / "checkpoints"),
        environment.AGENT_URL: server.url,
    }
    settings, job = TrainerSettings.from_environment(variables), make_job(adaptation={"mode": "Auto"})
    with connect(settings, job, lambda: False, torch.device("cpu"), 0) as services:
        assert services.advisor.advise(_request(), 5).action == Action.deepen("p1")
    with pytest.raises(AdvisorError, match="the client has been closed"):
        services.forecaster(_request(), 5)


@pytest.mark.parametrize(
    ("kind", "left", "action"),
    [
        (Fallback.NONE, 5.0, Action.nothing()),
        (Fallback.HEURISTIC, 5.0, Action.deepen("p0")),
        (Fallback.HEURISTIC, 0.9, Action.nothing()),
    ],
)
def test_fallback_decides_and_says_why(kind, left, action):
    decision = WithFallback(NoAgent(), FallbackPolicy(kind, 0)).advise(_request(left), 5)
    assert decision.action == action
    assert decision.source is AdaptationSource.FALLBACK
    assert decision.policy == kind.value
    reason, message = decision.problem
    assert reason is Reason.AGENT_UNAVAILABLE
    assert "adaptation.agent.url" in message


def test_the_heuristic_adds_the_first_layer_that_mixes_places():
    architecture, wide = _architecture(), {"kernel_size": (1, 3)}
    mixing = Layer(name="conv", operator="Conv2d", inputs=("x",), attributes=wide)
    first, *others = architecture.growth_points
    points = (first, *(point.model_copy(update={"insertion": (mixing,)}) for point in others))
    request = _request().model_copy(update={"architecture": architecture.model_copy(update={"growth_points": points})})
    heuristic = FallbackPolicy(Fallback.HEURISTIC)
    assert heuristic.choose(request) == Action.deepen("p1")
    allowed = request.model_copy(update={"allowed_actions": (Action.deepen("p0"), Action.deepen("p2"))})
    assert heuristic.choose(allowed) == Action.deepen("p2")
    assert heuristic.choose(request.model_copy(update={"allowed_actions": ()})) == Action.nothing()


def test_random_fallback_is_seeded_and_uses_every_action():
    fallback = FallbackPolicy(Fallback.RANDOM, 3)
    chosen = [fallback.choose(_request(consultations=count)) for count in range(60)]
    assert chosen == [FallbackPolicy(Fallback.RANDOM, 3).choose(_request(consultations=count)) for count in range(60)]
    assert set(chosen) == set(_request().actions())
