"""Which pods of others the planner serves: those that wait for GPUs, of a limited number of kinds.

Each kind costs a look at all groups of nodes, and a kind that names nodes makes groups of them. Whoever may create pods
could make the planner slow with thousands of kinds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from espalier_operator.model import Worker

MOST_KINDS: Final = 100
"""Pods of further kinds are left to kube-scheduler, which may bind them to free GPUs: none are kept or reclaimed for
them."""


def served(pods: Iterable[Worker], most: int = MOST_KINDS) -> list[Worker]:
    """Return the `pods` (each waits for GPUs) of at most `most` kinds; all namespaces have equally many of these.

    Pods are of one kind if nothing tells them apart but their name: type of GPU, GPUs and constraints.
    """
    pods = list(pods)
    kinds: dict[str, dict[object, None]] = defaultdict(dict)  # of each namespace, in the order of its pods
    for pod in pods:
        kinds[_namespace(pod)][_kind(pod)] = None
    if sum(map(len, kinds.values())) <= most:
        return pods
    ranked = [(rank, namespace, kind) for namespace, found in sorted(kinds.items()) for rank, kind in enumerate(found)]
    ranked.sort(key=lambda each: each[:2])
    chosen = {(namespace, kind) for _, namespace, kind in ranked[:most]}
    return [pod for pod in pods if (_namespace(pod), _kind(pod)) in chosen]


def _namespace(pod: Worker) -> str:
    return pod.name.partition("/")[0]


def _kind(pod: Worker) -> object:
    return pod.gpu_type, pod.gpus, pod.constraints
