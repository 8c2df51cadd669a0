"""The known nodes: silent ones, workers given up with them, and use by foreign pods. No I/O.

A silent kubelet does not prove that nothing runs: its pods may train on. So a base worker is given up when Kubernetes
would evict it, after the pod's own `tolerationSeconds` for `node.kubernetes.io/unreachable` (300 s by default), and at
once if the node is removed or marked as out of service, or the pod is being deleted. An extra worker holds no state, so
it is given up at once.

If most nodes fall silent at the same time, the control plane is the likely cause, and nothing is given up. The
thresholds are those of kube-controller-manager's node controller (`ComputeZoneState`, `--unhealthy-zone-threshold`),
which stops evictions then; here they apply to the cluster, not to each zone.
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
"""Key of the taint by which an administrator declares that nothing runs on a node any more."""
WIDESPREAD_SHARE: Final = 0.55
"""Share of silent nodes from which an outage is widespread. The loss of one of two equal zones stays below it."""
WIDESPREAD_NODES: Final = 3
"""Minimum number of silent nodes in a widespread outage, unless all nodes are silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreachablePods:
    """Pods affected by silent or missing nodes at a moment."""

    lost: frozenset[str] = frozenset()
    """UIDs of pods given up."""
    silent: frozenset[str] = frozenset()
    """UIDs of pods whose node does not report and that are not given up yet."""
    next_at: float | None = None
    """Time at which the next one is given up if nothing else changes."""


def is_widespread(silent: int, nodes: int) -> bool:
    """Return whether too many nodes are silent for the nodes to be the likely cause."""
    return silent > 0 and (silent == nodes or (silent >= WIDESPREAD_NODES and silent / nodes >= WIDESPREAD_SHARE))


def given_up_at(pod: Pod, node: Node, *, widespread: bool) -> float | None:
    """Return when `pod` on a silent `node` is given up, in epoch seconds; None: not in the current state."""
    if pod.deleting or any(taint.key == OUT_OF_SERVICE for taint in node.taints):
        return -math.inf
    if widespread:
        return None
    if pod.role is WorkerRole.EXTRA or node.silent_since is None:
        return -math.inf
    return None if math.isinf(pod.patience) else node.silent_since + pod.patience


def reach_of(pods: Iterable[Pod], nodes: Mapping[str, Node | None], now: float, *, widespread: bool) -> UnreachablePods:
    """Return the affected `pods` at `now`; `nodes` has the nodes that they are bound to, None for a deleted one.

    A node missing in `nodes` is not known yet, and counts as reporting.
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
        """Start without nodes."""
        self._silent: set[str] = set()
        """Names of the nodes that do not report."""
        self._widespread = False
        """Whether most nodes do not report."""

    def changed(self, key: str, before: Node | None, after: Node | None, nodes: int) -> set[str]:
        """Record a change of one of `nodes` nodes; return the names of the nodes whose pods it affects."""
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
        """Return the `pods` affected by silent or missing nodes at `now`.

        An unknown node counts as reporting until a list newer than the pod lacks it: events of pods may come before
        those of their nodes.
        """
        pods, found = list(pods), {}
        for pod in pods:
            if pod.node is not None:
                node = nodes.get(pod.node)
                if node is not None or nodes.is_gone(pod.node, int(pod.resource_version or 0)):
                    found[pod.node] = node
        return reach_of(pods, found, now, widespread=self._widespread)


def _essence(node: Node | None) -> tuple[object, ...]:
    """Return the properties of a node that decide on its pods."""
    if node is None:
        return ()
    return node.ready, node.silent_since, any(taint.key == OUT_OF_SERVICE for taint in node.taints)


class NodeUsage:
    """Counts the loads of pods; the planner counts workers of our jobs itself."""

    def __init__(
        self,
        settings: KubeSettings,
        node: Callable[[str], Node | None],
        devices_on: Callable[[str], Mapping[str, int]],
        announce: Callable[[], None],
        time: Callable[[], float],
    ) -> None:
        """Take look-ups of a node and its devices, and the store's `announce` and `time`; nothing is used yet."""
        self._settings, self._node, self._devices_on, self._announce = settings, node, devices_on, announce
        self._time = time
        self._used: dict[str, Counter[str]] = defaultdict(Counter)
        """Used amounts by node."""
        self._counted: dict[str, Load] = {}
        """The counted load of each pod."""
        self.planned_nodes: dict[str, Node] = {}
        """The planner's nodes, with their use by foreign pods, by name."""

    def count(self, key: str, load: Load | None) -> None:
        """Replace the counted load of a pod."""
        before = self._counted.pop(key, None)
        if load is not None:
            self._counted[key] = load
        for each, sign in ((before, -1), (load, 1)) if before != load else ():
            if each is not None:
                used = self._used[each.node]
                for name, amount in each.requests:
                    used[name] += sign * amount
                if not any(used.values()):
                    del self._used[each.node]  # names of nodes are ever new
                self.see(each.node)

    def see(self, name: str) -> None:
        """Update the planner's nodes of a machine."""
        node = self._node(name)
        seen: dict[str, Node] = {}
        if node is not None:
            node = replace(node, resources={**node.resources, **self._devices_on(name)})
            # Nothing is placed on a node without GPUs, so other changes there do not matter.
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
        """Return `Node.fell`. Before it was first seen, a node may have had its unhealthy GPUs."""
        now = self._time()
        if before is None:
            lacking = after.unhealthy.get(nodes.resource_of_type(after.gpu_type, self._settings), 0)
            fell = [(now, after.allocatable + lacking)]
        else:
            fell = [*before.fell, (now, before.allocatable)]
        since = now - self._settings.rules.dip_seconds
        return tuple((at, had) for at, had in fell if at > since and had > after.allocatable)
