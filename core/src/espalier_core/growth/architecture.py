"""The description of a network: layers, edges, targets of growth, and the modelled cost of a training step.

The agent sees nothing else of a network. `espalier_trainer.net2net.description.describe` makes it from a module;
growing it with `espalier_core.growth` commutes with growing the module:
`describe(deepen(model, p)) == deepened(describe(model), p)`.

A step costs a fixed time for each operation, and the arithmetic of its weights: two operations per weight, place and
example forward, four backward, and one update per weight. Measured times depend on the machine and its load; decisions
about growth need only the ratio of two steps, which this model gives without running anything. The constants were
fitted by eye to 22 small models on one core, where most ratios came within a third.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final, Self

from pydantic import Field, model_validator

from espalier_core.base import Record, Unicode
from espalier_core.growth.channel_groups import ChannelGroup, Channels

AttributeValue = bool | int | float | str | tuple[int, ...] | None

WEIGHT_OPERATORS = frozenset({"Linear", "Conv1d", "Conv2d", "Conv3d"})
"""Operators that count towards depth."""

PRODUCTS: Final = {"Linear": (1, 0), "Addmm": (0, 1), "MatMul": (0, 1)}
"""Functions that multiply by a matrix of parameters: which of its sizes is that of the inputs, and of the outputs."""
MOST: Final = 2**60
"""Largest count in a description, so that results computed from it stay within the range of a float."""
OPERATION_SECONDS: Final = 4e-5
"""Seconds of one operation, forward and backward."""
WEIGHTED_SECONDS: Final = 6e-5
"""Additional seconds of an operation with weights: their gradients and their update."""
MULTIPLICATIONS_PER_SECOND: Final = 1.2e10
"""Multiplications of small matrices, on one core."""
UPDATES_PER_SECOND: Final = 4e8
"""Updates of weights by an optimizer with two moments."""
RECURRENT: Final = frozenset({"RNN", "LSTM", "GRU"})
"""Operators that process one place after the other."""
PLACE_SECONDS: Final = 1.2e-4
"""Seconds for each place of a recurrent operator."""
PASSES: Final = 3
"""Arithmetic of a step in forward passes: a backward pass costs two."""
ATTENTION: Final = ("attention", "Attention", "Softmax")
"""Parts of the names of operators that mix tokens."""


class GrowthError(ValueError):
    """A target cannot be grown. The message names the layer, the expectation, the finding and the remedy."""


class Layer(Record):
    """One operation of the network in execution order."""

    name: str
    """Unique; the module's qualified name, or for a functional operation the traced name."""
    operator: str
    """Canonical: `Conv2d`, `BatchNorm2d`, `ReLU`, `Linear`, `Add`, `Concat`, ..., `Input`."""
    attributes: dict[str, AttributeValue] = Field(default_factory=dict)
    """Attributes that distinguish two layers of one operator (channels, kernel size, ...)."""
    inputs: tuple[str, ...] = ()
    """Names of the layers whose outputs it reads, in argument order."""
    parameters: int = Field(default=0, ge=0, le=MOST)
    """Number of trainable scalars it adds to the model."""


class GrowthPoint(Record):
    """A place in the starting model where layers can be added.

    `id` never changes while the model grows. `after` names the layer whose output the next insertion reads (the
    last layer inserted here, once there is one). `insertion` is what one growth adds, in execution order: names
    relative to the new block, inputs relative likewise, `""` being the block's input; its last layer is its
    output. The n-th block's layers are named `<block>.<n>.<relative name>`.
    """

    id: Unicode
    """Empty if the model itself is the marked block."""
    kind: str
    """Operator of the layer that a growth repeats: `Linear` or `Conv2d`."""
    after: str
    block: str
    grown: int = Field(default=0, ge=0, le=MOST)
    insertion: tuple[Layer, ...] = Field(min_length=1)
    channels: Channels | None = None
    """Dependencies between the channels of the insertion, with relative names; absent if the architecture has none."""


class BlockPoint(Record):
    """A run of equal blocks, one after the other, that more blocks can continue.

    A block consists of the layers named by its path or below it. A growth copies blocks of the run to its end.
    """

    id: Unicode
    """Path of the run's first block, which never changes while the model grows."""
    copied: tuple[str, ...] = Field(min_length=1)
    """Paths of the blocks that the next growth copies, in order: the last one, or the whole run."""
    whole: bool = False
    """Whether the next growth copies the whole run."""
    reads: tuple[str, ...] = Field(min_length=1)
    """For each call of the run: the layer whose output the first of `copied` reads."""
    gives: tuple[str, ...] = Field(min_length=1)
    """For each call of the run: the layer whose output the last of `copied` returns, and the next block will read."""
    stem: str
    """The next new block has the path `<stem><number>`."""
    number: int = Field(ge=0)
    grown: int = Field(default=0, ge=0, le=MOST)
    """Number of blocks that growth has added."""

    @property
    def length(self) -> int:
        """Number of blocks; 1 where the first one is not numbered."""
        first = self.id.removeprefix(self.stem)
        return max(len(self.copied), self.number - int(first)) if first.isdecimal() else len(self.copied)


class Architecture(Record):
    """A network as a directed acyclic graph of layers, in execution order, with its growth points."""

    layers: tuple[Layer, ...] = Field(min_length=1)
    outputs: tuple[str, ...] = Field(min_length=1)
    """Names of the layers whose outputs the network returns."""
    growth_points: tuple[GrowthPoint, ...] = ()
    channels: Channels | None = None
    """Groups of channels that can be widened; absent if not requested. Groups belong to the starting model."""
    blocks: tuple[BlockPoint, ...] | None = None
    """Runs to which whole blocks can be added; absent if not requested. Runs belong to the starting model."""
    targets: dict[str, tuple[Unicode, ...]] | None = None
    """Ids of the targets of each other growth operation for which the model was described, by the operation's name."""

    @model_validator(mode="after")
    def _is_a_dag_in_order(self) -> Self:
        seen: set[str] = set()
        for layer in self.layers:
            if layer.name in seen:
                raise ValueError(f"layer {layer.name!r} appears twice; names must be unique")
            missing = [name for name in layer.inputs if name not in seen]
            if missing:
                raise ValueError(f"layer {layer.name!r} reads {missing[0]!r}, which does not come before it")
            seen.add(layer.name)
        for name in self.outputs:
            if name not in seen:
                raise ValueError(f"output {name!r} is not a layer")
        ids: set[str] = set()
        for point in self.growth_points:
            if point.id in ids:
                raise ValueError(f"growth point {point.id!r} appears twice; ids must be unique")
            ids.add(point.id)
            if point.after not in seen:
                raise ValueError(f"growth point {point.id!r} follows {point.after!r}, which is not a layer")
            if point.channels is not None:
                point.channels.check({"", *(layer.name for layer in point.insertion)})
        for run in self.blocks or ():
            unknown = [name for name in (*run.reads, *run.gives) if name not in seen]
            if unknown:
                raise ValueError(f"run of blocks {run.id!r} reads or gives {unknown[0]!r}, which is not a layer")
        if self.channels is not None:
            self.channels.check(seen)
            for group in self.channels.groups:
                if not group.carriers:
                    raise ValueError(f"group of channels {group.id!r} has no layer that carries it")
        return self

    @property
    def depth(self) -> int:
        """Number of layers with a weight matrix or kernel (`WEIGHT_OPERATORS`)."""
        return sum(layer.operator in WEIGHT_OPERATORS for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Number of trainable scalars."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the canonical JSON: equal exactly when the descriptions are equal."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def growth_history(self) -> dict[str, int]:
        """Number of growths of each growth point, and of added blocks of each run, without zeros."""
        grown = {point.id: point.grown for point in self.growth_points if point.grown}
        return grown | {run.id: run.grown for run in self.blocks or () if run.grown}

    def growth_point(self, point_id: str) -> GrowthPoint:
        """Return the growth point with this id; `GrowthError` lists the existing ids."""
        for point in self.growth_points:
            if point.id == point_id:
                return point
        known = ", ".join(point.id for point in self.growth_points) or "none"
        raise GrowthError(f"{point_id!r} is not a growth point of this model; its growth points: {known}")

    def block_point(self, point_id: str) -> BlockPoint:
        """Return the run of blocks with this id; `GrowthError` lists the existing ids."""
        for point in self.blocks or ():
            if point.id == point_id:
                return point
        known = ", ".join(point.id for point in self.blocks or ()) or "none"
        raise GrowthError(f"{point_id!r} is not a run of blocks of this model; its runs: {known}")

    @property
    def channel_groups(self) -> tuple[ChannelGroup, ...]:
        """The groups that can be widened; none unless requested."""
        return () if self.channels is None else self.channels.groups

    def channel_group(self, group_id: str) -> ChannelGroup:
        """Return the group of channels with this id; `GrowthError` lists the existing ids."""
        for group in self.channel_groups:
            if group.id == group_id:
                return group
        known = ", ".join(group.id for group in self.channel_groups) or "none"
        raise GrowthError(f"{group_id!r} is not a widening group of this model; its groups: {known}")


def layered(architecture: Architecture) -> Architecture:
    """Return a description in which products with a matrix of parameters are the linear layers that they compute.

    GPT-2 of Hugging Face has no other: its layers keep their weights transposed, and call `torch.addmm`.
    """
    points = (point.model_copy(update={"insertion": _layered(point.insertion)}) for point in architecture.growth_points)
    return architecture.model_copy(update={"layers": _layered(architecture.layers), "growth_points": tuple(points)})


def _layered(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    found = {layer.name: layer for layer in layers}
    for layer in layers:
        held = [one for one in map(found.get, layer.inputs) if one is not None and one.operator == "Parameter"]
        shapes = [shape for one in held if isinstance(shape := one.attributes.get("shape"), tuple) and len(shape) == 2]
        if layer.operator not in PRODUCTS or layer.parameters or len(shapes) != 1:
            continue
        given, made = (shapes[0][place] for place in PRODUCTS[layer.operator])
        parameters = sum(one.parameters for one in held)
        found |= {one.name: one.model_copy(update={"parameters": 0}) for one in held}
        changed = {"operator": "Linear", "attributes": {"in_features": given, "out_features": made}}
        found[layer.name] = layer.model_copy(update={**changed, "parameters": parameters})
    return tuple(found.values())


def layer_seconds(layer: Layer, places: int, batch_size: int) -> float:
    """Return the modelled seconds of one layer in a training step on `batch_size` examples.

    `places` is the number of places of an example at which it is applied: pixels, tokens, or 1.
    """
    seconds = OPERATION_SECONDS + PLACE_SECONDS * places * (layer.operator in RECURRENT)
    # A table of embeddings is read, not multiplied.
    if layer.parameters and layer.operator != "Embedding":
        seconds += WEIGHTED_SECONDS + layer.parameters / UPDATES_PER_SECOND
        seconds += PASSES * layer.parameters * places * batch_size / MULTIPLICATIONS_PER_SECOND
    return seconds


def places_of_all(architecture: Architecture, places: Mapping[str, int]) -> dict[str, int]:
    """Return the places of every layer; a layer that is not in `places` has the places of its inputs."""
    known: dict[str, int] = {}
    for layer in architecture.layers:
        known[layer.name] = places.get(layer.name, max((known[name] for name in layer.inputs), default=1))
    return known


def step_seconds(architecture: Architecture, places: Mapping[str, int], batch_size: int) -> float:
    """Return the modelled seconds of one training step; `places` are those of the layers with weights."""
    known = places_of_all(architecture, places)
    return sum(layer_seconds(layer, known[layer.name], batch_size) for layer in architecture.layers)


def mixes(layer: Layer) -> bool:
    """Return whether a layer mixes places: by a kernel above 1, recurrence, or attention."""
    kernel = layer.attributes.get("kernel_size")
    if layer.operator in WEIGHT_OPERATORS and kernel is not None:
        return max(kernel) > 1 if isinstance(kernel, tuple) else isinstance(kernel, int) and kernel > 1
    return layer.operator in RECURRENT or any(part in layer.operator for part in ATTENTION)
