"""The Workloads of one job as the operator keeps them in view, and what Kueue says of the job by them. No I/O."""

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
from espalier_operator.reclaim.victims import lost_seconds


class JobWorkloads:
    """Those of a job; none where Kueue is not switched on."""

    def __init__(self, ref: JobRef, store: Store, settings: KubeSettings) -> None:
        """Nothing is known of what the job asks for."""
        self._ref, self._store, self._settings = ref, store, settings
        self._asks: Asks | None = None
        self.missing = ""
        """Why its Workload cannot be made."""
        self.is_deactivated = False
        """Somebody has deactivated its Workload: one that replaces it is inactive, too."""
        self.recorded: ExternalAdmission | None = None
        """Kueue's decision by the status of the job, for who does not see Workloads."""

    @property
    def base(self) -> Workload | None:
        """That of its base workers."""
        return next((each for each in self._all if each.extra is None), None)

    @property
    def extras(self) -> list[Workload]:
        """Those of its extra workers."""
        return [each for each in self._all if each.extra is not None]

    @property
    def _all(self) -> list[Workload]:
        return self._store.workloads_of(self._ref) if self._settings.kueue else []

    def asked_by(self, job: KubeJob) -> None:
        """Take in what the job asks for by its specification."""
        self._asks = asks_of(job, self._settings) if job.local_queue else None

    def assigned(self, before: Assignment | None, *, active: bool) -> Assignment | None:
        """Return what Kueue assigns to the job; one that is `active` keeps that as long as Kueue says nothing."""
        found = self.base
        if found is not None:
            self.is_deactivated = not found.active
        if found is not None and found.admitted:
            return assignment_of(found, self._store.flavors.mapping())
        return before if active else None

    def admission(self, extra: int, *, active: bool) -> ExternalAdmission | None:
        """Return what Kueue has decided about the job, which has `extra` extra workers; None: it is not asked.

        It goes on to be asked for a job that is `active`, whatever has become of its specification or its label.
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
        """Return what Kueue is to add to the priority of the job while it runs; None: it does."""
        base = self.base
        if not self._settings.kueue_priority_boost or facts is None or base is None:
            return None
        boost = str(0 if facts.admitted_at is None else boost_of(lost_seconds(facts, now)))
        return None if boost == (base.boost or "0") else boost
