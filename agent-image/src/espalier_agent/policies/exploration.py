"""Trying other actions than the best, so that what comes of them can be learnt from.

An outcome tells what the action that was taken led to, and nothing of the others. Off-policy learning needs every
action to be taken sometimes, with a probability that is known. This is ε-greedy, the ε-soft policy of Sutton and Barto
(Reinforcement Learning, 2nd edition, 5.4): with probability `share` an action is drawn uniformly from all that are
allowed, else the most probable one is taken. Uniformly, not by the policy's own probabilities: a learnt policy ends
nearly certain, and would all but never try what it does not believe in. So no probability is below share / number of
allowed actions, and an importance weight of one decision never above the reverse of that.

The probability that is recorded is that of the action over both ways to come to it, not over the one that was gone.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from pydantic import Field

from espalier_agent.policies.advice import Decision
from espalier_core.base import Record


class Exploration(Record):
    """How often something else is tried."""

    share: float = Field(default=0.0, ge=0, le=1)
    """Of the decisions that are drawn uniformly: 0 never, 1 all."""
    seed: int = 0
    """With the decision's id it determines what is drawn: anybody can draw it again."""


def explored(greedy: Decision, exploration: Exploration, decision_id: str) -> Decision:
    """Return the decision with the action that is taken, and the exact probability with which it is.

    The same decision id always draws the same; ids are random, so decisions are independent of each other.
    """
    if exploration.share == 0:
        return greedy
    actions = [entry.action for entry in greedy.probabilities]
    digest = hashlib.sha256(f"{exploration.seed}/{decision_id}".encode()).digest()
    tries = int.from_bytes(digest[:8]) < exploration.share * 2**64
    # The high half of a product: 2^64 is not a multiple of the number of actions, but near enough to one.
    action = actions[(int.from_bytes(digest[8:16]) * len(actions)) >> 64] if tries else greedy.preferred
    probability = exploration.share / len(actions)
    if action == greedy.preferred:
        probability += 1.0 - exploration.share
    return replace(greedy, action=action, behaviour_probability=min(probability, 1.0))
