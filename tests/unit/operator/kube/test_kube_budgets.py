"""Budgets on Kubernetes: counted while the leader trains, whatever becomes of it, of the operator, and of clocks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_core.types.status import JobStatus
from espalier_operator.job import progress, view
from espalier_operator.job.ends import if_forced
from espalier_operator.job.progress import BudgetMeter, Leader, turning_points
from espalier_operator.job.state import JobState, Observation, Timing
from espalier_operator.job.view import state_of, utc
from espalier_operator.kube.objects.pods import parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.local.settings import resumed
from espalier_operator.model import Ended, JobTerms, Rules, WorkerRole
from espalier_operator.planner.lifecycle import ending
from operator_world.kube_looks import look, observed, status_at
from operator_world.kube_objects import EPOCH, GPU, kube_job, raw_worker, report, template, terminated, time_at

SETTINGS = KubeSettings(start_up_allowance_seconds=20, restart_seconds=1)
TWO_GPUS = template({"resources": {"limits": {GPU: 2}}})
JOB = kube_job("one", {"minReplicas": 1, "maxReplicas": 3, "timeBudgetSeconds": 1000, "template": TWO_GPUS})
STARTING, TRAINING, EVALUATING = TrainerPhase.STARTING, TrainerPhase.TRAINING, TrainerPhase.EVALUATING
COMPLETED, STOPPED, FAILED = TrainerPhase.COMPLETED, TrainerPhase.STOPPED, TrainerPhase.FAILED
ADMITTED = JobState(submitted_at=EPOCH, admitted_at=EPOCH, counted_until=EPOCH, attempts=(0,), incarnations=("",))


class Account:
    """One job's account: the operator looks at it at given seconds after `EPOCH`."""

    def __init__(self, state: JobState = ADMITTED) -> None:
        self.state = state
        self.pods: list[dict[str, Any]] = []
        self.report: Report | None = None
        self.ready: tuple[str, ...] = ("node",)
        self.is_silent = False
        """The leader's node does not report, and the leader is not given up."""

    def runs(self, uid: str = "first", attempt: int = 0, since: float = 0.0) -> None:
        """The leader's container has run since then."""
        state = {"running": {"startedAt": time_at(EPOCH + since)}}
        self.pods = [raw_worker(JOB, 0, attempt, uid=uid, state=state)]

    def ends(self, at: float, code: int = 1, since: float = 0.0, uid: str = "first", attempt: int = 0) -> None:
        """The leader's container has ended."""
        state = terminated(code, EPOCH + at, started=EPOCH + since)
        phase = "Failed" if code else "Succeeded"
        self.pods = [raw_worker(JOB, 0, attempt, uid=uid, phase=phase, state=state)]

    def says(
        self, phase: TrainerPhase, used: float = 0.0, uid: str = "first", *, at: float = 1e9, **facts: Any
    ) -> None:
        """The leader's report is this, and it says so to this day, or said so last at the second `at`."""
        self.report = report(uid, phase, used_seconds=used, at=EPOCH + at, **facts)

    def seen(self) -> Observation:
        pods = [parse_pod(raw, SETTINGS) for raw in self.pods]
        found = observed(JOB, self.state, pods, self.report, self.ready)
        return replace(found, base=tuple(each and replace(each, silent=self.is_silent) for each in found.base))

    def look(self, *at: float) -> float:
        """Look at these seconds; return what is used after the last."""
        for seconds in at:
            self.state = look(JOB, self.state, self.seen(), EPOCH + seconds, SETTINGS)
        return self.state.used_seconds

    def trains(self, until: float) -> None:
        """The leader runs and trains from the beginning, as a look at that second shows."""
        self.runs()
        self.says(TRAINING)
        self.look(until)

    def restart_operator(self) -> None:
        """Another operator reads the status."""
        status = status_at(JOB, self.state, EPOCH, SETTINGS)
        text = json.dumps(status.model_dump(mode="json", by_alias=True))
        self.state = state_of(JobStatus.model_validate_json(text), EPOCH)


@pytest.fixture
def account() -> Account:
    return Account()


# ---- what counts


def test_one_that_is_ended_as_it_starts_is_told_what_counts(account):
    account.says(STARTING)
    forced = if_forced(account.seen(), JOB.terms)
    assert "(Starting); a start-up of more than 120 s (operator.seconds.startUpAllowance) counts" in forced.message


def test_one_that_is_ended_in_its_code_after_the_loop_has_trained(account):
    account.says(EVALUATING, 30, reason=Reason.BUDGET_EXHAUSTED)
    message = "its code after the loop did not end"
    assert if_forced(account.seen(), JOB.terms) == Ended(reason=Reason.BUDGET_EXHAUSTED, failed=False, message=message)
    account.says(EVALUATING, 30)
    forced = if_forced(account.seen(), JOB.terms)
    assert (forced.reason, forced.failed) == (Reason.BUDGET_ENFORCED, True)


def test_one_that_has_stopped_in_order_and_has_no_budget_left_has_not_failed(account):
    """It was stopped to go on later, and has used up its GPU budget as it stopped."""
    account.says(TrainerPhase.STOPPED, 30)
    account.runs()
    assert if_forced(account.seen(), JOB.terms) is not None, "its process goes on"
    account.ends(31, code=0)
    assert if_forced(account.seen(), JOB.terms) is None


def test_queueing_pulling_and_starting_do_not_count(account):
    assert account.look(5) == 0
    account.pods = [raw_worker(JOB, 0, 0, uid="first", phase="Pending", state={})]
    assert account.look(30, 60) == 0
    account.runs(since=60)
    assert account.look(61, 70) == 0
    account.says(STARTING)
    assert account.look(75) == 0
    account.says(TRAINING)
    assert account.look(78, 88) == 13, "from the look before it was seen to train"
    account.says(EVALUATING, 13)
    assert account.look(90) == 15


def test_gpu_seconds_are_of_base_workers_and_of_lent_ones_that_have_their_gpus(account):
    account.trains(10)
    assert (account.state.used_seconds, account.state.gpu_seconds_used) == (10, 20)
    account.state = replace(account.state, extra=2)
    account.look(15)
    assert (account.state.used_seconds, account.state.gpu_seconds_used) == (15, 30), "none is bound"
    account.pods.append(raw_worker(JOB, 0, role=WorkerRole.EXTRA, uid="lent"))
    account.look(20)
    assert (account.state.used_seconds, account.state.gpu_seconds_used) == (20, 50)


def test_a_leader_s_own_count_holds_where_it_is_further(account):
    account.runs()
    account.says(TRAINING, 12.5)
    assert account.look(10) == 10, "but not further than the job is old"
    account.says(TRAINING, 12.5)
    assert account.look(14) == 14
    account.says(TRAINING, 15)
    assert account.look(15) == 15


@pytest.mark.parametrize("phase", [COMPLETED, STOPPED, FAILED])
def test_a_leader_that_says_that_it_ends_has_a_moment_for_that(account, phase):
    account.trains(10)
    account.says(phase, 11)
    assert account.look(15, 18) == 11


@pytest.mark.parametrize("phase", [STOPPED, FAILED])
def test_a_leader_cannot_stretch_its_budget_by_saying_that_it_ends(account, phase):
    """It says so again and again; it stood at 10 s after a day."""
    account.trains(10)
    for second in range(12, 60, 2):
        account.says(phase, 10, at=second)
        used = account.look(second)
    assert used == pytest.approx(58 - 4, abs=3)
    account.look(75)
    assert account.state.attempts == (1,), "and it does not hold its GPUs for ever"


def test_start_ups_count_after_a_leader_has_stopped_itself(account):
    """Otherwise one that trains, says that it starts, and stops before the allowance is over, would train for free."""
    account.trains(10)
    account.ends(11, code=143)
    used = account.look(12, 15)
    account.runs("second", 1, since=16)
    account.says(STARTING, uid="second")
    assert account.look(16, 30) == used + 14


def test_a_leader_on_a_silent_node_is_counted_as_far_as_it_reports(account):
    """It is neither lent anything nor given up."""
    account.trains(10)
    account.is_silent = True
    account.says(TRAINING, 10, at=29)
    assert account.look(30, 58) == 29
    facts = view.facts_of(JOB.key, account.state, account.seen(), JOB.terms, EPOCH + 58, SETTINGS.timing)
    assert (facts.training, facts.leader_running) == (False, True)
    assert (account.state.attempts, account.state.preemptions) == ((0,), 0)


def test_suspension_does_not_count(account):
    account.trains(10)
    account.state = replace(account.state, admitted_at=None)
    assert account.look(500) == 10
    account.state = replace(
        account.state, admitted_at=EPOCH + 500, counted_until=EPOCH + 500, attempts=(1,), incarnations=("",)
    )
    account.runs("second", 1, since=510)
    assert account.look(512) == 10
    account.says(TRAINING, 10, "second")
    assert account.look(520) == 18


def test_a_leader_that_trains_on_while_it_is_ended_counts_by_its_own_word(account):
    account.trains(10)
    account.state = replace(account.state, admitted_at=None, attempts=(1,), incarnations=("",))
    assert account.look(15) == 10
    account.says(TRAINING, 14)
    assert account.look(16, 90) == 14
    assert account.state.gpu_seconds_used == 28


# ---- a budget that is changed


def lower(account: Account, budget: float, *at: float) -> None:
    """Look at the job at these seconds, with another budget."""
    spec = {"minReplicas": 1, "maxReplicas": 3, "timeBudgetSeconds": budget, "template": TWO_GPUS}
    for second in at:
        account.state = look(kube_job("one", spec), account.state, account.seen(), EPOCH + second, SETTINGS)


def test_a_budget_that_is_lowered_while_a_leader_trains_out_of_reach_ends_when_that_is_known(account):
    """It may not have heard of it: it has the usual time to evaluate from then on, and no more after that."""
    account.runs()
    account.says(TRAINING, 40, at=40)
    account.look(40)
    account.is_silent = True
    lower(account, 50, 45, 60)
    assert (account.state.used_seconds, account.state.budget_end_seconds) == (40, 50)
    account.is_silent = False
    account.says(TRAINING, 70)
    lower(account, 50, 72)
    assert (account.state.used_seconds, account.state.budget_end_seconds) == (72, 72)
    for second in (73, 75, 76):
        account.says(TRAINING, second)
        lower(account, 50, second)
    assert account.state.budget_end_seconds == 72, "nobody stretches it by telling of more"


@pytest.mark.parametrize("budget", [50, 20])
def test_a_leader_that_goes_on_where_one_trained_unseen_past_a_lowered_budget_evaluates(account, budget):
    """The one before has saved a checkpoint on a node that was lost; by what was known, some of the budget was left, or
    it was over already.
    """
    account.runs()
    account.says(TRAINING, 40)
    account.look(40)
    account.pods = []
    lower(account, budget, 60)
    assert account.state.budget_end_seconds == max(budget, 40)
    account.runs("second", 1, since=61)
    account.says(STARTING, 70, "second")
    lower(account, budget, 75)
    assert (account.state.used_seconds, account.state.budget_end_seconds) == (70, 70)
    for second in (76, 77, 78):
        account.says(TRAINING, second, "second")
        lower(account, budget, second)
    assert account.state.budget_end_seconds == 70


@pytest.mark.parametrize("parts", [1, 7, 1000])
def test_how_often_it_is_read_does_not_matter(parts):
    meter = BudgetMeter().advance(0.0, Leader.ABSENT, 0, 10.0)
    for part in range(1, parts + 1):
        meter = meter.advance(20 * part / parts, Leader.STARTING, 1, 10.0)
    assert meter.used_seconds == pytest.approx(20)


def looked(state: JobState, budget: float) -> JobState:
    """Return the state after a look at a job without workers."""
    terms = JobTerms(min_replicas=1, max_replicas=1, time_budget_seconds=budget)
    return progress.look(state, Observation(), terms, 1e6, Timing())


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(1, 100)), min_size=1))
def test_a_budget_ends_where_it_says_or_where_it_was_lowered(steps: list[tuple[float, float]]) -> None:
    """It is not over before the leader can have heard of it, and one that is over is stretched by raising it alone."""
    state = JobState()
    for seconds, budget in steps:
        before = state.budget_end_seconds
        state = looked(replace(state, used_seconds=state.used_seconds + seconds), budget)
        end = state.budget_end_seconds
        assert end is not None
        assert budget <= end <= max(budget, state.used_seconds)
        if before is not None:
            assert end >= min(before, state.used_seconds)
            assert end <= max(before, budget)
        assert looked(state, budget) == state


def test_a_failed_job_that_is_taken_up_with_less_than_it_has_used_still_evaluates() -> None:
    """By the command of one machine, which accepts another budget then: its leader starts, and ends in order."""
    failed = Ended(reason=Reason.TRAINER_FAILED, failed=True)
    state = replace(looked(JobState(used_seconds=50.0), 100), attempts=(1,), incarnations=("",), outcome=failed)
    terms = JobTerms(min_replicas=1, max_replicas=1, time_budget_seconds=20.0)
    state = progress.look(resumed(state, terms), Observation(), terms, 1e6, Timing())
    assert ending(view.facts_of("one", state, Observation(), terms, 1e6, Timing()), 1e6, Rules()) is None


# ---- the end of a leader


def test_a_leader_that_came_and_went_unseen_counts_by_its_own_word(account):
    account.ends(300, since=10, code=0)
    account.says(COMPLETED, 280)
    assert account.look(310, 400) == 280
    assert account.state.gpu_seconds_used == 560
    assert account.state.trained


# ---- images that never report


def test_a_silent_leader_counts_from_its_start_once_it_is_past_the_allowance(account):
    account.runs(since=5)
    assert account.look(10, 24) == 0
    assert list(turning_points(account.state, account.seen(), SETTINGS.timing)) == [EPOCH + 25]
    assert account.look(25) == 20
    assert account.state.trained
    assert account.look(30, 40) == 35


def test_a_silent_leader_counts_to_its_end(account):
    account.runs(since=5)
    account.look(10)
    account.ends(45, code=0, since=5)
    assert account.look(60) == 40
    assert account.look(70) == 40


def test_each_silent_leader_has_its_own_allowance(account):
    account.ends(40, since=0)
    assert account.look(50) == 40
    account.runs("second", 1, since=60)
    assert account.look(79) == 40
    assert account.look(80, 85) == 65


# ---- operators come and go


def test_what_may_not_have_been_trained_while_no_operator_was_there_does_not_count(account):
    """Its node may not have told of its end yet."""
    account.trains(10)
    account.restart_operator()
    account.says(TRAINING, 12, at=13)
    assert account.look(70) == 13
    assert account.look(75) == 18, "now somebody watches"
    account.says(TRAINING, 74, at=75)
    assert account.look(76) == 74, "it was in the middle of a long step"


def test_what_a_starting_leader_may_not_have_run_while_no_operator_was_there_does_not_count(account):
    """Past the allowance it counts while it is seen, or reports; who only looks now does not know when it ended."""
    account.runs()
    account.says(STARTING, at=19)
    assert account.look(20) == 20
    account.restart_operator()
    assert account.look(52) == 20
    assert account.look(54) == 22


# ---- clocks


def test_a_clock_that_goes_back_takes_nothing_and_counts_nothing_twice(account):
    account.trains(10)
    assert account.look(4) == 10
    assert account.look(9) == 15, "five more seconds have passed"


def test_a_node_whose_clock_is_ahead(account):
    account.runs(since=50)
    account.says(TRAINING)
    assert account.look(10, 20) == 20


def test_a_silent_leader_on_a_node_whose_clock_is_ahead(account):
    account.runs(since=50)
    assert account.look(10, 29) == 0
    assert account.look(30, 75) == 65, "its start-up counts from when it was first seen"


def test_a_leader_s_word_beyond_all_reason_does_not_count(account):
    account.runs()
    account.says(TRAINING, 1e308)
    assert account.look(10) == 10


# ---- in general


@st.composite
def histories(draw: st.DrawFn):
    """What may happen between looks, with the seconds that pass."""
    event = st.sampled_from(("look", "look", "start", "train", "report", "crash", "vanish", "lose", "back", "operator"))
    return draw(st.lists(st.tuples(event, st.sampled_from((0.0, 0.5, 3.0, 25.0))), max_size=30))


@given(histories())
def test_figures_never_fall_and_never_outrun_the_leaders(history):
    """True time of containers running is the upper bound; what a leader was seen to train is the lower one."""
    account, now, ran, trained = Account(), 0.0, 0.0, 0.0
    running_since: float | None = None
    trains, attempt = False, 0
    before = account.state
    for event, seconds in history:
        now += seconds
        ran += seconds if running_since is not None else 0.0
        trained += seconds if trains else 0.0
        uid = f"pod-{attempt}"
        if event == "start" and running_since is None:
            attempt = account.state.attempts[0]
            running_since = now
            account.runs(f"pod-{attempt}", attempt, since=now)
            account.pods[0]["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = utc(
                EPOCH + now
            ).isoformat()
        elif event == "train" and running_since is not None and not trains:
            trains = True
            account.says(TRAINING, trained, uid)
            account.look(now)
        elif event == "report" and trains:
            account.says(TRAINING, trained, uid)
        elif event in ("crash", "vanish") and running_since is not None:
            if trains:
                account.says(TRAINING, trained, uid)
            if event == "crash":
                account.ends(now, since=running_since, uid=uid, attempt=attempt)
                state = account.pods[0]["status"]["containerStatuses"][0]["state"]["terminated"]
                state["startedAt"] = utc(EPOCH + running_since).isoformat()
                state["finishedAt"] = utc(EPOCH + now).isoformat()
            else:
                account.pods = []
            running_since, trains = None, False
            account.look(now)
        elif event == "operator":
            account.restart_operator()
        else:
            account.look(now)
        assert account.state.used_seconds >= before.used_seconds
        assert account.state.gpu_seconds_used >= before.gpu_seconds_used
        assert account.state.used_seconds <= ran + 1e-3
        before = account.state
    account.look(now)
    assert account.state.used_seconds >= trained - 1e-3
