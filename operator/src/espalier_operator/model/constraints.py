"""A pod's constraints on nodes: its node selector, the required node affinity of it and its volumes, its tolerations,
and its requests in addition to GPUs. Pure.

The rules follow kube-scheduler's plugins NodeAffinity, TaintToleration (k8s.io/component-helpers, scheduling/corev1),
NodeResourcesFit, and VolumeBinding for bound volumes. Constraints that a node alone does not decide, such as affinity
to other pods, are left to kube-scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

RESOURCE_LABEL: Final = "espalier.dev/gpu-resource"
"""A label that the planner alone gives nodes, where there are several GPU resources (`kube.objects.nodes`)."""
REPELLING: Final = ("NoSchedule", "NoExecute")
"""Effects of taints that keep pods away."""


Amounts = tuple[tuple[str, int], ...]
"""Amounts of resources by name, without GPUs: `cpu` in thousandths, memory in bytes, `pods` in pods."""

NATIVE: Final = ("cpu", "memory", "ephemeral-storage", "pods")
"""Resources that every node has; others, such as network cards and huge pages, only some machines have."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a pod; an empty `key` with Exists stands for all keys, an empty `effect` for all effects."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether the toleration matches `taint`."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator == "Exists":
            return True
        return self.operator in ("", "Equal") and self.key != "" and self.value == taint.value


UNNAMED: Final = "\0"
"""A value that no label and no name has; it stands for all values that an expression does not name."""


@dataclass(frozen=True, slots=True)
class NodeSelectorRequirement:
    """One requirement of a node selector term: `key operator values`. An unknown operator matches nothing."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @property
    def compares(self) -> bool:
        """Whether it distinguishes values that it does not name; otherwise it takes all of them, or none."""
        return self.operator in ("Gt", "Lt")

    def takes(self, value: str | None) -> bool:
        """Return whether a node with `value` for the label `key` meets the requirement; None: it has no such label."""
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                found, bound = _whole(value), _whole(self.values[0] if len(self.values) == 1 else None)
                if found is None or bound is None:
                    return False
                return found > bound if self.operator == "Gt" else found < bound
        return False

    def takes_name(self, name: str) -> bool:
        """Return whether a node of this name meets the requirement as one on fields.

        `metadata.name` is the only field of nodes, and `In` and `NotIn` are its only operators.
        """
        return self.key == "metadata.name" and self.operator in ("In", "NotIn") and self.takes(name)


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """A term of required node affinity: all its requirements on labels and fields must be met. An empty term matches
    no node.
    """

    labels: tuple[NodeSelectorRequirement, ...] = ()
    fields: tuple[NodeSelectorRequirement, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the term requires nothing."""
        return not self.labels and not self.fields

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether the node `name` with `labels` meets the term."""
        return (
            not self.is_empty
            and all(each.takes(labels.get(each.key)) for each in self.labels)
            and all(each.takes_name(name) for each in self.fields)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """A pod's constraints on nodes. The default runs on every node without repelling taints."""

    node_selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[NodeSelectorTerm, ...] | None = None
    """Affinity terms of which one must match; None: no affinity is required."""
    volumes: tuple[tuple[NodeSelectorTerm, ...], ...] = ()
    """For each volume that binds the pod to nodes, terms of which one must match."""
    tolerations: tuple[Toleration, ...] = ()
    requests: Amounts = ()
    """Requests in addition to GPUs."""

    def admit(self, name: str, labels: Mapping[str, str], taints: Iterable[Taint]) -> bool:
        """Return whether the pod may be bound to the node `name` with `labels` and `taints`."""
        return (
            all(labels.get(key) == value for key, value in self.node_selector)
            and all(any(term.matches(name, labels) for term in terms) for terms in self.alternatives)
            and self.tolerates(taints)
        )

    @property
    def gpus_alone(self) -> Constraints | None:
        """The constraints of a pod that needs only its GPUs; None: any node may have them."""
        kept = tuple(each for each in self.node_selector if each[0] == RESOURCE_LABEL)
        return Constraints(node_selector=kept, tolerations=(Toleration(operator="Exists"),)) if kept else None

    @property
    def alternatives(self) -> tuple[tuple[NodeSelectorTerm, ...], ...]:
        """Terms of the affinity and of each volume; one of each must match."""
        return self.volumes if self.affinity is None else (self.affinity, *self.volumes)

    def tolerates(self, taints: Iterable[Taint]) -> bool:
        """Return whether the pod tolerates all of `taints` that repel pods."""
        return all(self._tolerates(taint) for taint in taints if taint.effect in REPELLING)

    @property
    def terms(self) -> Iterator[NodeSelectorTerm]:
        """All terms of the affinity and of the volumes."""
        for terms in self.alternatives:
            yield from terms

    def _tolerates(self, taint: Taint) -> bool:
        return any(toleration.tolerates(taint) for toleration in self.tolerations)


ANYWHERE: Final = Constraints()


_WHOLE: Final = re.compile("[+-]?[0-9]{1,99}")


def _whole(text: str | None) -> int | None:
    """Parse an integer like Go's `strconv.ParseInt(text, 10, 64)`, which takes neither 1_000 nor non-ASCII digits."""
    if text is None or _WHOLE.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
