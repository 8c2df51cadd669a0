"""Growths to learn from: their features and gains, of corpora, outcome tables, and decisions of a service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from espalier_agent.learners.trees_history import Measured
from espalier_agent.policies.tree_features import Facts, Vector, dynamic_features, static_features
from espalier_agent.tables.tree import DecisionTree
from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import Action
from espalier_core.types.growth_corpus import CaseRecord, GrowthCorpus

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rows:
    """Growths, each with its features and what it gained."""

    features: Floats
    """(n, features)."""
    gains: Floats
    """(n,): in accuracy."""
    weights: Floats
    families: npt.NDArray[np.int64]
    decisions: npt.NDArray[np.int64]
    """Rows of one decision have the same number; -1: not judged by."""


@dataclass(frozen=True, slots=True)
class Row:
    """A growth, what is known of it, and what it gained."""

    architecture: Architecture
    """Of the model, one object for all its growths."""
    action: Action
    features: list[float]
    gain: float
    weight: float
    family: str
    decision: str


def rows_of_corpora(corpora: Sequence[GrowthCorpus], blind: float) -> Iterator[Row]:
    """Yield the rows of corpora, and again, with the weight `blind`, as if costs and curve were not known."""
    for corpus in corpora:
        by_case: dict[tuple[Any, ...], list[CaseRecord]] = {}
        for record in corpus.cases:
            by_case.setdefault((record.case, record.grown, record.speed), []).append(record)
        for case, records in by_case.items():
            read = _Statics()
            for place, moment in enumerate(records[0].moments):
                gains = _gains([record.moments[place] for record in records])
                for record in records:
                    request = record.request(record.moments[place])
                    if request is None:
                        continue
                    decision = f"{case}/{moment.share}"
                    left = request.time_left_seconds / request.time_budget_seconds
                    for facts, weight in ((Facts.of(request), 1.0), (Facts(), blind)):
                        if weight:
                            yield from _rows(
                                request.architecture,
                                read.features(request.architecture, facts),
                                [left, *dynamic_features(request.architecture, facts)],
                                gains,
                                weight / len(records),
                                record.family,
                                decision if weight == 1.0 else "",
                            )


def _gains(moments: Sequence[Any]) -> dict[Action, float]:
    """Return the mean gain of each growth that all seeds have."""
    found = [{arm.action: arm.accuracy for arm in moment.arms} for moment in moments]
    nothing = Action.nothing()
    return {
        action: float(np.mean([one[action] - one[nothing] for one in found]))
        for action in found[0]
        if action.grows and all(action in one for one in found)
    }


def rows_of_tables(trees: Sequence[DecisionTree]) -> Iterator[Row]:
    """Yield the rows of each state: an action and then nothing, against nothing."""
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
            static = static_features(state.architecture, Facts())
            dynamic = dynamic_features(state.architecture, Facts())
            yield from _rows(state.architecture, static, [share, *dynamic], gains, 1 / len(prefixes), tree.model, "")


def rows_of_history(one: Measured) -> Iterator[Row]:
    """Yield the rows of a decision of a service."""
    share = one.decision.time_left_seconds / one.decision.time_budget_seconds
    static = static_features(one.decision.architecture, one.facts)
    dynamic = [share, *dynamic_features(one.decision.architecture, one.facts)]
    for action, (gain, weight) in one.gains.items():
        yield from _rows(one.decision.architecture, static, dynamic, {action: gain}, weight, one.family, "")


class _Statics:
    """The static features of one case, whose seeds and moments have the same description."""

    def __init__(self) -> None:
        self._met: list[tuple[Architecture, Facts, dict[Action, Vector]]] = []

    def features(self, architecture: Architecture, facts: Facts) -> dict[Action, Vector]:
        # Metrics are read as dynamic features alone.
        sizes = replace(facts, metrics={})
        for met, known, found in self._met:
            if known == sizes and met == architecture:
                return found
        found = static_features(architecture, sizes)
        self._met.append((architecture, sizes, found))
        return found


def _rows(
    architecture: Architecture,
    static: Mapping[Action, Vector],
    dynamic: Sequence[float],
    gains: dict[Action, float],
    weight: float,
    family: str,
    decision: str,
) -> Iterator[Row]:
    for action, gain in gains.items():
        if action in static:
            features = [*static[action].tolist(), *dynamic]
            yield Row(architecture, action, features, gain, weight, family, decision)


def stacked(rows: Sequence[Row]) -> Rows:
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
