"""The life of a program in the job's state machine: its budget, its end, its stop. Any history of its containers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_operator.job.progress import look
from espalier_operator.job.state import End, JobState, Observation, Timing, WorkerStart
from espalier_operator.job.transitions import after
from espalier_operator.job.view import facts_of
from espalier_operator.model import JobFacts, JobTerms, Rules
from espalier_operator.model.actions import Action, Admit, Fail, Finish, Requeue, Stop
from espalier_operator.planner.lifecycle import ending

TERMS = JobTerms(
    min_replicas=1,
    max_replicas=1,
    time_budget_seconds=100,
    grace_seconds=20,
    backoff_limit=2,
    program=True,
    adapts=False,
)
TIMING, RULES = Timing(), Rules()


class Life:
    """A job, its leader's container, and the decisions that the job's state alone calls for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state = after(
            JobState(submitted_at=0.0), Admit(job="n/a", gpu_type="a", reason=Reason.GPUS_GRANTED), TERMS, 0.0, TIMING
        )
        self.leader: WorkerStart | None = None
        self.seen = Observation()
        self.actions: list[Action] = []

    def start(self, *, ready: bool = True) -> None:
        name = f"pod-{self.state.attempts[0]}-{self.now}"
        self.leader = WorkerStart(id=name, running=True, started_at=self.now, ready=ready)

    def exit(self, code: int, *, external: bool = False) -> None:
        assert self.leader is not None
        self.leader = replace(self.leader, running=False, end=End(code=code, at=self.now, external=external))

    def look(self, seconds: float = 0.0, *, unread: bool = False) -> JobFacts:
        self.now += seconds
        seen = Observation(base=(self.leader,), program=True, unread=unread)
        self.seen = seen.after(self.seen)
        attempts = self.state.attempts
        self.state = look(self.state, self.seen, TERMS, self.now, TIMING)
        if self.state.attempts != attempts:
            self.leader, self.seen = None, Observation(base=(None,), program=True)
        facts = facts_of("n/a", self.state, self.seen, TERMS, self.now, TIMING)
        action = None if self.state.outcome is not None else ending(facts, self.now, RULES)
        if action is not None:
            self.actions.append(action)
            self.state = after(self.state, action, TERMS, self.now, TIMING)
        return facts


@pytest.fixture
def life() -> Life:
    return Life()


def test_the_budget_begins_when_the_container_runs(life: Life) -> None:
    life.look(30)
    life.start()
    facts = life.look(10)
    assert (facts.used_seconds, facts.training, facts.has_reported, facts.trained) == (10, True, True, True)
    assert facts.acknowledged_generation == facts.generation


def test_a_readiness_probe_puts_the_begin_off_but_not_for_ever(life: Life) -> None:
    life.start(ready=False)
    assert life.look(TIMING.start_up_allowance - 1).used_seconds == 0
    assert life.look(2).used_seconds == TIMING.start_up_allowance + 1


def test_a_program_that_was_ready_once_is_counted_however_its_probe_goes_on(life: Life) -> None:
    life.start(ready=False)
    life.look(20)
    assert life.leader is not None
    life.leader = replace(life.leader, ready=True)
    life.look(5)
    life.leader = replace(life.leader, ready=False)
    assert life.look(10).used_seconds == 15


def test_exit_code_0_ends_the_job_and_the_time_until_then_counts(life: Life) -> None:
    life.start()
    life.look(10)
    life.now += 5
    life.exit(0)
    life.look(3)
    assert isinstance(life.actions[-1], Finish)
    assert (life.state.outcome.reason, life.state.used_seconds) == (Reason.COMPLETED, 15)


@pytest.mark.parametrize("code", [1, 2, 3, 4, 130, 143, -15, -9])
def test_any_other_exit_is_a_failure_up_to_the_limit(life: Life, code: int) -> None:
    for failures in (1, 2, 3):
        life.start()
        life.look(1)
        life.exit(code)
        life.look(1)
        assert life.state.failures == failures
    assert isinstance(life.actions[-1], Fail)
    assert life.state.outcome.reason is Reason.CRASH_LOOP


def test_an_eviction_is_no_failure(life: Life) -> None:
    life.start()
    life.look(5)
    life.exit(143, external=True)
    life.look(1)
    assert (life.state.failures, life.state.preemptions, life.actions) == (0, 1, [])


@pytest.mark.parametrize("code", [0, 1, 143, -9])
def test_the_end_of_the_budget_is_a_stop_and_a_normal_end_whatever_the_exit_code(life: Life, code: int) -> None:
    life.start()
    life.look(100)
    assert life.actions == [Stop(job="n/a", reason=Reason.BUDGET_EXHAUSTED, deadline=120)]
    life.look(5)
    life.exit(code)
    life.look(1)
    assert life.actions[1:] == [Finish(job="n/a", reason=Reason.BUDGET_EXHAUSTED)]
    assert life.state.failures == 0


def test_a_stopped_program_waits_again_with_its_budget_even_if_it_exits_with_0(life: Life) -> None:
    life.start()
    life.look(10)
    stop = Stop(job="n/a", reason=Reason.PREEMPTED_BY_POLICY, deadline=30)
    life.state = after(life.state, stop, TERMS, life.now, TIMING)
    life.look(1)
    life.exit(0)
    life.look(1)
    assert life.actions == [Requeue(job="n/a", reason=Reason.PREEMPTED_BY_POLICY)]
    assert (life.state.admitted_at, life.state.outcome, life.state.used_seconds) == (None, None, 11)


def test_the_end_is_judged_once_the_last_lines_are_read_or_after_a_while(life: Life) -> None:
    life.start()
    life.look(1)
    life.exit(0)
    life.look(1, unread=True)
    assert life.actions == []
    life.look(TIMING.report, unread=True)
    assert isinstance(life.actions[-1], Finish)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "start unready", "ready", "exit 0", "exit 1", "evict", "suspend", "wait"]),
        st.floats(0, 60),
    ),
    max_size=25,
)


@given(STEPS)
def test_no_history_loses_or_invents_budget_time(steps: list[tuple[str, float]]) -> None:
    """What is counted lies between the time in which a ready container ran and the time since the start."""
    life, ran = Life(), 0.0
    for what, seconds in steps:
        leader = life.leader
        runs = leader is not None and leader.end is None
        match what:
            case "start" | "start unready" if not runs and life.state.active and not life.state.ending:
                life.start(ready=what == "start")
            case "ready" if runs and leader is not None:
                life.leader = replace(leader, ready=True)
            case "exit 0" | "exit 1" if runs:
                life.exit(int(what[-1]))
            case "evict" if runs:
                life.exit(143, external=True)
            case "suspend" if life.state.active and life.state.outcome is None:
                stop = Stop(job="n/a", reason=Reason.SUSPENDED, deadline=life.now + 20)
                life.state = after(life.state, stop, TERMS, life.now, TIMING)
        before, admitted = life.state.used_seconds, life.state.active
        counts = life.leader is not None and life.leader.end is None and life.leader.ready and admitted
        facts = life.look(seconds)
        ran += seconds if counts else 0.0
        assert before <= life.state.used_seconds <= life.now + 1e-6
        assert life.state.used_seconds >= ran - 1e-6
        assert facts.gpu_seconds_used == pytest.approx(life.state.used_seconds) or not life.state.active
        if life.state.outcome is not None:
            allowed = (Reason.COMPLETED, Reason.BUDGET_EXHAUSTED, Reason.CRASH_LOOP)
            assert life.state.outcome.reason in allowed
            break
