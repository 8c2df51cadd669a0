"""What another policy would have decided at each plan of an audit log, compared with what the operator did.

The policy is asked about each recorded snapshot, so it always sees what really was there, not what would have come of
its own decisions; the simulator estimates that. Only plans that decided something are recorded.
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
    """What one plan did with a job, and what the other policy would have done."""

    at: float
    """Epoch seconds."""
    job: str
    did: tuple[str, ...]
    would: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowComparison:
    """The decisions of a policy compared with those of an operator."""

    plans: int
    """Recorded ones, with their snapshots."""
    same: int
    """Of these, those in which it would have done the same with each job."""
    left_out: int
    """Recorded ones whose snapshot was removed since."""
    policy: str | None
    """That of the operator, with its settings, by the last snapshot."""
    differences: tuple[Difference, ...]


def shadow_of(folder: Path, policy: Policy, configured: str) -> ShadowComparison:
    """Return what `policy`, with its settings as `configured`, would have decided.

    It remembers what it decided at earlier recorded plans; the operator's own policy, what the operator recorded.
    Raises `TraceError`, as `read_history`, and what the policy raises.
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
    """Return what is done with each job, in words that leave out when and why."""
    found: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for action in actions:
        extra = f" to {action['extra']} extra" if "extra" in action else ""
        found[action["job"]] = (*found[action["job"]], f"{action['action']}{extra}")
    return found
