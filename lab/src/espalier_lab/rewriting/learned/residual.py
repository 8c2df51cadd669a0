"""Learnt corrections of the table of costs, so that fewer plans must be measured.

Graphs and their costs by the table are exact and cheap; measuring steps is expensive. So a model predicts the ratio of
the measured gain to the table's, from measured plans of other nets and of this net. The plan that may be the fastest by
it is measured next (an upper confidence bound, Srinivas et al. 2010).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from espalier_lab.rewriting.engine.rules import RULES
from espalier_lab.rewriting.engine.search import SearchState
from espalier_lab.rewriting.learned.features import KINDS

TREES: Final = 50
OWN_WEIGHT: Final = 4.0
"""Weight of a plan of the net itself, relative to a plan of another net."""
CONFIDENCE: Final = 1.0
"""Number of the trees' deviations that are added to the expectation."""

_RULE: Final = {rule.name: place for place, rule in enumerate(RULES)}
_KIND: Final = {kind: place for place, kind in enumerate(KINDS)}

Row = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredPlans:
    """Measured plans: their features (n, f), and log(measured gain ÷ gain by the table) (n,)."""

    rows: list[Row] = field(default_factory=list)
    residuals: list[float] = field(default_factory=list)

    def add(self, start: SearchState, state: SearchState, gain: float) -> None:
        """Add a plan and the measured factor by which its steps are faster than the model's."""
        self.rows.append(features(start, state))
        self.residuals.append(math.log(gain * state.cost / start.cost))

    def with_more(self, other: MeasuredPlans) -> MeasuredPlans:
        """Return the plans of both."""
        return MeasuredPlans([*self.rows, *other.rows], [*self.residuals, *other.residuals])


@dataclass(frozen=True, slots=True)
class FastestPlan:
    """The fastest of the measured plans."""

    place: int
    """Index among the candidates."""
    gains: dict[int, float]
    """Measured gains by the candidate's index, in the order of their measurement."""


def features(start: SearchState, state: SearchState) -> Row:
    """Return the features of a plan before it is measured.

    They are the logarithm of its gain by the table, the counts of its rules, the remaining operators, the share of
    values in channels last, and the costs of each kind of operator before and after, as shares of the initial cost.
    """
    rules = np.zeros(len(RULES))
    for step in state.steps:
        rules[_RULE[step.rule.name]] += 1
    shapes = [node.value.channels_last for node in state.graph.nodes.values() if node.shape]
    whole = (
        math.log(start.cost / state.cost),
        math.log(max(1, state.graph.operators()) / max(1, start.graph.operators())),
        sum(shapes) / max(1, len(shapes)),
    )
    return np.concatenate([whole, rules, _shares(start, start), _shares(state, start)])


def choose(
    start: SearchState,
    candidates: Sequence[SearchState],
    measure: Callable[[SearchState], float],
    *,
    measurements: int,
    others: MeasuredPlans | None = None,
    seed: int = 0,
) -> FastestPlan:
    """Measure some of the candidates, each once, and return the one whose measured gain is the largest.

    `measure` returns the gain of a graph; `others` are plans of other nets. Raise `ValueError` if there is nothing to
    choose or to measure.
    """
    if not candidates or measurements < 1:
        raise ValueError(f"{len(candidates)} candidates, {measurements} measurements; give at least one of each")
    others = others or MeasuredPlans()
    own = MeasuredPlans()
    rows = np.stack([features(start, one) for one in candidates])
    table = np.array([math.log(start.cost / one.cost) for one in candidates])
    gains: dict[int, float] = {}
    for _ in range(min(measurements, len(candidates))):
        hopes = table + _optimistic(others, own, rows, seed)
        hopes[list(gains)] = -np.inf
        place = int(hopes.argmax())
        gains[place] = measure(candidates[place])
        own.add(start, candidates[place], gains[place])
    return FastestPlan(max(gains, key=lambda one: gains[one]), gains)


def _optimistic(others: MeasuredPlans, own: MeasuredPlans, rows: Row, seed: int) -> Row:
    """Return high estimates of the residuals of candidates; zeros if nothing is known."""
    known = others.with_more(own)
    if not known.rows:
        return np.zeros(len(rows))
    weights = [1.0] * len(others.rows) + [OWN_WEIGHT] * len(own.rows)
    trees = ExtraTreesRegressor(TREES, min_samples_leaf=2, max_features=0.5, bootstrap=True, random_state=seed)
    trees.fit(np.stack(known.rows), known.residuals, sample_weight=weights)
    each = np.stack([tree.predict(rows) for tree in trees.estimators_])
    return each.mean(axis=0) + CONFIDENCE * each.std(axis=0)  # type: ignore[no-any-return]


def _shares(state: SearchState, start: SearchState) -> Row:
    found = np.zeros(len(KINDS))
    for name, node in state.graph.nodes.items():
        if node.operator in _KIND:
            found[_KIND[node.operator]] += state.sums.node(name) / start.cost
    return found
