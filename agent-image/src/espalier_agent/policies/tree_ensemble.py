"""Regression trees that estimate the gain of each growth: the network of a policy without gradients.

Each tree was learnt from other families (`espalier_agent.learners.trees`). Their mean is the expectation, their spread
its uncertainty: on families that none of them has met, they differ. A growth's score is a low estimate of its gain, so
that the policy advises `Nothing` if it does not know enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from espalier_agent.policies.network import Gains, NetworkConfig, PolicyNetwork, Prepared
from espalier_agent.policies.tree_features import FEATURES, INSERTIONS, RequestFacts, prepared_features, rows_of
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_core.estimates.gains import SPREAD
from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import ActionColumns, AdviceRequest
from espalier_core.types.task import Task

TREES: Final = 100
LEAVES: Final = 128
"""Leaves of each part of a tree: for first growths, for later ones, and for widenings."""
NODES: Final = 3 * (2 * LEAVES - 1) + 2
"""Nodes of a tree: its parts, and two splits between these."""
DEPTH: Final = 14
SHARPNESS: Final = 6.0
"""Sharpness of the probabilities; it changes no decision."""
QUANTILES: Final = (0.1, 0.9)
"""Ends of the reported interval."""
_LIMIT: Final = 0.999


@dataclass(frozen=True, slots=True)
class Trees:
    """Trees in the form for evaluation: the nodes of all of them in a row; a leaf points to itself."""

    feature: npt.NDArray[np.intp]
    threshold: npt.NDArray[np.float32]
    below: npt.NDArray[np.intp]
    """Two children per node: for rows above the threshold, and for the others."""
    value: npt.NDArray[np.float32]
    roots: npt.NDArray[np.intp]

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[np.float32]]) -> Trees:
        """Return the trees in the arrays of a `TreesNetwork`."""
        feature = arrays["feature"]
        own = np.arange(feature.size).reshape(feature.shape)
        roots, last = own[:, :1], feature.shape[1] - 1
        ways = [
            np.where(feature < 0, own, roots + arrays[name].astype(np.intp).clip(0, last)) for name in ("right", "left")
        ]
        return cls(
            np.maximum(feature, 0).astype(np.intp).ravel(),
            arrays["threshold"].ravel(),
            np.stack(ways, axis=-1).ravel(),
            arrays["value"].ravel(),
            roots,
        )

    def evaluated(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the value of each tree for each row, (trees, rows); all descend one level at a time."""
        numbers, starts = rows.ravel(), np.arange(len(rows)) * rows.shape[1]
        node = np.broadcast_to(self.roots, (len(self.roots), len(rows)))
        for _ in range(DEPTH):
            goes_left = numbers.take(starts + self.feature.take(node)) <= self.threshold.take(node)
            node = self.below.take(2 * node + goes_left)
        return self.value.take(node)


class TreesNetwork(PolicyNetwork):
    """The trees as arrays: `feature`, `threshold`, `left`, `right`, `value` (trees, nodes); a leaf's feature is -1."""

    any_operation = True
    learnt_by = "trees"

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        for name in ("feature", "threshold", "left", "right", "value"):
            initial = torch.full((config.trees or TREES, NODES), -1.0 if name == "feature" else 0.0)
            self.register_buffer(name, initial)
        self.register_buffer("caution", torch.zeros(1))
        self.register_buffer("needed", torch.zeros(1))
        self._made: Trees | None = None

    @property
    def task(self) -> Task:
        """The task in whose measure its gains are."""
        return self.config.task or Task.CLASSIFICATION

    def prepare(self, architectures: Sequence[Architecture], vocabulary: Vocabulary) -> Prepared:
        """Turn models into features, from their descriptions alone."""
        return self._prepared(architectures, [RequestFacts()] * len(architectures))

    def prepare_request(self, request: AdviceRequest, vocabulary: Vocabulary) -> Prepared:
        """Turn a request into features: with its places, which determine costs, and with the curve."""
        return self._prepared([request.architecture], [RequestFacts.of(request)])

    def _prepared(self, architectures: Sequence[Architecture], facts: Sequence[RequestFacts]) -> Prepared:
        return prepared_features(self.config.operations, architectures, facts)

    def outputs(self, prepared: Prepared) -> ActionColumns:
        """Return as many columns as the largest models need."""
        return ActionColumns(dict(zip(self.config.operations, prepared["counts"].tolist(), strict=True)), INSERTIONS)

    def logits(self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Return a low, scaled estimate of the gain of each growth; doing nothing has `needed`."""
        return self._scores(self._values(prepared, models, time_left_s, time_budget_s))

    def estimates(
        self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor
    ) -> tuple[Tensor, Gains]:
        """Return `logits`, and the trees' expectation for each growth: the mean and an interval with 80 % of them."""
        each = self._values(prepared, models, time_left_s, time_budget_s)
        mean, (low, high) = each.mean(axis=0), np.quantile(each, QUANTILES, axis=0)
        ends = np.minimum(low, mean), np.maximum(high, mean)
        spread = SPREAD[self.task]
        return self._scores(each), Gains(*(torch.from_numpy(_unsquashed(one, spread)) for one in (mean, *ends)))

    def _scores(self, each: npt.NDArray[np.float32]) -> Tensor:
        scores = each.mean(axis=0) - float(self._tensor("caution")) * each.std(axis=0)
        nothing = np.full((len(scores), 1), float(self._tensor("needed")), dtype=np.float32)
        return torch.from_numpy(SHARPNESS * np.concatenate([scores, nothing], axis=1))

    def _values(
        self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor
    ) -> npt.NDArray[np.float32]:
        """Return the value of each tree, squashed: (trees, n, growths)."""
        rows = rows_of(prepared, models, time_left_s, time_budget_s).numpy()
        trees, (count, growths, _) = self._trees(), rows.shape
        return trees.evaluated(rows.reshape(-1, len(FEATURES))).reshape(len(trees.roots), count, growths)

    def _trees(self) -> Trees:
        """Return the trees, built once for a network in service, which does not change."""
        if self.training:
            return Trees.of(self.arrays())
        if self._made is None:
            self._made = Trees.of(self.arrays())
        return self._made

    def arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the trees."""
        return {name: self._tensor(name).numpy() for name in ("feature", "threshold", "left", "right", "value")}

    def _tensor(self, name: str) -> Tensor:
        return self.get_buffer(name)


def squashed(gain: float, task: Task = Task.CLASSIFICATION) -> float:
    """Return a gain as the trees learn it: one of 3 times the spread is hardly better than one of twice the spread."""
    return math.tanh(gain / SPREAD[task])


def _unsquashed(values: npt.NDArray[np.floating], spread: float) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = spread * np.arctanh(np.clip(values.astype(np.float64), -_LIMIT, _LIMIT))
    return found
