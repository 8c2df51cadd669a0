"""The policy `learned`: what its file answered is remembered and holds; where it does not answer, `fair` decides."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_operator.clock import ScaledClock
from espalier_operator.loop import SchedulerLoop
from espalier_operator.model import JobTerms, Node
from espalier_operator.model.actions import Admit
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.policies.learned import (
    AGAIN_SECONDS,
    Allotment,
    LearnedPolicy,
    PolicyAnswer,
    PolicyFileError,
    answered,
    unanswered,
)
from espalier_operator.policies.memory import PolicyMemory
from espalier_operator.policies.remote import (
    Asking,
    AwayError,
    QuestionError,
    QuestionOutcome,
    asked,
    asked_here,
    question_of,
)
from espalier_operator.policies.settings import configured, configured_here
from espalier_operator.policies.view import Candidate, View
from operator_world.cluster import Cluster, ClusterBackend
from policy_files import write_giving

NAMES = ("ns/a", "ns/b", "ns/c")


def job(key: str, **facts: Any) -> Candidate:
    given = {"submitted_at": float(NAMES.index(key)), "min_workers": 1, "max_workers": 3}
    return Candidate(key=key, **{**given, **facts})


def view(*keys: str, **facts: Any) -> View:
    given = {"now": 100.0, "gpus": 4, "nodes": {"n": 2, "m": 2}, "continuous": True}
    return View(jobs=tuple(job(key) for key in keys), **{**given, **facts})


def told(seen: View, *workers: int, **answer: Any) -> View:
    """Return the view with the memory of an answer: those workers for its jobs."""
    allotments = [Allotment(job=each.key, workers=count) for each, count in zip(seen.jobs, workers, strict=True)]
    return replace(
        seen, memory=answered(seen, PolicyAnswer(policy="tiny@1", allotments=tuple(allotments), **answer), 60)
    )


def shares(policy: LearnedPolicy, seen: View) -> list[tuple[str, int]]:
    return [(share.job, share.workers) for share in policy.decide(seen).shares]


def test_an_answer_is_what_is_decided_until_it_is_too_old() -> None:
    policy, seen = LearnedPolicy(), told(view("ns/a", "ns/b"), 1, 3, preempts=True)
    decision = policy.decide(seen)
    assert [(share.job, share.workers) for share in decision.shares] == [("ns/a", 1), ("ns/b", 3)]
    assert (decision.until, decision.preempts, decision.fallback) == (160.0, True, "")
    assert not policy.is_due(replace(seen, now=159.0))
    assert policy.is_due(replace(seen, now=160.0))
    assert policy.decide(replace(seen, now=160.0)).fallback, "nobody asked the file again"


@pytest.mark.parametrize(
    "news", [{"jobs": (job("ns/a"),)}, {"jobs": (job("ns/a"), job("ns/b"), job("ns/c"))}, {"gpus": 3}]
)
def test_the_file_is_asked_again_when_jobs_or_gpus_change(news: dict[str, Any]) -> None:
    assert LearnedPolicy().is_due(replace(told(view("ns/a", "ns/b"), 1, 3), **news))


def test_a_job_that_came_since_is_served_after_the_others_until_the_file_is_asked() -> None:
    """As `espalier explain` sees it, which asks nobody."""
    seen = told(view("ns/b"), 2)
    assert shares(LearnedPolicy(), replace(seen, jobs=(job("ns/a"), *seen.jobs))) == [("ns/b", 2), ("ns/a", 1)]


def test_with_nobody_to_decide_about_nothing_is_asked_and_nothing_falls_back() -> None:
    for seen in (view(), replace(view(), memory=unanswered(view("ns/a"), "it is away"))):
        assert not LearnedPolicy().is_due(seen)
        assert LearnedPolicy().decide(seen).fallback == ""


@given(st.sampled_from((["ns/a"], ["ns/b", "ns/a"], list(NAMES))), st.booleans())
def test_without_an_answer_it_decides_as_fair(keys: list[str], was_answered: bool) -> None:
    seen = view(*keys)
    if was_answered:
        seen = told(seen, *(3 for _ in keys))
    failed = replace(seen, memory=unanswered(seen, "it is away"))
    decision = LearnedPolicy().decide(failed)
    assert decision.shares == FairPolicy().decide(seen).shares
    assert (decision.fallback, decision.until) == ("it is away", seen.now + AGAIN_SECONDS)
    assert not decision.preempts
    assert not LearnedPolicy().is_due(failed)
    assert LearnedPolicy().is_due(replace(failed, now=seen.now + AGAIN_SECONDS))


def test_the_answer_survives_a_restart_and_a_memory_of_another_version_does_not() -> None:
    policy, seen = LearnedPolicy(), told(view("ns/a", "ns/b"), 3, 1)
    memory = PolicyMemory("learned")
    memory.keep(policy.decide(seen).memory)
    again = PolicyMemory("learned", memory.to_text())
    assert shares(policy, replace(seen, memory=again.memory)) == [("ns/a", 3), ("ns/b", 1)]
    for other in ({"learned": {"answer": 3}}, {"learned": []}, {"queues": [1]}):
        assert policy.is_due(replace(seen, memory=other))
        assert policy.decide(replace(seen, memory=other)).fallback


def test_whatever_an_answer_says_the_planner_takes_what_can_be() -> None:
    cluster = two_jobs()
    snapshot = replace(cluster.snapshot(), taken_at=0.0)
    odd = (
        Allotment(job="ns/a", workers=1, nodes=("elsewhere",)),
        Allotment(job="ns/b", workers=10**6),
        Allotment(job="ns/b", workers=-1),
        Allotment(job="ns/gone", workers=1),
    )
    seen = View(now=0.0, gpus=2, jobs=tuple(job(key) for key in ("ns/a", "ns/b")), continuous=True)
    memory = answered(seen, PolicyAnswer(policy="tiny@1", allotments=odd), 60)
    found = plan(replace(snapshot, policy_memory=memory), LearnedPolicy(), 0.0)
    assert {type(action) for action in found.actions} == {Admit}
    assert found.ignored == ("ns/a: there is no node elsewhere that takes workers", "ns/b: it has a share already")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("wait=0", "wait: 0 s is out of range; must be above 0 and at most 0.9"),
        ("wait=1", "wait: 1 s is out of range"),
        ("hold=0.5", "hold: 0.5 s is out of range; must be finite and at least 1"),
        ("url=here", "url: 'here' is not a URL; write http://HOST:PORT"),
        ("file=policy.pt", "no installed reader supports this type of file: its name must end with .safetensors"),
        ("file=none.safetensors", "none.safetensors: cannot be read (No such file or directory)"),
        ("speed=1", "speed: unknown setting of policy learned; it takes file, url, wait, hold"),
    ],
)
def test_settings_that_cannot_be(settings: str, message: str) -> None:
    with pytest.raises(ValueError, match="^learned:") as raised:
        configured(f"learned:{settings}")
    assert message in str(raised.value)


def test_where_no_server_can_be_asked_a_file_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="file: is missing; there is no policy server here"):
        configured_here("learned")
    assert configured_here(f"learned:file={write_giving(tmp_path / 'tiny.safetensors')}").name == "learned"
    assert configured_here("fair").name == "fair"


def test_a_question_is_read_as_it_was_asked(tmp_path: Path) -> None:
    seen = view("ns/a", "ns/b", held={"ns/a": ("n", "m"), "ns/gone": ("n",)})
    question = asked(seen)
    assert question_of(question.to_json()) == question
    assert question.view.jobs == seen.jobs
    assert question.held == {"ns/a": ("n", "m")}
    for damaged, why in ((b"{", "is not complete JSON"), (b"{}", "version: "), (b'{"version": 3}', "now: ")):
        with pytest.raises(QuestionError, match=why):
            question_of(damaged)


# ---- asking, with the loop


def two_jobs() -> Cluster:
    cluster = Cluster()
    cluster.nodes["n"] = Node(name="n", gpu_type="a", allocatable=2)
    for key in ("ns/a", "ns/b"):
        cluster.submit(key, JobTerms(min_replicas=1, max_replicas=2, time_budget_seconds=900))
    return cluster


class Seen:
    def __init__(self) -> None:
        self.outcomes: list[QuestionOutcome] = []

    def asked(self, outcome: QuestionOutcome, seconds: float) -> None:
        self.outcomes.append(outcome)


async def _late(view: View) -> PolicyAnswer:
    await asyncio.Event().wait()
    raise AssertionError("it waited for ever")


async def _away(view: View) -> PolicyAnswer:
    raise AwayError("http://here: refused")


async def _refuses(view: View) -> PolicyAnswer:
    raise PolicyFileError("tiny@1: the cluster has 2 GPUs")


async def _fails(view: View) -> PolicyAnswer:
    raise ZeroDivisionError("by 0")


@pytest.mark.parametrize(
    ("ask", "outcome", "why"),
    [
        (_late, QuestionOutcome.LATE, "its policy file did not answer within 0.05 s"),
        (_away, QuestionOutcome.AWAY, "its policy server is away: http://here: refused"),
        (_refuses, QuestionOutcome.REFUSED, "its policy file cannot decide: tiny@1: the cluster has 2 GPUs"),
        (_fails, QuestionOutcome.FAILED, "its policy file failed: ZeroDivisionError: by 0"),
    ],
)
async def test_without_an_answer_jobs_start_as_under_fair(
    ask: Any, outcome: QuestionOutcome, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    backend, policy, seen = ClusterBackend(two_jobs()), LearnedPolicy(wait=0.05), Seen()
    loop = SchedulerLoop(backend, policy, ScaledClock(), asking=Asking(policy, ask, seen))
    await loop.tick()
    await loop.tick()
    assert seen.outcomes == [outcome], "once: the next question is due some seconds later"
    assert {action.job for action in backend.plans[0].actions} == {"ns/a", "ns/b"}
    assert backend.plans[0].fallback == why
    assert [record.message for record in caplog.records] == [f"policy learned: fair decides in its place: {why}"]


def test_it_decides_again_once_the_file_answers(caplog: pytest.LogCaptureFixture) -> None:
    backend, policy, away = ClusterBackend(two_jobs()), LearnedPolicy(), [True]

    async def ask(view: View) -> PolicyAnswer:
        if away[0]:
            raise AwayError("not yet")
        return PolicyAnswer(policy="tiny@1", allotments=(Allotment(job="ns/b", workers=2),))

    async def story() -> None:
        loop = SchedulerLoop(backend, policy, ScaledClock(), asking=Asking(policy, ask))
        await loop.tick()
        away[0] = False
        await loop.tick()
        backend.cluster.now += AGAIN_SECONDS
        await loop.tick()

    with caplog.at_level("INFO"):
        asyncio.run(story())
    assert [bool(made.fallback) for made in backend.plans] == [True, True, False]
    assert [share.job for share in backend.plans[-1].shares] == ["ns/b"]
    assert caplog.records[-1].message == "policy learned decides again"


def test_a_plan_is_made_from_what_is_there_after_the_answer() -> None:
    backend, policy = ClusterBackend(two_jobs()), LearnedPolicy()

    async def ask(view: View) -> PolicyAnswer:
        del backend.cluster.jobs["ns/b"]  # deleted while the file is asked
        return PolicyAnswer(policy="tiny@1", allotments=tuple(Allotment(job=each.key, workers=1) for each in view.jobs))

    asyncio.run(SchedulerLoop(backend, policy, ScaledClock(), asking=Asking(policy, ask)).tick())
    assert [action.job for action in backend.plans[0].actions] == ["ns/a"]


def test_on_one_machine_a_file_is_evaluated_beside_the_loop(tmp_path: Path) -> None:
    policy, asking = asked_here(configured(f"learned:file={write_giving(tmp_path / 'tiny.safetensors')}"))
    assert asking is not None
    backend = ClusterBackend(two_jobs())
    asyncio.run(SchedulerLoop(backend, policy, ScaledClock(), asking=asking).tick())
    assert [(share.job, share.workers) for share in backend.plans[0].shares] == [("ns/a", 1), ("ns/b", 1)]
    assert not backend.plans[0].fallback
    assert asked_here(FairPolicy()) == (FairPolicy(), None)
