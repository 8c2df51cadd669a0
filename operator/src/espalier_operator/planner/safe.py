"""A plan by a policy that may raise: by what it remembers of an earlier scheduler, or by a fault of its own. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from espalier_operator.model import Snapshot
from espalier_operator.model.actions import Plan
from espalier_operator.planner import plan
from espalier_operator.policies import Policy
from espalier_operator.policies.learned import FALLBACK


@dataclass(frozen=True, slots=True)
class Resumed:
    """A plan, and what it was made by."""

    snapshot: Snapshot
    """Without memory where the policy cannot decide by that."""
    plan: Plan
    unusable: Exception | None = None
    """Why the policy starts with an empty memory."""
    raised: Exception | None = None
    """What the policy raised; then `FALLBACK` has decided in its place, and it keeps its memory."""


def plan_resumed(snapshot: Snapshot, policy: Policy, now: float) -> Resumed:
    """Plan, with an empty memory where the policy cannot decide by what it remembers."""
    try:
        return Resumed(snapshot, plan(snapshot, policy, now))
    except Exception as error:
        # What is in it may be anything. It must not keep a scheduler from starting.
        if not snapshot.policy_memory:
            raise
        unusable = error
    emptied = replace(snapshot, policy_memory={})
    return Resumed(emptied, plan(emptied, policy, now), unusable)


def plan_safely(snapshot: Snapshot, policy: Policy, now: float, *, resumed: bool = True) -> Resumed:
    """Plan, by `FALLBACK` where the policy raises; `resumed` as for `plan_resumed`.

    A policy may be of anybody's package, and what it decides from comes from anybody's jobs.
    """
    try:
        return plan_resumed(snapshot, policy, now) if resumed else Resumed(snapshot, plan(snapshot, policy, now))
    except Exception as error:
        made = plan(snapshot, FALLBACK, now)  # a fault of the planner itself is raised again
        why = f"it raised {type(error).__name__}: {error}"
        return Resumed(snapshot, replace(made, fallback=why, policy_memory=snapshot.policy_memory), raised=error)
