"""The machines, and what their namespaces may use of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from espalier_operator.model.constraints import Constraints, Expression, Taint


def host_of(node: str) -> str:
    """Return the name of the machine of a node."""
    return node.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with GPUs of one type; a machine with several kinds of GPUs is one for each kind."""

    name: str
    """Name of the machine, and for a further kind of GPUs, after a slash, their resource."""
    gpu_type: str
    allocatable: int
    ready: bool = True
    silent_since: float | None = None
    """Since when it does not report; None while it does, or if that is not known."""
    schedulable: bool = True
    """It takes new pods: those that tolerate its taints."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    taints: tuple[Taint, ...] = ()
    resources: Mapping[str, int] = field(default_factory=dict, hash=False)
    """What it has of resources other than GPUs (`constraints.Amounts`). One that is not named is not limited, unless it
    is special (`rooms`) and other nodes name it: then a node that names others has none."""
    used: Mapping[str, int] = field(default_factory=dict, hash=False)
    """What pods that are nobody's worker request of that."""
    departing: int = 0
    """GPUs of `allocatable` that are announced to go at `departs_at`; more if the node goes and all have failed."""
    departs_at: float | None = None
    unhealthy: Mapping[str, int] = field(default_factory=dict, hash=False)
    """By resource: devices that it has and that are not allocatable."""
    fell: tuple[tuple[float, int], ...] = ()
    """When it lately had fewer GPUs than before, and how many it had before that."""

    def missing(self, since: float) -> int:
        """Return the GPUs that it has lost after `since`: a device plugin that restarts has none for seconds.

        None where all are announced to go: these do not return.
        """
        had = max((gpus for at, gpus in self.fell if at > since), default=0)
        return 0 if self.is_leaving else max(0, had - self.allocatable)

    @property
    def takes_pods(self) -> bool:
        """Whether new pods may be bound to it, as far as its state decides."""
        return self.ready and self.schedulable

    @property
    def is_leaving(self) -> bool:
        """Whether all its GPUs are announced to go."""
        return 0 < self.departing >= self.allocatable

    @property
    def offered(self) -> int:
        """Its GPUs without those that are announced to go."""
        return max(0, self.allocatable - self.departing)

    @property
    def host(self) -> str:
        """The name of the machine."""
        return host_of(self.name)

    def admits(self, constraints: Constraints) -> bool:
        """Return whether a pod with `constraints` may be bound to it, as far as its labels and taints decide."""
        return constraints.admit(self.host, self.labels, self.taints)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceLimit:
    """What a ResourceQuota allows the pods of its namespace to request of one resource, all together."""

    namespace: str
    quota: str
    """Name of the ResourceQuota."""
    resource: str
    """As `constraints.Amounts` names it, or the resource of GPUs."""
    hard: int
    used: int
    scopes: tuple[Expression, ...] = ()
    """It holds for pods that meet all of these alone; the keys are names of scopes, as in `Terms.quota_scopes`."""

    def covers(self, scopes: tuple[tuple[str, str], ...]) -> bool:
        """Return whether it holds for pods in these scopes."""
        known = dict(scopes) if self.scopes else {}
        return all(scope.takes(known.get(scope.key)) for scope in self.scopes)
