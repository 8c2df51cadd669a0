"""One policy of many: what several runs of the exact learner say on the average, taught to one network.

Runs that differ in their seed alone agree about the tables that they have learnt, and differ where they have not: which
of the sequences that a table's noise put close together is followed is an accident of the beginning. Their mean is
steadier than one of them (an ensemble), and one network can be taught to answer as the mean does (Hinton, Vinyals and
Dean, Distilling the Knowledge in a Neural Network, 2015; of policies: Rusu and others, Policy Distillation, 2015).

For that nothing has to be known of accuracies, so the student is also asked at times that no table was collected at:
each update draws a time left for each model that the tables reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, vmap

from espalier_agent.learners.expected import ExpectedConfig, slow_down
from espalier_agent.learners.learning import (
    LearningError,
    Progress,
    ProgressCallback,
    finish_learning,
    one_thread,
    start_learning,
)
from espalier_agent.learners.many_seeds import SeededRun, learn_many
from espalier_agent.policies.network import PolicyNetwork, Prepared, masked_log_probabilities
from espalier_agent.policies.policy import Policy
from espalier_api.advice import ActionColumns, offered
from espalier_api.architecture import Architecture
from espalier_api.outcomes import OutcomeTable


class DistilledConfig(ExpectedConfig):
    """What changes learning: the fields of `expected`, for the members, and these."""

    members: int = Field(default=8, ge=2, le=64)
    """Runs whose mean is taught."""
    student_updates: int = Field(default=600, ge=1)
    student_times: int = Field(default=4, ge=1)
    """Times left that are drawn for each model in each update of the student."""


DEFAULT: Final = DistilledConfig()


class Council(nn.Module):
    """Networks of one shape, asked at once."""

    def __init__(self, network: PolicyNetwork, members: Sequence[PolicyNetwork]) -> None:
        """`network` gives the shape, `members` the weights."""
        super().__init__()
        self.network = network
        states = [member.state_dict() for member in members]
        self._weights = {f"network.{name}": torch.stack([state[name] for state in states]) for name in states[0]}

    def probabilities(
        self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor, legal: Tensor
    ) -> Tensor:
        """Return the mean of the members' probabilities in n states, (n, width)."""

        def of_one(weights: dict[str, Tensor]) -> Tensor:
            logits: Tensor = functional_call(self, weights, (prepared, models, time_left_s, time_budget_s))
            return masked_log_probabilities(logits, legal).exp()

        with torch.no_grad():
            mean: Tensor = vmap(of_one)(self._weights).mean(dim=0)
        return mean

    def forward(self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Return the logits of one member."""
        return self.network.logits(prepared, models, time_left_s, time_budget_s)


def learn(
    tables: Sequence[OutcomeTable],
    *,
    config: DistilledConfig = DEFAULT,
    encoder: str = "graph",
    seed: int = 0,
    name: str = "distilled",
    parent: Policy | None = None,
    progress: ProgressCallback | None = None,
) -> Policy:
    """Learn a policy from tables. The same tables, configuration and seed give the same policy, bit for bit.

    Raises `TableError` for a table that cannot be played, and `LearningError`: also for the `lstm` encoder, whose runs
    cannot be learnt at once, and for a parent, as there is none that all members could go on from and still differ.
    """
    if encoder != "graph":
        raise LearningError(f"learner distilled has no {encoder} encoder; leave --encoder out")
    if parent is not None:
        raise LearningError("learner distilled begins anew; leave --from out")
    # Seeds of different policies share no member.
    runs = [SeededRun(tuple(tables), seed * config.members + member) for member in range(config.members)]
    start = start_learning(tables, encoder=encoder, seed=seed, parent=None, returns=config.returns)
    members = learn_many(runs, config=ExpectedConfig(**config.model_dump(include=set(ExpectedConfig.model_fields))))
    student = start.network
    council = Council(PolicyNetwork.with_weights(student.config, student.state_dict()), [m.network for m in members])
    architectures = {model.fingerprint: model for game in start.games for model in game.architectures}
    budgets = {
        state.architecture.fingerprint: state.time_budget_s for game in start.games for state in game.tree.states
    }
    prepared = student.prepare(tuple(architectures.values()), start.vocabulary)
    models = torch.arange(len(architectures)).repeat(config.student_times)
    budget = torch.tensor([budgets[fingerprint] for fingerprint in architectures], dtype=torch.float64)[models]
    legal = _legal(student.outputs(prepared), tuple(architectures.values()))[models]
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(student.parameters(), lr=config.learning_rate, fused=True)
    with one_thread():
        student.train()
        for update in range(config.student_updates):
            slow_down(optimizer, config.learning_rate, update / config.student_updates)
            left = budget * torch.rand(len(models), generator=generator, dtype=torch.float64)
            wanted = council.probabilities(prepared, models, left, budget, legal)
            said = masked_log_probabilities(student.logits(prepared, models, left, budget), legal)
            loss = -(wanted * said.masked_fill(~legal, 0.0)).sum(dim=1).mean()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            if progress is not None:
                progress(Progress(update + 1, config.student_updates, loss.item(), math.nan))
    return finish_learning(
        start,
        tables,
        learner="distilled",
        config=config,
        seed=seed,
        name=name,
        parent=None,
        episodes=sum(member.lineage.episodes for member in members),
    )


def _legal(columns: ActionColumns, architectures: Sequence[Architecture]) -> Tensor:
    """Return (architectures, columns): whether a column is an action of the model."""
    legal = torch.zeros(len(architectures), columns.width, dtype=torch.bool)
    for row, architecture in zip(legal, architectures, strict=True):
        row[[place for place in columns.of(architecture, offered(architecture)) if place is not None]] = True
    legal[:, -1] = True
    return legal
