"""Regression trees from a corpus of growth: the gain of each growth by features of its place.

Splits are drawn at random (extremely randomized trees, Geurts et al. 2006): there are few families with noisy gains,
and the mean of such trees follows their noise less. Each tree is learnt from a bootstrap over *families*: models of a
family resemble each other, so only a family that a tree has not met tests its knowledge of others. The families that a
tree left out also determine the caution at which the policy does little harm: the number of deviations of the trees by
which the expected gain is lowered, and the gain then needed to beat nothing.

Each tree has three parts, learnt separately: the first added layers, later ones, and widenings. When learnt together,
advice on where to add the first layers was worse; of language models, of which few have grown before, all that add are
learnt together.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from espalier_agent.learners.growths import (
    Floats,
    GrowthSample,
    GrowthsConfig,
    GrowthsLearner,
    HeldOut,
    OfTask,
    Rows,
    by_fitting,
    stacked,
)
from espalier_agent.learners.learning import LearningError, LearningProgress, ProgressCallback
from espalier_agent.policies.network import PolicyNetwork
from espalier_agent.policies.tree_ensemble import DEPTH, LEAVES, Trees, TreesNetwork, squashed
from espalier_agent.policies.tree_features import BASE, FEATURES, OF_SIZE
from espalier_core.estimates.gains import HARM
from espalier_core.types.task import Task

WIDENS: Final = FEATURES.index("widens")
GROWN: Final = FEATURES.index("grown before")
PARTED: Final = 0.5
"""Threshold above which a row widens, or has grown."""
CAUTIONS: Final = (0.0, 0.25, 0.5, 1.0)
"""Choices for the deviations of the trees by which a gain is lowered."""
NEEDED: Final = (0.0, 0.05, 0.1, 0.2, 0.3)
"""Choices for the squashed gain needed to beat nothing: 0.1 is a gain of 0.003."""
HARM_BAR: Final = 0.15
"""Share of the decisions that may end more than `HARM` below doing nothing, for the choice of caution."""


class TreesConfig(GrowthsConfig):
    """Hyperparameters of the trees."""

    least_weight: float = Field(default=3.0, gt=0)
    """Minimum weight of the rows in a leaf; a growth of a case counts 1 over its seeds."""


class TreesTaskConfig(TreesConfig, OfTask):
    """Hyperparameters of the trees for another task than classification, which read features that carry over sizes."""


class TreesHistoryConfig(TreesConfig, HeldOut):
    """Hyperparameters of learning with a history."""


def _fit(
    network: PolicyNetwork, found: Sequence[GrowthSample], config: TreesConfig, seed: int, progress: ProgressCallback
) -> None:
    if not isinstance(network, TreesNetwork):
        raise TypeError(f"encoder trees is {type(network).__name__}")
    if importlib.util.find_spec("sklearn") is None:
        raise LearningError("learner trees: scikit-learn is not installed; pip install 'espalier-agent[trees]'")
    rows = stacked(found)
    features = rows.features[:, : len(BASE)]
    if isinstance(config, OfTask):
        features = np.where(np.isin(FEATURES, OF_SIZE), np.float32(0), rows.features)  # no tree reads what is constant
    targets = np.array([squashed(float(gain), network.task) for gain in rows.gains], dtype=np.float32)
    chance = random.Random(seed)
    families = int(rows.families.max()) + 1
    left_out = np.zeros((len(network.get_buffer("feature")), len(targets)), dtype=bool)
    widens, later = (rows.features[:, one] > PARTED for one in (WIDENS, GROWN))
    adding = (~widens,) if isinstance(config, OfTask) else (~widens & ~later, ~widens & later)
    for number, out in enumerate(left_out):
        drawn = np.bincount([chance.randrange(families) for _ in range(families)], minlength=families)
        out[:] = (counts := drawn[rows.families]) == 0
        weights = rows.weights * counts
        *added, widening = (
            _grown(features, targets, weights * part, config, chance.randrange(2**31)) for part in (*adding, widens)
        )
        tree = _joined(WIDENS, _joined(GROWN, *added) if len(added) > 1 else added[0], widening)
        for name, values in tree.items():
            network.get_buffer(name)[number, : len(values)] = torch.from_numpy(values)
        progress(LearningProgress(number + 1, len(left_out)))
    _choose_caution(network, rows, left_out)


def _grown(features: Floats, targets: Floats, weights: Floats, config: TreesConfig, seed: int) -> dict[str, Floats]:
    """Return a tree learnt from the rows with a weight; without any, one that expects no gain."""
    from sklearn.tree import ExtraTreeRegressor  # a second to import, for learning alone

    met = weights > 0
    if not met.any():
        leaf = {"feature": -1.0, "threshold": 0.0, "left": -1.0, "right": -1.0, "value": 0.0}
        return {name: np.array([value], dtype=np.float32) for name, value in leaf.items()}
    tree = (
        ExtraTreeRegressor(
            max_leaf_nodes=LEAVES,
            max_depth=DEPTH - 2,
            min_weight_fraction_leaf=min(0.5, config.least_weight / float(weights.sum())),
            random_state=seed,
        )
        .fit(features[met], targets[met], sample_weight=weights[met])
        .tree_
    )
    arrays = {
        "feature": np.where(tree.feature < 0, -1, tree.feature),
        "threshold": tree.threshold,
        "left": tree.children_left,
        "right": tree.children_right,
        "value": tree.value[:, 0, 0],
    }
    return {name: values.astype(np.float32) for name, values in arrays.items()}


def _joined(feature: int, below: dict[str, Floats], above: dict[str, Floats]) -> dict[str, Floats]:
    """Return one tree made of two: its root leads to the second one if the feature is above `PARTED`."""
    second = 1 + len(below["feature"])
    root = {"feature": feature, "threshold": PARTED, "left": 1, "right": second, "value": 0.0}
    first = np.array([1, second])
    moves = {name: first if name in ("left", "right") else np.zeros(2) for name in root}
    return {
        name: np.concatenate([[value], below[name] + moves[name][0], above[name] + moves[name][1]], dtype=np.float32)
        for name, value in root.items()
    }


def _choose_caution(network: TreesNetwork, rows: Rows, left_out: npt.NDArray[np.bool_]) -> None:
    """Choose the least cautious settings that do little harm, or the most cautious ones if all do too much.

    The decisions of each family are judged by the trees that have not met it. Regret is not the criterion: for many
    settings it is the same within its noise, and policies chosen by it were worse on other families.
    """
    judged = np.flatnonzero((rows.decisions >= 0) & left_out.any(axis=0))
    if not len(judged):
        return
    values = Trees.of(network.arrays()).evaluated(rows.features[judged])
    apart = np.where(left_out[:, judged], values, np.nan)
    mean, deviation = np.nanmean(apart, axis=0), np.nanstd(apart, axis=0)
    gains, decisions = rows.gains[judged], rows.decisions[judged]
    for caution, needed in itertools.product(CAUTIONS, NEEDED):
        if _harm(mean - caution * deviation, needed, gains, decisions, network.task) <= HARM_BAR:
            break
    network.get_buffer("caution")[0], network.get_buffer("needed")[0] = caution, needed


def _harm(scores: Floats, needed: float, gains: Floats, decisions: npt.NDArray[np.int64], task: Task) -> float:
    """Return the share of decisions in which following the scores does harm."""
    numbers = np.unique(decisions)
    harm = 0
    for number in numbers:
        of = decisions == number
        place = int(scores[of].argmax())
        harm += bool(scores[of][place] > needed and gains[of][place] < -HARM[task])
    return harm / len(numbers)


LEARNER: Final = GrowthsLearner(
    "trees",
    by_fitting,
    {
        "default": TreesConfig(),
        # Chosen by families left out (`bench advice-left-out --language`): they are few, so 100 trees differ by seed.
        "language": TreesTaskConfig(task=Task.LANGUAGE_MODEL, least_weight=1.5, trees=1000),
    },
    encoder="trees",
    continues=False,
    fit=_fit,
    history_recipe=TreesHistoryConfig,
)
