"""What is told as Events when a status changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from espalier_core.types.allocation import Allocation, Direction
from espalier_core.types.reasons import Reason
from espalier_core.types.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    JobStatus,
    SchedulingStatus,
    StandingReclaim,
)
from espalier_operator.kube.objects.events import events

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def condition(kind: ConditionType, status: ConditionStatus, reason: Reason) -> Condition:
    return Condition(type=kind, status=status, reason=reason, message="why", last_transition_time=NOW)


def running(*, reclaim: bool = False, preemptions: int = 0, restarts: int = 0) -> JobStatus:
    asked = StandingReclaim(extra=0, deadline=NOW + timedelta(seconds=30), reason=Reason.NEEDED_BY_OTHER_JOB)
    return JobStatus(
        scheduling=SchedulingStatus(admitted_at=NOW, reclaim=asked if reclaim else None),
        preemptions=preemptions,
        restarts=restarts,
    )


def told(before: JobStatus | None, after: JobStatus) -> list[str]:
    return [note.reason for note in events(before, after)]


def test_an_admission_is_reported_once_with_what_was_granted() -> None:
    """The condition and the allocation have the same reason; the allocation says more."""
    granted = Allocation(generation=1, replicas=2, gpus=4, direction=Direction.UP, reason=Reason.GPUS_GRANTED)
    after = running().model_copy(
        update={
            "allocation": granted,
            "conditions": (condition(ConditionType.ADMITTED, ConditionStatus.TRUE, Reason.GPUS_GRANTED),),
        }
    )
    (note,) = events(None, after)
    assert (note.reason, note.message) == ("GPUsGranted", "its base GPUs were granted: 2 workers, 4 GPUs")


def test_the_end_of_a_reclaim_says_whether_force_was_needed() -> None:
    """Force is counted as a preemption; a leader that was lost meanwhile is another preemption, with a restart."""
    asked = running(reclaim=True)
    assert told(asked, running()) == ["ReclaimAcknowledged"]
    assert told(asked, running(preemptions=1)) == ["ReclaimForced"]
    assert told(asked, running(preemptions=1, restarts=1)) == ["ReclaimAcknowledged", "Preempted"]
    assert told(asked, running(reclaim=True)) == []


def test_nothing_is_reported_twice() -> None:
    """The same status again is no news."""
    waits = JobStatus(conditions=(condition(ConditionType.ADMITTED, ConditionStatus.FALSE, Reason.NO_FREE_GPU),))
    assert told(None, waits) == ["NoFreeGPU"]
    assert told(waits, waits) == []
