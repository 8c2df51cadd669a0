"""The Workloads of one job, and Kueue's decisions about the job. No I/O."""

from __future__ import annotations

from dataclasses import replace

from espalier_operator.kube.objects.jobs import Assignment, KubeJob
from espalier_operator.kube.objects.kueue import (
    Asks,
    Workload,
    admission_by,
    asks_of,
    assignment_of,
    boost_of,
    extras_by,
)
from espalier_operator.kube.objects.names import JobRef
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.store import Store
from espalier_operator.model import JobFacts
from espalier_operator.model.queues import ExternalAdmission
from espalier_operator.reclaim.extra_workers import lost_seconds


class JobWorkloads:
    """The Workloads of a job; none where Kueue is not enabled."""

    def __init__(self, ref: JobRef, store: Store, settings: KubeSettings) -> None:
        """Begin without a request of the job."""
        self._ref, self._store, self._settings = ref, store, settings
        self._asks: Asks | None = None
        self.missing = ""
        """Reason for which its Workload cannot be created; empty: none."""
        self.is_deactivated = False
        """Its Workload was deactivated, so that a replacement must be inactive too."""
        self.recorded: ExternalAdmission | None = None
        """Kueue's decision by the status of the job, for readers that do not see Workloads."""

    @property
    def base(self) -> Workload | None:
        """The Workload of its base workers."""
        return next((each for each in self._all if each.extra is None), None)

    @property
    def extras(self) -> list[Workload]:
        """The Workloads of its extra workers."""
        return [each for each in self._all if each.extra is not None]

    @property
    def _all(self) -> list[Workload]:
        return self._store.workloads_of(self._ref) if self._settings.kueue else []

    def asked_by(self, job: KubeJob) -> None:
        """Record the request of the job's specification."""
        self._asks = asks_of(job, self._settings) if job.local_queue else None

    def assigned(self, before: Assignment | None, *, active: bool) -> Assignment | None:
        """Return Kueue's assignment for the job; an `active` job keeps its own until Kueue decides again."""
        found = self.base
        if found is not None:
            self.is_deactivated = not found.active
        if found is not None and found.admitted:
            return assignment_of(found, self._store.flavors.mapping())
        return before if active else None

    def admission(self, extra: int, *, active: bool) -> ExternalAdmission | None:
        """Return Kueue's decision about the job with `extra` extra workers; None: Kueue does not manage it.

        Kueue continues to manage an `active` job, whatever happens to its specification or its label.
        """
        base = self.base
        if self._asks is None and (base is None or not active):
            return self.recorded
        found = admission_by(base, self._asks, self._store.flavors.mapping(), self.missing)
        if not self._settings.kueue_extra_workers:
            return found
        admitted, withdrawn = extras_by(self.extras, extra)
        return replace(found, extra=admitted, extra_withdrawn=withdrawn)

    def boost(self, facts: JobFacts | None, now: float) -> str | None:
        """Return the priority boost to write to the job's Workload; None: it is up to date."""
        base = self.base
        if not self._settings.kueue_priority_boost or facts is None or base is None:
            return None
        boost = str(0 if facts.admitted_at is None else boost_of(lost_seconds(facts, now)))
        return None if boost == (base.boost or "0") else boost
