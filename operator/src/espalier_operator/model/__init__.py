"""The scheduler's input: plain frozen facts, and their loss-free JSON.

A `Snapshot` is all that `plan` reads. Every backend (Kubernetes, local processes, virtual time) makes one; a dump
of it is a bug report that can be replayed. All times are seconds of one clock, from which `plan`'s `now` is also
read: wall-clock seconds on Kubernetes, budget seconds elsewhere.
"""

from espalier_operator.model.jobs import REFUSALS, Ended, JobFacts, JobTerms, Reclaim, Stopping, grace_of
from espalier_operator.model.nodes import (
    HANGING_SECONDS,
    LEAVING_SECONDS,
    NOWHERE,
    Avoided,
    Blame,
    NamespaceLimit,
    Node,
    NodeGroup,
    Placement,
    Promise,
    Worker,
    WorkerRole,
    WorkerState,
    host_of,
)
from espalier_operator.model.snapshot import DEFAULT_POLICY, SNAPSHOT_VERSION, Rules, Snapshot, SnapshotError

__all__ = [
    "DEFAULT_POLICY",
    "HANGING_SECONDS",
    "LEAVING_SECONDS",
    "NOWHERE",
    "REFUSALS",
    "SNAPSHOT_VERSION",
    "Avoided",
    "Blame",
    "Ended",
    "JobFacts",
    "JobTerms",
    "NamespaceLimit",
    "Node",
    "NodeGroup",
    "Placement",
    "Promise",
    "Reclaim",
    "Rules",
    "Snapshot",
    "SnapshotError",
    "Stopping",
    "Worker",
    "WorkerRole",
    "WorkerState",
    "grace_of",
    "host_of",
]
