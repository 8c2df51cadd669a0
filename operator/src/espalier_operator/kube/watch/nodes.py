"""The known nodes: which report, which workers are given up with a silent one, and what others use of each. No I/O.

A kubelet that does not report is no proof that nothing runs: its pods may train on. So a base worker is given up when
Kubernetes would evict it, after the pod's own `tolerationSeconds` for `node.kubernetes.io/unreachable` (300 s by
default), and at once if the node is removed or marked as out of service, or the pod is being deleted. An extra worker
holds no state, so it is given up at once.

If most nodes fall silent at the same time, the control plane is probably what is ill, and nothing is given up. The
thresholds are those of kube-controller-manager's node controller (`ComputeZoneState`, `--unhealthy-zone-threshold`),
which stops evictions then; here they hold for the cluster, not for each zone.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from espalier_operator.kube.objects import nodes
from espalier_operator.kube.objects.pods import Load, Pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.indexer import Indexer
from espalier_operator.model import Node, WorkerRole

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Key of the taint by which an administrator says that nothing runs on a node any more."""
WIDESPREAD_SHARE: Final = 0.55
"""Of all nodes. A zone of two equal ones may be lost without reaching it."""
WIDESPREAD_NODES: Final = 3
"""Fewer silent nodes are no widespread outage, unless they are all nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreachablePods:
    """What the nodes of some pods mean for them at a moment."""

    lost: frozenset[str] = frozenset()
    """UIDs of pods that are given up."""
    silent: frozenset[str] = frozenset()
    """UIDs of pods whose node does not report, and that are not given up yet."""
    next_at: float | None = None
    """When the next one is given up if nothing else changes."""


def is_widespread(silent: int, nodes: int) -> bool:
    """Return whether the cause is probably not the nodes, because too many of them do not report."""
    return silent > 0 and (silent == nodes or (silent >= WIDESPREAD_NODES and silent / nodes >= WIDESPREAD_SHARE))


def given_up_at(pod: Pod, node: Node, *, widespread: bool) -> float | None:
    """Return when `pod` on a `node` that does not report is given up, epoch seconds; None: not as things are."""
    if pod.deleting or any(taint.key == OUT_OF_SERVICE for taint in node.taints):
        return -math.inf
    if widespread:
        return None
    if pod.role is WorkerRole.EXTRA or node.silent_since is None:
        return -math.inf
    return None if math.isinf(pod.patience) else node.silent_since + pod.patience


def reach_of(pods: Iterable[Pod], nodes: Mapping[str, Node | None], now: float, *, widespread: bool) -> UnreachablePods:
    """Return the reach of `pods` at `now`; `nodes` has those that they are bound to, None for one that is gone.

    A node that is missing in `nodes` is not known yet, and counts as one that reports.
    """
    lost, silent, later = set(), set(), []
    for pod in pods:
        if pod.node is None or pod.node not in nodes or pod.ended:
            continue
        node = nodes[pod.node]
        if node is not None and node.ready:
            continue
        at = -math.inf if node is None else given_up_at(pod, node, widespread=widespread)
        if at is not None and now >= at:
            lost.add(pod.uid)
            continue
        silent.add(pod.uid)
        if at is not None:
            later.append(at)
    return UnreachablePods(lost=frozenset(lost), silent=frozenset(silent), next_at=min(later, default=None))


class NodeHealth:
    """Follows the nodes of an indexer."""

    def __init__(self) -> None:
        """No node is known yet."""
        self._silent: set[str] = set()
        """Names of the nodes that do not report."""
        self._widespread = False
        """Most nodes do not report."""

    def changed(self, key: str, before: Node | None, after: Node | None, nodes: int) -> set[str]:
        """Take in a change of a node, one of `nodes`; return the names of those whose pods it means something for."""
        touched = set()
        if (before is None, _essence(before)) != (after is None, _essence(after)):
            touched.add(key)
        (self._silent.discard if after is None or after.ready else self._silent.add)(key)
        widespread = is_widespread(len(self._silent), nodes)
        if widespread != self._widespread:
            self._widespread = widespread
            touched |= self._silent
        return touched

    def of(self, pods: Iterable[Pod], nodes: Indexer[Node], now: float) -> UnreachablePods:
        """Return what the nodes of `pods` mean for them at `now`.

        An unknown node counts as one that reports until a list younger than the pod lacks it: events of pods may come
        before those of their nodes.
        """
        pods, found = list(pods), {}
        for pod in pods:
            if pod.node is not None:
                node = nodes.get(pod.node)
                if node is not None or nodes.is_gone(pod.node, int(pod.resource_version or 0)):
                    found[pod.node] = node
        return reach_of(pods, found, now, widespread=self._widespread)


def _essence(node: Node | None) -> tuple[object, ...]:
    """Return what decides on the pods of a node."""
    if node is None:
        return ()
    return node.ready, node.silent_since, any(taint.key == OUT_OF_SERVICE for taint in node.taints)


class NodeUsage:
    """Counts what pods take; the planner counts workers of our jobs itself."""

    def __init__(
        self,
        settings: KubeSettings,
        node: Callable[[str], Node | None],
        devices_on: Callable[[str], Mapping[str, int]],
        announce: Callable[[], None],
        time: Callable[[], float],
    ) -> None:
        """Nothing is used. `node` and `devices_on` look up a node and its devices; the others are as of the store."""
        self._settings, self._node, self._devices_on, self._announce = settings, node, devices_on, announce
        self._time = time
        self._used: dict[str, Counter[str]] = defaultdict(Counter)
        """By node."""
        self._counted: dict[str, Load] = {}
        """By pod: what of `_used` is its."""
        self.planned_nodes: dict[str, Node] = {}
        """By name: the nodes as the planner sees them, with what is used of them."""

    def count(self, key: str, load: Load | None) -> None:
        """Count what a pod takes, in place of what was counted of it before."""
        before = self._counted.pop(key, None)
        if load is not None:
            self._counted[key] = load
        for each, sign in ((before, -1), (load, 1)) if before != load else ():
            if each is not None:
                used = self._used[each.node]
                for name, amount in each.requests:
                    used[name] += sign * amount
                if not any(used.values()):
                    del self._used[each.node]  # names of nodes are new again and again
                self.see(each.node)

    def see(self, name: str) -> None:
        """Bring what the planner sees of a node up to date."""
        node = self._node(name)
        seen: dict[str, Node] = {}
        if node is not None:
            node = replace(node, resources={**node.resources, **self._devices_on(name)})
            # Nothing is placed on a node without GPUs, whatever comes and goes there.
            if node.allocatable or any(node.resources.get(each) for each in self._settings.other_gpu_resources):
                node = replace(node, used=dict(+self._used.get(name, Counter())))
            seen = {each.name: each for each in nodes.nodes_of(node, self._settings, self.planned_nodes)}
        before = (name, *(nodes.place_of(name, each, self._settings) for each in self._settings.other_gpu_resources))
        for place in filter(None, before):
            if place not in seen:
                self.planned_nodes.pop(place, None)
        for place, each in seen.items():
            each = replace(each, fell=self._fell(self.planned_nodes.get(place), each))
            if self.planned_nodes.get(place) != each:
                self.planned_nodes[place] = each
                self._announce()

    def _fell(self, before: Node | None, after: Node) -> tuple[tuple[float, int], ...]:
        """Return `Node.fell`. Before it was first seen, a node may have had all GPUs that are not healthy."""
        now = self._time()
        if before is None:
            lacking = after.unhealthy.get(nodes.resource_of_type(after.gpu_type, self._settings), 0)
            fell = [(now, after.allocatable + lacking)]
        else:
            fell = [*before.fell, (now, before.allocatable)]
        since = now - self._settings.rules.dip_seconds
        return tuple((at, had) for at, had in fell if at > since and had > after.allocatable)
