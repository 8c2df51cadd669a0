"""Which workers are given up with their node: a pure rule on nodes and pods.

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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from espalier_operator.kube.objects.pods import Pod
from espalier_operator.model import Node, Role

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Key of the taint by which an administrator says that nothing runs on a node any more."""
WIDESPREAD_SHARE: Final = 0.55
"""Of all nodes. A zone of two equal ones may be lost without reaching it."""
WIDESPREAD_NODES: Final = 3
"""Fewer silent nodes are no widespread outage, unless they are all nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
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
    if pod.role is Role.EXTRA or node.silent_since is None:
        return -math.inf
    return None if math.isinf(pod.patience) else node.silent_since + pod.patience


def reach_of(pods: Iterable[Pod], nodes: Mapping[str, Node | None], now: float, *, widespread: bool) -> Reach:
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
    return Reach(lost=frozenset(lost), silent=frozenset(silent), next_at=min(later, default=None))
