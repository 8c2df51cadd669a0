"""Regression trees that say what each growth gains: the network of a policy without gradients.

Each tree was learnt from other families (`espalier_agent.learners.trees`). Their mean is what is expected, their spread
how sure that is: families that none of them has met make them differ. A growth's score is a low estimate of its gain,
so that the policy says `Nothing` where it does not know enough to beat nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from espalier_agent.policies.network import Gains, NetworkConfig, PolicyNetwork, Prepared
from espalier_agent.policies.tree_features import DYNAMIC, FEATURES, STATIC, Facts, dynamic_features, static_features
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_api.advice import Action, ActionColumns, AdviceRequest
from espalier_api.architecture import Architecture
from espalier_api.growth import operation

TREES: Final = 100
LEAVES: Final = 128
"""Of each part of a tree: for first growths, for later ones, and for what widens."""
NODES: Final = 3 * (2 * LEAVES - 1) + 2
"""Of a tree: its parts, and two splits between these."""
DEPTH: Final = 14
SCALE: Final = 0.03
"""A gain g in accuracy is learnt as tanh(g / SCALE): a gain of .1 is hardly better than one of .06."""
SHARPNESS: Final = 6.0
"""Of the probabilities; it changes no decision."""
QUANTILES: Final = (0.1, 0.9)
"""The interval that is reported."""
_LIMIT: Final = 0.999


class TreesNetwork(PolicyNetwork):
    """The trees as arrays: `feature`, `threshold`, `left`, `right`, `value` (trees, nodes); a leaf's feature is -1."""

    any_operation = True
    learnt_by = "trees"

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        for name in ("feature", "threshold", "left", "right", "value"):
            initial = torch.full((TREES, NODES), -1.0 if name == "feature" else 0.0)
            self.register_buffer(name, initial)
        self.register_buffer("caution", torch.zeros(1))
        self.register_buffer("needed", torch.zeros(1))

    def prepare(self, architectures: Sequence[Architecture], vocabulary: Vocabulary) -> Prepared:
        """Turn models into features, of which nothing but the description is known."""
        return self._prepared(architectures, [Facts()] * len(architectures))

    def prepare_request(self, request: AdviceRequest, vocabulary: Vocabulary) -> Prepared:
        """Turn a request into features: with its places, from which costs follow, and with the curve."""
        return self._prepared([request.architecture], [Facts.of(request)])

    def _prepared(self, architectures: Sequence[Architecture], facts: Sequence[Facts]) -> Prepared:
        counts = {
            name: max((len(operation(name).targets(one)) for one in architectures), default=0)
            for name in self.config.operations
        }
        static = np.full((len(architectures), sum(counts.values()), len(STATIC)), -1.0, dtype=np.float32)
        for row, (architecture, known) in enumerate(zip(architectures, facts, strict=True)):
            features = static_features(architecture, known)
            first = 0
            for name, count in counts.items():
                for place, target in enumerate(operation(name).targets(architecture)):
                    found = features.get(Action(kind=name, target=target))
                    if found is not None:
                        static[row, first + place] = found
                first += count
        dynamic = [dynamic_features(one, known) for one, known in zip(architectures, facts, strict=True)]
        return {
            "static": torch.from_numpy(static),
            "dynamic": torch.tensor(dynamic, dtype=torch.float32),
            "counts": torch.tensor(list(counts.values())),
        }

    def outputs(self, prepared: Prepared) -> ActionColumns:
        """Return as many as the largest models need."""
        return ActionColumns(dict(zip(self.config.operations, prepared["counts"].tolist(), strict=True)))

    def logits(self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Return a low estimate of each growth's gain, scaled; nothing has `needed`."""
        each = self._values(prepared, models, time_left_s, time_budget_s)
        scores = each.mean(axis=0) - float(self._tensor("caution")) * each.std(axis=0)
        nothing = np.full((len(scores), 1), float(self._tensor("needed")), dtype=np.float32)
        return torch.from_numpy(SHARPNESS * np.concatenate([scores, nothing], axis=1))

    def gains(self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Gains:
        """Return what the trees expect of each growth: mean and an interval of 80 % of them, in accuracy."""
        each = self._values(prepared, models, time_left_s, time_budget_s)
        mean, (low, high) = each.mean(axis=0), np.quantile(each, QUANTILES, axis=0)
        ends = np.minimum(low, mean), np.maximum(high, mean)
        return Gains(*(torch.from_numpy(_unsquashed(one)) for one in (mean, *ends)))

    def _values(
        self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor
    ) -> npt.NDArray[np.float32]:
        """Return what each tree says, squashed: (trees, n, growths)."""
        static = prepared["static"][models].numpy()
        share = (time_left_s.double() / time_budget_s.double()).clamp(0.0, 1.0).float()
        dynamic = torch.cat([share[:, None], prepared["dynamic"][models]], dim=1).numpy()
        count, growths, _ = static.shape
        spread = np.broadcast_to(dynamic[:, None], (count, growths, len(DYNAMIC)))
        rows = np.concatenate([static, spread], axis=2).reshape(count * growths, len(FEATURES))
        return evaluated(self.arrays(), rows).reshape(TREES, count, growths)

    def arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return the trees."""
        return {name: self._tensor(name).numpy() for name in ("feature", "threshold", "left", "right", "value")}

    def _tensor(self, name: str) -> Tensor:
        return self.get_buffer(name)


def evaluated(trees: Mapping[str, npt.NDArray[np.float32]], rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return what each tree says of each row, (trees, rows): all of them go down one level at a time."""
    tree = np.arange(len(trees["feature"]))[:, None]
    row = np.arange(len(rows))[None]
    node = np.zeros((len(tree), len(rows)), dtype=np.int64)
    for _ in range(DEPTH):
        feature = trees["feature"][tree, node].astype(np.int64)
        goes_left = rows[row, np.maximum(feature, 0)] <= trees["threshold"][tree, node]
        below = np.where(goes_left, trees["left"][tree, node], trees["right"][tree, node]).astype(np.int64)
        node = np.where(feature < 0, node, np.clip(below, 0, NODES - 1))
    return trees["value"][tree, node]


def squashed(gain: float) -> float:
    """Return a gain in accuracy as the trees learn it."""
    return math.tanh(gain / SCALE)


def _unsquashed(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = SCALE * np.arctanh(np.clip(values.astype(np.float64), -_LIMIT, _LIMIT))
    return found
