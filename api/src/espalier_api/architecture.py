"""The description of a network: layers, edges, growth points; and growth carried out on the description alone.

The agent sees only this. `espalier_trainer.architecture.describe` makes it from a module, and growing symbolically
commutes with growing for real: `describe(deepen(model, p)) == describe(model).deepen(p)`, and likewise for `widen`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Self

from pydantic import Field, model_validator

from espalier_api.base import Record, Unicode
from espalier_api.channel_insertion import inserted
from espalier_api.channels import Changes, ChannelGroup, Channels

AttributeValue = bool | int | float | str | tuple[int, ...] | None

WEIGHT_OPERATORS = frozenset({"Linear", "Conv1d", "Conv2d", "Conv3d"})
"""Operators that count as a layer of depth."""


class GrowthError(ValueError):
    """A place cannot be grown. The message names the layer, what was expected, what was found and what to do."""


class Layer(Record):
    """One operation of the network in execution order."""

    name: str
    """Unique; the module's qualified name, or for a functional operation the traced name."""
    operator: str
    """Canonical: `Conv2d`, `BatchNorm2d`, `ReLU`, `Linear`, `Add`, `Concat`, ..., `Input`."""
    attributes: dict[str, AttributeValue] = Field(default_factory=dict)
    """What tells two layers of one operator apart (channels, kernel size, ...)."""
    inputs: tuple[str, ...] = ()
    """Names of the layers whose outputs it reads, in argument order."""
    parameters: int = Field(default=0, ge=0)
    """Number of trainable scalars it adds to the model."""


class GrowthPoint(Record):
    """A place in the starting model where layers can be added.

    `id` never changes while the model grows. `after` names the layer whose output the next insertion reads (the
    last layer inserted here, once there is one). `insertion` is what one growth adds, in execution order: names
    relative to the new block, inputs relative likewise, `""` being the block's input; its last layer is its
    output. The n-th block's layers are named `<block>.<n>.<relative name>`.
    """

    id: Unicode
    """Empty where the model itself is the marked block."""
    kind: str
    """Operator of the layer that a growth repeats: `Linear` or `Conv2d`."""
    after: str
    block: str
    grown: int = Field(default=0, ge=0)
    insertion: tuple[Layer, ...] = Field(min_length=1)
    channels: Channels | None = None
    """How the insertion's channels hang together, names relative to it; absent where the architecture's is."""


class Architecture(Record):
    """A network as a directed acyclic graph of layers, in execution order, with its growth points."""

    layers: tuple[Layer, ...] = Field(min_length=1)
    outputs: tuple[str, ...] = Field(min_length=1)
    """Names of the layers whose outputs the network returns."""
    growth_points: tuple[GrowthPoint, ...] = ()
    channels: Channels | None = None
    """Where it can be widened; absent where nobody asked. Groups are those of the starting model, as points are."""

    @model_validator(mode="after")
    def _is_a_dag_in_order(self) -> Self:
        seen: set[str] = set()
        for layer in self.layers:
            if layer.name in seen:
                raise ValueError(f"layer {layer.name!r} is there twice; names must be unique")
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
                raise ValueError(f"growth point {point.id!r} is there twice; ids must be unique")
            ids.add(point.id)
            if point.after not in seen:
                raise ValueError(f"growth point {point.id!r} follows {point.after!r}, which is not a layer")
            if point.channels is not None:
                point.channels.check({"", *(layer.name for layer in point.insertion)})
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
        """How often each growth point was grown, points never grown left out."""
        return {point.id: point.grown for point in self.growth_points if point.grown}

    def growth_point(self, point_id: str) -> GrowthPoint:
        """Return the growth point with this id; `GrowthError` names the ids there are."""
        for point in self.growth_points:
            if point.id == point_id:
                return point
        known = ", ".join(point.id for point in self.growth_points) or "none"
        raise GrowthError(f"{point_id!r} is not a growth point of this model; its growth points: {known}")

    def deepen(self, point_id: str) -> Architecture:
        """Return the description after one growth at `point_id`; raises `GrowthError` where there is no such point."""
        point = self.growth_point(point_id)
        prefix = f"{point.block}.{point.grown}."

        def absolute(relative: str) -> str:
            return prefix + relative if relative else point.after

        added = tuple(
            layer.model_copy(
                update={"name": prefix + layer.name, "inputs": tuple(absolute(name) for name in layer.inputs)}
            )
            for layer in point.insertion
        )
        output = added[-1].name

        def rewired(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(output if name == point.after else name for name in names)

        layers: list[Layer] = []
        for layer in self.layers:
            inputs = rewired(layer.inputs)
            layers.append(layer if inputs == layer.inputs else layer.model_copy(update={"inputs": inputs}))
            if layer.name == point.after:
                layers.extend(added)
        points = []
        for other in self.growth_points:
            update: dict[str, object] = {}
            if other.id == point_id:
                update["grown"] = other.grown + 1
            if other.after == point.after:
                update["after"] = output
            points.append(other.model_copy(update=update) if update else other)
        return Architecture(
            layers=tuple(layers),
            outputs=rewired(self.outputs),
            growth_points=tuple(points),
            channels=self._channels_with(point, layers, output, absolute),
        )

    def _channels_with(
        self, point: GrowthPoint, layers: Sequence[Layer], output: str, absolute: Callable[[str], str]
    ) -> Channels | None:
        if self.channels is None or point.channels is None:
            return None
        inputs = {layer.name: layer.inputs for layer in layers}
        return inserted(self.channels, point.channels.renamed(absolute), point.after, output, inputs)

    @property
    def channel_groups(self) -> tuple[ChannelGroup, ...]:
        """The groups that can be widened; none where nobody asked for them."""
        return () if self.channels is None else self.channels.groups

    def channel_group(self, group_id: str) -> ChannelGroup:
        """Return the group of channels with this id; `GrowthError` names the ids there are."""
        for group in self.channel_groups:
            if group.id == group_id:
                return group
        known = ", ".join(group.id for group in self.channel_groups) or "none"
        raise GrowthError(f"{group_id!r} is not a widening group of this model; its groups: {known}")

    def widen(self, group_id: str, width: int) -> Architecture:
        """Return the description with `width` channels in a group.

        Raises `GrowthError` where there is no such group, and for a width that it cannot have.
        """
        group = self.channel_group(group_id)
        if self.channels is None or not group.accepts(width):
            raise GrowthError(
                f"{group_id!r} has {group.width} channels and cannot be widened to {width}; "
                f"give a multiple of {group.multiple_of} above {group.width}"
            )
        more = width - group.width
        channels, changes = self.channels.widened({group_id: more})
        return Architecture(
            layers=tuple(_changed(layer, changes) for layer in self.layers),
            outputs=self.outputs,
            growth_points=tuple(
                _widened(point, more * group.carriers.get(point.after, 0)) for point in self.growth_points
            ),
            channels=channels,
        )


def _widened(point: GrowthPoint, more: int) -> GrowthPoint:
    """Return the point when the output that its insertion reads has so many more channels."""
    if point.channels is None or not more:
        return point
    channels, changes = point.channels.widened({group.id: more for group in point.channels.groups})
    insertion = tuple(_changed(layer, changes) for layer in point.insertion)
    return point.model_copy(update={"insertion": insertion, "channels": channels})


def _changed(layer: Layer, changes: Changes) -> Layer:
    attributes = dict(layer.attributes)
    for (name, attribute, dim), more in changes.attributes.items():
        if name == layer.name and attribute in attributes:
            attributes[attribute] = _raised(attributes[attribute], dim, more)
    parameters = layer.parameters + changes.parameters.get(layer.name, 0)
    if attributes == layer.attributes and parameters == layer.parameters:
        return layer
    return layer.model_copy(update={"attributes": attributes, "parameters": parameters})


def _raised(value: AttributeValue, dim: int, more: int) -> AttributeValue:
    """Return a size that has grown: a number, or one of a shape."""
    if isinstance(value, tuple):
        return tuple(size + more if place == dim else size for place, size in enumerate(value))
    return value + more if isinstance(value, int) else value
