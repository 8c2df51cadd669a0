"""What learners share that learn what each growth gains: from corpora, outcome tables and histories of a service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import Field

from espalier_agent.history.episodes import Gathered
from espalier_agent.learners.learning import Learner, LearningError, ProgressCallback, Start, finish_learning
from espalier_agent.learners.remembered import remembered
from espalier_agent.learners.trees_history import Measured, measured
from espalier_agent.learners.trees_rows import Row, rows_of_corpora, rows_of_history, rows_of_tables
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import DEFAULT_EMBEDDING_SEED, LearntHistory, Policy
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.tree import decision_tree
from espalier_core.base import Record
from espalier_core.growth import operation_names
from espalier_core.growth.architecture import Architecture
from espalier_core.growth.deepen import DEEPEN
from espalier_core.types.growth_corpus import GrowthCorpus
from espalier_core.types.outcomes import OutcomeTable


class GrowthsConfig(Record):
    """Settings that all such learners share."""

    blind: float = Field(default=0.25, ge=0, le=1)
    """Weight of rows again without costs and curve, for requests that tell neither."""


class HeldOut(Record):
    """What of a history is not learnt from."""

    held_out_share: float = Field(default=0.25, ge=0, lt=1)
    """Share of the jobs of a history that is held out for `promote`."""
    held_out_seed: int = 0
    """Seed of the held-out share."""


Fit = Callable[[PolicyNetwork, Sequence[Row], Any, int, ProgressCallback], None]
"""Trains a network in place to say what each growth gains, by a configuration and a seed; raises `LearningError`."""


@dataclass(frozen=True, slots=True)
class GrowthsLearner(Learner):
    """Learns from corpora, tables and histories of a service what each growth gains."""

    fit: Fit = field(kw_only=True)
    history_recipe: type[HeldOut] = field(kw_only=True)
    """Of the configuration where there is a history."""
    corpora: tuple[GrowthCorpus, ...] = ()
    history: Gathered | None = None
    files: tuple[str, ...] = ()
    """Names that the lineage gives to the history."""

    def remembering(self, history: Gathered, files: Sequence[str]) -> GrowthsLearner:
        """Return a learner that learns from a history, too: from trials, and from jobs whose agent explored."""
        return replace(self, history=history, files=tuple(files))

    def recipe(self, name: str | None = None) -> Any:
        """Return the recipe, with the fields for a history where there is one."""
        # super() without arguments does not work in a class with slots: the decorator makes it a second time.
        found = Learner.recipe(self, name)
        return found if self.history is None else self.history_recipe(**found.model_dump())

    def with_corpora(self, corpora: Sequence[GrowthCorpus]) -> GrowthsLearner:
        """Return a learner that learns from these corpora, too."""
        return replace(self, corpora=tuple(corpora))

    def learn(
        self,
        tables: Sequence[OutcomeTable],
        *,
        config: Any = None,
        encoder: str | None = None,
        seed: int = 0,
        name: str | None = None,
        parent: Policy | None = None,
        progress: ProgressCallback = lambda progress: None,
    ) -> Policy:
        """Learn a policy; the same input and seed give the same one. Raises `LearningError`, `TableError`."""
        config = self.recipe() if config is None else config
        self.check(encoder or self.encoder, parent)
        if encoder not in (None, self.encoder):
            raise LearningError(f"learner {self.name} has the encoder {self.encoder} alone; leave --encoder out")
        trees = [decision_tree(table) for table in tables]
        found = [*rows_of_corpora(self.corpora, config.blind), *rows_of_tables(trees)]
        met, lineage = self._remembered(config)
        found += (row for one in met for row in rows_of_history(one))
        if not found:
            raise LearningError("there is no outcome table, no corpus and no history of growths to learn from")
        architectures = [
            *(one.decision.architecture for one in met),
            *(case.architecture for corpus in self.corpora for case in corpus.cases if case.architecture is not None),
            *(state.architecture for tree in trees for state in tree.states[:1]),
        ]
        network = _network(self.encoder, architectures, {row.action.kind for row in found} - {DEEPEN.name}, seed)
        self.fit(network, found, config, seed, progress)
        start = Start(tuple(tables), seed, network, Vocabulary.build(architectures, DEFAULT_EMBEDDING_SEED), games=[])
        return finish_learning(
            start,
            learner=self.name,
            config=config,
            name=name or self.name,
            parent=None,
            episodes=len(found),
            history=lineage,
        )

    def _remembered(self, config: Any) -> tuple[list[Measured], LearntHistory | None]:
        """Return what is learnt from the history, without what is held out, and what the lineage says of it."""
        if self.history is None:
            return [], None
        found = remembered(self.history, config, self.files)
        return list(measured(found.episodes, found.tried)), found.lineage


def _network(
    encoder: str, architectures: Sequence[Architecture], operations: Iterable[str], seed: int
) -> PolicyNetwork:
    """Return a network that scores the operations which it learns from, and no others."""
    points = max((len(one.growth_points) for one in architectures), default=1)
    config = NetworkConfig.scoring(encoder, max(1, points), [one for one in operation_names() if one in operations])
    return PolicyNetwork.seeded(config, seed)


def by_fitting(start: Start, config: Any, progress: ProgressCallback) -> int:
    """Stand where other learners play games; raises `LearningError`."""
    raise LearningError("gains are not learnt by playing games; `GrowthsLearner.learn` learns them")
