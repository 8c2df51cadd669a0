"""What the ResourceQuotas of namespaces leave for workers. Pure.

The API server counts every pod of a namespace from the moment it is made until it has ended, whether it is bound or
not. What it counts may be older than the pods that are seen, so the larger of both counts; pods that are still to be
made for what was granted are added.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from espalier_operator.facts import JobFacts, NamespaceLimit, Worker, WorkerState


@dataclass(slots=True)
class _Account:
    """One limit, and what is left of it."""

    limit: NamespaceLimit
    left: int
    """Now."""
    leaving: int = 0
    """What is being given back."""
    others: int = 0
    """What pods request that are no worker of our jobs: they may never leave."""


class NamespaceLedger:
    """What workers may still request in each namespace. Without any limit, everything."""

    def __init__(
        self,
        limits: Iterable[NamespaceLimit],
        jobs: Iterable[JobFacts],
        workers: Iterable[Worker],
        leaving: Iterable[str],
        kept: Mapping[str, int],
    ) -> None:
        """Count the `workers` of `jobs`; those named in `leaving` hold nothing later.

        `kept` are the extra workers of each job that stay.
        """
        self._accounts: dict[str, list[_Account]] = defaultdict(list)
        self._closed: set[str] = set()
        """Namespaces in which a job waits that goes before those that come later."""
        for limit in limits:
            self._accounts[limit.namespace].append(_Account(limit, limit.hard - limit.used))
        if not self._accounts:
            return
        known = {job.key: job for job in jobs if _namespace(job) in self._accounts}
        gone = set(leaving)
        seen: dict[str, Counter[str]] = defaultdict(Counter)
        leaves: dict[str, Counter[str]] = defaultdict(Counter)
        lives: dict[str, Counter[object]] = defaultdict(Counter)
        for worker in workers:
            job = known.get(worker.job or "")
            if job is None or (worker.gpus == 0 and job.terms.gpus_per_worker):
                continue  # the last is of a pod that has ended
            seen[_namespace(job)].update(demand_of(job))
            if worker.name in gone:
                leaves[_namespace(job)].update(demand_of(job))
            if worker.state is not WorkerState.TERMINATING:
                lives[job.key][worker.role] += 1
        owed: dict[str, Counter[str]] = defaultdict(Counter)
        for key, job in known.items():
            if job.admitted_at is None or job.finished or job.stopping is not None or job.ended is not None:
                continue
            missing = max(0, job.terms.min_replicas - lives[key]["base"])
            unseen = max(0, job.extra - lives[key]["extra"])
            stay = max(0, min(kept.get(key, job.extra), job.extra) - lives[key]["extra"])
            for name, amount in demand_of(job).items():
                owed[_namespace(job)][name] += (missing + unseen) * amount
                # Pods that are not seen may have been made: a notice alone does not free what they request.
                leaves[_namespace(job)][name] += (unseen - stay) * amount
        for namespace, accounts in self._accounts.items():
            for account in accounts:
                resource = account.limit.resource
                used = max(account.limit.used, seen[namespace][resource])
                account.left = account.limit.hard - used - owed[namespace][resource]
                account.others = used - seen[namespace][resource]
                account.leaving = leaves[namespace][resource]

    def fits(self, job: JobFacts, workers: int) -> bool:
        """Return whether the ResourceQuotas have room for this many more workers of a job now."""
        if not self._accounts:
            return True
        demand = demand_of(job)
        return all(
            workers * demand[account.limit.resource] <= max(0, account.left)
            for account in self._accounts.get(_namespace(job), ())
            if demand[account.limit.resource]
        )

    def is_closed(self, job: JobFacts) -> bool:
        """Return whether an earlier job of its namespace waits for the same quota."""
        return bool(self._closed) and _namespace(job) in self._closed

    def lacks(self, job: JobFacts, workers: int) -> dict[str, int]:
        """Return by resource how much others must give back for the workers, less what is being given back."""
        demand, found = demand_of(job), dict[str, int]()
        for account in self._accounts.get(_namespace(job), ()):
            resource = account.limit.resource
            over = workers * demand[resource] - account.left - account.leaving
            if demand[resource] and over > 0:
                found[resource] = max(over, found.get(resource, 0))
        return found

    def is_overdrawn(self, job: JobFacts) -> bool:
        """Return whether more of what a job requests was granted in its namespace than others have left of it, also
        once what is being given back has gone.
        """
        demand = demand_of(job)
        accounts = self._accounts.get(_namespace(job), ()) if self._accounts else ()
        return any(account.left + account.leaving < 0 for account in accounts if demand[account.limit.resource])

    def expect(self, job: JobFacts, workers: int) -> None:
        """Count `workers` of a job as being given back."""
        demand = demand_of(job)
        for account in self._accounts.get(_namespace(job), ()):
            account.leaving += workers * demand[account.limit.resource]

    def could_ever_fit(self, job: JobFacts, workers: int) -> bool:
        """Return whether the workers would fit if all our jobs in the namespace had ended."""
        demand = demand_of(job)
        accounts = self._accounts.get(_namespace(job), ())
        return all(
            workers * demand[account.limit.resource] <= account.limit.hard - account.others
            for account in accounts
            if demand[account.limit.resource]
        )

    def hold(self, job: JobFacts, workers: int) -> None:
        """Count this many more workers of a job."""
        accounts = self._accounts.get(_namespace(job)) if self._accounts else None
        if accounts:
            demand = demand_of(job)
            for account in accounts:
                account.left -= workers * demand[account.limit.resource]

    def wait(self, job: JobFacts) -> None:
        """Let no later job of its namespace pass one that waits."""
        self._closed.add(_namespace(job))


def _namespace(job: JobFacts) -> str:
    return job.key.partition("/")[0]


def demand_of(job: JobFacts) -> Counter[str]:
    """Return what a worker of a job requests, its GPUs included."""
    demand = Counter(dict(job.terms.constraints.requests))
    demand[job.terms.gpu_resource] += job.terms.gpus_per_worker
    return demand
