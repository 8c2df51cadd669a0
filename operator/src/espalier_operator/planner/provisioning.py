"""Capacity that may come: which waiting jobs make their demand visible to an autoscaler, and for how long. Pure.

Cluster-autoscaler and Karpenter add nodes for pods that kube-scheduler finds none for. A job that does not fit now, not
on lent GPUs either, and would on the nodes that a group may still add, is granted its base workers there
(`RequestNodes`): their pods are made, ask for the labels of the group, and wait. They hold what is free in the group,
and nobody gives anything back for them. Extra workers never ask for nodes.
"""

from __future__ import annotations

import math

from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts, NodeGroup
from espalier_operator.model.actions import RequestNodes, Requeue
from espalier_operator.planner.cycle import PlanningCycle


class NodeRequests:
    """The nodes that the jobs of one cycle ask for."""

    def __init__(self, cycle: PlanningCycle) -> None:
        """Count what each group may still add: its limit less the nodes that are there or asked for."""
        self._cycle, self._record = cycle, cycle.record
        self._groups = {group.name: group for group in cycle.rules.node_groups}
        staying = [node for node in cycle.snapshot.nodes if not node.is_leaving] if self._groups else []
        self._nodes = {name: [node for node in staying if group.has(node)] for name, group in self._groups.items()}
        self._left = {name: group.max_nodes - len(self._nodes[name]) for name, group in self._groups.items()}
        for job in cycle.running if self._groups else ():
            group = self._groups.get(job.node_group)
            if group is not None:
                missing = job.terms.min_replicas - len(cycle.worker_index.bound[job.key])
                self._left[group.name] -= math.ceil(missing * job.terms.gpus_per_worker / group.gpus)

    def could_hold(self, job: JobFacts) -> bool:
        """Return whether some group could hold all base workers of a job, if it had all its nodes."""
        workers = job.terms.min_replicas
        return any(
            job.terms.admit(group.node) and _nodes_for(job, group, workers) <= group.max_nodes
            for group in self._groups.values()
        )

    def request(self, job: JobFacts) -> None:
        """Grant a job that was refused GPUs its base workers on nodes that may come, if these are enough."""
        terms, ledger, namespaces = job.terms, self._cycle.ledger, self._cycle.namespaces
        if not terms.gpus_per_worker or namespaces.is_closed(job) or not namespaces.fits(job, terms.min_replicas):
            return
        for group in self._groups.values():
            claim, mark = job.claim, self._cycle.transaction.mark()
            allowed = not ledger.limits or ledger.allows(claim, group.gpu_type, borrowing=False)
            if not allowed or not job.terms.admit(group.node):
                continue
            nodes = _nodes_for(job, group, terms.min_replicas - self._hold(job, group, terms.min_replicas))
            if not 0 < nodes <= self._left[group.name]:
                self._cycle.transaction.undo(mark)
                continue
            self._left[group.name] -= int(nodes)
            ledger.hold(claim, group.gpu_type)
            namespaces.hold(job, terms.min_replicas)
            self._cycle.places.base_nodes[job.key].update(dict.fromkeys(job.base_indexes))
            until = self._cycle.now + self._cycle.rules.node_wait_seconds
            self._record.refusals.pop(job.key, None)
            self._record.act(RequestNodes(job=job.key, gpu_type=group.gpu_type, node_group=group.name, nodes_by=until))
            self._record.wake(until)
            return

    def wait(self, job: JobFacts, nodes_by: float) -> None:
        """Keep what is free in its group for a job whose nodes are to come by `nodes_by`; then let it wait again."""
        bound, group = self._cycle.worker_index.bound[job.key], self._groups.get(job.node_group)
        missing = [index for index in job.base_indexes if index not in bound]
        if missing and self._cycle.now >= nodes_by:
            message = f"no nodes were added for it in time in the node group {job.node_group!r}"
            self._record.act(Requeue(job=job.key, reason=Reason.UNSCHEDULABLE, message=message))
            return
        self._record.wake(nodes_by)
        self._cycle.places.base_nodes[job.key].update(dict.fromkeys(missing))
        if group is not None:
            self._hold(job, group, len(missing))

    def _hold(self, job: JobFacts, group: NodeGroup, workers: int) -> int:
        """Hold the free GPUs of the nodes of `group` for up to `workers`; return for how many."""
        node_pools = self._cycle.places.node_pools(group.gpu_type, job.terms.constraints)
        held, gpus, capacity = 0, job.terms.gpus_per_worker, self._cycle.capacity
        for node in self._nodes[group.name]:
            while held < workers and any(capacity.take_at(pool, node.name, gpus) for pool in node_pools):
                held += 1
        return held


def _nodes_for(job: JobFacts, group: NodeGroup, workers: int) -> float:
    """Return how many nodes of `group` hold that many workers of a job."""
    each = group.gpus // job.terms.gpus_per_worker if job.terms.gpus_per_worker else 0
    return math.ceil(workers / each) if each else math.inf
