"""Regression trees from a corpus of growth: what each growth gained there, by features of the place.

Splits are drawn at random (extremely randomized trees, Geurts et al. 2006): few families with noisy gains are learnt
from, and the mean of such trees follows their noise less. Each tree is learnt from a bootstrap over *families*: models
of a family resemble each other, so only a family that a tree has not met shows what it knows of others. The families
that a tree left out also decide how cautious the policy has to be to do little harm: by how many deviations of the
trees the expected gain is lowered, and how much is then needed to beat nothing.

Each tree has three parts, learnt apart: the first layers that are added, later ones, and what widens. Learnt together,
advice on where to add the first layers was worse.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from espalier_agent.history.episodes import Gathered, episodes_digest, split
from espalier_agent.learners.learning import Learner, LearningError, Progress, ProgressCallback, finish_learning
from espalier_agent.learners.learning import Start as LearningStart
from espalier_agent.learners.trees_history import Measured, measured
from espalier_agent.learners.trees_rows import Floats, Rows, rows_of_corpora, rows_of_history, rows_of_tables, stacked
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import DEFAULT_EMBEDDING_SEED, LearntHistory, Policy
from espalier_agent.policies.tree_ensemble import DEPTH, LEAVES, TREES, TreesNetwork, evaluated, squashed
from espalier_agent.policies.tree_features import FEATURES
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.tree import decision_tree
from espalier_api.architecture import Architecture
from espalier_api.base import Record
from espalier_api.growth import operation_names
from espalier_api.growth.deepen import DEEPEN
from espalier_api.growth_corpus import GrowthCorpus
from espalier_api.outcomes import OutcomeTable

WIDENS: Final = FEATURES.index("widens")
GROWN: Final = FEATURES.index("grown before")
PARTED: Final = 0.5
"""What is above it widens, or has grown."""
CAUTIONS: Final = (0.0, 0.25, 0.5, 1.0)
"""Deviations of the trees by which a gain may be lowered."""
NEEDED: Final = (0.0, 0.05, 0.1, 0.2, 0.3)
"""What may be needed to beat nothing, squashed: .1 is a gain of .003."""
HARM: Final = 0.002
HARM_BAR: Final = 0.15
"""Share of the decisions that may end more than `HARM` below doing nothing, when caution is chosen."""


class TreesConfig(Record):
    """How trees are learnt."""

    least_weight: float = Field(default=3.0, gt=0)
    """Of the rows in a leaf; a growth of a case counts 1 over its seeds."""
    features: float = Field(default=1.0, gt=0, le=1)
    """Share of the features that are looked at for each split."""
    blind: float = Field(default=0.25, ge=0, le=1)
    """Weight of rows again without costs and curve, for requests that tell neither."""


class TreesHistoryConfig(TreesConfig):
    """How trees are learnt from a history, too."""

    held_out_share: float = Field(default=0.25, ge=0, lt=1)
    """Share of the jobs of a history that is held out for `promote`."""
    held_out_seed: int = 0
    """Seed of the held-out share."""


@dataclass(frozen=True, slots=True)
class TreesLearner(Learner):
    """Learns from corpora and tables."""

    corpora: tuple[GrowthCorpus, ...] = field(default=())
    history: Gathered | None = None
    files: tuple[str, ...] = ()
    """Names that the lineage gives to the history."""

    def remembering(self, history: Gathered, files: Sequence[str]) -> TreesLearner:
        """Return a learner that learns from a history, too: from trials, and from jobs whose agent explored."""
        return replace(self, history=history, files=tuple(files))

    def recipe(self, name: str | None = None) -> Any:
        """Return the recipe, with the fields for a history where there is one."""
        # super() without arguments does not work in a class with slots: the decorator makes it a second time.
        found = Learner.recipe(self, name)
        return found if self.history is None else TreesHistoryConfig(**found.model_dump())

    def with_corpora(self, corpora: Sequence[GrowthCorpus]) -> TreesLearner:
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
        rows = stacked(found)
        architectures = [
            *(one.decision.architecture for one in met),
            *(case.architecture for corpus in self.corpora for case in corpus.cases if case.architecture is not None),
            *(state.architecture for tree in trees for state in tree.states[:1]),
        ]
        network = _network(architectures, {row.kind for row in found} - {DEEPEN.name})
        _fit(network, rows, config, seed, progress)
        start = LearningStart(
            tuple(tables), seed, network, Vocabulary.build(architectures, DEFAULT_EMBEDDING_SEED), games=[]
        )
        return finish_learning(
            start,
            learner=self.name,
            config=config,
            name=name or self.name,
            parent=None,
            episodes=len(rows.gains),
            history=lineage,
        )

    def _remembered(self, config: Any) -> tuple[list[Measured], LearntHistory | None]:
        """Return what is learnt from the history, without what is held out, and what the lineage says of it."""
        if self.history is None:
            return [], None
        episodes, episodes_out = split(self.history.episodes, config.held_out_share, config.held_out_seed)
        tried, tried_out = split(self.history.tried, config.held_out_share, config.held_out_seed)
        return list(measured(episodes, tried)), LearntHistory(
            files=self.files,
            sha256=episodes_digest(episodes, tried),
            decisions=sum(len(one.decisions) for one in episodes),
            episodes=len(episodes),
            trials=len(tried),
            held_out_share=config.held_out_share,
            held_out_seed=config.held_out_seed,
            held_out_episodes=len(episodes_out) + len(tried_out),
        )


def _network(architectures: Sequence[Architecture], operations: Iterable[str]) -> TreesNetwork:
    """Return trees that score the operations which they learn from, and no others."""
    points = max((len(one.growth_points) for one in architectures), default=1)
    config = NetworkConfig.scoring("trees", max(1, points), [one for one in operation_names() if one in operations])
    network = PolicyNetwork.of(config)
    if not isinstance(network, TreesNetwork):
        raise TypeError(f"encoder trees is {type(network).__name__}")
    return network


def _fit(network: TreesNetwork, rows: Rows, config: TreesConfig, seed: int, progress: ProgressCallback) -> None:
    targets = np.array([squashed(float(gain)) for gain in rows.gains], dtype=np.float32)
    chance = random.Random(seed)
    families = int(rows.families.max()) + 1
    left_out = np.zeros((TREES, len(targets)), dtype=bool)
    widens, later = (rows.features[:, one] > PARTED for one in (WIDENS, GROWN))
    parts = (~widens & ~later, ~widens & later, widens)
    for tree in range(TREES):
        drawn = np.bincount([chance.randrange(families) for _ in range(families)], minlength=families)
        counts = drawn[rows.families]
        left_out[tree] = counts == 0
        weights = rows.weights * counts
        first, again, widening = (
            _grown(rows.features, targets, weights * part, config, chance.randrange(2**31)) for part in parts
        )
        for name, values in _joined(WIDENS, _joined(GROWN, first, again), widening).items():
            network.get_buffer(name)[tree, : len(values)] = torch.from_numpy(values)
        progress(Progress(tree + 1, TREES, 0.0, float(rows.gains.mean())))
    _choose_caution(network, rows, left_out)


def _grown(features: Floats, targets: Floats, weights: Floats, config: TreesConfig, seed: int) -> dict[str, Floats]:
    """Return a tree that was learnt from the rows with a weight; without any, one that expects no gain."""
    from sklearn.tree import ExtraTreeRegressor  # a second to import, for learning alone

    met = weights > 0
    if not met.any():
        leaf = {"feature": -1.0, "threshold": 0.0, "left": -1.0, "right": -1.0, "value": 0.0}
        return {name: np.array([value], dtype=np.float32) for name, value in leaf.items()}
    tree = (
        ExtraTreeRegressor(
            max_leaf_nodes=LEAVES,
            max_depth=DEPTH - 2,
            max_features=config.features,
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
    """Return one tree of two: its root goes to the second one where the feature is above `PARTED`."""
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

    By the decisions of families, each judged by the trees that have not met it. Their regret does not choose: that of
    many settings is the same within its noise, and chosen by it, policies were worse on other families.
    """
    judged = np.flatnonzero((rows.decisions >= 0) & left_out.any(axis=0))
    if not len(judged):
        return
    values = evaluated(network.arrays(), rows.features[judged])
    apart = np.where(left_out[:, judged], values, np.nan)
    mean, deviation = np.nanmean(apart, axis=0), np.nanstd(apart, axis=0)
    gains, decisions = rows.gains[judged], rows.decisions[judged]
    for caution, needed in itertools.product(CAUTIONS, NEEDED):
        if _harm(mean - caution * deviation, needed, gains, decisions) <= HARM_BAR:
            break
    network.get_buffer("caution")[0], network.get_buffer("needed")[0] = caution, needed


def _harm(scores: Floats, needed: float, gains: Floats, decisions: npt.NDArray[np.int64]) -> float:
    """Return the share of decisions in which following the scores does harm."""
    numbers = np.unique(decisions)
    harm = 0
    for number in numbers:
        of = decisions == number
        place = int(scores[of].argmax())
        harm += bool(scores[of][place] > needed and gains[of][place] < -HARM)
    return harm / len(numbers)


def _train(start: LearningStart, config: TreesConfig, progress: ProgressCallback) -> int:
    raise LearningError("trees are not learnt by playing games; `TreesLearner.learn` learns them")


LEARNER: Final = TreesLearner("trees", _train, {"default": TreesConfig()}, encoder="trees", continues=False)
