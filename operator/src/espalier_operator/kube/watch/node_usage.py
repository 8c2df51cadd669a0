"""What is used of each node by others than our workers, and the nodes as the planner sees them. No I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

from espalier_operator.kube.objects import nodes
from espalier_operator.kube.objects.pods import Load
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Node


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
