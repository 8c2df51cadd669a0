"""What the graph encoder reads of a model: layers, edges and what can be grown, all by attributes, none by names.

Nothing here depends on the order in which layers are listed, beyond what the edges say, or on what they are called:
two descriptions of one graph have the same features. Any operator and attribute will do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from espalier_agent.policies.vocabulary import EMBEDDING_SIZE, LARGEST_LOG2, attribute_embedding, operator_embedding
from espalier_core.growth import operation
from espalier_core.growth.architecture import WEIGHT_OPERATORS, Architecture, Layer
from espalier_core.growth.operation import Target

READ_ATTRIBUTES: Final = (
    ("in_channels", "in_features", "num_features"),
    ("out_channels", "out_features", "num_features"),
    ("kernel_size",),
    ("stride",),
    ("groups",),
)
"""Numbers that many operators have, one feature each: the first of these names that a layer has."""
LAYER_FEATURES: Final = 2 * EMBEDDING_SIZE + len(READ_ATTRIBUTES) + 4
POINT_FEATURES: Final = LAYER_FEATURES + 3
MODEL_FEATURES: Final = 4
MAGNITUDE_SCALE: Final = 8.0
"""Logarithms are divided by it: 256 channels are 1."""

Vector = npt.NDArray[np.float32]


def prepare_graphs(
    architectures: Sequence[Architecture], seed: int, operations: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Return models as tensors. N layers in all, M models, L layers and W growth points in the largest.

    `layers` (N, features); `edges` (2, E), from the layer that is read to the one that reads it; `places` (M, L) and
    `points` (M, W), the rows of each model's layers and of the layers after which it can grow, -1 where it has no
    more; `point_features` (M, W, features); `model_features` (M, features). For each
    of the `operations`, `target_layers` (M, V, C), the rows of the layers that each target concerns, and
    `target_features` (M, V, features). `seed` is that of the vocabulary.
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
        more |= _targets(name, described)
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
    """Return the name of the tensor of the layers that an operation's targets concern."""
    return f"{name} layers"


def target_features(name: str) -> str:
    """Return the name of the tensor of what else is known of an operation's targets."""
    return f"{name} features"


def target_feature_count(name: str) -> int:
    """Return how many numbers are known of each target of an operation."""
    return len(operation(name).sizes) + 3


def _features_of(target: Target, reached: dict[str, int]) -> list[float]:
    furthest = max(max(reached.values()), 1)
    return [
        *map(_magnitude, target.sizes),
        _magnitude(len(target.layers)),
        min((reached[name] for name in target.layers), default=0) / furthest,
        max((reached[name] for name in target.layers), default=0) / furthest,
    ]


def _targets(name: str, described: list[list[tuple[list[int], list[float]]]]) -> dict[str, Tensor]:
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
    """Return the magnitude of a number, or of the product of several; 0 for what is no number."""
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
    """Return for each layer the edges on the longest way to it from where the network begins."""
    reached: dict[str, int] = {}
    for layer in architecture.layers:
        reached[layer.name] = max((reached[name] + 1 for name in layer.inputs), default=0)
    return reached


def _padded(rows: list[list[int]]) -> Tensor:
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [-1] * (longest - len(row)) for row in rows], dtype=torch.long).reshape(
        len(rows), longest
    )
