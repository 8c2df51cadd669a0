"""A network that reads a model as a graph and points at a place to grow: one policy for any number of growth points.

Layers pass messages along the edges of the architecture, both ways, a few rounds. A growth point is scored from the
state of the layer that it follows, the layers it would add, its number of growths, the pooled state of the whole graph
and the time; doing nothing from the pooled state and the time. A network that widens scores each group of channels
likewise, from the mean state of the layers that carry them, their number and the cost of doubling them. No parameter
belongs to a place, a name or a number of growth points or groups, so the order and the names of layers, points and
groups do not matter (a test).

`prepare_graphs` returns the features of models: layers, edges and targets of growth, all by attributes, none by names.
They depend on the edges, not on the order or names of layers: two descriptions of one graph have the same features. Any
operator and attribute is accepted.

All networks that read a graph begin with `MessagePassing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from espalier_agent.policies.network import NetworkConfig, PolicyNetwork, Prepared
from espalier_agent.policies.vocabulary import (
    EMBEDDING_SIZE,
    LARGEST_LOG2,
    Vocabulary,
    attribute_embedding,
    operator_embedding,
)
from espalier_core.growth import operation
from espalier_core.growth.architecture import WEIGHT_OPERATORS, Architecture, Layer
from espalier_core.growth.deepen import DEEPEN
from espalier_core.growth.operation import Target
from espalier_core.growth.widen import WIDEN
from espalier_core.types.advice import ActionColumns

READ_ATTRIBUTES: Final = (
    ("in_channels", "in_features", "num_features"),
    ("out_channels", "out_features", "num_features"),
    ("kernel_size",),
    ("stride",),
    ("groups",),
)
"""Numbers common to many operators, one feature each: the first of these names that a layer has."""
LAYER_FEATURES: Final = 2 * EMBEDDING_SIZE + len(READ_ATTRIBUTES) + 4
POINT_FEATURES: Final = LAYER_FEATURES + 3
MODEL_FEATURES: Final = 4
MAGNITUDE_SCALE: Final = 8.0
"""Divisor of logarithms: 256 channels are 1."""

Vector = npt.NDArray[np.float32]
STATE_SIZE: Final = 32
"""Size of a node's state."""
ROUNDS: Final = 4
"""Rounds of messages: a node knows its surroundings up to this distance; a pooled state contains the rest."""
HIDDEN_SIZE: Final = 64
"""Hidden size of the head."""
HARMONICS: Final = 3
TIME_FEATURES: Final = 3 + 2 * HARMONICS


def prepare_graphs(
    architectures: Sequence[Architecture], seed: int, operations: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Return models as tensors: N layers in all, M models, at most L layers and W growth points per model.

    `layers` (N, features); `edges` (2, E), from a layer to one that reads it; `places` (M, L) and `points` (M, W), the
    rows of each model's layers and of the layers after which it can grow, padded with -1; `point_features` (M, W,
    features); `model_features` (M, features). For each of the `operations`, `target_layers` (M, V, C), the rows of the
    layers of each target, and `target_features` (M, V, features). `seed` is the vocabulary's.
    """
    layers: list[Vector] = []
    edges: list[tuple[int, int]] = []
    places: list[list[int]] = []
    points: list[list[int]] = []
    point_features: list[list[Vector]] = []
    targets: dict[str, list[list[tuple[list[int], list[float]]]]] = {name: [] for name in operations}
    for architecture in architectures:
        row = {layer.name: len(layers) + index for index, layer in enumerate(architecture.layers)}
        reached = _longest_paths(architecture)
        furthest = max(max(reached.values()), 1)
        for layer in architecture.layers:
            share = reached[layer.name] / furthest
            layers.append(np.append(_layer_features(layer, seed), np.float32(share)))
            edges.extend((row[name], row[layer.name]) for name in layer.inputs)
        places.append(list(row.values()))
        points.append([row[point.after] for point in architecture.growth_points])
        point_features.append(
            [
                np.concatenate(
                    [
                        np.mean([np.append(_layer_features(added, seed), 0) for added in point.insertion], axis=0),
                        [
                            _magnitude(sum(added.parameters for added in point.insertion)),
                            math.log2(1 + point.grown),
                            reached[point.after] / furthest,
                        ],
                    ]
                ).astype(np.float32)
                for point in architecture.growth_points
            ]
        )
        for name, found in targets.items():
            seen = operation(name).seen(architecture)
            found.append([([row[layer] for layer in one.layers], _features_of(one, reached)) for one in seen])
    most = max(len(found) for found in points)
    padded = np.zeros((len(architectures), most, POINT_FEATURES), dtype=np.float32)
    for index, added in enumerate(point_features):
        if added:
            padded[index, : len(added)] = np.stack(added)
    more: dict[str, Tensor] = {}
    for name, described in targets.items():
        more |= _padded_targets(name, described)
    return more | {
        "layers": torch.from_numpy(np.stack(layers).astype(np.float32)),
        "edges": torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T.contiguous(),
        "places": _padded(places),
        "points": _padded(points),
        "point_features": torch.from_numpy(padded),
        "model_features": torch.tensor([_model_features(architecture) for architecture in architectures]),
    }


def _layer_features(layer: Layer, seed: int) -> Vector:
    numbers = []
    for names in READ_ATTRIBUTES:
        values = (layer.attributes[name] for name in names if name in layer.attributes)
        numbers.append(_number(next(values, None)))
    numbers.append(float(layer.operator in WEIGHT_OPERATORS))
    numbers.append(_magnitude(layer.parameters))
    numbers.append(min(len(layer.inputs), 8) / 8)
    return np.concatenate(
        [operator_embedding(layer, seed), attribute_embedding(layer, seed), np.array(numbers, dtype=np.float32)]
    )


def _model_features(architecture: Architecture) -> list[float]:
    grown = sum(point.grown for point in architecture.growth_points)
    return [
        math.log2(1 + architecture.depth) / MAGNITUDE_SCALE,
        _magnitude(architecture.parameters),
        math.log2(1 + grown),
        math.log2(1 + len(architecture.growth_points)) / MAGNITUDE_SCALE,
    ]


def target_layers(name: str) -> str:
    """Return the name of the tensor with the layers of an operation's targets."""
    return f"{name} layers"


def target_features(name: str) -> str:
    """Return the name of the tensor with the features of an operation's targets."""
    return f"{name} features"


def target_feature_count(name: str) -> int:
    """Return the number of features of each target of an operation."""
    return len(operation(name).sizes) + 3


def _features_of(target: Target, reached: dict[str, int]) -> list[float]:
    furthest = max(max(reached.values()), 1)
    return [
        *map(_magnitude, target.sizes),
        _magnitude(len(target.layers)),
        min((reached[name] for name in target.layers), default=0) / furthest,
        max((reached[name] for name in target.layers), default=0) / furthest,
    ]


def _padded_targets(name: str, described: list[list[tuple[list[int], list[float]]]]) -> dict[str, Tensor]:
    most = max(len(found) for found in described)
    longest = max((len(rows) for found in described for rows, _ in found), default=0)
    places = torch.full((len(described), most, longest), -1, dtype=torch.long)
    padded = torch.zeros(len(described), most, target_feature_count(name))
    for model, found in enumerate(described):
        for place, (rows, numbers) in enumerate(found):
            places[model, place, : len(rows)] = torch.tensor(rows, dtype=torch.long)
            padded[model, place] = torch.tensor(numbers)
    return {target_layers(name): places, target_features(name): padded}


def _number(value: object) -> float:
    """Return the magnitude of a number, or of the product of several; 0 for anything else."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        return _magnitude(value)
    if isinstance(value, tuple):
        return sum(_magnitude(item) for item in value)
    return 0.0


def _magnitude(value: float) -> float:
    """Return log2(1 + |v|), bounded and scaled: sizes matter by their ratio."""
    return math.log2(1.0 + min(abs(value), 2**LARGEST_LOG2)) / MAGNITUDE_SCALE


def _longest_paths(architecture: Architecture) -> dict[str, int]:
    """Return for each layer the number of edges on the longest path to it from the beginning of the network."""
    reached: dict[str, int] = {}
    for layer in architecture.layers:
        reached[layer.name] = max((reached[name] + 1 for name in layer.inputs), default=0)
    return reached


def _padded(rows: list[list[int]]) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [-1] * (longest - len(row)) for row in rows], dtype=torch.long).reshape(
        len(rows), longest
    )


class MessagePassing(nn.Module):
    """Message passing over nodes with `features` numbers each."""

    def __init__(self, features: int) -> None:
        """Initialise with torch's defaults."""
        super().__init__()
        self.layers = nn.Linear(features, STATE_SIZE)
        # Features of a node never seen can be large; normalised they stay within the range of training.
        self.norm = nn.LayerNorm(STATE_SIZE)
        self.rounds = nn.ModuleList(nn.Linear(3 * STATE_SIZE, STATE_SIZE) for _ in range(ROUNDS))

    def states(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Return the states (N, `STATE_SIZE`) of nodes (N, features); edges (2, E) lead from a node to its reader."""
        read, reading = edges
        states: Tensor = self.norm(self.layers(nodes))
        ahead = _share(reading, len(states))
        by_readers = _share(read, len(states))
        for transform in self.rounds:
            from_inputs = torch.zeros_like(states).index_add(0, reading, states[read] * ahead)
            from_readers = torch.zeros_like(states).index_add(0, read, states[reading] * by_readers)
            states = states + torch.relu(transform(torch.cat([states, from_inputs, from_readers], dim=1)))
        return states


def _share(ends: Tensor, nodes: int) -> Tensor:
    """Return 1 / the number of edges at each edge's end, so that messages are averaged: (E, 1)."""
    counts = torch.bincount(ends, minlength=nodes)
    return (1.0 / counts[ends].float())[:, None]


def time_features(time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
    """Return the head's features of time, for times of shape (n,): shape (n, 9).

    They are the share s of the budget that is left, s² and √s, which rise with it, so that a moment between two learnt
    ones is answered between them; and sin(πis), cos(πis) for i = 1..3, which distinguish moments. No other moment has
    the encoding of the beginning or the end, as happens in equation 6 of Lamelas.
    """
    share = (time_left_s.double() / time_budget_s.double()).clamp(0.0, 1.0)[:, None]
    angles = math.pi * share * torch.arange(1, HARMONICS + 1, dtype=torch.float64)
    return torch.cat([share, share**2, share.sqrt(), angles.sin(), angles.cos()], dim=1).float()


@dataclass(frozen=True, slots=True)
class GraphEncodings:
    """Encoded models: `points` (M, W, …) for each growth point, `models` (M, …) for each whole model."""

    points: Tensor
    models: Tensor
    others: Mapping[str, Tensor]
    """Encodings of each target (M, V, …), by the name of another operation."""


class GraphModelEncoder(MessagePassing):
    """Message passing over the layers of models; it encodes the targets of `operations` in addition to points."""

    def __init__(self, operations: Sequence[str] = ()) -> None:
        super().__init__(LAYER_FEATURES)
        self.operations = tuple(operations)

    def forward(self, prepared: dict[str, Tensor]) -> GraphEncodings:
        """Encode prepared models."""
        states = self.states(prepared["layers"], prepared["edges"])
        places = prepared["places"]
        there = (places >= 0)[:, :, None]
        gathered = states[places.clamp_min(0)]
        mean = (gathered * there).sum(dim=1) / there.sum(dim=1)
        most = gathered.masked_fill(~there, -torch.inf).amax(dim=1)
        return GraphEncodings(
            points=torch.cat([states[prepared["points"].clamp_min(0)], prepared["point_features"]], dim=2),
            models=torch.cat([mean, most, prepared["model_features"]], dim=1),
            others={name: _targets(name, states, prepared) for name in self.operations},
        )


class PointerHead(nn.Module):
    """Scores each growth point by itself, doing nothing, and each target of `operations`."""

    def __init__(self, operations: Sequence[str] = ()) -> None:
        super().__init__()
        self._operations = tuple(operations)
        whole = 2 * STATE_SIZE + MODEL_FEATURES + TIME_FEATURES
        # The first layer of the points' scores, split into a part that differs between points and a part that differs
        # between states: equal to one layer over both, without repeating either.
        self.of_point = nn.Linear(STATE_SIZE + POINT_FEATURES, HIDDEN_SIZE)
        self.of_state = nn.Linear(whole, HIDDEN_SIZE, bias=False)
        self.point_score = nn.Sequential(
            nn.ReLU(), nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE), nn.ReLU(), nn.Linear(HIDDEN_SIZE, 1)
        )
        self.nothing_score = nn.Sequential(
            nn.Linear(whole, HIDDEN_SIZE),
            nn.ReLU(),
            nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE),
            nn.ReLU(),
            nn.Linear(HIDDEN_SIZE, 1),
        )
        # Created last, so that a seed gives the rest the same weights with and without them.
        for name in self._operations:
            of_target = nn.Linear(STATE_SIZE + target_feature_count(name), HIDDEN_SIZE)
            score = nn.Sequential(nn.ReLU(), nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE), nn.ReLU(), nn.Linear(HIDDEN_SIZE, 1))
            self.add_module(f"of_{_weights_of(name)}", of_target)
            self.add_module(f"{_weights_of(name)}_score", score)

    def score(self, encodings: GraphEncodings, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Return the logits (n, W + V + … + 1) of states, given the model of each (n,), and times (n,)."""
        state = torch.cat([encodings.models[models], time_features(time_left_s, time_budget_s)], dim=1)
        of_state = self.of_state(state)[:, None]
        scores = [self.point_score(self.of_point(encodings.points)[models] + of_state).squeeze(2)]
        for name in self._operations:
            of_target = self.get_submodule(f"of_{_weights_of(name)}")
            score = self.get_submodule(f"{_weights_of(name)}_score")
            scores.append(score(of_target(encodings.others[name])[models] + of_state).squeeze(2))
        return torch.cat([*scores, self.nothing_score(state)], dim=1)


class GraphNetwork(PolicyNetwork):
    """Message passing, and a head that scores growth points and groups one by one."""

    any_operation = True
    stackable = True

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        more = config.operations[1:]
        self.encoder, self.decider = GraphModelEncoder(more), PointerHead(more)

    def prepare(self, architectures: Sequence[Architecture], vocabulary: Vocabulary) -> Prepared:
        """Turn models into `prepare_graphs`."""
        return prepare_graphs(architectures, vocabulary.seed, self.encoder.operations)

    def outputs(self, prepared: Prepared) -> ActionColumns:
        """Return as many columns as the largest models need."""
        more = {name: prepared[target_layers(name)].shape[1] for name in self.config.operations[1:]}
        return ActionColumns({DEEPEN.name: prepared["points"].shape[1], **more})

    def logits(self, prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
        """Encode each model once, and score each state."""
        return self.decider.score(self.encoder(prepared), models, time_left_s, time_budget_s)


def _weights_of(operation: str) -> str:
    """Return the name of the weights for an operation's targets; policy files name those of `Widen` `group`."""
    return "group" if operation == WIDEN.name else operation.replace(".", "_")


def _targets(name: str, states: Tensor, prepared: dict[str, Tensor]) -> Tensor:
    """Return the mean state of the layers of each target, with its features: (M, V, …)."""
    rows = prepared[target_layers(name)]
    there = (rows >= 0)[..., None]
    mean = (states[rows.clamp_min(0)] * there).sum(dim=2) / there.sum(dim=2).clamp_min(1)
    return torch.cat([mean, prepared[target_features(name)]], dim=2)
