"""Decisions of the scheduler: one frozen action for each change, one refusal for each request not granted.

A backend applies actions idempotently: `extra` is always the number of extra workers that the job has *after* the
action, never a difference, so that applying it twice is the same as once.
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
"""The previous `DECISIONS`, moved here when it became too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admit:
    """Give the job its base GPUs, all at once, and start it."""

    job: str
    gpu_type: str | None
    """None only for a job whose workers need no GPU."""
    reason: Reason = Reason.GPUS_GRANTED


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNodes(Admit):
    """Create the pods of the job's base workers, for which an autoscaler adds nodes."""

    node_group: str
    """Node group to which these nodes should be added."""
    nodes_by: float
    """Time until which the job waits for them."""
    reason: Reason = Reason.NODES_REQUESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantExtra:
    """Lend spare GPUs: raise the extra workers to `extra`."""

    job: str
    extra: int
    reason: Reason = Reason.EXTRA_GPUS_GRANTED


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeReclaim:
    """Request that the job reduce its extra workers to `extra` by `deadline`."""

    job: str
    extra: int
    deadline: float
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseExtra:
    """Remove the extra workers above `extra`: given back, past the deadline, or already gone."""

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
    """End the job's remaining workers and queue it again, with its used budget kept."""

    job: str
    reason: Reason
    message: str = ""
    hold_until: float | None = None
    """Time before which it is granted nothing more."""


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
    """Recreate unbound base workers whose chosen node does not take them."""

    job: str
    workers: tuple[int, ...]
    """Indices of the workers."""
    pinned: bool
    """Whether the planner chooses their nodes again; False: kube-scheduler does."""
    reason: Reason


Action = Admit | GrantExtra | NoticeReclaim | ReleaseExtra | Replace | Stop | Requeue | Finish | Fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason for which the job got nothing (more) in this cycle."""

    job: str
    reason: Reason
    starts_by: float | None = None
    """Latest start by the job's reservation if other jobs end with their budgets; None without a reservation."""
    workers: int = 0
    """Extra workers that it could be lent at once, were they admitted (`ExternalAdmission.extra`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decisions of one cycle. An action or a refusal names every unfinished job."""

    actions: tuple[Action, ...]
    refusals: Mapping[str, Refusal]
    """Refusals by job key."""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """Nodes for the workers that each job still lacks, by job key."""
    policy_memory: Mapping[str, Any] = field(default_factory=dict)
    """Data that the policy keeps for the next snapshot."""
    shares: tuple[Share, ...] = field(default=(), repr=False)
    """The feasible part of the policy's decision, in the order in which shares are served."""
    ignored: tuple[str, ...] = ()
    """Descriptions of the parts of the policy's decision that are not feasible."""
    fallback: str = field(default="", repr=False)
    """Reason for which another policy decided instead, in words; empty: the policy decided itself."""
    wake_at: float | None
    """The earliest time at which time alone may change the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A job's share of the workers."""

    job: str
    workers: int
    """The total number of its workers. With fewer than its base workers the job waits."""
    spare: int = 0
    """The number of further workers while no share needs their GPUs."""
    weight: Fraction = ONE
    """Weight in the division of spare GPUs: the job with the fewest GPUs per weight gets the next one."""
    gpu_type: str | None = None
    """The type of its GPUs, until the decision's `until`; None: any."""
    nodes: tuple[str, ...] = ()
    """Preferred node of each of its workers, base workers first; empty: any. The planner follows it for workers that
    are still to be created, if all of it can be met; running workers do not move."""
    beside: str | None = None
    """The job of an earlier share, whose GPUs it shares; None: it has its own."""
