"""A graph network that estimates the gain of each growth: the graph encoder, with the features of the trees.

Each growth is scored from the states of its layers, its additions, the pooled state of the model, and `tree_features`,
which have the time left, the curve, costs and sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from espalier_agent.policies.graph_encoder import (
    HIDDEN_SIZE,
    MODEL_FEATURES,
    POINT_FEATURES,
    STATE_SIZE,
    TIME_FEATURES,
    GraphEncodings,
    GraphNetwork,
    target_feature_count,
    time_features,
)
from espalier_agent.policies.network import NetworkConfig, Prepared
from espalier_agent.policies.tree_ensemble import SHARPNESS
from espalier_agent.policies.tree_features import BASE, STATIC, RequestFacts, prepared_features, rows_of
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import AdviceRequest

DROPOUT: Final = 0.2
FURTHEST: Final = 5.0
"""Limit on a feature, in deviations from the mean."""
_SHARE: Final = len(STATIC)
"""Index of the feature for the share of the time left."""


class GainHead(nn.Module):
    """Estimates the gain of each growth by itself: squashed, against doing nothing."""

    def __init__(self, operations: Sequence[str]) -> None:
        """Initialise with torch's defaults; the normalisation of features must be set."""
        super().__init__()
        sizes = [POINT_FEATURES, *map(target_feature_count, operations[1:])]
        self.of_target = nn.ModuleList(nn.Linear(STATE_SIZE + size, HIDDEN_SIZE) for size in sizes)
        self.of_model = nn.Linear(2 * STATE_SIZE + MODEL_FEATURES, HIDDEN_SIZE)
        self.of_features = nn.Linear(len(BASE) + TIME_FEATURES, HIDDEN_SIZE)
        self.score = nn.Sequential(
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE),
            nn.ReLU(),
            nn.Dropout(DROPOUT),
            nn.Linear(HIDDEN_SIZE, 1),
        )
        self.register_buffer("mean", torch.zeros(len(BASE)))
        self.register_buffer("deviation", torch.ones(len(BASE)))

    def places(self, encodings: GraphEncodings) -> Tensor:
        """Return the encoding of each growth of each model, without features: (M, growths, hidden)."""
        targets = (encodings.points, *encodings.others.values())
        of_targets = [of(each) for of, each in zip(self.of_target, targets, strict=True)]
        of_models: Tensor = self.of_model(encodings.models)
        return torch.cat(of_targets, dim=1) + of_models[:, None]

    def gains(self, places: Tensor, features: Tensor) -> Tensor:
        """Return the gains (...) of growths, from their `places` (..., hidden) and `BASE` (..., features)."""
        share = features[..., _SHARE]
        times = time_features(share.reshape(-1), torch.ones(share.numel())).reshape(*share.shape, TIME_FEATURES)
        mean, deviation = self.get_buffer("mean"), self.get_buffer("deviation")
        normed = ((features - mean) / deviation).clamp(-FURTHEST, FURTHEST)
        hidden = places + self.of_features(torch.cat([normed, times], dim=-1))
        found: Tensor = self.score(hidden).squeeze(-1)
        return found


class GraphGainsNetwork(GraphNetwork):
    """The graph encoder, and a head learnt from the gains of growths."""

    learnt_by = "graph-gains"
    stackable = False

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        del self.decider
        self.head = GainHead(config.operations)

    def graphs(self, architectures: Sequence[Architecture], vocabulary: Vocabulary) -> Prepared:
        """Turn models into graphs, without features."""
        return GraphNetwork.prepare(self, architectures, vocabulary)

    def prepare(self, architectures: Sequence[Architecture], vocabulary: Vocabulary) -> Prepared:
        """Turn models into graphs and features, from their descriptions alone."""
        return self._with_features(architectures, vocabulary, [RequestFacts()] * len(architectures))

    def prepare_request(self, request: AdviceRequest, vocabulary: Vocabulary) -> Prepared:
        """Turn a request into a graph and features: with its places, which determine costs, and with the curve."""
        return self._with_features([request.architecture], vocabulary, [RequestFacts.of(request)])

    def _with_features(
        self, architectures: Sequence[Architecture], vocabulary: Vocabulary, facts: Sequence[RequestFacts]
    ) -> Prepared:
        features = prepared_features(self.config.operations, architectures, facts, insertions=())
        return self.graphs(architectures, vocabulary) | features

    def logits(self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Return the scaled gain of each growth, and 0 for doing nothing."""
        places = self.head.places(self.encoder(prepared))
        gains = self.head.gains(places[models], rows_of(prepared, models, time_left_s, time_budget_s)[..., : len(BASE)])
        return SHARPNESS * torch.cat([gains, torch.zeros(len(gains), 1)], dim=1)
