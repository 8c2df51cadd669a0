"""Features of each growth for the trees: place, kind, size and cost, the time left, and the learning curve.

Features depend on the description alone, not on names, so unknown models can be read as well. Unknown values are
`UNKNOWN`, which trees can split off.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from espalier_agent.policies.network import Prepared
from espalier_core.growth import operation
from espalier_core.growth.architecture import (
    ATTENTION,
    MOST,
    OPERATION_SECONDS,
    RECURRENT,
    WEIGHT_OPERATORS,
    WEIGHTED_SECONDS,
    Architecture,
    GrowthPoint,
    Layer,
    layer_seconds,
    mixes,
    places_of_all,
    step_seconds,
)
from espalier_core.growth.block import ADD_BLOCK
from espalier_core.growth.deepen import DEEPEN
from espalier_core.growth.widen import WIDEN
from espalier_core.types.advice import Action, AdviceRequest, offered

UNKNOWN: Final = -1.0
BATCH_SIZE: Final = 32
"""Batch size if a request does not have it."""
STATIC: Final = (
    "deepens",
    "adds a block",
    "widens",
    "linear",
    "mixes places",
    "first that mixes places",
    "layers added",
    "residual",
    "normed",
    "place along the longest path",
    "place among its kind",
    "log parameters added",
    "share of parameters added",
    "slowdown",
    "log places",
    "log width",
    "width by the widest",
    "width by the narrowest",
    "mixing layers before",
    "mixing layers",
    "grown here",
    "depth",
    "log parameters",
    "layers and blocks offered",
    "normed model",
    "recurrent model",
    "attends",
    "grown before",
    "classes",
)
DYNAMIC: Final = ("share of the time left", "validation accuracy", "validation loss by chance", "gap", "train loss")
FEATURES: Final = (*STATIC, *DYNAMIC)

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The facts of a request beyond architecture and time."""

    places: Mapping[str, int] = field(default_factory=dict)
    batch_size: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, request: AdviceRequest) -> RequestFacts:
        """Return the facts of a request."""
        metrics = {metric.name: metric.value for metric in request.progress.metrics}
        return cls(request.places, request.batch_size, metrics)


def static_features(architecture: Architecture, facts: RequestFacts) -> dict[Action, Vector]:
    """Return the `STATIC` features of each growth that a model offers."""
    growths = offered(architecture)
    model = _Model(architecture, facts)
    found: dict[Action, Vector] = {}
    mixed: set[str] = set()
    alike = Counter(action.kind for action in growths)
    before: Counter[str] = Counter()
    # Without growths that widen: most jobs do not allow them, and the same model would look different.
    whole = model.whole(sum(action.kind != WIDEN.name for action in growths))
    for action in growths:
        share = before[action.kind] / max(1, alike[action.kind] - 1)
        before[action.kind] += 1
        row = model.features(action, share, first=action.kind not in mixed)
        if row[STATIC.index("mixes places")]:
            mixed.add(action.kind)
        found[action] = np.array([*row, *whole], dtype=np.float32)
    return found


def dynamic_features(architecture: Architecture, facts: RequestFacts) -> list[float]:
    """Return the `DYNAMIC` features except the time."""
    metrics, chance = facts.metrics, math.log(max(2, _classes(architecture)))
    valid, train = metrics.get("validation_loss"), metrics.get("train_loss")
    return [
        metrics.get("validation_accuracy", UNKNOWN),
        UNKNOWN if valid is None else min(valid / chance, 5.0),
        0.0 if valid is None or train is None else max(-2.0, min((valid - train) / chance, 5.0)),
        UNKNOWN if train is None else min(train / chance, 5.0),
    ]


class _Model:
    """One description, read once for all its growths."""

    def __init__(self, architecture: Architecture, facts: RequestFacts) -> None:
        self._architecture = architecture
        self._layers = {layer.name: layer for layer in architecture.layers}
        self._points: dict[str | None, GrowthPoint] = {point.id: point for point in architecture.growth_points}
        self._known = bool(facts.places)
        self._batch = facts.batch_size or BATCH_SIZE
        self._places = places_of_all(architecture, facts.places)
        self._seconds = step_seconds(architecture, facts.places, self._batch)
        self._reached: dict[str, int] = {}
        self._mixed: dict[str, int] = {}
        for layer in architecture.layers:
            self._reached[layer.name] = max((self._reached[name] + 1 for name in layer.inputs), default=0)
            before = max((self._mixed[name] for name in layer.inputs), default=0)
            self._mixed[layer.name] = before + mixes(layer)
        self._furthest = max(1, *self._reached.values())
        self._most_mixed = max(self._mixed.values())
        widths = [_width(layer) for layer in architecture.layers if layer.operator in WEIGHT_OPERATORS]
        # The last width is the number of classes.
        widths = [width for width in widths[:-1] if width] or [1]
        self._widest, self._narrowest = max(widths), min(widths)
        self._parameters = max(1, architecture.parameters)

    def features(self, action: Action, share: float, *, first: bool) -> list[float]:
        """Return the features of one growth."""
        added, after, grown = self._added(action)
        weighted = [layer for layer in added if layer.operator in WEIGHT_OPERATORS]
        mixing = any(map(mixes, added))
        here = self._places.get(after, 1)
        parameters = sum(layer.parameters for layer in added)
        seconds = sum(layer_seconds(layer, self._places.get(layer.name, here), self._batch) for layer in added)
        if action.kind == WIDEN.name:
            # Twice the arithmetic, but no additional operation.
            seconds -= len(added) * (OPERATION_SECONDS + WEIGHTED_SECONDS)
        width = _width(weighted[0]) if weighted else _width(self._layers[after])
        return [
            action.kind == DEEPEN.name,
            action.kind == ADD_BLOCK.name,
            action.kind == WIDEN.name,
            bool(weighted) and all(layer.operator == "Linear" for layer in weighted),
            mixing,
            mixing and first,
            len(weighted),
            any(layer.operator == "Add" for layer in added),
            any("Norm" in layer.operator for layer in added),
            self._reached[after] / self._furthest,
            share,
            math.log2(1 + parameters),
            min(parameters / self._parameters, 4.0),
            min(max(0.0, seconds) / self._seconds, 8.0) if self._known else UNKNOWN,
            math.log2(here) if self._known else UNKNOWN,
            math.log2(1 + width),
            width / self._widest,
            width / self._narrowest,
            self._mixed[after],
            self._most_mixed,
            grown,
        ]

    def whole(self, growths: int) -> list[float]:
        """Return the features of the model."""
        layers = self._architecture.layers
        points = self._architecture.growth_points
        return [
            self._architecture.depth,
            math.log2(self._parameters),
            growths,
            any("Norm" in layer.operator for layer in layers),
            any(layer.operator in RECURRENT for layer in layers),
            any(part in layer.operator for layer in layers for part in ATTENTION),
            sum(point.grown for point in points) + sum(run.grown for run in self._architecture.blocks or ()),
            math.log2(max(2, _classes(self._architecture))),
        ]

    def _added(self, action: Action) -> tuple[tuple[Layer, ...], str, int]:
        """Return the layers that a growth adds, the layer that they follow, and the number of growths there."""
        architecture = self._architecture
        if action.kind == DEEPEN.name:
            point = self._points[action.target]
            return point.insertion, point.after, point.grown
        if action.kind == ADD_BLOCK.name:
            run = next(one for one in architecture.blocks or () if one.id == action.target)
            heads = tuple(f"{path}." for path in run.copied)
            inside = (one for one in architecture.layers if one.name.startswith(heads) or one.name in run.copied)
            return tuple(inside), run.gives[-1], run.grown
        if action.kind == WIDEN.name:
            group = architecture.channel_group(str(action.target))
            return tuple(self._layers[name] for name in group.makers if name in self._layers), group.id, 0
        return (), architecture.layers[-1].name, 0


def _width(layer: Layer) -> int:
    for name in ("out_channels", "out_features", "num_features", "hidden_size"):
        value = layer.attributes.get(name)
        if isinstance(value, int):
            return max(0, min(value, MOST))
    return 0


def _classes(architecture: Architecture) -> int:
    for layer in reversed(architecture.layers):
        if layer.operator in WEIGHT_OPERATORS:
            return _width(layer)
    return 2


def prepared_features(
    operations: Sequence[str], architectures: Sequence[Architecture], facts: Sequence[RequestFacts]
) -> Prepared:
    """Return `static` (M, growths, features), `dynamic` (M, features) and `counts` of each operation's targets."""
    counts = {name: max((len(operation(name).targets(one)) for one in architectures), default=0) for name in operations}
    static = np.full((len(architectures), sum(counts.values()), len(STATIC)), -1.0, dtype=np.float32)
    for row, (architecture, known) in enumerate(zip(architectures, facts, strict=True)):
        features = {(one.kind, one.target): found for one, found in static_features(architecture, known).items()}
        first = 0
        for name, count in counts.items():
            for place, target in enumerate(operation(name).targets(architecture)):
                if (name, target) in features:
                    static[row, first + place] = features[name, target]
            first += count
    dynamic = [dynamic_features(one, known) for one, known in zip(architectures, facts, strict=True)]
    return {
        "static": torch.from_numpy(static),
        "dynamic": torch.tensor(dynamic, dtype=torch.float32),
        "counts": torch.tensor(list(counts.values())),
    }


def rows_of(prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
    """Return the `FEATURES` of each growth in n states, (n, growths, features), in float32."""
    static = prepared["static"][models]
    share = (time_left_s.double() / time_budget_s.double()).clamp(0.0, 1.0).float()
    dynamic = torch.cat([share[:, None], prepared["dynamic"][models]], dim=1)
    return torch.cat([static, dynamic[:, None].expand(-1, static.shape[1], -1)], dim=2)
