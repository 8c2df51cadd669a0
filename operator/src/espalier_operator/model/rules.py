"""The scheduler's own settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from espalier_operator.model.constraints import Constraints, Toleration
from espalier_operator.model.nodes import Node

DEFAULT_POLICY: Final = "fair"
"""The scheduling policy where none is named."""


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
