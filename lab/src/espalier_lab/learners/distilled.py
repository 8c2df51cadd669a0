"""One policy from many: the mean of several runs of the exact learner, taught to one network.

Runs that differ only in their seed agree about learnt tables, and differ elsewhere: their choice among sequences that a
table's noise puts close together is an accident of the start. Their mean is steadier than one of them (an ensemble),
and one network can be taught to answer like the mean (Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural
Network, 2015; of policies: Rusu and others, Policy Distillation, 2015).

This needs no accuracies, so the student also learns at times without a table: each update draws a time left for each
model that the tables reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call, vmap

from espalier_agent.learners.expected import ExpectedConfig, slow_down
from espalier_agent.learners.learning import Learner, LearningProgress, ProgressCallback, Start
from espalier_agent.policies.network import PolicyNetwork, Prepared, masked_log_probabilities
from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import ActionColumns, offered
from espalier_lab.learners.many_seeds import SeededRun, learn_many


class DistilledConfig(ExpectedConfig):
    """Hyperparameters: the fields of `expected` for the members, and these."""

    members: int = Field(default=8, ge=2, le=64)
    """Number of runs in the mean that is taught."""
    student_updates: int = Field(default=600, ge=1)
    student_times: int = Field(default=4, ge=1)
    """Number of times left drawn for each model in each update of the student."""


DEFAULT: Final = DistilledConfig()


class Ensemble:
    """Networks of one shape, evaluated together."""

    def __init__(self, network: PolicyNetwork, members: Sequence[PolicyNetwork]) -> None:
        """`network` has the shape, `members` the weights."""
        self._network = network
        states = [member.state_dict() for member in members]
        self._weights = {name: torch.stack([state[name] for state in states]) for name in states[0]}

    def probabilities(
        self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor, legal: Tensor
    ) -> Tensor:
        """Return the mean of the members' probabilities in n states, (n, width)."""

        def of_one(weights: dict[str, Tensor]) -> Tensor:
            logits: Tensor = functional_call(self._network, weights, (prepared, models, time_left_s, time_budget_s))
            return masked_log_probabilities(logits, legal).exp()

        with torch.no_grad():
            mean: Tensor = vmap(of_one)(self._weights).mean(dim=0)
        return mean


def train(start: Start, config: DistilledConfig, progress: ProgressCallback) -> int:
    """Train the members, then a student on the mean of their probabilities."""
    # Seeds of different policies share no member.
    runs = [SeededRun(start.tables, start.seed * config.members + member) for member in range(config.members)]
    members = learn_many(
        runs,
        config=ExpectedConfig(**config.model_dump(include=set(ExpectedConfig.model_fields))),
        encoder=start.network.config.encoder,
    )
    student = start.network
    ensemble = Ensemble(PolicyNetwork.with_weights(student.config, student.state_dict()), [m.network for m in members])
    architectures = {model.fingerprint: model for game in start.games for model in game.architectures}
    budgets = {
        state.architecture.fingerprint: state.time_budget_s for game in start.games for state in game.tree.states
    }
    prepared = student.prepare(tuple(architectures.values()), start.vocabulary)
    models = torch.arange(len(architectures)).repeat(config.student_times)
    budget = torch.tensor([budgets[fingerprint] for fingerprint in architectures], dtype=torch.float64)[models]
    legal = _legal(student.outputs(prepared), tuple(architectures.values()))[models]
    generator = start.generator()
    optimizer = torch.optim.Adam(student.parameters(), lr=config.learning_rate, fused=True)
    student.train()
    for update in range(config.student_updates):
        slow_down(optimizer, config.learning_rate, update / config.student_updates)
        left = budget * torch.rand(len(models), generator=generator, dtype=torch.float64)
        wanted = ensemble.probabilities(prepared, models, left, budget, legal)
        log_probabilities = masked_log_probabilities(student.logits(prepared, models, left, budget), legal)
        loss = -(wanted * log_probabilities.masked_fill(~legal, 0.0)).sum(dim=1).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        progress(LearningProgress(update + 1, config.student_updates, loss.item()))
    return sum(member.lineage.episodes for member in members)


def _legal(columns: ActionColumns, architectures: Sequence[Architecture]) -> Tensor:
    """Return (architectures, columns): whether a column is an action of the model."""
    legal = torch.zeros(len(architectures), columns.width, dtype=torch.bool)
    for row, architecture in zip(legal, architectures, strict=True):
        row[[place for place in columns.of(architecture, offered(architecture)) if place is not None]] = True
    legal[:, -1] = True
    return legal


# Members that all continued from one policy would not differ.
LEARNER: Final = Learner("distilled", train, {"default": DEFAULT}, continues=False, stacks=True)
learn = LEARNER.learn
