"""A plan by what a policy remembers of an earlier scheduler, maybe of another version. Pure, but for a log."""

from __future__ import annotations

import logging
from dataclasses import replace

from espalier_operator.actions import Plan
from espalier_operator.facts import Snapshot
from espalier_operator.plan import plan
from espalier_operator.policies import Policy

logger = logging.getLogger(__name__)


def plan_resumed(snapshot: Snapshot, policy: Policy, now: float) -> tuple[Snapshot, Plan]:
    """Return the plan, and the snapshot that it was made by: without memory where the policy cannot decide by that."""
    try:
        return snapshot, plan(snapshot, policy, now)
    except Exception:
        # What is in it may be anything. It must not keep a scheduler from starting.
        if not snapshot.policy_memory:
            raise
        logger.warning(
            "policy %s starts with an empty memory: it cannot use what it remembered", policy.name, exc_info=True
        )
    anew = replace(snapshot, policy_memory={})
    return anew, plan(anew, policy, now)
