"""The learner that continues from the outcomes of its advice: off-policy, with the exact gradient over tables.

The objective is the one of `expected` over the tables, plus `history_weight` times

    value of the policy on the history - caution / √(effective sample size) + entropy weight · entropy,

the value as in `history.off_policy`, of accuracies standardised by kind of job. The middle term is the standard error
of that value, as these have variance 1: evidence from few jobs counts less (Metelli and others, Policy Optimization via
Importance Sampling, 2018, whose bound has the same form). Accuracies are standardised directly, not through the paper's
100·tan(a·π/2), which makes one job near accuracy 1 worth more than all others together.

Decisions that a trial took have no probability, and need none: their arms show several actions in one state. They add
`history_weight` times the mean gain of the policy's choices among them.

Episodes in which a choice was certain are left out: a service that does not explore leaves nothing to learn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from pydantic import Field
from torch import Tensor

from espalier_agent.history.episodes import Gathered, Tried, comparable, standardised
from espalier_agent.history.off_policy import Log, LoggedStates, Unit, effective_size, self_normalised
from espalier_agent.learners.expected import ExpectedConfig, objective, optimizer_of, schedule
from espalier_agent.learners.learning import (
    Learner,
    LearningError,
    LearningProgress,
    Lesson,
    ascend,
    finish_learning,
    one_thread,
    remembered,
    start_learning,
    time_shifts,
)
from espalier_agent.policies.network import PolicyNetwork, masked_log_probabilities
from espalier_agent.policies.policy import Policy
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.game import Games
from espalier_core.estimates.gains import SPREAD
from espalier_core.types.task import Task


class HistoryConfig(ExpectedConfig):
    """Hyperparameters: the fields of `expected` for the tables, or for both, and these for the history."""

    history_weight: float = Field(default=1.0, gt=0)
    """Weight of the history; the mean over all tables has weight 1."""
    unit: Unit = Unit.DECISION
    """The unit that has an importance weight: each decision, or each episode."""
    caution: float = Field(default=1.0, ge=0)
    """Number of standard errors subtracted from the estimated value."""
    held_out_share: float = Field(default=0.25, ge=0, lt=1)
    """Share of the episodes that is held out for `promote`."""
    held_out_seed: int = 0
    """Seed of the held-out share. Keep it when you continue from a policy, or `promote` judges by learnt data."""


def history_objective(
    log: Log, log_probabilities: Tensor, entropies: Tensor, entropy: float, caution: float
) -> tuple[Tensor, Tensor]:
    """Return the value to maximise, and the estimated value alone."""
    weights = log.weights(log_probabilities)
    value = self_normalised(weights, log.rewards)
    units = len(log.rewards)
    return value - caution / effective_size(weights).sqrt() + entropy * entropies.sum() / units, value


MOST_GAINED: Final = 3.0
"""Limit on a gain in `SPREAD`, the unit of standardised accuracies, so that single trials do not decide."""


class _Trials:
    """Decisions of trials, in which the policy learns to choose the best of the tried actions."""

    def __init__(self, tried: Sequence[Tried], network: PolicyNetwork, vocabulary: Vocabulary) -> None:
        self._states = LoggedStates(Log.of([one.decision for one in tried]), network, vocabulary)
        seen, self._known = self._states.gains(tried)
        self._seen = (seen / SPREAD[Task.CLASSIFICATION]).clamp(-MOST_GAINED, MOST_GAINED)

    def value(self, network: PolicyNetwork) -> Tensor:
        """Return the mean gain of the policy's choices among the tried actions, in `SPREAD`."""
        rows = masked_log_probabilities(self._states.choices(network), self._known)
        chances = rows.double().masked_fill(~self._known, 0.0).exp() * self._known
        return (chances * self._seen).sum(dim=1).mean()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLearner(Learner):
    """`expected`, with a history to learn from besides tables."""

    history: Gathered
    files: tuple[str, ...] = ()
    """Names that the lineage gives to the history."""

    def recipe(self, name: str | None = None) -> HistoryConfig:
        """Return the recipe of `expected` with the fields for a history."""
        # super() without arguments fails in a class with slots: the decorator creates the class a second time.
        return HistoryConfig(**Learner.recipe(self, name).model_dump())

    def _learn(self, lesson: Lesson) -> Policy:
        config: HistoryConfig = lesson.config
        _check_split(config, lesson.parent)
        found = remembered(self.history, config, self.files, comparable)
        learnt, tried = found.episodes, found.tried
        if not learnt and not tried and not lesson.tables:
            raise LearningError(
                f"the history has no episode to learn from: {_left_out(self.history, found.held_out)}; "
                "serve with --explore SHARE and let jobs end, or give outcome tables too"
            )
        made = [decision for episode in learnt for decision in episode.decisions]
        made += [one.decision for one in tried]
        models = {id(decision.architecture): decision.architecture for decision in made}.values()
        start = start_learning(lesson, tuple(models))
        network = start.network
        games = Games(start.games, network, start.vocabulary) if start.games else None
        log = Log(learnt, standardised(learnt), config.unit)
        states = LoggedStates(log, network, start.vocabulary) if learnt else None
        trials = _Trials(tried, network, start.vocabulary) if tried else None
        generator = start.generator()
        optimizer = optimizer_of(network.parameters(), config)
        each = (0 if games is None else len(games.returns)) + len(learnt) + len(tried)
        with one_thread():
            network.train()
            for update in range(config.updates):
                entropy = schedule(optimizer, config, update)
                wanted, accuracies = torch.zeros((), dtype=torch.float64), torch.tensor([0.0])
                if games is not None:
                    shifts = time_shifts(config.time_jitter, len(games.games), generator)
                    rows = games.log_probabilities(network, shifts=shifts)
                    of_tables, _, accuracies = objective(games, rows, entropy, config.imitation)
                    wanted = wanted + of_tables
                if states is not None:
                    shifts = time_shifts(config.time_jitter, len(log.decisions), generator)
                    answers = states.answers(network, shifts)
                    of_history, _ = history_objective(log, *answers, entropy, config.caution)
                    wanted = wanted + config.history_weight * of_history
                if trials is not None:
                    wanted = wanted + config.history_weight * trials.value(network)
                ascend(optimizer, wanted)
                done = (update + 1) * each
                lesson.progress(LearningProgress(done, config.updates * each, -wanted.item(), accuracies.mean().item()))
        return finish_learning(start, self.name, lesson, config.updates * each, history=found.lineage)


def _check_split(config: HistoryConfig, parent: Policy | None) -> None:
    before = None if parent is None else parent.lineage.history
    if parent is None or before is None:
        return
    if config.held_out_seed != before.held_out_seed or config.held_out_share > before.held_out_share:
        raise LearningError(
            f"held_out_share={config.held_out_share:g} and held_out_seed={config.held_out_seed} would hold out data "
            f"policy {parent.name!r} has learnt from; it has {before.held_out_share:g} (or less) and "
            f"{before.held_out_seed}: set these"
        )


def _left_out(history: Gathered, held_out: int) -> str:
    return (
        f"{history.without_outcome} decisions without outcome, {history.certain} episodes with a certain choice, "
        f"{history.alone} the only one of their kind, {held_out} held out"
    )
