"""Which nodes report, and what that means for pods on them. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.state.outages import OUT_OF_SERVICE, Reach, is_widespread, reach_of
from espalier_operator.kube.watch.indexer import Indexer
from espalier_operator.model import Node


class NodeReach:
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

    def of(self, pods: Iterable[Pod], nodes: Indexer[Node], now: float) -> Reach:
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
