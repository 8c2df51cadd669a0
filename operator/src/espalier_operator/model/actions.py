"""What the scheduler decides: one frozen action for each change, one refusal for each wish not granted.

Actions are applied by a backend, idempotently; `extra` always is the number of extra workers that the job has
*after* the action, never a difference, so that applying twice is applying once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from espalier_core.types.reasons import Reason
from espalier_operator.model import Placement

ONE: Final = Fraction(1)
DECISIONS: Final = "decisions.jsonl"
EARLIER: Final = "decisions.1.jsonl"
"""What `DECISIONS` was before it became too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Give the job its base GPUs, all at once, and start it."""

    job: str
    gpu_type: str | None
    """None only for a job whose workers need no GPU."""
    reason: Reason = Reason.GPUS_GRANTED


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantExtra:
    """Lend spare GPUs: raise the extra workers to `extra`."""

    job: str
    extra: int
    reason: Reason = Reason.EXTRA_GPUS_GRANTED


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeReclaim:
    """Tell the job to be down to `extra` extra workers by `deadline`."""

    job: str
    extra: int
    deadline: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseExtra:
    """Take the extra workers above `extra` away: acknowledged, past the deadline, or because they are gone."""

    job: str
    extra: int
    forced: bool
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Ask the job to checkpoint and end by `deadline`."""

    job: str
    deadline: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """End what is left of the job's workers and let it wait again, its budget kept."""

    job: str
    reason: Reason
    message: str = ""
    hold_until: float | None = None
    """It is granted nothing more before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Record a normal end; workers that still run are ended."""

    job: str
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Record a failure; workers that still run are ended."""

    job: str
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Make base workers again that are not bound: the node that was chosen for them does not take them."""

    job: str
    workers: tuple[int, ...]
    """Their indices."""
    pinned: bool
    """False: the planner chooses no node for them any more, kube-scheduler does."""
    reason: Reason


Action = Admit | GrantExtra | NoticeReclaim | ReleaseExtra | Replace | Stop | Requeue | Finish | Fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why the job got nothing (more) in this cycle."""

    job: str
    reason: Reason
    starts_by: float | None = None
    """GPUs are reserved for it: it starts then at the latest, if jobs end when their budgets do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one cycle decided. Every unfinished job is named by an action or by a refusal."""

    actions: tuple[Action, ...]
    refusals: Mapping[str, Refusal]
    """By job key."""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """By job key: where its workers that are still to be made will run."""
    policy_memory: Mapping[str, Any] = field(default_factory=dict)
    """What the policy asked to keep for the next snapshot."""
    shares: tuple[Share, ...] = field(default=(), repr=False)
    """What the policy decided, as far as it can be, in the order in which shares are served."""
    ignored: tuple[str, ...] = ()
    """What of the policy's decision cannot be, in words."""
    fallback: str = field(default="", repr=False)
    """Why another policy decided in its place, in words; empty: it decided itself."""
    wake_at: float | None
    """The earliest time at which the passing of time alone may change the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a job should have."""

    job: str
    workers: int
    """The total number of its workers. With fewer than its base workers the job waits."""
    spare: int = 0
    """The number of workers beyond that, while no share needs their GPUs."""
    weight: Fraction = ONE
    """Spare GPUs are shared in proportion to it: the smallest number of GPUs over the weight is raised first."""
    gpu_type: str | None = None
    """The type of its GPUs, until the decision's `until`; None: any."""
    nodes: tuple[str, ...] = ()
    """Preferred node of each of its workers, base workers first; empty: any. The planner follows it for workers that
    are still to be created, if all of it can be met; running workers do not move."""
    beside: str | None = None
    """An earlier share's job, whose GPUs it uses too; None: it has its own."""
