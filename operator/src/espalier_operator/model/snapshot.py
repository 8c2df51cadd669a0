"""All facts of one moment, and their loss-free JSON; the scheduler's own settings are among them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from espalier_core.files.documents import first_fault
from espalier_operator.model.constraints import Constraints, Toleration
from espalier_operator.model.jobs import JobFacts
from espalier_operator.model.nodes import Avoided, NamespaceLimit, Node, Placement, Promise, Worker
from espalier_operator.model.queues import Claim, QueueLimits

DEFAULT_POLICY: Final = "fair"
"""The scheduling policy where none is named."""
SNAPSHOT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The scheduler's own settings; part of the snapshot, so that a replay decides by the same ones."""

    policy: str = DEFAULT_POLICY
    """The scheduling policy with its settings, as `espalier_operator.policies.settings.configured` reads it."""
    lend_min_fraction: float = 0.05
    """Nothing is lent to a job with less than this share of its time budget left. Growth at 95 % of the budget still
    improved accuracy (digits, rate restarted and linear to the deadline, +.05 in 5 of 5 seeds). Later growth was not
    measured: the job would end before the workers have warmed up."""
    stop_grace_seconds: float = 30.0
    """Seconds between the demand to write a checkpoint and end (suspension, end of the GPU budget) and a forced end."""
    rivalry_seconds: float = 20.0
    """A job that lost its GPUs before it trained waits for a random part of this, if another Espalier has workers on
    nodes that it can use: two gangs that each got a part of these nodes must not meet there again. So does one of which
    a ResourceQuota refuses a part."""
    placement_seconds: float = 60.0
    """A job waits again if kube-scheduler finds no node for a base worker for so long, though GPUs are free for it."""
    refusal_seconds: float = 20.0
    """The same where somebody else refuses it: the API server, an admission webhook or policy, or the kubelet, which
    cannot pull its image. At most `placement_seconds`, which also holds while the leader of such a job trains."""
    pin_seconds: float = 5.0
    """kube-scheduler chooses the nodes of base workers itself if it refuses the chosen ones for so long, though the
    planner has GPUs free there."""
    dip_seconds: float = 60.0
    """GPUs that a node no longer has count as lost after so long, if nothing announced that they go: what runs on them
    continues while a device plugin restarts."""
    startup_seconds: float = 300.0
    """How long a job may take from its admission, or from a restart, until its budget runs. Backfilling counts on it:
    one that takes longer may delay a job that waits by the difference."""
    fair_share_half_life_seconds: float = 0.0
    """After so long, GPUs that were held count half as much in the order of admission; 0: they do not count."""
    aging_seconds: float = 0.0
    """A job that waits rises by a step of priority in the order of admission each time so long has passed; 0: never."""
    backfill_depth: int = 100
    """How many different gangs that find no GPUs are tried, by types of GPUs; as Slurm's bf_max_job_test, it limits the
    time of a plan. Jobs after these wait, unless their namespace has not had its share of as many again."""
    reservations: int = 8
    """How many jobs that wait keep GPUs, the first ones of the queue: none that comes later delays them."""
    evaluation_seconds: float = 60.0
    """A leader that has announced its last evaluation may exceed its budget by these seconds and the grace period. It
    does not grow with the budget: anyone can announce an evaluation."""

    tolerated_taints: tuple[str, ...] = ()
    """Keys of taints that all workers tolerate."""
    rack_label: str | None = None
    """The label of nodes that names their rack; None: racks are not known, only zones."""

    def takes_workers(self, node: Node) -> bool:
        """Return whether `node` takes new workers of jobs whose templates ask nothing of nodes."""
        workers = Constraints(tolerations=tuple(Toleration(key, "Exists") for key in self.tolerated_taints))
        return node.takes_pods and node.admits(workers)


class SnapshotError(ValueError):
    """A dumped snapshot cannot be read; the message names the field and what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that `plan` reads."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)
    """For what it holds, too: a time that is not a number would compare with none, and a plan could not be JSON."""

    taken_at: float
    nodes: tuple[Node, ...] = ()
    workers: tuple[Worker, ...] = ()
    promises: tuple[Promise, ...] = ()
    jobs: tuple[JobFacts, ...] = ()
    queues: tuple[QueueLimits, ...] = ()
    """Without any, no job needs one."""
    namespace_limits: tuple[NamespaceLimit, ...] = ()
    """By the ResourceQuotas of the namespaces in which jobs are."""
    placements: Mapping[str, Placement] = field(default_factory=dict, hash=False)
    """By job: what the last plan chose for workers that are not seen yet, so that this one keeps to it."""
    avoided: tuple[Avoided, ...] = ()
    """Nodes that failed several jobs."""
    rules: Rules = field(default_factory=Rules)
    policy_memory: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What the policy's last decision asked to keep."""

    def held_claims(self) -> Iterator[tuple[Claim, str]]:
        """Yield what each admitted job holds of its queue, and on which type of GPU."""
        for job in self.jobs:
            if job.admitted_at is not None and not job.finished:
                yield job.claim, job.gpu_type or ""

    def stopping_claims(self) -> Iterator[tuple[Claim, str]]:
        """Yield the same of those that have been asked to stop."""
        for job in self.jobs:
            if job.stopping is not None and job.admitted_at is not None and not job.finished:
                yield job.claim, job.gpu_type or ""

    def to_json(self) -> str:
        """Return the snapshot as JSON text from which `from_json` makes an equal one."""
        body = _SNAPSHOT.dump_python(self, mode="json")
        # In one line: with an indentation, Python writes JSON five times as slowly.
        return json.dumps({"version": SNAPSHOT_VERSION, "kind": "Snapshot", **body}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """Parse what `to_json` wrote; `SnapshotError` where it is damaged or of another version."""
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
