"""All facts of one moment, including the scheduler's own settings, and their loss-free JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from espalier_core.files.documents import first_fault
from espalier_operator.model.constraints import Constraints, Toleration
from espalier_operator.model.jobs import JobFacts
from espalier_operator.model.nodes import Avoided, NamespaceLimit, Node, NodeGroup, Placement, Promise, Worker
from espalier_operator.model.queues import Claim, QueueLimits

DEFAULT_POLICY: Final = "fair"
"""The default scheduling policy."""
SNAPSHOT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The scheduler's own settings; part of the snapshot, so that a replay decides by the same ones."""

    policy: str = DEFAULT_POLICY
    """The scheduling policy with its settings, as `espalier_operator.policies.settings.configured` reads it."""
    lend_min_fraction: float = 0.05
    """Share of its time budget that a job must have left to be lent GPUs. Growth at 95 % of the budget still improved
    accuracy (digits, rate restarted and linear to the deadline, +0.05 in 5 of 5 seeds). Later growth was not measured:
    the job would end before the workers have warmed up."""
    stop_grace_seconds: float = 30.0
    """Seconds from the request to write a checkpoint and end (suspension, end of the GPU budget) to a forced end."""
    rivalry_seconds: float = 20.0
    """Upper bound of the random wait of a job that lost its GPUs before it trained, if another Espalier has workers on
    nodes that it can use: two gangs that each got a part of these nodes must not meet there again. A job of which a
    ResourceQuota refuses a part waits likewise."""
    placement_seconds: float = 60.0
    """Time after which a job waits again if kube-scheduler finds no node for a base worker though GPUs are free."""
    refusal_seconds: float = 20.0
    """The same where something else refuses it: the API server, an admission webhook or policy, or the kubelet, which
    cannot pull its image. At most `placement_seconds`, which also holds while the leader of such a job trains."""
    pin_seconds: float = 5.0
    """Time after which kube-scheduler chooses the nodes of base workers itself if it refuses the planner's choice
    though the planner has GPUs free there."""
    dip_seconds: float = 60.0
    """Time after which GPUs that vanished from a node unannounced count as lost: workers on them continue while a
    device plugin restarts."""
    startup_seconds: float = 300.0
    """Time that a job may take from its admission, or from a restart, until its budget runs. Backfilling relies on it:
    a job that takes longer may delay a waiting job by the difference."""
    fair_share_half_life_seconds: float = 0.0
    """Half-life of held GPUs in the order of admission; 0: they do not count."""
    aging_seconds: float = 0.0
    """Waiting time that raises a job by one step of priority in the order of admission; 0: none does."""
    backfill_depth: int = 100
    """Number of different gangs without enough GPUs to try, per GPU types; like Slurm's bf_max_job_test, it limits the
    time of a plan. Later jobs wait, unless their namespace has not had its share of as many again."""
    reservations: int = 8
    """Number of waiting jobs with reserved GPUs, from the head of the queue: no later job delays them."""
    evaluation_seconds: float = 60.0
    """Time beyond the budget and the grace period for a leader that has announced its last evaluation. It does not grow
    with the budget: any job can announce an evaluation."""

    node_wait_seconds: float = 900.0
    """Time for which a job waits for nodes to be added to one of `node_groups`."""
    node_groups: tuple[NodeGroup, ...] = ()
    """Capacity that may come. The nodes of the snapshot are what there is."""

    tolerated_taints: tuple[str, ...] = ()
    """Keys of the taints that all workers tolerate."""
    rack_label: str | None = None
    """The node label that names the rack; None: only zones are known."""

    def takes_workers(self, node: Node) -> bool:
        """Return whether `node` takes new workers of jobs whose templates have no constraints on nodes."""
        workers = Constraints(tolerations=tuple(Toleration(key, "Exists") for key in self.tolerated_taints))
        return node.takes_pods and node.admits(workers)


class SnapshotError(ValueError):
    """A dumped snapshot cannot be read; the message names the field and its fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All input of `plan`."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)
    """Applies to nested dataclasses too: NaN as a time would compare with nothing and have no form in JSON."""

    taken_at: float
    nodes: tuple[Node, ...] = ()
    workers: tuple[Worker, ...] = ()
    promises: tuple[Promise, ...] = ()
    jobs: tuple[JobFacts, ...] = ()
    queues: tuple[QueueLimits, ...] = ()
    """Queue limits; if empty, no job needs a queue."""
    namespace_limits: tuple[NamespaceLimit, ...] = ()
    """Limits by the ResourceQuotas of the jobs' namespaces."""
    placements: Mapping[str, Placement] = field(default_factory=dict, hash=False)
    """The last plan's choice of nodes for workers not seen yet, by job key, so that this plan keeps to it."""
    avoided: tuple[Avoided, ...] = ()
    """Nodes that failed several jobs."""
    rules: Rules = field(default_factory=Rules)
    policy_memory: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Data kept by the policy's last decision."""

    def held_claims(self) -> Iterator[tuple[Claim, str]]:
        """Yield each admitted job's claim on its queue, with its type of GPU."""
        for job in self.jobs:
            if job.admitted_at is not None and not job.finished:
                yield job.claim, job.gpu_type or ""

    def stopping_claims(self) -> Iterator[tuple[Claim, str]]:
        """Yield the same for the jobs that have been requested to stop."""
        for job in self.jobs:
            if job.stopping is not None and job.admitted_at is not None and not job.finished:
                yield job.claim, job.gpu_type or ""

    def to_json(self) -> str:
        """Return the snapshot as JSON text, from which `from_json` makes an equal snapshot."""
        body = _SNAPSHOT.dump_python(self, mode="json")
        # On one line: with indentation, Python writes JSON five times as slowly.
        return json.dumps({"version": SNAPSHOT_VERSION, "kind": "Snapshot", **body}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """Parse the output of `to_json`; raise `SnapshotError` if it is damaged or of another version."""
        try:
            body: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SnapshotError(f"not complete JSON: {error}") from error
        if not isinstance(body, dict) or body.pop("kind", None) != "Snapshot":
            raise SnapshotError("is not a snapshot: kind is not 'Snapshot'")
        version = body.pop("version", None)
        if version != SNAPSHOT_VERSION:
            raise SnapshotError(f"version is {version!r}; this Espalier reads {SNAPSHOT_VERSION}")
        try:
            return _SNAPSHOT.validate_python(body)
        except ValidationError as error:
            raise SnapshotError(first_fault(error)) from error


_SNAPSHOT: TypeAdapter[Snapshot] = TypeAdapter(Snapshot)
