"""A graph network fitted to the gains of growths, with the same rows, targets and weights as the trees.

The training time and the regularisation were chosen on families left out of learning.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from espalier_agent.learners.growths import GrowthSample, GrowthsConfig, GrowthsLearner, HeldOut, by_fitting
from espalier_agent.learners.learning import LearningProgress, ProgressCallback, ascend, one_thread
from espalier_agent.policies.graph_gains import GraphGainsNetwork
from espalier_agent.policies.network import PolicyNetwork, Prepared
from espalier_agent.policies.policy import DEFAULT_EMBEDDING_SEED
from espalier_agent.policies.tree_ensemble import squashed
from espalier_agent.policies.tree_features import BASE
from espalier_agent.policies.vocabulary import Vocabulary

LEAST_DEVIATION: Final = 1e-3


class GraphGainsConfig(GrowthsConfig):
    """Hyperparameters of the regression."""

    epochs: int = Field(default=12, ge=1)
    batch: int = Field(default=64, ge=1)
    """Number of models in a batch."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Maximum learning rate: it rises in the first tenth of more than ten steps, and falls to 0."""
    weight_decay: float = Field(default=0.03, ge=0)


class GraphGainsHistoryConfig(GraphGainsConfig, HeldOut):
    """Hyperparameters of learning with a history."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """Some models, and the gains of their growths: (n,) each, but features (n, features)."""

    graphs: Prepared
    models: Tensor
    columns: Tensor
    features: Tensor
    targets: Tensor
    weights: Tensor


def _fit(
    network: PolicyNetwork,
    found: Sequence[GrowthSample],
    config: GraphGainsConfig,
    seed: int,
    progress: ProgressCallback,
) -> None:
    if not isinstance(network, GraphGainsNetwork):
        raise TypeError(f"encoder graph-gains is {type(network).__name__}")
    chance = random.Random(seed)
    batches = list(_batches(network, found, config.batch, chance))
    features = torch.cat([batch.features for batch in batches])
    network.head.get_buffer("mean").copy_(features.mean(dim=0))
    network.head.get_buffer("deviation").copy_(features.std(dim=0) + LEAST_DEVIATION)
    # Dropout draws from the global generator.
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network.train()
        optimizer = torch.optim.AdamW(network.parameters(), weight_decay=config.weight_decay)
        steps = config.epochs * len(batches)
        # A tenth of ten steps ends with the first one: OneCycleLR divides by the steps between.
        rise = 0.1 if steps > 10 else 0.0
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, config.learning_rate, total_steps=steps, pct_start=rise
        )
        for epoch in range(config.epochs):
            chance.shuffle(batches)
            losses = []
            for batch in batches:
                places = network.head.places(network.encoder(batch.graphs))
                errors = network.head.gains(places[batch.models, batch.columns], batch.features) - batch.targets
                loss = (batch.weights * errors**2).sum() / batch.weights.sum()
                ascend(optimizer, -loss)
                schedule.step()
                losses.append(loss.item())
            progress(LearningProgress(epoch + 1, config.epochs, float(np.mean(losses))))


def _batches(
    network: GraphGainsNetwork, found: Sequence[GrowthSample], size: int, chance: random.Random
) -> Iterator[_Batch]:
    """Yield all rows, with the rows of one model together."""
    by_model: dict[int, list[GrowthSample]] = {}
    for row in found:
        by_model.setdefault(id(row.architecture), []).append(row)
    models = list(by_model.values())
    chance.shuffle(models)
    vocabulary = Vocabulary.build((), DEFAULT_EMBEDDING_SEED)
    for first in range(0, len(models), size):
        part = models[first : first + size]
        graphs = network.graphs([rows[0].architecture for rows in part], vocabulary)
        outputs = network.outputs(graphs)
        columns: list[int | None] = []
        for rows in part:
            actions = list(dict.fromkeys(row.action for row in rows))
            place = dict(zip(actions, outputs.of(rows[0].architecture, actions), strict=True))
            columns += [place[row.action] for row in rows]
        known = [row for rows in part for row in rows]
        yield _Batch(
            graphs,
            torch.tensor([place for place, rows in enumerate(part) for _ in rows]),
            torch.tensor(columns),
            torch.tensor([row.features[: len(BASE)] for row in known]),
            torch.tensor([squashed(row.gain) for row in known]),
            torch.tensor([row.weight for row in known]),
        )


LEARNER: Final = GrowthsLearner(
    "graph-gains",
    by_fitting,
    {"default": GraphGainsConfig()},
    encoder="graph-gains",
    continues=False,
    fit=_fit,
    history_recipe=GraphGainsHistoryConfig,
)
