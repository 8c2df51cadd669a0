"""Measurements of jobs for metrics and traces: changes between two statuses, and durations of signals. Pure.

The status is the memory: the difference of two statuses is counted once, whichever operator writes the second.

A signal lasts from the start of an extra worker until its leader acknowledges the new allocation. Times are epoch
seconds. Grants of an earlier operator are not measured, because the time of their events is unknown.

Traces are OpenTelemetry's. The SDK is an optional extra (`espalier-operator[otel]`), imported only if an endpoint is
given. Spans are made when a signal is over, with the times of its stages, so nothing is kept open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from espalier_core.growth import NOTHING, operation_names
from espalier_core.types.allocation import SignalTrace
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Adaptation, AdaptationResult
from espalier_core.types.status import ConditionType, JobStatus
from espalier_operator.kube.objects.events import reclaim_ended

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor


SERVICE: Final = "espalier-operator"
MISSING: Final = (
    "the OpenTelemetry SDK is not installed; build the image with EXTRAS=otel, or leave --traces-endpoint out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The labels by which metrics distinguish jobs."""

    namespace: str
    queue: str
    base_gpus: int
    gpus_per_worker: int
    created_at: float
    """Time of creation, in epoch seconds."""
    has_agent: bool = True
    """Whether an agent decides how the job grows; a fallback where there is none is no problem of an agent."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """An increment of a counter by `amount`, or an observation of it by a histogram."""

    metric: str
    """Name in `espalier_core.metrics`."""
    labels: tuple[str, ...]
    """Label values, in the order of the metric's labels."""
    amount: float = 1.0


def measurements(before: JobStatus | None, after: JobStatus, owner: Owner) -> Iterator[Measurement]:
    """Yield the measurements of a change of a job's status from `before` (None: none yet) to `after`."""
    was = before or JobStatus()
    place = (owner.namespace, owner.queue)
    if before is None:
        yield Measurement("espalier_jobs_created_total", place)
    if after.completion_time is not None and was.completion_time is None:
        yield _end(after, place)
    for role, seconds in gpu_seconds(after, owner.base_gpus).items():
        if (more := seconds - gpu_seconds(was, owner.base_gpus)[role]) > 0:
            yield Measurement("espalier_gpu_seconds_total", (*place, role), more)
    if (more := after.restarts - was.restarts) > 0:
        yield Measurement("espalier_restarts_total", place, more)
    if (more := after.preemptions - was.preemptions) > 0:
        yield Measurement("espalier_preemptions_total", place, more)
    yield from _waits(was, after, owner)
    yield from _lending(was, after, owner)
    yield from _adaptations(was, after, owner)


def gpu_seconds(status: JobStatus, base_gpus: int) -> dict[str, float]:
    """Return the GPU-seconds of a job by role: base workers hold theirs for as long as its time budget runs."""
    base = min(status.time_budget.used_seconds * base_gpus, status.time_budget.gpu_seconds_used)
    return {"base": base, "extra": status.time_budget.gpu_seconds_used - base}


def _end(after: JobStatus, place: tuple[str, str]) -> Measurement:
    ends = {ConditionType.COMPLETE: "Complete", ConditionType.FAILED: "Failed"}
    condition = next(entry for entry in after.conditions if entry.type in ends and entry.status == "True")
    return Measurement("espalier_jobs_finished_total", (*place, ends[condition.type], condition.reason))


def _waits(was: JobStatus, after: JobStatus, owner: Owner) -> Iterator[Measurement]:
    first = not was.scheduling.attempts and was.scheduling.admitted_at is None
    if first and after.scheduling.admitted_at is not None:
        waited = after.scheduling.admitted_at.timestamp() - owner.created_at
        yield Measurement("espalier_queue_seconds", (owner.queue,), max(0.0, waited))
    if after.start_time is not None and was.start_time is None and after.scheduling.admitted_at is not None:
        yield Measurement(
            "espalier_start_seconds", (owner.queue,), _between(after.scheduling.admitted_at, after.start_time)
        )


def _lending(was: JobStatus, after: JobStatus, owner: Owner) -> Iterator[Measurement]:
    place = (owner.namespace, owner.queue)
    if after.scheduling.granted_at != was.scheduling.granted_at:
        lent = max(1, after.scheduling.extra - was.scheduling.extra)
        yield Measurement("espalier_gpus_lent_total", place, lent * owner.gpus_per_worker)
    reclaim, ended = was.scheduling.reclaim, reclaim_ended(was, after)
    if reclaim is None or ended is None:
        return
    outcome = _OUTCOMES[ended]
    yield Measurement("espalier_reclaims_total", (*place, reclaim.reason, outcome))
    pending = {entry.last_transition_time for entry in was.conditions if entry.type is ConditionType.RECLAIM_PENDING}
    if pending and after.scheduling.changed_at is not None:
        yield Measurement("espalier_reclaim_seconds", (outcome,), _between(max(pending), after.scheduling.changed_at))


def _adaptations(was: JobStatus, after: JobStatus, owner: Owner) -> Iterator[Measurement]:
    place = (owner.namespace, owner.queue)
    known = {adaptation.decision_id: adaptation for adaptation in was.adaptations}
    for adaptation in after.adaptations:
        earlier = known.get(adaptation.decision_id)
        if earlier is None:
            labels = (*place, _kind(adaptation.action), adaptation.source, adaptation.result)
            yield Measurement("espalier_adaptations_total", labels)
            yield Measurement("espalier_adaptation_seconds", (adaptation.result,), adaptation.seconds)
            if adaptation.arms:
                yield Measurement("espalier_trials_total", (*place, adaptation.result))
            if owner.has_agent and adaptation.advice_problem is not None:
                yield Measurement("espalier_advice_problems_total", (*place, adaptation.advice_problem))
        change = _change(adaptation)
        if change is not None and (earlier is None or _change(earlier) is None):
            yield Measurement("espalier_adaptation_accuracy_change_ratio", (), change)


_OUTCOMES = {
    Reason.RECLAIM_ACKNOWLEDGED: "acknowledged",
    Reason.RECLAIM_FORCED: "forced",
    Reason.GPU_LOST: "lost",
}


def _kind(action: str) -> str:
    """Return the kind of an action; a trainer may write any text, and each kind is a series."""
    kind = action.partition("(")[0]
    return kind if kind in {*operation_names(), NOTHING, "Distill", "Rewrite", "ChannelsLast"} else "other"


def _change(adaptation: Adaptation) -> float | None:
    """Return the change of the validation score's quality; None if nothing grew or it is not known yet."""
    if adaptation.result is not AdaptationResult.GROWN or adaptation.before is None or adaptation.after is None:
        return None
    before, after = adaptation.before.quality, adaptation.after.quality
    return None if before is None or after is None else after - before


def _between(start: datetime, end: datetime) -> float:
    return max(0.0, (end - start).total_seconds())


@dataclass(slots=True)
class Signal:
    """An allocation on its way to its leader."""

    uid: str
    job: str
    """Key of the job."""
    generation: int
    noticed_at: float
    written_at: float | None = None
    acknowledged_at: float | None = None


class Signals:
    """Grants that are not acknowledged yet."""

    def __init__(self, observe: Callable[[str, float], None]) -> None:
        """Take `observe`, which receives a stage (`written`, `acknowledged`) and its duration in seconds."""
        self._observe = observe
        self.trace: Callable[[Signal], None] = lambda signal: None
        """Called with each signal that is acknowledged."""
        self._noticed_at: float | None = None
        self._planned_from: float | None = None
        self._waiting: dict[str, Signal] = {}

    def noticed(self, now: float) -> None:
        """Record that there is news; the first of a burst counts."""
        if self._noticed_at is None:
            self._noticed_at = now

    def observed(self) -> None:
        """Record that the next plan includes all news up to now."""
        self._planned_from, self._noticed_at = self._noticed_at, None

    def granted(self, uid: str, generation: int, now: float, job: str = "") -> None:
        """Record that the job of `uid` has more running workers by this generation of its allocation."""
        noticed_at = now if self._planned_from is None else self._planned_from
        self._waiting[uid] = Signal(uid, job, generation, noticed_at)

    def written(self, uid: str, generation: int, now: float) -> None:
        """Record that this generation is in the job's status."""
        signal = self._waiting.get(uid)
        if signal is not None and signal.written_at is None and generation >= signal.generation:
            signal.written_at = now
            self._observe("written", max(0.0, now - signal.noticed_at))

    def acknowledged(self, uid: str, generation: int, now: float) -> None:
        """Record that the job's leader has acknowledged this generation."""
        signal = self._waiting.get(uid)
        if signal is not None and signal.written_at is not None and generation >= signal.generation:
            self._observe("acknowledged", max(0.0, now - signal.written_at))
            signal.acknowledged_at = now
            del self._waiting[uid]
            self.trace(signal)

    def forget(self, uid: str) -> None:
        """Drop the signal of a job that is gone or over."""
        self._waiting.pop(uid, None)

    def waiting(self) -> Iterator[str]:
        """Yield the UIDs of jobs that have not acknowledged."""
        return iter(list(self._waiting))


class TracesError(Exception):
    """Traces cannot be exported; the message has the remedy."""


def exporter_to(endpoint: str) -> tuple[Callable[[Signal], None], Callable[[], None]]:
    """Return functions that export a signal by OTLP over HTTP, and end the export. Raises `TracesError` without SDK."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracesError(MISSING) from error
    # A thread sends batches; the SDK drops and logs those that cannot be sent.
    return tracer_into(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=5)))


def tracer_into(processor: SpanProcessor) -> tuple[Callable[[Signal], None], Callable[[], None]]:
    """Return functions that make the spans of a signal for `processor`, and end it."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
    from opentelemetry.trace import set_span_in_context

    class Ids(RandomIdGenerator):
        """Random ids, except for the first span of a signal."""

        known: SignalTrace | None = None

        def generate_trace_id(self) -> int:
            return super().generate_trace_id() if self.known is None else self.known.trace_id

        def generate_span_id(self) -> int:
            return super().generate_span_id() if self.known is None else self.known.span_id

    ids = Ids()
    provider = TracerProvider(
        resource=Resource.create({"service.name": SERVICE}), id_generator=ids, shutdown_on_exit=False
    )
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("espalier_operator")

    def trace(signal: Signal) -> None:
        """Make the spans of an acknowledged signal."""
        if signal.written_at is None or signal.acknowledged_at is None:
            return
        noticed, written, acknowledged = map(
            _nanoseconds, (signal.noticed_at, signal.written_at, signal.acknowledged_at)
        )
        namespace, _, name = signal.job.partition("/")
        attributes: dict[str, str | int] = {
            "k8s.namespace.name": namespace,
            "espalier.job.name": name,
            "espalier.job.uid": signal.uid,
            "espalier.allocation.generation": signal.generation,
        }
        ids.known = SignalTrace.of(signal.uid, signal.generation)
        whole = tracer.start_span("signal", start_time=noticed, attributes=attributes)
        ids.known = None
        within = set_span_in_context(whole)
        for stage, begin, end in (("decide and write", noticed, written), ("acknowledge", written, acknowledged)):
            tracer.start_span(stage, context=within, start_time=begin).end(max(begin, end))
        whole.end(max(noticed, acknowledged))

    return trace, provider.shutdown


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
