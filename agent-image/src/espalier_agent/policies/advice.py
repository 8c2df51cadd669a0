"""A policy's advice for one state: a pure function of the policy and the request.

`explored` tries other actions than the best, so that their outcomes can be learnt from. An outcome shows the result of
the action taken, and nothing about the others. Off-policy learning needs every action to be taken sometimes, with a
known probability. This is ε-greedy, the ε-soft policy of Sutton and Barto (Reinforcement Learning, 2nd edition, 5.4):
with probability `share` an action is drawn uniformly from the allowed ones, else the most probable one is taken. The
draw does not use the policy's own probabilities: a learnt policy ends nearly certain, and would almost never try an
unlikely action. So no probability is below share / number of allowed actions, and the importance weight of a decision
never exceeds its inverse.

The recorded probability of the action covers both ways to reach it, not only the one that was taken.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from pydantic import Field

from espalier_agent.policies.familiarity import familiarity
from espalier_agent.policies.network import masked_log_probabilities
from espalier_agent.policies.policy import Policy
from espalier_core.base import Record
from espalier_core.types.advice import (
    Action,
    ActionProbability,
    AdviceRequest,
    AdviceResponse,
    ExpectedGain,
    Familiarity,
)


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """An action, and the policy's probability of each allowed action."""

    action: Action
    probabilities: tuple[ActionProbability, ...]
    """Probabilities in the order of `AdviceRequest.actions()`; they sum to 1, and actions without an output have 0."""
    unknown_layers: int
    """Layers of the model outside the policy's vocabulary."""
    familiarity: Familiarity | None = None
    """How the request compares with what the policy has learned from; None where that is not known."""
    behaviour_probability: float = 1.0
    """The probability with which `action` was taken: 1 if the most probable action is always taken."""

    @property
    def preferred(self) -> Action:
        """The most probable action; it equals `action` unless that was drawn."""
        return self.probabilities[_greedy([entry.probability for entry in self.probabilities])].action


def decide(policy: Policy, request: AdviceRequest, sample_seed: int | None = None) -> PolicyDecision:
    """Choose among the actions that the request allows.

    Greedy, as in the paper's evaluation (Lamelas 6.5); with `sample_seed`, drawn by the probabilities from a generator
    with that seed. It never fails: unknown layers are embedded from their attributes, and a model without allowed
    growth points is left as it is.
    """
    policy = policy.answering(request)
    actions = request.actions()
    probabilities, gains = _estimates(policy, request, actions)
    chosen = _greedy(probabilities) if sample_seed is None else _sampled(probabilities, sample_seed)
    return PolicyDecision(
        action=actions[chosen],
        probabilities=tuple(
            ActionProbability(action=action, probability=probability, gain=gain)
            for action, probability, gain in zip(actions, probabilities, gains, strict=True)
        ),
        unknown_layers=policy.vocabulary.unknown(request.architecture),
        familiarity=familiarity(policy.lineage.domain, request),
        behaviour_probability=1.0 if sample_seed is None else probabilities[chosen],
    )


def advise(policy: Policy, request: AdviceRequest, decision_id: str) -> AdviceResponse:
    """Return the greedy decision as the answer to a consultation."""
    policy = policy.answering(request)
    return answer_of(policy, decide(policy, request), decision_id)


def answer_of(policy: Policy, decision: PolicyDecision, decision_id: str) -> AdviceResponse:
    """Return a decision as the answer to a consultation."""
    return AdviceResponse(
        decision_id=decision_id,
        action=decision.action,
        policy=policy.identity,
        probabilities=decision.probabilities,
        familiarity=decision.familiarity,
    )


def _estimates(
    policy: Policy, request: AdviceRequest, actions: tuple[Action, ...]
) -> tuple[list[float], list[ExpectedGain | None]]:
    """Return the probability of each action, 0 for those without an output, and its gain if it is estimated."""
    with torch.inference_mode():
        prepared = policy.network.prepare_request(request, policy.vocabulary)
        state = (
            torch.tensor([0]),
            torch.tensor([request.time_left_seconds], dtype=torch.float64),
            torch.tensor([request.time_budget_seconds], dtype=torch.float64),
        )
        logits, gains = policy.network.estimates(prepared, *state)
        places = policy.network.outputs(prepared).of(request.architecture, actions)
        legal = torch.zeros(logits.shape, dtype=torch.bool)
        legal[0, [place for place in places if place is not None]] = True
        row = masked_log_probabilities(logits.double(), legal)[0].exp()
    if not bool(torch.isfinite(row).all()):
        # Finite weights can still overflow. The output of such a network is meaningless: the advice is to do nothing.
        row = torch.zeros_like(row)
        row[-1] = 1.0
    values = row.tolist()
    probabilities = [0.0 if place is None else min(values[place], 1.0) for place in places]
    if gains is None:
        return probabilities, [None] * len(places)
    columns = list(zip(gains.mean[0].tolist(), gains.low[0].tolist(), gains.high[0].tolist(), strict=True))
    return probabilities, [
        ExpectedGain(mean=columns[place][0], low=columns[place][1], high=columns[place][2])
        if place is not None and place < len(columns)
        else None
        for place in places
    ]


def _greedy(probabilities: list[float]) -> int:
    # On a tie the later action wins: Nothing is last, and is the one that does no harm.
    return max(range(len(probabilities)), key=lambda index: (probabilities[index], index))


def _sampled(probabilities: list[float], seed: int) -> int:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.tensor(probabilities, dtype=torch.float64)
    return int(torch.multinomial(weights, 1, generator=generator).item())


class Exploration(Record):
    """Settings of ε-greedy exploration."""

    share: float = Field(default=0.0, ge=0, le=1)
    """Share of the decisions that are drawn uniformly: 0 none, 1 all."""
    seed: int = 0
    """Together with the decision's id, it determines the draw, which can thus be repeated."""


def explored(greedy: PolicyDecision, exploration: Exploration, decision_id: str) -> PolicyDecision:
    """Return the decision with the action taken, and its exact probability.

    The same decision id always draws the same action; ids are random, so decisions are independent of each other.
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
