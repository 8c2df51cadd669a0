"""A plan by what a policy remembers of an earlier scheduler, maybe of another version. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from espalier_operator.actions import Plan
from espalier_operator.facts import Snapshot
from espalier_operator.plan import plan
from espalier_operator.policies import Policy


@dataclass(frozen=True, slots=True)
class Resumed:
    """A plan, and what it was made by."""

    snapshot: Snapshot
    """Without memory where the policy cannot decide by that."""
    plan: Plan
    unusable: Exception | None = None
    """Why the policy starts with an empty memory."""


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
