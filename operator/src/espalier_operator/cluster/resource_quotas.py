"""Remaining room for workers under the ResourceQuotas of namespaces. Pure.

The API server counts every pod of a namespace from its creation to its end, whether it is bound or not. Its count may
be older than the observed pods, so the larger of both is used; pods not yet created for grants are added.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from espalier_operator.model import JobFacts, NamespaceLimit, Worker, WorkerRole, WorkerState

_Scopes = tuple[tuple[str, str], ...]
_Key = tuple[_Scopes, str]
"""Scopes of a pod, and a resource."""


@dataclass(slots=True)
class _Account:
    """One limit, and the remaining amount."""

    limit: NamespaceLimit
    left: int
    """Amount left now."""
    leaving: int = 0
    """Amount being given back."""
    others: int = 0
    """Amount requested by pods that are not workers of our jobs; they may never leave."""

    def asked_by(self, job: JobFacts, role: WorkerRole = WorkerRole.BASE) -> int:
        """Return the amount that a worker of a job takes; 0 where the limit does not cover it."""
        return demand_of(job)[self.limit.resource] if self.limit.covers(_scopes_of(job, role)) else 0

    def counted(self, amounts: Mapping[_Key, int]) -> int:
        """Return the sum of the amounts that the limit covers."""
        of_resource = (entry for entry in amounts.items() if entry[0][1] == self.limit.resource)
        return sum(amount for (scopes, _), amount in of_resource if self.limit.covers(scopes))


class NamespaceLedger:
    """Amounts that workers may still request in each namespace. Without any limit, everything."""

    def __init__(
        self,
        limits: Iterable[NamespaceLimit],
        jobs: Iterable[JobFacts],
        workers: Iterable[Worker],
        leaving: Iterable[str],
        kept: Mapping[str, int],
    ) -> None:
        """Count the `workers` of `jobs`; workers named in `leaving` hold nothing later.

        `kept` is the number of extra workers of each job that stay.
        """
        self._accounts: dict[str, list[_Account]] = defaultdict(list)
        self._closed: set[str] = set()
        """Namespaces with a waiting job that later jobs must not pass."""
        for limit in limits:
            self._accounts[limit.namespace].append(_Account(limit, limit.hard - limit.used))
        if not self._accounts:
            return
        known = {job.key: job for job in jobs if _namespace(job) in self._accounts}
        gone = set(leaving)
        seen: dict[str, Counter[_Key]] = defaultdict(Counter)
        leaves: dict[str, Counter[_Key]] = defaultdict(Counter)
        lives: dict[str, Counter[object]] = defaultdict(Counter)
        for worker in workers:
            job = known.get(worker.job or "")
            if job is None or (worker.gpus == 0 and job.terms.gpus_per_worker):
                continue  # a worker without GPUs of a job with GPUs is an ended pod
            seen[_namespace(job)].update(_keyed_demand(job, worker.role))
            if worker.name in gone:
                leaves[_namespace(job)].update(_keyed_demand(job, worker.role))
            if worker.state is not WorkerState.TERMINATING:
                lives[job.key][worker.role] += 1
        owed: dict[str, Counter[_Key]] = defaultdict(Counter)
        for key, job in known.items():
            if job.admitted_at is None or job.finished or job.stopping is not None or job.ended is not None:
                continue
            missing = max(0, job.terms.min_replicas - lives[key]["base"])
            unseen = max(0, job.extra - lives[key]["extra"])
            stay = max(0, min(kept.get(key, job.extra), job.extra) - lives[key]["extra"])
            for asked, amount in _keyed_demand(job, WorkerRole.BASE).items():
                owed[_namespace(job)][asked] += missing * amount
            for asked, amount in _keyed_demand(job, WorkerRole.EXTRA).items():
                owed[_namespace(job)][asked] += unseen * amount
                # Unseen pods may exist already: a notice alone does not free their requests.
                leaves[_namespace(job)][asked] += (unseen - stay) * amount
        for namespace, accounts in self._accounts.items():
            for account in accounts:
                ours = account.counted(seen[namespace])
                used = max(account.limit.used, ours)
                account.left = account.limit.hard - used - account.counted(owed[namespace])
                account.others = used - ours
                account.leaving = account.counted(leaves[namespace])

    def fits(self, job: JobFacts, workers: int, role: WorkerRole = WorkerRole.BASE) -> bool:
        """Return whether the ResourceQuotas have room for this many more workers of a job now."""
        accounts = self._accounts.get(_namespace(job), ()) if self._accounts else ()
        asked = ((account, account.asked_by(job, role)) for account in accounts)
        return all(workers * amount <= max(0, account.left) for account, amount in asked if amount)

    def is_closed(self, job: JobFacts) -> bool:
        """Return whether an earlier job of its namespace waits for the same quota."""
        return bool(self._closed) and _namespace(job) in self._closed

    def lacks(self, job: JobFacts, workers: int) -> dict[str, int] | None:
        """Return the amounts that others must give back for the workers, by resource, less those being given back.

        None where a limit does not cover extra workers, so that none of them would make room.
        """
        found = dict[str, int]()
        for account in self._accounts.get(_namespace(job), ()):
            amount, resource = account.asked_by(job), account.limit.resource
            over = workers * amount - account.left - account.leaving
            if amount and over > 0:
                if not account.asked_by(job, WorkerRole.EXTRA):
                    return None
                found[resource] = max(over, found.get(resource, 0))
        return found

    def is_overdrawn(self, job: JobFacts) -> bool:
        """Return whether grants in the namespace exceed a limit that covers the job, even after pending releases."""
        accounts = self._accounts.get(_namespace(job), ()) if self._accounts else ()
        return any(account.left + account.leaving < 0 for account in accounts if account.asked_by(job))

    def expect(self, job: JobFacts, workers: int) -> None:
        """Count `workers` of a job as being given back."""
        for account in self._accounts.get(_namespace(job), ()):
            account.leaving += workers * account.asked_by(job)

    def could_ever_fit(self, job: JobFacts, workers: int) -> bool:
        """Return whether the workers would fit if all our jobs in the namespace had ended."""
        asked = ((account, account.asked_by(job)) for account in self._accounts.get(_namespace(job), ()))
        return all(workers * amount <= account.limit.hard - account.others for account, amount in asked if amount)

    def hold(self, job: JobFacts, workers: int, role: WorkerRole = WorkerRole.BASE) -> None:
        """Count this many more workers of a job as holding their requests."""
        for account in self._accounts.get(_namespace(job), ()) if self._accounts else ():
            account.left -= workers * account.asked_by(job, role)

    def wait(self, job: JobFacts) -> None:
        """Keep later jobs of the namespace behind this waiting one."""
        self._closed.add(_namespace(job))


def _namespace(job: JobFacts) -> str:
    return job.key.partition("/")[0]


def _scopes_of(job: JobFacts, role: WorkerRole) -> _Scopes:
    return job.terms.extra_quota_scopes if role is WorkerRole.EXTRA else job.terms.quota_scopes


def _keyed_demand(job: JobFacts, role: WorkerRole) -> dict[_Key, int]:
    scopes = _scopes_of(job, role)
    return {(scopes, resource): amount for resource, amount in demand_of(job).items()}


def demand_of(job: JobFacts) -> Counter[str]:
    """Return the requests of a worker of a job, including GPUs."""
    demand = Counter(dict(job.terms.constraints.requests))
    demand[job.terms.gpu_resource] += job.terms.gpus_per_worker
    return demand
