"""kube-scheduler's own rules, in small: which nodes a pod fits on, and which of them it likes best.

Filters are those of its plugins NodeUnschedulable, TaintToleration, NodeAffinity and NodeResourcesFit, in their order.
Scores are those of NodeResourcesFit, by the strategy LeastAllocated (the default) or MostAllocated, and of
NodeResourcesBalancedAllocation, each of weight 1 over CPU and memory (`pkg/scheduler/framework/plugins/noderesources`
and `pkg/scheduler/apis/config/v1/default_plugins.go` of Kubernetes 1.34); of the best it takes any. The other plugins
of the default profile give every node of these worlds the same: there are no images, no preferred affinities, no
`PreferNoSchedule` and no volumes. Spreading by Service (the defaults of PodTopologySpread) and preemption are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from random import Random
from typing import Any

from operator_world.kube_api import is_over, node_of
from operator_world.kube_devices import RESOURCE, claim_of, claimed_by
from operator_world.kube_objects import Raw

LEAST_ALLOCATED, MOST_ALLOCATED = "LeastAllocated", "MostAllocated"
MAX_SCORE = 100
_DEFAULT_CPU, _DEFAULT_MEMORY = 100, 200 * 2**20
"""What a pod that requests none counts for in NodeResourcesFit's score, not in its filter."""
_UNITS = {"m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

Amounts = Mapping[str, int]


@cache
def amount(resource: str, quantity: str | int) -> int:
    """Return a quantity: CPUs in thousandths, all else in units."""
    text = str(quantity)
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    number = float(text.removesuffix(unit)) * _UNITS.get(unit, 1)
    return round(number * (1000 if resource == "cpu" else 1))


_requests: dict[int, tuple[Raw, Counter[str]]] = {}
"""What pods request, by their identity: objects are never changed in place."""
_MOST_KNOWN = 5000


def requests_of(pod: Raw) -> Counter[str]:
    """Return what a pod requests, and claims; limits stand for requests that are not given. Not to be changed."""
    known = _requests.get(id(pod))
    if known is None or known[0] is not pod:
        if len(_requests) >= _MOST_KNOWN:
            _requests.clear()
        known = _requests[id(pod)] = pod, _requested(pod)
    return known[1]


def _requested(pod: Raw) -> Counter[str]:
    found = Counter({"pods": 1, **({RESOURCE: devices} if (devices := claimed_by(pod)) else {})})
    for container in pod["spec"]["containers"]:
        resources = container.get("resources", {})
        for name, quantity in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            found[name] += amount(name, quantity)
    return found


def allocatable_of(node: Raw) -> dict[str, int]:
    """Return what a node has."""
    return {name: amount(name, quantity) for name, quantity in node["status"]["allocatable"].items()}


def affinity_terms(pod: Raw) -> list[Raw] | None:
    """Return the terms of a pod's required node affinity; None: it has none."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms", [])


def pinned_to(pod: Raw) -> str | None:
    """Return the only node that a pod's affinity names."""
    names = {
        value
        for term in affinity_terms(pod) or ()
        for field in term.get("matchFields", ())
        if field["key"] == "metadata.name" and field["operator"] == "In"
        for value in field["values"]
    }
    return names.pop() if len(names) == 1 else None


def is_gated(pod: Raw) -> bool:
    """Return whether a pod has scheduling gates: it is not tried."""
    return bool(pod["spec"].get("schedulingGates"))


def obstacle(pod: Raw, node: Raw) -> str | None:
    """Return what keeps a pod from a node however empty that is, in kube-scheduler's words; None: nothing does."""
    tolerations = pod["spec"].get("tolerations") or ()
    unschedulable = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    if node["spec"].get("unschedulable") and not any(_tolerates(each, unschedulable) for each in tolerations):
        return "node(s) were unschedulable"
    if node["status"]["conditions"][0]["status"] != "True":
        return "node(s) had untolerated taint {node.kubernetes.io/not-ready: }"
    for taint in node["spec"].get("taints") or ():
        hard = taint["effect"] in ("NoSchedule", "NoExecute")
        if hard and not any(_tolerates(each, taint) for each in tolerations):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    labels, terms = node["metadata"]["labels"], affinity_terms(pod)
    selected = all(labels.get(key) == value for key, value in (pod["spec"].get("nodeSelector") or {}).items())
    if not selected or (terms is not None and not any(_matches(term, node) for term in terms)):
        return "node(s) didn't match Pod's node affinity/selector"
    return None


class KubeScheduler:
    """Binds what waits: the highest priority first, then the oldest."""

    def __init__(self, strategy: str, random: Random) -> None:
        """Score by a `strategy` of NodeResourcesFit; `random` decides between equals."""
        self.strategy, self._random = strategy, random

    def bind(
        self, nodes: Mapping[str, Raw], pods: dict[str, Raw], at: str, besides: Mapping[str, Amounts] | None = None
    ) -> None:
        """Bind each of `pods` that waits and fits on a node, and say of the others why they do not.

        `besides`: what is held of nodes, and not by a pod.
        """
        waiting = [key for key, pod in pods.items() if not (node_of(pod) or is_over(pod) or is_gated(pod))]
        if not waiting:
            return
        whole = {name: allocatable_of(node) for name, node in nodes.items()}
        held = {name: Counter((besides or {}).get(name, {})) for name in nodes}
        scored: dict[str, Counter[str]] = {name: Counter() for name in nodes}
        for pod in pods.values():
            if node_of(pod) in held and not is_over(pod):
                _put(pod, held[node_of(pod) or ""], scored[node_of(pod) or ""])
        for key in sorted(waiting, key=lambda key: -int(pods[key]["spec"].get("priority") or 0)):
            pod = pods[key]
            wants, reasons, fitting = requests_of(pod), Counter[str](), []
            lacks_claim = wants[RESOURCE] > 0 and not claim_of(pod)
            for name, node in nodes.items():
                why = [each] if (each := obstacle(pod, node)) else [*_insufficient(wants, held[name], whole[name])]
                why = ["waiting for its claim to be made"] if lacks_claim else why
                reasons.update(why)
                if not why:
                    fitting.append(name)
            if fitting:
                scores = {name: self.score(wants, held[name], scored[name], whole[name]) for name in fitting}
                best = [name for name in fitting if scores[name] == max(scores.values())]
                chosen = self._random.choice(best)
                _put(pod, held[chosen], scored[chosen])
                condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
                pods[key] = {
                    **pod,
                    "spec": {**pod["spec"], "nodeName": chosen},
                    "status": {**pod["status"], "conditions": [condition]},
                }
            else:
                self._refuse(key, pods, reasons, len(nodes), at)

    def score(self, wants: Amounts, held: Amounts, scored: Amounts, whole: Amounts) -> int:
        """Return the sum of the scores of a node for a pod; `scored` is what is held with defaults for what is not
        requested.
        """
        return self._fit(wants, scored, whole) + _balance(wants, held, whole)

    def _fit(self, wants: Amounts, scored: Amounts, whole: Amounts) -> int:
        total, counted = 0, 0
        for name, default in (("cpu", _DEFAULT_CPU), ("memory", _DEFAULT_MEMORY)):
            capacity = whole.get(name, 0)
            if not capacity:
                continue
            requested = scored.get(name, 0) + (wants.get(name, 0) or default)
            if self.strategy == LEAST_ALLOCATED:
                total += max(0, capacity - requested) * MAX_SCORE // capacity
            else:
                total += min(requested, capacity) * MAX_SCORE // capacity
            counted += 1
        return total // counted if counted else 0

    def _refuse(self, key: str, pods: dict[str, Raw], reasons: Counter[str], nodes: int, at: str) -> None:
        words = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        message = f"0/{nodes} nodes are available: {words}."
        pod = pods[key]
        known = next(iter(pod["status"].get("conditions") or ()), {})
        if known.get("message") == message:
            return
        since = known.get("lastTransitionTime", at)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        conditions = [{**condition, "lastTransitionTime": since}]
        pods[key] = {**pod, "status": {**pod["status"], "conditions": conditions}}


def _put(pod: Raw, held: Counter[str], scored: Counter[str]) -> None:
    wants = requests_of(pod)
    held.update(wants)
    scored.update(wants)
    scored["cpu"] += 0 if wants["cpu"] else _DEFAULT_CPU
    scored["memory"] += 0 if wants["memory"] else _DEFAULT_MEMORY


def _balance(wants: Amounts, held: Amounts, whole: Amounts) -> int:
    if not wants.get("cpu") and not wants.get("memory"):
        return 0  # the plugin skips pods that request nothing
    parts = [
        min(1.0, (held.get(name, 0) + wants.get(name, 0)) / whole[name])
        for name in ("cpu", "memory")
        if whole.get(name)
    ]
    deviation = abs(parts[0] - parts[1]) / 2 if len(parts) == 2 else 0.0
    return math.floor((1 - deviation) * MAX_SCORE)


def _insufficient(wants: Amounts, held: Amounts, whole: Amounts) -> Iterator[str]:
    for name, needed in wants.items():
        if needed and held.get(name, 0) + needed > whole.get(name, 0):
            words = {"pods": "Too many pods", RESOURCE: "cannot allocate all claims"}
            yield words.get(name, f"Insufficient {name}")


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    exists = toleration.get("operator") == "Exists"
    return exists or (bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", ""))


def _matches(term: Mapping[str, Any], node: Raw) -> bool:
    labels, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not labels and not fields:
        return False
    found = [_holds(each, node["metadata"]["labels"]) for each in labels]
    return all(found + [_holds(each, {"metadata.name": node["metadata"]["name"]}) for each in fields])


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise ValueError(f"{expression}: this world knows no such operator")
