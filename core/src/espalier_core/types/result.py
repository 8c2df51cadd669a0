"""`result.json`: the result of a run on one machine, computed from the run's events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import AwareDatetime, Field, ValidationError

from espalier_core.base import Record
from espalier_core.files.documents import DocumentError, first_fault, json_lines, read_bounded
from espalier_core.types.allocation import Allocation
from espalier_core.types.events import (
    EVENT,
    NOT_GROWABLE,
    NOT_TRIED,
    AdaptationFinished,
    AllocationAcknowledged,
    AllocationChanged,
    AnyEvent,
    EpochFinished,
    JobChanged,
    ProgressRead,
    TrainerFinished,
    TrainerStarted,
    Warned,
)
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.report import Adaptation, Metric, Report
from espalier_core.types.status import JobPhase
from espalier_core.types.task import Score, accuracy_score


class AllocationRecord(Record):
    """One allocation, its time, and the delay of its acknowledgement."""

    time: AwareDatetime
    used_seconds: float
    allocation: Allocation
    acknowledged_after_seconds: float | None = None
    """Wall time; absent if it was never acknowledged."""


class RunResult(Record):
    """The result of one job's run."""

    job: str
    seed: int
    phase: str
    """`Complete`, `Failed` or `Stopped` (can be resumed); before the end, the job's current phase."""
    reason: str
    message: str = ""
    log: str = ""
    """Path of the output of its trainers."""
    command: str = ""
    """The command that started the run."""
    dataset: str = ""
    """The job's data set with its options; empty for a program of the user's own, which loads its own data."""
    time_budget_seconds: float
    used_seconds: float
    gpu_seconds_used: float = 0.0
    test_accuracy: float | None = None
    """Test accuracy of a classification; None for another task."""
    test_score: Score | None = None
    """Test score of another task; None for a classification."""
    test_loss: float | None = None
    validation_accuracy: float | None = None
    """Accuracy of a classification at the last evaluation; None for another task."""
    validation_score: Score | None = None
    """Score of another task at the last evaluation; None for a classification."""
    epochs: int = 0
    steps: int = 0
    depth_before: int = 0
    depth_after: int = 0
    parameters_before: int = 0
    parameters_after: int = 0
    allocations: tuple[AllocationRecord, ...] = ()
    adaptations: tuple[Adaptation, ...] = ()
    done: float | None = None
    """Part of a program's work that is done, 0 to 1; None if the program does not report it."""
    metrics: tuple[Metric, ...] = ()
    """The last figures that were read from a program."""
    cannot_grow: str = ""
    """The reason why the model could not grow; empty if it could, or if the job did not ask for it."""
    not_tried: str = ""
    """Why the last growth that was to be tried first was not, or its trial was given up; empty if none was to be."""
    max_step_gap_seconds: float = Field(default=0.0, ge=0)
    """The longest time between two optimizer steps, growth and evaluation included, wall time."""

    @property
    def score(self) -> Score | None:
        """The score on the test split, of any task."""
        return self.test_score or accuracy_score(self.test_accuracy)


def read_result(path: Path) -> RunResult:
    """Read `result.json`; raise `DocumentError` with a remedy if damaged, `FileNotFoundError` if missing."""
    try:
        return RunResult.model_validate_json(read_bounded(path))
    except ValidationError as error:
        remedy = "the same `espalier run` writes it again"
        raise DocumentError(f"{path}: is not the result of a run ({first_fault(error)}); {remedy}") from error


def read_history(path: Path) -> tuple[AnyEvent, ...]:
    """Read `history.jsonl`; a last line cut short by a kill is skipped, any other damage is a `DocumentError`."""
    events: list[AnyEvent] = []
    lines = json_lines(path.read_text(encoding="utf-8", errors="replace"))
    for number, line in enumerate(lines, start=1):
        try:
            events.append(EVENT.validate_json(line))
        except ValidationError as error:
            if number == len(lines):
                break
            remedy = "remove the line, or the file: runs go on without it"
            raise DocumentError(
                f"{path}:{number}: not an event of this version: {first_fault(error)}; {remedy}"
            ) from error
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
    command: str = "",
    used_seconds: float,
    gpu_seconds_used: float,
    report: Report | None = None,
) -> RunResult:
    """Return the result of `events` (the events of one job, in order), and of the leader's last report.

    The report knows how far a run came that was killed, and which growths a restart from a checkpoint has lost.
    """
    started = [event for event in events if isinstance(event, TrainerStarted)]
    finished = [event for event in events if isinstance(event, TrainerFinished)]
    epochs = [event for event in events if isinstance(event, EpochFinished)]
    warned = [event for event in events if isinstance(event, Warned)]
    first, last = (started[0] if started else None), (finished[-1] if finished else None)
    gaps = [event.max_step_gap_seconds for event in epochs] + [event.max_step_gap_seconds for event in finished]
    reports = [report] if report is not None and report.step else []  # one of a script that failed early counts nothing
    known: list[TrainerFinished | Report | EpochFinished | TrainerStarted]
    known = [*finished[-1:], *reports, *epochs[-1:], *started[-1:]]
    unable = reports[0].cannot_grow if reports else ""
    latest = max(known, key=lambda each: each.used_seconds, default=None)
    read = next((event for event in reversed(events) if isinstance(event, ProgressRead)), None)
    counted = latest or read
    return RunResult(
        job=job.key,
        seed=seed,
        phase=phase,
        reason=reason,
        message=message,
        log=log,
        command=command,
        dataset=dataset_of(job),
        time_budget_seconds=job.spec.time_budget_seconds,
        used_seconds=used_seconds,
        gpu_seconds_used=gpu_seconds_used,
        test_accuracy=last.test_accuracy if last else None,
        test_score=last.test_score if last else None,
        test_loss=last.test_loss if last else None,
        validation_accuracy=epochs[-1].validation_accuracy if epochs else None,
        validation_score=epochs[-1].validation_score if epochs else None,
        epochs=counted.epoch if counted else 0,
        steps=counted.step if counted else 0,
        depth_before=first.depth if first else 0,
        depth_after=latest.depth if latest else 0,
        parameters_before=first.parameters if first else 0,
        parameters_after=latest.parameters if latest else 0,
        allocations=_allocations(events),
        adaptations=_adaptations(events, reports),
        done=read.done if read else None,
        metrics=read.metrics if read else (),
        cannot_grow=next((event.message for event in reversed(warned) if event.reason == NOT_GROWABLE), unable),
        not_tried=next((event.message for event in reversed(warned) if event.reason in NOT_TRIED), ""),
        max_step_gap_seconds=max(gaps, default=0.0),
    )


def so_far(
    job: AdaptiveTrainingJob, events: Sequence[AnyEvent], report: Report | None, *, runs: bool, log: str
) -> RunResult:
    """Return the result of a run that has not written one: it still `runs`, or was killed.

    Its GPU-seconds are not known before it has ended.
    """
    last = next((event for event in reversed(events) if isinstance(event, JobChanged)), None)
    over = last is not None and last.phase in (JobPhase.COMPLETE, JobPhase.FAILED)
    phase = str(JobPhase.PENDING) if last is None else last.phase
    return summarize(
        job,
        events,
        seed=job.spec.training.seed,
        phase=phase if runs or over else "Stopped",
        reason="" if last is None else last.reason,
        message="" if last is None else last.message,
        log=log,
        used_seconds=max((event.used_seconds for event in events), default=0.0),
        gpu_seconds_used=0.0,
        report=report,
    )


def dataset_of(job: AdaptiveTrainingJob) -> str:
    """Return the job's data set with its options; '' for a command of the user's own, which loads its own data."""
    if job.spec.has_own_command:
        return ""
    dataset = job.spec.training.dataset
    given = {name: value for name, value in dataset.to_json().items() if name not in ("name", "entrypoint") and value}
    options = ", ".join(f"{name}={value}" for name, value in sorted(given.items()))
    return f"{dataset.name or dataset.entrypoint}{f' ({options})' if options else ''}"


def _adaptations(events: Sequence[AnyEvent], reports: Sequence[Report]) -> tuple[Adaptation, ...]:
    """Return the adaptations; the score after each comes from the next evaluation, an epoch later."""
    lasting = {each.decision_id for report in reports for each in report.adaptations}
    adaptations: list[Adaptation] = []
    for event in events:
        if isinstance(event, AdaptationFinished):
            adaptations.append(event.adaptation)
        elif isinstance(event, EpochFinished) and adaptations and adaptations[-1].after is None:
            adaptations[-1] = adaptations[-1].followed_by(event.score)
    return tuple(each for each in adaptations if not reports or each.decision_id in lasting)


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
