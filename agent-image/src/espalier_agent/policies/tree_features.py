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
    layered,
    mixes,
    places_of_all,
    step_seconds,
)
from espalier_core.growth.block import ADD_BLOCK, owner_of
from espalier_core.growth.deepen import DEEPEN
from espalier_core.growth.widen import WIDEN
from espalier_core.types.adaptation import Insertion
from espalier_core.types.advice import Action, ActionColumns, AdviceRequest, CurvePoint, offered

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
INSERTED: Final = ("scaled", "unfolds")
PROGRESS: Final = (
    "log steps left",
    "log tokens seen by parameters",
    "log tokens left by parameters",
    "slope of the loss",
    "curvature of the loss",
)
"""Carry over sizes. The slope is the fall of the validation loss, by chance, in the last doubling of the time."""
BASE: Final = (*STATIC, *DYNAMIC)
"""Features by which policies of classifications were learned."""
FEATURES: Final = (*BASE, *INSERTED, *PROGRESS)
"""New ones come last: the trees of stored policies name features by their places."""
OF_SIZE: Final = (
    "place along the longest path", "place among its kind", "log parameters added", "share of parameters added",
    "slowdown", "log places", "log width", "width by the widest", "width by the narrowest", "mixing layers before",
    "mixing layers", "depth", "log parameters", "layers and blocks offered", "classes",
)  # fmt: skip
"""Do not carry over sizes: by them, trees learn the few families of language models by heart."""
INSERTIONS: Final = (Insertion.EXACT, Insertion.SCALED, Insertion.UNFOLD)
"""Ways to insert whole blocks that have rows of their own."""

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """The facts of a request beyond architecture and time."""

    places: Mapping[str, int] = field(default_factory=dict)
    batch_size: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    step: int = 0
    used: float = 0.0
    """Share of the budget that is used."""
    curve: tuple[CurvePoint, ...] = ()

    @classmethod
    def of(cls, request: AdviceRequest) -> RequestFacts:
        """Return the facts of a request."""
        progress = request.progress
        metrics = {metric.name: metric.value for metric in progress.metrics}
        used = max(0.0, 1.0 - request.time_left_seconds / request.time_budget_seconds)
        return cls(request.places, request.batch_size, metrics, progress.step, used, progress.curve)


def ways(action: Action) -> tuple[Action, ...]:
    """Return a growth in each way in which it can be inserted; exactly first, as itself."""
    if not operation(action.kind).inserts:
        return (action,)
    return (action, *(action.model_copy(update={"insertion": way}) for way in INSERTIONS[1:]))


def static_features(architecture: Architecture, facts: RequestFacts) -> dict[Action, Vector]:
    """Return the `STATIC` and `INSERTED` features of each growth that a model offers, in each way to insert it."""
    growths = offered(architecture)
    model = _Model(layered(architecture), facts)
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
        for way in ways(action):
            if way.insertion is not None:
                row = model.features(way, share, first=row[STATIC.index("first that mixes places")] > 0)
            kinds = (way.insertion is Insertion.SCALED, way.insertion is Insertion.UNFOLD)
            found[way] = np.array([*row, *whole, *kinds], dtype=np.float32)
    return found


def changing_features(architecture: Architecture, facts: RequestFacts) -> list[float]:
    """Return the `DYNAMIC` features except the time, and the `PROGRESS` features."""
    model = layered(architecture)
    return [*_dynamic(model, facts), *_progress(model, facts)]


def row_of(static: Vector, share: float, changing: Sequence[float]) -> list[float]:
    """Return the `FEATURES` of a growth from those that do not change, the share of the time left, and the others."""
    fixed, known = static.tolist(), len(DYNAMIC) - 1
    return [*fixed[: len(STATIC)], share, *changing[:known], *fixed[len(STATIC) :], *changing[known:]]


def _dynamic(architecture: Architecture, facts: RequestFacts) -> list[float]:
    metrics, chance = facts.metrics, math.log(max(2, _classes(architecture)))
    valid, train = metrics.get("validation_loss"), metrics.get("train_loss")
    return [
        metrics.get("validation_accuracy", UNKNOWN),
        UNKNOWN if valid is None else min(valid / chance, 5.0),
        0.0 if valid is None or train is None else max(-2.0, min((valid - train) / chance, 5.0)),
        UNKNOWN if train is None else min(train / chance, 5.0),
    ]


def _progress(architecture: Architecture, facts: RequestFacts) -> list[float]:
    left = facts.step * (1.0 - facts.used) / facts.used if facts.used > 0 else 0.0
    places = facts.places.get(_head(architecture), 0) * (facts.batch_size or 0)
    parameters = max(1, architecture.parameters)
    known = places > 0 and facts.step > 0
    slope, before = _falls(facts, math.log(max(2, _classes(architecture))))
    return [
        math.log2(1 + left) if facts.step > 0 else UNKNOWN,
        math.log2(1e-6 + facts.step * places / parameters) if known else -2.0 * MOST_DOUBLINGS,
        math.log2(1e-6 + left * places / parameters) if known else -2.0 * MOST_DOUBLINGS,
        slope,
        before - slope if slope != UNKNOWN and before != UNKNOWN else UNKNOWN,
    ]


MOST_DOUBLINGS: Final = 20.0
"""A logarithm to base 2 below minus this means that nothing is known."""


def _falls(facts: RequestFacts, chance: float) -> tuple[float, float]:
    """Return the fall of the validation loss, by chance, in the last doubling of the time, and in the one before."""
    points = [(point.share, point.validation_loss) for point in facts.curve if 0 < point.share < facts.used]
    now = facts.metrics.get("validation_loss")
    if now is None or not points:
        return UNKNOWN, UNKNOWN
    points.append((facts.used, now))
    shares, losses = (np.array(column) for column in zip(*points, strict=True))
    at = [facts.used / 4, facts.used / 2]
    quarter, half = np.interp(np.log(at), np.log(shares), losses)
    slope = (float(half) - now) / chance if shares[0] <= at[1] * _NEAR else UNKNOWN
    before = float(quarter - half) / chance if shares[0] <= at[0] * _NEAR else UNKNOWN
    return slope, before


_NEAR: Final = 1.1
"""An evaluation counts as early enough up to this factor of the time."""


def _head(architecture: Architecture) -> str:
    return next((one.name for one in reversed(architecture.layers) if one.operator in WEIGHT_OPERATORS), "")


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
            _normed(added),
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
            _normed(layers),
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
            inside = tuple(one for one in architecture.layers if owner_of(one.name, run.copied))
            whole = action.insertion is not None and action.insertion.whole
            return inside * (run.length // len(run.copied) if whole else 1), run.gives[-1], run.grown
        if action.kind == WIDEN.name:
            group = architecture.channel_group(str(action.target))
            return tuple(self._layers[name] for name in group.makers if name in self._layers), group.id, 0
        return (), architecture.layers[-1].name, 0


def _normed(layers: Sequence[Layer]) -> bool:
    """Return whether one is a norm; Llama's code writes its own as a product with `rsqrt`."""
    return any("Norm" in layer.operator or layer.operator == "Rsqrt" for layer in layers)


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
    operations: Sequence[str],
    architectures: Sequence[Architecture],
    facts: Sequence[RequestFacts],
    insertions: tuple[Insertion, ...] = INSERTIONS,
) -> Prepared:
    """Return `static` (M, growths, features), `dynamic` (M, features) and `counts` of each operation's targets."""
    counts = {name: max((len(operation(name).targets(one)) for one in architectures), default=0) for name in operations}
    columns = ActionColumns(counts, insertions)
    static = np.full((len(architectures), columns.width - 1, len(STATIC) + len(INSERTED)), -1.0, dtype=np.float32)
    for row, (architecture, known) in enumerate(zip(architectures, facts, strict=True)):
        features = static_features(architecture, known)
        for place, found in zip(columns.of(architecture, features), features.values(), strict=True):
            if place is not None:
                static[row, place] = found
    dynamic = [changing_features(one, known) for one, known in zip(architectures, facts, strict=True)]
    return {
        "static": torch.from_numpy(static),
        "dynamic": torch.tensor(dynamic, dtype=torch.float32),
        "counts": torch.tensor(list(counts.values())),
    }


def rows_of(prepared: Prepared, models: Tensor, time_left_s: Tensor, time_budget_s: Tensor) -> Tensor:
    """Return the `FEATURES` of each growth in n states, (n, growths, features), in float32."""
    static, inserted = prepared["static"][models].tensor_split([len(STATIC)], dim=2)
    share = (time_left_s.double() / time_budget_s.double()).clamp(0.0, 1.0).float()
    changing = torch.cat([share[:, None], prepared["dynamic"][models]], dim=1)[:, None].expand(-1, static.shape[1], -1)
    dynamic, progress = changing.tensor_split([len(DYNAMIC)], dim=2)
    return torch.cat([static, dynamic, inserted, progress], dim=2)
