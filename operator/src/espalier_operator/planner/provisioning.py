"""Capacity that may come: waiting jobs whose demand is made visible to an autoscaler, for a limited time. Pure.

Cluster-autoscaler and Karpenter add nodes for pods for which kube-scheduler finds none. A job that does not fit now,
even on lent GPUs, but would on the nodes that a group may still add, is granted its base workers there
(`RequestNodes`): their pods are created, require the labels of the group, and wait. They hold free GPUs of the group,
and nothing is reclaimed for them. Extra workers never request nodes.
"""

from __future__ import annotations

import math

from espalier_core.types.reasons import Reason
from espalier_operator.model import JobFacts, NodeGroup
from espalier_operator.model.actions import RequestNodes, Requeue
from espalier_operator.planner.cycle import PlanningCycle


class NodeRequests:
    """The nodes requested for the jobs of one cycle."""

    def __init__(self, cycle: PlanningCycle) -> None:
        """Count the nodes that each group may still add: its limit less existing and requested nodes."""
        self._cycle, self._record = cycle, cycle.record
        self._groups = {group.name: group for group in cycle.rules.node_groups}
        staying = [node for node in cycle.snapshot.nodes if not node.is_leaving] if self._groups else []
        self._nodes = {name: [node for node in staying if group.has(node)] for name, group in self._groups.items()}
        self._left = {name: group.max_nodes - len(self._nodes[name]) for name, group in self._groups.items()}
        for job in cycle.running if self._groups else ():
            group = self._groups.get(job.node_group)
            if group is not None:
                nodes = _nodes_for(job, group, job.terms.min_replicas - len(cycle.worker_index.bound[job.key]))
                self._left[group.name] -= int(nodes) if math.isfinite(nodes) else 0

    def could_hold(self, job: JobFacts) -> bool:
        """Return whether a group with all its nodes could hold all base workers of a job."""
        workers = job.terms.min_replicas
        return any(
            job.terms.admit(group.node) and _nodes_for(job, group, workers) <= group.max_nodes
            for group in self._groups.values()
        )

    def request(self, job: JobFacts) -> None:
        """Grant a refused job its base workers on nodes that may come, if these are enough."""
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
        """Keep the free GPUs of its group for a job that waits for nodes until `nodes_by`; requeue it after that."""
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
        """Hold free GPUs on the nodes of `group` for up to `workers`; return the number of workers served."""
        node_pools = self._cycle.places.node_pools(group.gpu_type, job.terms.constraints)
        held, gpus, capacity = 0, job.terms.gpus_per_worker, self._cycle.capacity
        for node in self._nodes[group.name]:
            while held < workers and any(capacity.take_at(pool, node.name, gpus) for pool in node_pools):
                held += 1
        return held


def _nodes_for(job: JobFacts, group: NodeGroup, workers: int) -> float:
    """Return the number of nodes of `group` for this many workers of a job."""
    each = group.gpus // job.terms.gpus_per_worker if job.terms.gpus_per_worker else 0
    return math.ceil(workers / each) if each else math.inf
