"""`result.json`: the result of a run on one machine, computed from the run's events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import AwareDatetime, Field, ValidationError

from espalier_api.allocation import Allocation
from espalier_api.base import Record
from espalier_api.documents import DocumentError
from espalier_api.events import (
    EVENT,
    AdaptationFinished,
    AllocationAcknowledged,
    AllocationChanged,
    AnyEvent,
    EpochFinished,
    TrainerFinished,
    TrainerStarted,
)
from espalier_api.job import AdaptiveTrainingJob
from espalier_api.report import Adaptation


class AllocationRecord(Record):
    """One allocation, when it was made and how soon it was acknowledged."""

    time: AwareDatetime
    used_seconds: float
    allocation: Allocation
    acknowledged_after_seconds: float | None = None
    """Wall time; absent when it never was."""


class RunResult(Record):
    """The result of one job's run."""

    job: str
    seed: int
    phase: str
    """`Complete`, `Failed` or `Stopped` (to be resumed)."""
    reason: str
    message: str = ""
    log: str = ""
    """Path of what its trainers have printed."""
    time_budget_seconds: float
    used_seconds: float
    gpu_seconds_used: float = 0.0
    test_accuracy: float | None = None
    test_loss: float | None = None
    validation_accuracy: float | None = None
    """At the last evaluation."""
    epochs: int = 0
    steps: int = 0
    depth_before: int = 0
    depth_after: int = 0
    parameters_before: int = 0
    parameters_after: int = 0
    allocations: tuple[AllocationRecord, ...] = ()
    adaptations: tuple[Adaptation, ...] = ()
    max_step_gap_seconds: float = Field(default=0.0, ge=0)
    """The longest time between two optimizer steps, growth and evaluation included, wall time."""


def read_history(path: Path) -> tuple[AnyEvent, ...]:
    """Read `history.jsonl`; a last line cut short by a kill is left out, any other damage is a `DocumentError`."""
    events: list[AnyEvent] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            events.append(EVENT.validate_json(line))
        except ValidationError as error:
            if number == len(lines):
                break
            raise DocumentError(f"{path}:{number}: not an event of this version: {error.errors()[0]['msg']}") from error
    return tuple(events)


def summarize(
    job: AdaptiveTrainingJob,
    events: Sequence[AnyEvent],
    *,
    seed: int,
    phase: str,
    reason: str,
    message: str = "",
    log: str = "",
    used_seconds: float,
    gpu_seconds_used: float,
) -> RunResult:
    """Return the result of `events` (of one job, in order)."""
    started = [event for event in events if isinstance(event, TrainerStarted)]
    finished = [event for event in events if isinstance(event, TrainerFinished)]
    epochs = [event for event in events if isinstance(event, EpochFinished)]
    first, last = (started[0] if started else None), (finished[-1] if finished else None)
    gaps = [event.max_step_gap_seconds for event in epochs] + [event.max_step_gap_seconds for event in finished]
    latest = last or (epochs[-1] if epochs else first)
    return RunResult(
        job=job.key,
        seed=seed,
        phase=phase,
        reason=reason,
        message=message,
        log=log,
        time_budget_seconds=job.spec.time_budget_seconds,
        used_seconds=used_seconds,
        gpu_seconds_used=gpu_seconds_used,
        test_accuracy=last.test_accuracy if last else None,
        test_loss=last.test_loss if last else None,
        validation_accuracy=epochs[-1].validation_accuracy if epochs else None,
        epochs=latest.epoch if latest else 0,
        steps=latest.step if latest else 0,
        depth_before=first.depth if first else 0,
        depth_after=latest.depth if latest else 0,
        parameters_before=first.parameters if first else 0,
        parameters_after=latest.parameters if latest else 0,
        allocations=_allocations(events),
        adaptations=_adaptations(events),
        max_step_gap_seconds=max(gaps, default=0.0),
    )


def _adaptations(events: Sequence[AnyEvent]) -> tuple[Adaptation, ...]:
    """Return the adaptations; the accuracy after each is that of the next evaluation, which comes an epoch later."""
    adaptations: list[Adaptation] = []
    for event in events:
        if isinstance(event, AdaptationFinished):
            adaptations.append(event.adaptation)
        elif isinstance(event, EpochFinished) and adaptations and adaptations[-1].accuracy_after is None:
            after = {"accuracy_after": event.validation_accuracy}
            adaptations[-1] = adaptations[-1].model_copy(update=after)
    return tuple(adaptations)


def _allocations(events: Iterable[AnyEvent]) -> tuple[AllocationRecord, ...]:
    records: dict[int, AllocationRecord] = {}
    for event in events:
        if isinstance(event, AllocationChanged):
            records[event.allocation.generation] = AllocationRecord(
                time=event.time, used_seconds=event.used_seconds, allocation=event.allocation
            )
        elif isinstance(event, AllocationAcknowledged) and event.generation in records:
            record = records[event.generation]
            records[event.generation] = record.model_copy(update={"acknowledged_after_seconds": event.seconds})
    return tuple(records.values())
