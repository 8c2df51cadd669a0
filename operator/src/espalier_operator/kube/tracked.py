"""One job as the operator has it in mind: its record, its crew, and when something is to be written or done about it.

The record is read from the job's status when the job is first seen; from then on it is the truth and the status
follows it. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from espalier_api.documents import DocumentError, loads
from espalier_api.reasons import Reason
from espalier_api.report import Report
from espalier_api.status import JobStatus
from espalier_operator.actions import Action
from espalier_operator.conditions import Observed, status_of, status_of_invalid
from espalier_operator.facts import Ended, JobFacts, Promise, Worker
from espalier_operator.kube.backoff import Backoff
from espalier_operator.kube.converge import due_at
from espalier_operator.kube.flusher import together
from espalier_operator.kube.metrics.measurements import Owner
from espalier_operator.kube.metrics.series import LiveJob
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.jobs import InvalidJob, KubeJob, parse_status
from espalier_operator.kube.progress import Crew, crew_of, last_word, look, turning_points
from espalier_operator.kube.record import Record, record_of, scheduling_of
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.transitions import after
from espalier_operator.kube.view import Trouble, facts_of, promise_of, workers_of
from espalier_operator.kube.watch.store import JobObject, Store

logger = logging.getLogger(__name__)

_NOBODY = Crew(base=(), extra=(), rest=(), lost=frozenset(), report=None)


class Tracked:
    """One job. Times are epoch seconds."""

    def __init__(self, seen: JobObject, store: Store, settings: KubeSettings, now: float) -> None:
        """Take up what the job's status says. `ValueError` where it cannot be read."""
        self._store, self._settings = store, settings
        self.written: JobStatus | None = parse_status({"status": seen.status})
        """The status as it was last written, or found."""
        self.written_at = now
        self.answered = seen.status
        """The same as the API server sent it back."""
        self.record: Record = record_of(self.written)
        self.job: KubeJob | None = None
        """None as long as its specification cannot be run."""
        self.problems: InvalidJob | None = None
        self.crew = _NOBODY
        self._report: Report | None = None
        self._report_text: str | None = None
        self._muted: Report | None = None
        self.refusal: Reason | None = None
        """Why the last plan gave it nothing (more)."""
        self.rejected: Trouble | None = None
        """What the API server last said to its base workers' pods."""
        self.complaint: str | None = None
        """What a person was last told that no condition shows."""
        self.equipped = False
        """Its objects other than pods are there, as far as this operator has seen to it."""
        self.facts: JobFacts | None = None
        self.workers: tuple[Worker, ...] = ()
        self.promise: Promise | None = None
        self.looked_at = 0.0
        self.stale = True
        """There is news of its pods or their nodes."""
        self.heard = True
        """There is a new report."""
        self._outdated = True
        """The facts are older than record and crew."""
        self.stirred = True
        """It is to be flushed now: more than figures changed, or something is still to be done."""
        self.lapsed = False
        """It is to be flushed when there is time: its figures are old."""
        self.forced = False
        """Its status is to be written whatever it is."""
        self._stirs_at: float | None = None
        self._lapses_at: float | None = None
        self.writing, self.doing = Backoff(longest=10.0), Backoff()
        self.meet(seen)

    def meet(self, seen: JobObject) -> None:
        """Take note of the job's object."""
        self.seen = seen
        if isinstance(seen.parsed, KubeJob):
            if self.job is not seen.parsed:
                self.stale = self.stirred = True
                self.doing.succeeded()  # what was refused may be taken now
            self.job, self.problems = seen.parsed, None
            if self.record.admitted_at is not None:
                self.record = self.record.with_workers(self.job.terms.min_replicas)
        elif self.problems is not seen.parsed:
            self.problems, self.stirred = seen.parsed, True
            if self.record.admitted_at is None and self.record.outcome is None:
                self.job, self.facts = None, None  # one that runs, or is over, keeps its last good specification

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return self.seen.key

    @property
    def active(self) -> bool:
        """Whether it holds GPUs: its budgets run."""
        return self.record.admitted_at is not None and self.record.outcome is None

    @property
    def due(self) -> float | None:
        """When it is to be looked at or flushed though nothing happens."""
        return min((time for time in (self._stirs_at, self._lapses_at) if time is not None), default=None)

    def live(self) -> LiveJob:
        """Return it as metrics show it: what its status says, or last said."""
        status = self.written or JobStatus()
        return LiveJob(owner=self.owner, name=self.seen.key.partition("/")[2], status=status, facts=self.facts)

    @property
    def owner(self) -> Owner:
        """Whose it is, for metrics."""
        namespace, job = self.seen.key.partition("/")[0], self.job
        if job is None:
            return Owner(namespace=namespace, queue="", base_gpus=0, gpus_per_worker=0, created_at=self.seen.created_at)
        terms = job.terms
        return Owner(
            namespace=namespace,
            queue=terms.queue,
            base_gpus=terms.min_replicas * terms.gpus_per_worker,
            gpus_per_worker=terms.gpus_per_worker,
            created_at=job.created_at,
        )

    # ---- looking

    def regroup(self) -> None:
        """Read its report and sort its pods anew where there is news of them."""
        if self.job is None:
            return
        if self.heard:
            self.heard = False
            before, self._report = self._report, self._read_report()
            self.stirred |= _said(before) != _said(self._report)
            self.crew, self._outdated = replace(self.crew, report=self._report), True
        if self.stale or self._store.has_news(self.seen.uid):
            self.stale, self._outdated = False, True
            pods = self._store.crews.get(self.seen.uid, {}).values()
            self.crew = crew_of(self.job, self.record, pods, self._store.ready_for(pods), self._report)

    def look(self, now: float) -> None:
        """Bring record and facts up to `now`."""
        job = self.job
        if self._stirs_at is not None and now >= self._stirs_at:
            self._stirs_at, self.stirred, self._outdated = None, True, True
        if self._lapses_at is not None and now >= self._lapses_at:
            self._lapses_at, self.lapsed, self._outdated = None, True, True
        if job is None:
            return
        self.regroup()
        if not self._outdated and self.facts is not None:
            self.facts = _later(self.facts, now - self.looked_at)
            self.looked_at = now
            return
        before = self.record
        self.record = look(job, before, self.crew, now, self._settings)
        if (self.record.attempts, self.record.pod_uids) != (before.attempts, before.pod_uids):
            self.stale = True
            self.regroup()
        trained = self.facts is not None and self.facts.training
        self.facts = facts_of(job, self.record, self.crew, now, self._settings, self.rejected)
        self.workers = tuple(workers_of(job, self.crew))
        self.promise = promise_of(job, self.record)
        self.stirred |= trained != self.facts.training or _essence(before) != _essence(self.record)
        self.looked_at, self._outdated = now, False

    def act(self, action: Action, now: float) -> None:
        """Carry a decision out: change what is remembered, from which all else follows.

        Its budgets are counted up to now first, by what it held until now.
        """
        if self.job is not None:
            counted = look(self.job, self.record, self.crew, now, self._settings)
            self.record = after(counted, action, self.job.terms, now, self._settings)
            self.stale = self.stirred = True

    def refuse(self, reason: Reason | None) -> None:
        """Take note why the plan gave it nothing (more)."""
        if reason is not self.refusal:
            self.refusal, self.stirred = reason, True

    def reject(self, trouble: Trouble | None) -> None:
        """Take note of what the API server says to its pods; None: it takes them."""
        if trouble != self.rejected:
            self.rejected, self.stale, self.stirred = trouble, True, True

    def condemn(self, message: str) -> None:
        """Take note that the API server will never take its pods as they are."""
        if self.active and self.record.ended is None:
            verdict = Ended(reason=Reason.INVALID_SPEC, failed=True, message=message)
            self.record = replace(self.record, ended=verdict)
            self.stale = self.stirred = True

    # ---- what is to be written, and when

    def status(self, now: float) -> JobStatus:
        """Return the status that says what is remembered now."""
        wall = datetime.fromtimestamp(now, UTC)
        if self.job is None:
            problems = () if self.problems is None else self.problems.problems
            return status_of_invalid(self.seen.generation, problems, self.written, wall)
        self.regroup()
        record = look(self.job, self.record, self.crew, now, self._settings)
        if _essence(record) == _essence(self.record):
            self.record = record  # only figures: what else there is to see is the next look's
        facts = facts_of(self.job, self.record, self.crew, now, self._settings, self.rejected)
        observed = Observed(
            generation=self.job.generation,
            allocation=self.record.allocation,
            report=None if self._report is self._muted else self._report,
            refusal=self.refusal,
            outcome=self.record.outcome,
            restarts=self.record.restarts,
            preemptions=self.record.preemptions,
            selector=names.selector(self.job.name),
            scheduling=scheduling_of(self.record),
        )
        return status_of(facts, observed, self.written, wall)

    def must_write(self, status: JobStatus, now: float) -> bool:
        """Return whether `status` is to be written now; figures alone have time."""
        if self.written is None or self.forced or _solid(status) != _solid(self.written):
            return True
        return now >= self.written_at + self._settings.persist_seconds and status != self.written

    def wrote(self, status: JobStatus, answered: Mapping[str, Any] | None, now: float) -> None:
        """Take note of what was written, and what the API server made of it."""
        self.written, self.written_at, self.forced = status, now, False
        self.answered = answered

    def plan_ahead(self, status: JobStatus, now: float) -> None:
        """Set when it is to be looked at or flushed next though nothing happens; `status` is how it stands."""
        persist = status != self.written or self.active
        self._lapses_at = together(self.written_at, self._settings.persist_seconds) if persist else None
        times = [self.writing.until, self.doing.until]
        if self.job is not None:
            times.append(due_at(self.job, self.record, status, now) or 0.0)
        times += turning_points(self.record, self.crew, self._settings)
        self._stirs_at = min((time for time in times if time > now), default=None)

    def mute(self) -> bool:
        """Leave the report out of the status until there is another; return whether there was one to leave out."""
        had, self._muted = self._muted is not self._report, self._report
        return had

    def _read_report(self) -> Report | None:
        """Return the leader's report; one that cannot be read leaves the last good one."""
        found = self._store.report(self.seen.uid)
        if found is None or found.text is None or found.text == self._report_text:
            return self._report
        self._report_text = found.text
        try:
            return last_word(self.record, self._report, loads(found.text, Report, "its report ConfigMap"))
        except DocumentError as error:
            logger.warning("%s: its last good report is kept: %s", self.key, error)
            return self._report


def _later(facts: JobFacts, seconds: float) -> JobFacts:
    """Return the facts of a job `seconds` later if nothing but time has passed: its budgets run on if they ran."""
    if not facts.training or seconds <= 0:
        return facts
    used, gpu_seconds = facts.used_seconds + seconds, facts.gpu_seconds_used + seconds * facts.gpus_held
    return replace(facts, used_seconds=used, gpu_seconds_used=gpu_seconds)


def _said(report: Report | None) -> tuple[object, ...]:
    """Return the part of a report that is not figures."""
    if report is None:
        return ()
    grown = len(report.adaptations)
    return (report.incarnation, report.phase, report.reason, report.acknowledged_generation, grown)


def _essence(record: Record) -> Record:
    """Return `record` without the figures that time alone changes."""
    return replace(record, used_seconds=0.0, gpu_seconds_used=0.0, counted_until=None)


def _solid(status: JobStatus) -> JobStatus:
    """Return `status` without the figures that may be written later."""
    blank = JobStatus()
    return status.model_copy(
        update={
            "time_budget": blank.time_budget,
            "training": blank.training,
            "last_checkpoint_time": None,
            "scheduling": status.scheduling.model_copy(update={"counted_until": None}),
        }
    )
