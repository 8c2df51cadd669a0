"""GPUs from both sources: those that are free, and those that are lent and can be asked back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain

from espalier_operator.cluster.capacity import Capacity, Supply
from espalier_operator.cluster.node_pools import NodePool
from espalier_operator.model import JobFacts, Promise, Worker, WorkerRole, WorkerState
from espalier_operator.reclaim.queue import ReclaimQueue


class Pool:
    """Hands out, sets aside and asks back; a need of 0 GPUs is always met."""

    def __init__(self, capacity: Capacity, reclaims: ReclaimQueue) -> None:
        """Join the two, which write to one transaction."""
        self._capacity, self._reclaims, self._transaction = capacity, reclaims, capacity.transaction

    def take(self, node_pool: NodePool, gpus: int, near: Collection[str] = ()) -> bool:
        """Hand out `gpus` of one node at once, close to the nodes `near`."""
        return gpus == 0 or self._capacity.take(node_pool, gpus, near) is not None

    def take_gang(self, node_pool: NodePool, gpus: int, workers: int) -> bool:
        """Hand out `gpus` for each of `workers` at once, or nothing."""
        return gpus == 0 or self._capacity.take_gang(node_pool, gpus, workers)

    def take_gang_at(self, node_pool: NodePool, gpus: int, nodes: Sequence[str]) -> bool:
        """Hand out `gpus` (> 0) of each of `nodes` at once, one of them as often as it is named, or nothing."""
        mark = self._transaction.mark()
        if all(self._capacity.take_at(node_pool, node, gpus) for node in nodes):
            return True
        self._transaction.undo(mark)
        return False

    def has_gang(self, node_pool: NodePool, gpus: int, workers: int) -> bool:
        """Return whether `take_gang` would hand out, on a node pool for workers that need nothing but GPUs."""
        return gpus == 0 or self._capacity.has_gang(node_pool, gpus, workers)

    def obtain(self, node_pools: Sequence[NodePool], gpus: int, near: Collection[str] = ()) -> Supply:
        """Keep `gpus` of one node of the first possible node pool; where none are to come, ask for lent ones."""
        kept = (self._keep(node_pool, gpus, near) for node_pool in node_pools)
        covered = (self._reclaims.cover(node_pool, gpus) for node_pool in node_pools)
        return next(filter(None, chain(kept, covered)), Supply.NEVER)

    def obtain_beside(self, node_pools: Sequence[NodePool], gpus: int, barred: int) -> Supply:
        """Do so for a pod that kube-scheduler keeps from `barred` nodes with GPUs for it, which are not known.

        If no more than that have them, those are the nodes: nothing is kept there, and lent GPUs are asked for
        elsewhere. If more have them, kube-scheduler has not looked at some yet: GPUs of one node more are kept until
        it has, so the right ones are among them.
        """
        free = self._capacity.close_off(node_pools, gpus, barred + 1)
        supply = self.obtain(node_pools, gpus) if len(free) <= barred else Supply.NOW
        self._capacity.reopen(free)
        for node_pool, node in free if len(free) > barred else ():
            self._capacity.reserve(node, gpus, node_pool.requests)
        return supply

    def await_gang(self, node_pool: NodePool, gpus: int, workers: int) -> Supply:
        """Keep `gpus` for each of `workers`, asking for lent ones; or nothing at all where that is too few.

        The answer is that of the worker who is served last.
        """
        mark, supply = self._transaction.mark(), Supply.NOW
        while gpus > 0 and workers > 0:
            kept = self._capacity.keep_some(node_pool, gpus, workers)
            if kept is None:
                kept = self._reclaims.cover_some(node_pool, gpus, workers)
            supply, workers = min(supply, kept[0]), workers - kept[1]
            if supply is Supply.NEVER:
                self._transaction.undo(mark)
                break
        return supply

    def would_await_gang(self, node_pool: NodePool, gpus: int, workers: int) -> Supply:
        """Return what `await_gang` would."""
        with self._transaction.trial():
            return self.await_gang(node_pool, gpus, workers)

    def await_one(
        self,
        node_pool: NodePool,
        gpus: int,
        may_take: Callable[[JobFacts, int], bool] | None = None,
        spared: Callable[[JobFacts], bool] | None = None,
        near: Collection[str] = (),
    ) -> Supply:
        """Keep `gpus` of one node that are free or given back, or reclaim lent ones as `ReclaimQueue.cover` may."""
        return self._keep(node_pool, gpus, near) or self._reclaims.cover(node_pool, gpus, may_take, spared)

    def _keep(self, node_pool: NodePool, gpus: int, near: Collection[str] = ()) -> Supply:
        """Keep `gpus` of one node that are free, close to the nodes `near`, or given back."""
        if self.take(node_pool, gpus, near):
            return Supply.NOW
        return Supply.NEVER if self._capacity.set_aside(node_pool, gpus) is None else Supply.LATER


def hold_promised(
    capacity: Capacity,
    job: JobFacts,
    node_pools: Sequence[NodePool],
    promise: Promise | None,
    seen: Sequence[Worker],
    kept: int,
    now: float,
    chosen: Sequence[str | None] = (),
) -> list[Worker]:
    """Keep GPUs in `capacity` for what `job` was granted and is not bound; return that as workers of where it will be.

    Those are the unbound ones of `seen` (the job's live extra workers), and while `promise` holds those that are not
    to be seen at all, in the first of `node_pools` that has room; there on the nodes `chosen` for them before if these
    have room. Workers from index `kept` up are being
    given back: they are counted until they are gone, and are not in the answer. Where there is no room for one it is
    left to be bound, or its promise to expire.
    """
    bound = {worker.index for worker in seen if worker.node is not None}
    due = job.extra if promise is not None and now < promise.expires_at else len(seen)
    unbound = [index for index in range(job.extra) if index not in bound][: max(0, due - len(bound))]
    promised = []
    gpus, before = job.terms.gpus_per_worker, [*chosen]
    for index in unbound:
        prior, node = before.pop() if before and index < kept else None, None
        for node_pool in node_pools:
            if capacity.hold_at(node_pool, prior, gpus) is not Supply.NEVER:
                node = prior
            else:
                node = capacity.hold(node_pool, gpus) if index < kept else capacity.occupy(node_pool, gpus)
            if node is not None:
                break
        if node is not None and index < kept:
            promised.append(
                Worker(
                    name=f"{job.key} extra {index}, promised",
                    job=job.key,
                    role=WorkerRole.EXTRA,
                    index=index,
                    node=node,
                    gpus=gpus,
                    state=WorkerState.PENDING,
                )
            )
    return promised
