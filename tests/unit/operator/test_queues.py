"""Quotas of queues: who may hold what, who may borrow, and who waits for whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts, Stopping
from espalier_operator.model.actions import Admit, GrantExtra, Plan, Requeue, Stop
from espalier_operator.model.queues import QueueLimits, QueueUsage, Quota
from operator_world import facts
from operator_world.facts import NOW, admitted, node, refused, running_on, starts, stopped


def job(
    name: str, queue: str = "a", *, gpus: int = 1, gpu_type: str | None = None, yields: bool = False, **changes: Any
) -> JobFacts:
    return facts.job(f"team/{name}", gpus, queue=queue, only_on=gpu_type, base_preemptible=yields, **changes)


def runs(waits: JobFacts, gpu_type: str = "fast") -> JobFacts:
    return replace(waits, admitted_at=0.0, gpu_type=gpu_type)


def decide(queues: tuple[QueueLimits, ...], *given: Any, fast: int = 8, slow: int = 0) -> Plan:
    return facts.decide(queues, given, node("n", fast, "fast"), node("m", slow, "slow"))


def queue(name: str = "a", nominal: int = 2, limit: int | None = None, cohort: str | None = None) -> QueueLimits:
    return QueueLimits(name=name, cohort=cohort, quotas=(Quota(nominal=nominal, borrowing_limit=limit),))


def test_a_running_job_that_raises_its_priority_counts_with_what_its_queue_allows() -> None:
    """So it shares lent GPUs as before, and is stopped in the same order."""
    low = QueueLimits(name="a", max_priority=0)

    def lent(*queues: QueueLimits) -> dict[str, int]:
        trains = [
            facts.trains(f"team/{name}", 1, 9, queue="a", gpu_type="fast", priority=priority)
            for name, priority in (("raised", 50), ("other", 0))
        ]
        planned = decide(queues, *trains)
        return {action.job: action.extra for action in planned.actions if isinstance(action, GrantExtra)}

    assert lent(low) == {"team/raised": 3, "team/other": 3}
    assert lent() == {"team/raised": 5, "team/other": 1}


def test_a_queue_holds_its_quota_and_no_more() -> None:
    planned = decide((queue(),), job("x", at=1), job("y", at=2), job("z", at=3))
    assert admitted(planned) == ["x", "y"]
    assert refused(planned) == {"z": Reason.QUOTA_EXCEEDED}


def test_who_waits_for_a_quota_holds_back_its_own_queue_only() -> None:
    """A large job is not starved by small ones of its queue; one that can never fit delays nobody."""
    full = (queue(), queue("b"))
    planned = decide(full, runs(job("r")), job("large", gpus=2, at=1), job("small", at=2), job("other", "b", at=3))
    assert admitted(planned) == ["other"]
    assert refused(planned)["small"] is Reason.QUOTA_EXCEEDED
    planned = decide(full, job("never", gpus=3, at=1), job("small", at=2))
    assert admitted(planned) == ["small"]
    assert refused(planned) == {"never": Reason.QUOTA_EXCEEDED}


def test_a_cohort_lends_what_is_not_used_within_the_borrowing_limit() -> None:
    cohort = (queue("a", 2, 1, "all"), queue("b", 2, None, "all"))
    assert admitted(decide(cohort, *(job(f"a{n}", at=n) for n in range(4)))) == ["a0", "a1", "a2"]
    assert admitted(decide(cohort, *(job(f"b{n}", "b", at=n) for n in range(5)))) == ["b0", "b1", "b2", "b3"]
    assert admitted(decide((queue("a"), queue("b", 2, None, "all")), *(job(f"b{n}", "b") for n in range(3)))) == [
        "b0",
        "b1",
    ]


def test_who_borrows_comes_after_all_who_do_not() -> None:
    """Also with a higher priority: the quota of a queue is its own."""
    cohort = (queue("a", 1, None, "all"), queue("b", 1, None, "all"))
    jobs = job("a0", at=0), job("a1", at=1, priority=9), job("a2", at=2), job("b0", "b", at=9)
    planned = decide(cohort, *jobs)
    assert admitted(planned) == ["a1", "b0"]
    assert set(refused(planned).values()) == {Reason.QUOTA_EXCEEDED}


def test_nobody_borrows_more_while_a_queue_waits_for_what_others_borrowed() -> None:
    cohort = (queue("a", 2, None, "all"), queue("b", 2, None, "all"))
    held = runs(job("a0", gpus=2)), runs(job("a1"))
    planned = decide(cohort, *held, job("b0", "b", gpus=2, at=1), job("a2", at=0))
    assert admitted(planned) == []
    assert refused(planned)["b0"] is Reason.QUOTA_EXCEEDED
    assert refused(planned)["a2"] is Reason.QUOTA_EXCEEDED


def test_types_have_quotas_of_their_own() -> None:
    mixed = QueueLimits(name="a", quotas=(Quota(gpu_type="fast", nominal=1), Quota(nominal=2)))
    planned = decide((mixed,), *(job(f"x{n}", at=n) for n in range(4)), slow=8)
    assert {action.gpu_type for action in planned.actions if isinstance(action, Admit)} == {"fast", "slow"}
    assert len(admitted(planned)) == 3
    only = QueueLimits(name="a", quotas=(Quota(gpu_type="slow", nominal=1),))
    assert refused(decide((only,), job("x", gpu_type="fast"), slow=8)) == {"x": Reason.QUOTA_EXCEEDED}


def test_a_job_needs_a_queue_that_takes_it() -> None:
    theirs = QueueLimits(name="theirs", namespaces=("others",))
    low = QueueLimits(name="low", max_priority=0)
    planned = decide((theirs, low), job("x", "none"), job("y", "theirs"), job("z", "low", priority=1), job("v", "low"))
    assert admitted(planned) == ["v"]
    assert refused(planned) == {"x": Reason.QUEUE_NOT_FOUND, "y": Reason.QUEUE_NOT_FOUND, "z": Reason.PRIORITY_TOO_HIGH}


def test_a_smaller_quota_takes_nothing_from_jobs_that_run() -> None:
    planned = decide((queue(nominal=1),), runs(job("x", gpus=4)), job("y"))
    assert planned.actions == ()
    assert refused(planned)["y"] is Reason.QUOTA_EXCEEDED


COHORT = (queue("a", 2, None, "all"), queue("b", 2, None, "all"))


def test_borrowed_gpus_are_taken_back_from_jobs_that_allow_it() -> None:
    """The least important and youngest first, as few as are needed, and with time for a checkpoint."""
    held = (
        runs(job("firm", gpus=2)),
        runs(job("high", yields=True, priority=1)),
        replace(runs(job("low", yields=True)), admitted_at=5.0),
    )
    planned = decide(COHORT, *held, job("b0", "b"))
    (stop,) = planned.actions
    assert stop == Stop(job="team/low", reason=Reason.QUOTA_RECLAIMED, deadline=NOW + 30.0)
    assert refused(planned)["b0"] is Reason.QUOTA_EXCEEDED
    assert sorted(stopped(decide(COHORT, *held, job("b0", "b"), job("b1", "b", at=1), job("b2", "b", at=2)))) == [
        "high",
        "low",
    ]


def test_what_is_being_given_back_is_not_asked_for_again() -> None:
    stopping = Stopping(reason=Reason.QUOTA_RECLAIMED, deadline=NOW + 30)
    ends = replace(runs(job("low", gpus=2, yields=True)), stopping=stopping, leader_running=True)
    held = runs(job("firm", gpus=1)), runs(job("high", yields=True)), ends
    assert stopped(decide(COHORT, *held, job("b0", "b", gpus=2))) == []
    gone = replace(ends, leader_running=False)
    assert decide(COHORT, *held[:2], gone).actions == (Requeue(job="team/low", reason=Reason.QUOTA_RECLAIMED),)


def test_nothing_is_taken_that_was_not_borrowed_or_would_not_be_enough() -> None:
    firm, own = runs(job("firm", gpus=3)), runs(job("own", "b", yields=True))
    assert stopped(decide(COHORT, firm, own, job("b0", "b"))) == []
    assert stopped(decide(COHORT, firm, runs(job("soft", yields=True)), job("b0", "b", gpus=2))) == []
    young = replace(runs(job("young", gpus=4, yields=True)), admitted_at=NOW - 59)
    planned = decide(COHORT, young, job("b0", "b"))
    assert (stopped(planned), planned.wake_at) == ([], NOW + 1)
    assert refused(planned)["b0"] is Reason.MIN_RUNTIME, "who borrowed has just started"
    firm = replace(young, terms=replace(young.terms, base_preemptible=False))
    assert refused(decide(COHORT, firm, job("b0", "b")))["b0"] is Reason.QUOTA_EXCEEDED


def test_who_runs_has_not_borrowed_what_is_kept_for_a_job_that_waits() -> None:
    """Another job of its queue waits for GPUs and is to borrow: the one that runs is within the nominal quota."""
    own, waits, other = job("own", gpus=2).claim, job("waits").claim, job("b0", "b").claim
    ledger = QueueUsage(COHORT, [(own, "fast")])
    ledger.hold(waits, "fast")
    assert ledger.borrowed(own, "fast", lender=other) == 0
    ledger = QueueUsage(COHORT, [(own, "fast"), (waits, "fast")])
    assert ledger.borrowed(own, "fast", lender=other) == 1


def test_a_job_that_would_wait_for_gpus_of_its_quota_starts_on_others_that_its_queue_may_borrow() -> None:
    """And gives up what it has reserved: the next plan lets others have it."""

    def of(name: str, fast: int, slow: int) -> QueueLimits:
        quotas = (Quota(gpu_type="fast", nominal=fast), Quota(gpu_type="slow", nominal=slow))
        return QueueLimits(name=name, cohort="all", quotas=quotas)

    holder, waits = running_on("n", runs(job("holder", gpus=2))), job("x", at=1.0, gpus=2)
    nodes, queues = (node("n", 3, "fast"), node("m", 2, "slow")), (of("a", 4, 0), of("b", 0, 2))
    planned = facts.decide(nodes, queues, holder, waits)
    assert planned.actions == starts("team/x", on="slow")
    assert "team/x" not in planned.refusals
    planned = facts.decide(nodes, queues, holder, waits, job("y", "b", at=2.0, gpus=2))
    assert admitted(planned) == ["y"], "whose quota it is goes first"
    assert planned.refusals["team/x"].starts_by is not None, "it keeps what it has reserved"

    other, later = runs(job("other", "b"), "slow"), job("z", at=3.0, gpus=3, gpu_type="slow")
    nodes, queues = (nodes[0], replace(nodes[1], allocatable=4)), (of("a", 4, 1), of("b", 0, 2))
    planned = facts.decide(nodes, queues, holder, running_on("m", other), waits, later)
    assert refused(planned)["z"] is Reason.QUOTA_EXCEEDED
    assert admitted(planned) == ["x"], "also where a job after it waits for the same quota"
