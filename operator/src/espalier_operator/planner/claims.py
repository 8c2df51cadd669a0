"""GPUs for granted workers and foreign pods, and reclaims of those that must leave."""

from __future__ import annotations

from random import Random
from typing import Final

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.capacity import Supply
from espalier_operator.cluster.headroom import ResourceVector
from espalier_operator.model import JobFacts, WorkerRole, WorkerState
from espalier_operator.model.actions import Replace, Requeue
from espalier_operator.model.constraints import Constraints
from espalier_operator.planner.cycle import PlanningCycle
from espalier_operator.planner.lifecycle import obstacle
from espalier_operator.planner.provisioning import NodeRequests

_MOST_LOOKS: Final = 2000
"""Maximum number of nodes examined in a plan for foreign pods that kube-scheduler keeps from nodes with GPUs for them.
Further such pods are left to it."""

_BY_SCHEDULER: Final = (Reason.UNSCHEDULABLE, Reason.VOLUME_UNAVAILABLE)
"""Reasons for which kube-scheduler finds no node for a worker."""


class Claims:
    """Step of a plan that keeps GPUs for workers that are already owed them."""

    def __init__(self, cycle: PlanningCycle, node_requests: NodeRequests) -> None:
        self._cycle, self._record, self._node_requests = cycle, cycle.record, node_requests
        self._barred: set[str] = set()
        """Jobs with a worker that waits until a node is tried again."""
        since = cycle.now - cycle.rules.dip_seconds
        missing = ((node.name, node.missing(since)) for node in cycle.snapshot.nodes if node.fell)
        self._dips = {node: gpus for node, gpus in missing if gpus}
        """GPUs that each node has just lost and that may return."""

    def leave_departing_gpus(self) -> None:
        """Reclaim extra workers on nodes that have, or will have, fewer GPUs than are held there.

        Where that is not enough on a node whose GPUs are announced to go, jobs that allow it are moved: all, or as many
        as hold the departing GPUs, in the order of `PlanningCycle.preemptible`. They give back their loans as they
        stop, as a notice first would take time that such a node does not have. GPUs that have just vanished unannounced
        may return, so they are not lost yet.
        """
        cycle, patience = self._cycle, self._cycle.rules.dip_seconds
        departures = {node.name: node.departs_at for node in cycle.snapshot.nodes if node.departing}
        for node in cycle.snapshot.nodes:
            if node.name in self._dips:
                for at, _ in node.fell:
                    self._record.wake(at + patience)
        for name, gpus in cycle.capacity.overdrawn():
            cycle.reclaims.leave_node(name, gpus - self._dips.get(name, 0), by=departures.get(name))
        left = {name: gpus for name, gpus in cycle.capacity.overdrawn() if name in departures}
        moves = list[JobFacts]()
        for job in cycle.preemptible() if left else ():
            nodes = cycle.worker_index.bound[job.key].values()
            is_there = any(left.get(node, 0) > 0 for node in nodes)
            if is_there and self._record.may_stop(job):
                moves.append(job)
                for held_on in nodes:
                    left[held_on] = left.get(held_on, 0) - job.terms.gpus_per_worker
        cycle.stop(moves, Reason.NODE_DEPARTING)

    def leave_as_asked(self) -> None:
        """Reclaim the extra workers that are asked to leave, and stop jobs that allow it whose base workers are."""
        cycle = self._cycle
        workers = cycle.snapshot.workers
        asked = [each for each in workers if each.asked_to_leave and each.state is not WorkerState.TERMINATING]
        cycle.reclaims.leave({each.name for each in asked})
        bases = {each.job for each in asked if each.role is WorkerRole.BASE}
        moves = [
            job for job in (cycle.preemptible() if bases else ()) if job.key in bases and self._record.may_stop(job)
        ]
        cycle.stop(moves, Reason.EVICTION_REQUESTED)
        for job in moves:
            holding = cycle.places.base_holding(job)
            for node in holding.nodes:
                cycle.capacity.expect(node, holding.each.gpus, holding.each.requests)

    def place(self) -> None:
        """Find or reclaim GPUs for base workers of running jobs that lack them, and for foreign pods.

        A job whose leader is in its last evaluation, or past it, does not wait again for lost workers: it ends soon and
        needs only its leader.
        """
        places, bound = self._cycle.places, self._cycle.worker_index.bound
        for job in places.choosiest_first(self._cycle.running):
            if self._record.is_stopped(job):
                continue
            if job.nodes_by is not None:
                self._node_requests.wait(job, job.nodes_by)
                continue
            wants = job.terms.min_replicas - len(self._cycle.worker_index.gated[job.key])
            if len(bound[job.key]) >= wants and job.key not in places.moved:
                self._doubt(job)
                continue
            supply = self._claim(job)
            waits = supply is Supply.NEVER or job.key in self._barred
            # A part of what it needs may be on its way by a reclaim: the node may still be the right one.
            moved = tuple(
                worker.index
                for worker in places.moved[job.key]
                if worker.role is WorkerRole.BASE and worker.pinned_to != places.base_nodes[job.key].get(worker.index)
            )
            if waits and (given_up := self._given_up(job, supply)) is not None:
                self._record.act(given_up)
            elif moved and (self._cycle.reclaims.is_asked(job.key) or (job.reclaim and supply is Supply.LATER)):
                continue  # it gets its own loan back, in this plan or a later one; its workers are recreated after that
            elif moved:  # even without another node for them yet: they would take uncounted GPUs
                self._record.act(Replace(job=job.key, workers=moved, pinned=job.pinned, reason=Reason.GPU_LOST))
            elif obstacle(job) not in _BY_SCHEDULER or (supply is Supply.NOW and not waits):
                self._doubt(job)
        self._serve_others()

    def _given_up(self, job: JobFacts, supply: Supply) -> Requeue | None:
        """Return a requeue of a job that has no GPUs for a base worker, or must not use them yet; None where it keeps
        its other workers, as it ends soon or will have the GPUs soon.
        """
        if supply is Supply.NEVER:
            return None if job.evaluating or self._may_return(job) else self._give_up(job)
        long = (self._cycle.avoidance.barred_until(job) or 0.0) - self._cycle.now > self._cycle.rules.placement_seconds
        if long and not (job.leader_running or job.evaluating):
            return Requeue(job=job.key, reason=Reason.NODES_AVOIDED, message=job.last_failure)
        return None

    def _may_return(self, job: JobFacts) -> bool:
        """Return whether a node that has just lost GPUs would have room for a worker of the job if they returned."""
        node_pool, gpus, capacity = self._cycle.places.node_pool(job), job.terms.gpus_per_worker, self._cycle.capacity
        dips = (
            (node, ResourceVector(lost, ())) for node, lost in self._dips.items() if capacity.is_in(node_pool, node)
        )
        return any(capacity.fits_with(node, node_pool, gpus, lost) for node, lost in dips)

    def _serve_others(self) -> None:
        """Keep or reclaim GPUs for foreign pods where kube-scheduler could bind them."""
        hopeless: set[tuple[str | None, int, Constraints, int]] = set()
        looks = _MOST_LOOKS
        for foreign in self._cycle.worker_index.foreign:
            kind = (foreign.gpu_type, foreign.gpus, foreign.constraints, foreign.barred_nodes)
            if kind in hopeless or foreign.barred_nodes > looks:
                continue
            looks -= foreign.barred_nodes
            node_pools = self._cycle.places.node_pools(foreign.gpu_type, foreign.constraints)
            if foreign.barred_nodes:
                supply = self._cycle.pool.obtain_beside(node_pools, foreign.gpus, foreign.barred_nodes)
            else:
                supply = self._cycle.pool.obtain(node_pools, foreign.gpus)
            if supply is Supply.NEVER:
                hopeless.add(kind)

    def serve_queued(self) -> None:
        """Keep or reclaim GPUs for workloads that wait for a queueing system, where all their pods get some.

        The system may wait for quota or nodes, and may count lent GPUs as used. If GPUs are free and it still waits,
        extra workers with quota of the same system give it back.
        """
        for queued in self._cycle.worker_index.queued:
            for node_pool in self._cycle.places.node_pools(queued.gpu_type, queued.constraints):
                supply = self._cycle.pool.await_gang(node_pool, queued.gpus, queued.queued)
                if supply is Supply.NOW:
                    for _ in range(queued.queued):
                        self._cycle.reclaims.cover(node_pool, queued.gpus, spared=_holds_no_quota)
                if supply is not Supply.NEVER:
                    break

    def _claim(self, job: JobFacts) -> Supply:
        """Keep GPUs for unbound base workers of a running job; return when the last of them has its GPUs."""
        places, gpus = self._cycle.places, job.terms.gpus_per_worker
        node_pool, pinned = places.node_pool(job), places.pinned[job.key]
        gated = self._cycle.worker_index.gated[job.key]
        supply = min((supply for supply, _ in pinned.values()), default=Supply.NOW)
        for index in job.base_indexes:
            if index in self._cycle.worker_index.bound[job.key] or index in pinned or index in gated:
                continue
            mark, supplied = self._cycle.transaction.mark(), Supply.NEVER
            for (preferred,) in places.levels(job, [node_pool.gpu_type]):
                kept = self._cycle.capacity.hold_at(preferred, places.chosen_before(job, index), gpus)
                supplied = kept or self._cycle.pool.obtain([preferred], gpus, places.near(job))
                if supplied is not Supply.NEVER:
                    places.base_nodes[job.key][index] = next(reversed(places.placed(job, mark)), None)
                    break
            else:
                if self._cycle.avoidance.barred_until(job) is not None:  # not created before a node is tried again
                    supplied = self._cycle.pool.obtain([node_pool], gpus, places.near(job))
                    self._barred.add(job.key)
            supply = min(supply, supplied)
            if supply is Supply.NEVER:
                break
        return supply

    def _give_up(self, job: JobFacts) -> Requeue:
        """Return a requeue of a job whose workers have lost their GPUs."""
        node_pool = self._cycle.places.node_pool(job)
        if job.trained or not any(
            self._cycle.capacity.is_in(node_pool, node) for node in self._cycle.worker_index.rivals
        ):
            # Nothing was lost where workers without GPUs had scheduling gates, or others were faster.
            had_any = job.trained or self._cycle.worker_index.has_lost_base(job.key, job.base_indexes)
            return Requeue(job=job.key, reason=Reason.GPU_LOST if had_any else Reason.NO_FREE_GPU)
        message = "workers of another Espalier took GPUs of the nodes that were chosen for it"
        return self._outrun(job, Reason.GPU_LOST, message)

    def _outrun(self, job: JobFacts, reason: Reason, message: str) -> Requeue:
        """Return a requeue of an untrained job, a part of whose grant others took at the same moment.

        It waits for a random time: two gangs that have outrun each other would otherwise do so again.
        """
        wait = self._cycle.rules.rivalry_seconds * Random(f"{job.key} {job.generation}").random()
        return Requeue(job=job.key, reason=reason, message=message, hold_until=self._cycle.now + wait)

    def _doubt(self, job: JobFacts) -> None:
        """Act on base workers that have been refused for long though GPUs are free.

        kube-scheduler may know more than this planner, such as volumes and other pods, so it chooses their nodes
        itself. Where that does not help either, or something else refuses them, the job waits again, as it holds GPUs
        that it cannot use. It does so at once where others have visibly taken the room that a ResourceQuota had for it.
        """
        if job.refused_since is None or job.evaluating:
            return
        reason, rules = obstacle(job), self._cycle.rules
        if reason is Reason.POD_REJECTED and not job.trained and self._cycle.namespaces.is_overdrawn(job):
            self._cycle.namespaces.expect(job, job.terms.min_replicas)
            self._record.act(self._outrun(job, Reason.RESOURCE_QUOTA_EXCEEDED, job.last_failure))
            return
        # Other refusals of some workers do not concern the nodes chosen for the rest.
        by_scheduler = reason in _BY_SCHEDULER
        pinned = tuple(sorted(self._cycle.places.pinned[job.key])) if by_scheduler else ()
        seconds = rules.pin_seconds if pinned else rules.placement_seconds
        if not by_scheduler and not (job.trained and job.leader_running):
            seconds = min(seconds, rules.refusal_seconds)
        if self._record.wait(job.refused_since + seconds):
            return
        if pinned:
            self._record.act(Replace(job=job.key, workers=pinned, pinned=False, reason=Reason.UNSCHEDULABLE))
        else:
            self._record.act(Requeue(job=job.key, reason=reason, message=job.last_failure))


def _holds_no_quota(holder: JobFacts) -> bool:
    """Return whether no other system's quota counts the extra workers of a job."""
    return holder.external is None or holder.external.extra is None
