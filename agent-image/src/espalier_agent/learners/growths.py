"""Shared parts of learners of gains: samples of growths from corpora, outcome tables and histories of a service.

A `GrowthSample` is one growth: its features and its gain, for decisions of a service also its weight. A trial shows
several growths in one state, so each is compared with doing nothing there. Where the agent decided, and explored, the
accuracies of jobs are compared: among jobs of a kind in the same state, the mean with a growth (by importance weights)
less the mean with nothing. Both are noisy measurements, weighted by their error compared with the spread of gains.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import pstdev
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from espalier_agent.history import HistoryDecision
from espalier_agent.history.episodes import Episode, Gathered, Tried
from espalier_agent.learners.learning import (
    Learner,
    LearningError,
    Lesson,
    ProgressCallback,
    Start,
    finish_learning,
    remembered,
)
from espalier_agent.policies.familiarity import Domain, steps_left
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork, TreeCount
from espalier_agent.policies.policy import DEFAULT_EMBEDDING_SEED, LearntHistory, Policy
from espalier_agent.policies.tree_features import RequestFacts, Vector, changing_features, row_of, static_features
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.tree import DecisionTree, decision_tree
from espalier_core.base import Record
from espalier_core.estimates.gains import SPREAD
from espalier_core.growth import operation_names
from espalier_core.growth.architecture import Architecture
from espalier_core.growth.deepen import DEEPEN
from espalier_core.types.advice import Action
from espalier_core.types.outcomes import CaseRecord, GrowthCorpus, MomentRecord
from espalier_core.types.task import Task, score_of

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rows:
    """Growths, each with its features and its gain."""

    features: Floats
    """(n, features)."""
    gains: Floats
    """(n,): gain in accuracy."""
    weights: Floats
    families: npt.NDArray[np.int64]
    decisions: npt.NDArray[np.int64]
    """Number of the decision, shared by its rows; -1: not used for judging."""


@dataclass(frozen=True, slots=True)
class GrowthSample:
    """A growth with its features and its gain."""

    architecture: Architecture
    """Architecture of the model, one object for all its growths."""
    action: Action
    features: list[float]
    gain: float
    weight: float
    family: str
    decision: str


Fit = Callable[[PolicyNetwork, Sequence[GrowthSample], Any, int, ProgressCallback], None]
"""Trains a network in place on the gains of growths, with a configuration and a seed; raises `LearningError`."""


class GrowthsConfig(Record):
    """Settings shared by all such learners."""

    blind: float = Field(default=0.25, ge=0, le=1)
    """Weight of a second copy of the rows without costs and curve, for requests that have neither."""


class OfTask(Record):
    """The task of a policy that is not for classifications."""

    task: Task
    trees: TreeCount | None = None
    """Number of trees, where the network has any; None: as many as for classifications."""


class HeldOut(Record):
    """The held-out part of a history."""

    held_out_share: float = Field(default=0.25, ge=0, lt=1)
    """Share of the jobs of a history that is held out for `promote`."""
    held_out_seed: int = 0
    """Seed of the held-out share."""


@dataclass(frozen=True, slots=True)
class GrowthsLearner(Learner):
    """Learns the gain of each growth from corpora, tables and histories of a service."""

    fit: Fit = field(kw_only=True)
    history_recipe: type[HeldOut] = field(kw_only=True)
    """Class of the configuration with a history."""
    corpora: tuple[GrowthCorpus, ...] = ()
    history: Gathered | None = None
    files: tuple[str, ...] = ()
    """Names that the lineage gives to the history."""

    def remembering(self, history: Gathered, files: Sequence[str]) -> GrowthsLearner:
        """Return a learner that also learns from a history: from trials, and from jobs whose agent explored."""
        return replace(self, history=history, files=tuple(files))

    def recipe(self, name: str | None = None) -> Any:
        """Return the recipe, with the fields for a history if there is one."""
        # super() without arguments fails in a class with slots: the decorator creates the class a second time.
        found = Learner.recipe(self, name)
        if self.history is None or isinstance(found, OfTask):
            return found
        return self.history_recipe(**found.model_dump())

    def with_corpora(self, corpora: Sequence[GrowthCorpus]) -> GrowthsLearner:
        """Return a learner that also learns from these corpora."""
        return replace(self, corpora=tuple(corpora))

    def _learn(self, lesson: Lesson) -> Policy:
        config, tables = lesson.config, lesson.tables
        if lesson.encoder != self.encoder:
            raise LearningError(f"learner {self.name} has the encoder {self.encoder} alone; leave --encoder out")
        if tables and isinstance(config, OfTask):
            raise LearningError(f"outcome tables are of classifications, not of {config.task}; add --without-tables")
        trees = [decision_tree(table) for table in tables]
        task = config.task if isinstance(config, OfTask) else Task.CLASSIFICATION
        found = [*rows_of_corpora(self.corpora, task, config.blind), *rows_of_tables(trees)]
        met, lineage = self._remembered(config)
        found += (row for one in met for row in rows_of_history(one))
        if not found:
            raise LearningError("there is no outcome table, no corpus and no history of growths to learn from")
        cases = [case for corpus in self.corpora for case in corpus.cases if case.task is task]
        architectures = [
            *(one.decision.architecture for one in met),
            *(case.architecture for case in cases if case.architecture is not None),
            *(state.architecture for tree in trees for state in tree.states[:1]),
        ]
        operations = {row.action.kind for row in found} - {DEEPEN.name}
        network = _network(self.encoder, architectures, operations, config, lesson.seed)
        self.fit(network, found, config, lesson.seed, lesson.progress)
        vocabulary = Vocabulary.build(architectures, DEFAULT_EMBEDDING_SEED)
        start = Start(tuple(tables), lesson.seed, network, vocabulary, games=[])
        return finish_learning(start, self.name, lesson, len(found), history=lineage, domain=_domain(task, cases))

    def _remembered(self, config: Any) -> tuple[list[Measured], LearntHistory | None]:
        """Return the samples of the history without the held-out part, and its entry in the lineage."""
        if self.history is None:
            return [], None
        if isinstance(config, OfTask):
            raise LearningError(f"policies for {config.task} learn from corpora alone; leave --history out")
        found = remembered(self.history, config, self.files)
        return list(measured(found.episodes, found.tried)), found.lineage


def _domain(task: Task, cases: Sequence[CaseRecord]) -> Domain | None:
    """Return the domain of corpora; None without one."""
    requests = [request for case in cases for moment in case.moments if (request := case.request(moment)) is not None]
    left = [steps for request in requests if (steps := steps_left(request)) is not None]
    return Domain.of(task, (request.architecture for request in requests), left) if requests else None


def _network(
    encoder: str, architectures: Sequence[Architecture], operations: Iterable[str], recipe: GrowthsConfig, seed: int
) -> PolicyNetwork:
    """Return a network that scores only the operations that it learns from."""
    points = max((len(one.growth_points) for one in architectures), default=1)
    config = NetworkConfig.scoring(encoder, max(1, points), [one for one in operation_names() if one in operations])
    if isinstance(recipe, OfTask):
        config = config.model_copy(update={"task": recipe.task, "trees": recipe.trees})
    return PolicyNetwork.seeded(config, seed)


def by_fitting(start: Start, config: Any, progress: ProgressCallback) -> int:
    """Raise `LearningError`, in the place where other learners play games."""
    raise LearningError("gains are not learnt by playing games; `GrowthsLearner.learn` learns them")


def rows_of_corpora(corpora: Sequence[GrowthCorpus], task: Task, blind: float) -> Iterator[GrowthSample]:
    """Yield the rows of a task, and again, with the weight `blind`, as if costs and curve were unknown."""
    for corpus in corpora:
        by_case: dict[tuple[Any, ...], list[CaseRecord]] = {}
        for record in (one for one in corpus.cases if one.task is task):
            by_case.setdefault((record.case, record.grown, record.speed), []).append(record)
        for case, records in by_case.items():
            read = _Statics()
            for place, moment in enumerate(records[0].moments):
                gains = _gains(task, [record.moments[place] for record in records])
                for record in records:
                    request = record.request(record.moments[place])
                    if request is None:
                        continue
                    decision = f"{case}/{moment.share}"
                    left = request.time_left_seconds / request.time_budget_seconds
                    for facts, weight in ((RequestFacts.of(request), 1.0), (RequestFacts(), blind)):
                        if weight:
                            yield from _rows(
                                request.architecture,
                                read.features(request.architecture, facts),
                                left,
                                changing_features(request.architecture, facts),
                                gains,
                                weight / len(records),
                                record.family,
                                decision if weight == 1.0 else "",
                            )


def _gains(task: Task, moments: Sequence[MomentRecord]) -> dict[Action, float]:
    """Return the mean gain of each growth that occurs in all seeds, in the task's measure."""
    found = [{arm.action: score_of(task, arm.accuracy) for arm in moment.every} for moment in moments]
    nothing = Action.nothing()
    return {
        action: float(np.mean([one[action].ahead_of(one[nothing]) for one in found]))
        for action in found[0]
        if action.grows and all(action in one for one in found)
    }


def rows_of_tables(trees: Sequence[DecisionTree]) -> Iterator[GrowthSample]:
    """Yield the rows of each state: an action followed by nothing, against nothing."""
    for tree in trees:
        accuracy = dict(zip(tree.sequences, tree.accuracies, strict=True))
        nothing = len(tree.actions) - 1
        prefixes = {sequence[:length] for sequence in tree.sequences for length in range(tree.decisions)}
        for prefix in sorted(prefixes, key=lambda one: (len(one), one)):
            at = 0
            for action in prefix:
                at = tree.next_states[at][action]
            state, rest = tree.states[at], tree.decisions - len(prefix) - 1
            base = accuracy[(*prefix, nothing, *(nothing,) * rest)]
            gains = {
                action: accuracy[(*prefix, place, *(nothing,) * rest)] - base
                for place, action in enumerate(tree.actions)
                if action.grows
            }
            share = state.time_left_s / state.time_budget_s
            static = static_features(state.architecture, RequestFacts())
            changing = changing_features(state.architecture, RequestFacts())
            yield from _rows(state.architecture, static, share, changing, gains, 1 / len(prefixes), tree.model, "")


def rows_of_history(one: Measured) -> Iterator[GrowthSample]:
    """Yield the rows of a decision of a service."""
    share = one.decision.time_left_seconds / one.decision.time_budget_seconds
    static = static_features(one.decision.architecture, one.facts)
    changing = changing_features(one.decision.architecture, one.facts)
    for action, (gain, weight) in one.gains.items():
        yield from _rows(one.decision.architecture, static, share, changing, {action: gain}, weight, one.family, "")


class _Statics:
    """The static features of one case, whose seeds and moments have the same description."""

    def __init__(self) -> None:
        self._met: list[tuple[Architecture, RequestFacts, dict[Action, Vector]]] = []

    def features(self, architecture: Architecture, facts: RequestFacts) -> dict[Action, Vector]:
        sizes = RequestFacts(facts.places, facts.batch_size)
        for met, known, found in self._met:
            if known == sizes and met == architecture:
                return found
        found = static_features(architecture, sizes)
        self._met.append((architecture, sizes, found))
        return found


def _rows(
    architecture: Architecture,
    static: Mapping[Action, Vector],
    share: float,
    changing: Sequence[float],
    gains: dict[Action, float],
    weight: float,
    family: str,
    decision: str,
) -> Iterator[GrowthSample]:
    for action, gain in gains.items():
        if action in static:
            features = row_of(static[action], share, changing)
            yield GrowthSample(architecture, action, features, gain, weight, family, decision)


def stacked(rows: Sequence[GrowthSample]) -> Rows:
    """Return rows as arrays."""
    families = {name: place for place, name in enumerate(dict.fromkeys(row.family for row in rows))}
    decisions = {name: place for place, name in enumerate(dict.fromkeys(row.decision for row in rows if row.decision))}
    return Rows(
        np.array([row.features for row in rows], dtype=np.float32),
        np.array([row.gain for row in rows], dtype=np.float32),
        np.array([row.weight for row in rows], dtype=np.float32),
        np.array([families[row.family] for row in rows]),
        np.array([decisions.get(row.decision, -1) for row in rows]),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """Gains of growths in one state."""

    decision: HistoryDecision
    facts: RequestFacts
    gains: dict[Action, tuple[float, float]]
    """Gain in accuracy, and weight: 1 for a gain without error."""
    family: str


def measured(episodes: Sequence[Episode], tried: Sequence[Tried]) -> Iterator[Measured]:
    """Yield the gains of growths in a history."""
    for one in tried:
        by_name = {str(action): action for action in one.decision.actions}
        gains = {
            by_name[name]: (seen.gain, _weight(seen.deviation**2)) for name, seen in one.seen.items() if name in by_name
        }
        yield Measured(one.decision, RequestFacts.of(one.decision.request()), gains, one.model)
    for (model, *_), members in _alike(episodes).items():
        gains = _compared(members)
        for decision, _ in members:
            shares = {action: (gain, weight / len(members)) for action, (gain, weight) in gains.items()}
            yield Measured(decision, RequestFacts.of(decision.request()), shares, model)


def _alike(episodes: Sequence[Episode]) -> dict[tuple[str, object, str], list[tuple[HistoryDecision, float]]]:
    """Group decisions in the same state, each with the accuracy of its job, by model, kind of job, and grown model."""
    found: dict[tuple[str, object, str], list[tuple[HistoryDecision, float]]] = defaultdict(list)
    fingerprints: dict[int, str] = {}
    for episode in episodes:
        for number, decision in enumerate(episode.decisions):
            model = decision.architecture
            if id(model) not in fingerprints:
                fingerprints[id(model)] = model.fingerprint
            found[episode.kind.model, (episode.kind, number), fingerprints[id(model)]].append(
                (decision, episode.accuracy)
            )
    return found


def _compared(members: Sequence[tuple[HistoryDecision, float]]) -> dict[Action, tuple[float, float]]:
    """Return the gain of each chosen growth, and its weight; empty if doing nothing was never chosen."""
    by_action: dict[Action, list[tuple[float, float]]] = defaultdict(list)
    for decision, accuracy in members:
        by_action[decision.action].append((1 / decision.behaviour_probability, accuracy))
    nothing = by_action.pop(Action.nothing(), [])
    if not nothing:
        return {}
    base, jobs = _mean(nothing)
    noise = pstdev(accuracy for _, accuracy in members) ** 2
    found = {}
    for action, values in by_action.items():
        mean, count = _mean(values)
        found[action] = (mean - base, len(values) * _weight(noise * count * (1 / count + 1 / jobs)))
    return found


def _mean(values: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the weighted mean, and the effective number of jobs."""
    total = sum(weight for weight, _ in values)
    mean = sum(weight * value for weight, value in values) / total
    return mean, total**2 / sum(weight**2 for weight, _ in values)


def _weight(variance: float) -> float:
    spread = SPREAD[Task.CLASSIFICATION]
    return spread**2 / (spread**2 + variance)
