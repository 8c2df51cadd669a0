"""Decisions of another policy at each plan of an audit log, compared with the operator's.

The policy decides on each recorded snapshot, so it always sees the real state, not the consequences of its own
decisions, which the simulator estimates. Only plans with decisions are recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from espalier_lab.simulator.history import recorded
from espalier_operator.planner import plan
from espalier_operator.policies import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The actions of one plan on a job, and those of the other policy."""

    at: float
    """Epoch seconds."""
    job: str
    did: tuple[str, ...]
    would: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowComparison:
    """The decisions of a policy compared with those of an operator."""

    plans: int
    """Number of recorded plans with their snapshots."""
    same: int
    """Number of these with the same actions on each job."""
    left_out: int
    """Number of recorded plans whose snapshot was removed since."""
    policy: str | None
    """The operator's policy with its settings, by the last snapshot."""
    differences: tuple[Difference, ...]


def shadow_of(folder: Path, policy: Policy, configured: str) -> ShadowComparison:
    """Return the decisions of `policy`, with its settings as `configured`.

    Its memory comes from its decisions at earlier recorded plans; for the operator's own policy, from the operator's
    records. Raise `TraceError`, as `read_history` does, and any error of the policy.
    """
    memory: Mapping[str, Any] = {}
    plans = same = left_out = 0
    operators: str | None = None
    differences: list[Difference] = []
    for at, snapshot, actions in recorded(folder):
        if snapshot is None:
            left_out += 1
            continue
        operators = snapshot.rules.policy
        if operators == configured:
            memory = snapshot.policy_memory
        found = plan(replace(snapshot, policy_memory=memory), policy, snapshot.taken_at)
        memory = found.policy_memory
        did = _by_job(actions)
        would = _by_job({"action": type(action).__name__, **asdict(action)} for action in found.actions)
        new = [
            Difference(at=at, job=job, did=did[job], would=would[job])
            for job in sorted(did.keys() | would.keys())
            if did[job] != would[job]
        ]
        plans, same = plans + 1, same + (not new)
        differences += new
    return ShadowComparison(plans=plans, same=same, left_out=left_out, policy=operators, differences=tuple(differences))


def _by_job(actions: Iterable[Mapping[str, Any]]) -> defaultdict[str, tuple[str, ...]]:
    """Return the actions on each job, in words without times and reasons."""
    found: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for action in actions:
        extra = f" to {action['extra']} extra" if "extra" in action else ""
        found[action["job"]] = (*found[action["job"]], f"{action['action']}{extra}")
    return found
