"""Groups of channels that can only change together, with everything that depends on them: enough to widen a
description.

A *group* is a set of layers whose outputs have the same channels. It is named after the first layer that makes them,
and keeps that name while the network grows. All numbers are relative: the increase for each additional channel, so that
widening is a sum, and deepening splits a group where the new layers are inserted (`inserted`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from math import lcm, prod
from typing import Self, TypeVar

from pydantic import Field, model_validator

from espalier_core.base import Record, Unicode, repeated


class Follower(Record):
    """A number in a layer's attributes that rises with the channels of a group."""

    layer: str
    attribute: str
    at: str
    """The layer whose output has these channels: one that `layer` reads, or itself."""
    per_channel: int = Field(ge=1)
    """Increase per channel: more than 1 after a flattening."""
    dim: int = Field(default=0, ge=0)
    """For an attribute that is a shape: the index of the entry that rises."""


class Ask(Record):
    """A condition of a layer on a widening."""

    at: str
    """The layer whose output has the channels: one that it reads, or itself."""
    layer: str
    parts: int = Field(default=1, ge=1)
    """For a grouped convolution: its number of groups, each of which must gain as many channels."""
    even: bool = False
    """For a norm over the channels: each channel must be repeated equally often."""


class ChannelGroup(Record):
    """Channels that can only change together."""

    id: Unicode
    """The first layer that makes them; empty in an insertion, for the channels of its input."""
    width: int = Field(ge=1)
    makers: tuple[str, ...]
    carriers: dict[str, int]
    """Layers whose outputs have the channels, makers included, and their number of entries for each channel."""
    followers: tuple[Follower, ...] = ()
    asks: tuple[Ask, ...] = ()

    @property
    def multiple_of(self) -> int:
        """A new width must be a multiple of this."""
        return self.width if any(ask.even for ask in self.asks) else lcm(*(ask.parts for ask in self.asks))

    def accepts(self, width: int) -> bool:
        """Return whether the group can be widened to `width`."""
        return width > self.width and width % self.multiple_of == 0


class Axis(Record):
    """A dimension of a trainable tensor that rises with the channels of a group."""

    dim: int = Field(ge=0)
    group: str
    at: str
    """The layer whose output has the channels: one that the tensor's layer reads, or itself."""
    per_channel: int = Field(ge=1)
    parts: int = Field(default=1, ge=1)
    """It rises by `per_channel / parts`: a grouped convolution reads one part of its channels for each output."""


class Weight(Record):
    """A trainable tensor with a dimension that rises with a group's channels."""

    layers: tuple[str, ...] = Field(min_length=1)
    """Layers that use it; its scalars are counted in the first."""
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]

    def widened(self, more: Mapping[str, int]) -> Self:
        """Return the weight after groups gained channels; `more` has their number by group."""
        shape = list(self.shape)
        for axis in self.axes:
            shape[axis.dim] += more.get(axis.group, 0) * axis.per_channel // axis.parts
        return self.model_copy(update={"shape": tuple(shape)})


@dataclass(frozen=True, slots=True)
class Changes:
    """The effect of a widening on layers: increases of attributes and of counts of parameters."""

    attributes: Mapping[tuple[str, str, int], int]
    """Increase by layer, attribute and entry of a shape."""
    parameters: Mapping[str, int]


class Channels(Record):
    """The groups of a network in execution order, and the weights that follow them."""

    groups: tuple[ChannelGroup, ...] = ()
    weights: tuple[Weight, ...] = ()

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for name in repeated(group.id for group in self.groups):
            raise ValueError(f"group of channels {name!r} appears twice; ids must be unique")
        return self

    def check(self, layers: Container[str]) -> None:
        """Raise `ValueError` if anything refers to an unknown layer or group."""
        ids = {group.id for group in self.groups}
        for group in self.groups:
            named = [group.id, *group.makers, *group.carriers]
            named += [name for one in group.followers for name in (one.layer, one.at)]
            named += [name for ask in group.asks for name in (ask.layer, ask.at)]
            for name in named:
                if name not in layers:
                    raise ValueError(f"group of channels {group.id!r} names {name!r}, which is not a layer")
            if group.id and group.id not in group.carriers:
                raise ValueError(f"group of channels {group.id!r} does not carry its own channels")
        for weight in self.weights:
            for name in (*weight.layers, *(axis.at for axis in weight.axes)):
                if name not in layers:
                    raise ValueError(f"a weight that follows channels names {name!r}, which is not a layer")
            for axis in weight.axes:
                if axis.group not in ids or axis.dim >= len(weight.shape):
                    raise ValueError(
                        f"a weight of {weight.layers[0]!r} has no dimension {axis.dim}, or no group is {axis.group!r}"
                    )

    def group(self, group_id: str) -> ChannelGroup | None:
        """Return the group with this id; None if there is none."""
        return next((group for group in self.groups if group.id == group_id), None)

    def without(self, ids: Container[str]) -> Channels:
        """Return the channels without some groups, and without the weights that follow only these."""
        weights = []
        for weight in self.weights:
            axes = tuple(axis for axis in weight.axes if axis.group not in ids)
            if axes:
                weights.append(weight.model_copy(update={"axes": axes}))
        return Channels(groups=tuple(group for group in self.groups if group.id not in ids), weights=tuple(weights))

    def widened(self, more: Mapping[str, int]) -> tuple[Channels, Changes]:
        """Return the channels with more in some groups, and the resulting changes of layers."""
        attributes: dict[tuple[str, str, int], int] = {}
        parameters: dict[str, int] = {}
        groups = []
        for group in self.groups:
            added = more.get(group.id, 0)
            for follower in group.followers if added else ():
                place = (follower.layer, follower.attribute, follower.dim)
                attributes[place] = attributes.get(place, 0) + added * follower.per_channel
            groups.append(group.model_copy(update={"width": group.width + added}) if added else group)
        weights = []
        for weight in self.weights:
            wider = weight.widened(more)
            if wider.shape != weight.shape:
                counted = weight.layers[0]
                rise = prod(wider.shape) - prod(weight.shape)
                parameters[counted] = parameters.get(counted, 0) + rise
            weights.append(wider)
        return Channels(groups=tuple(groups), weights=tuple(weights)), Changes(attributes, parameters)

    def renamed(self, name: Callable[[str], str]) -> Channels:
        """Return the channels with other names of layers; ids of groups stay."""
        groups = tuple(
            group.model_copy(
                update={
                    "makers": tuple(map(name, group.makers)),
                    "carriers": {name(layer): times for layer, times in group.carriers.items()},
                    "followers": tuple(
                        one.model_copy(update={"layer": name(one.layer), "at": name(one.at)}) for one in group.followers
                    ),
                    "asks": tuple(
                        ask.model_copy(update={"layer": name(ask.layer), "at": name(ask.at)}) for ask in group.asks
                    ),
                }
            )
            for group in self.groups
        )
        weights = tuple(
            weight.model_copy(
                update={
                    "layers": tuple(map(name, weight.layers)),
                    "axes": tuple(axis.model_copy(update={"at": name(axis.at)}) for axis in weight.axes),
                }
            )
            for weight in self.weights
        )
        return Channels(groups=groups, weights=weights)


_Placed = TypeVar("_Placed", Follower, Ask)


def in_order(found: Iterable[_Placed], order: Mapping[str, int]) -> tuple[_Placed, ...]:
    """Return followers or asks in the order of their layers."""
    return tuple(sorted(found, key=lambda one: order[one.layer]))


def inserted(
    channels: Channels, block: Channels, after: str, output: str, inputs: Mapping[str, tuple[str, ...]]
) -> Channels:
    """Return the channels of a network after a block is inserted behind layer `after`.

    `block` has the channels of the new layers, under their final names; its group `""` has the channels of its input.
    `output` is the last new layer; the layers that read `after` now read it. `inputs` has the inputs of each layer
    afterwards. A group keeps the layers still connected with its first layer: later layers get the channels that the
    block makes, unless another path (an addition) leads around it.
    """
    owner = next((group for group in channels.groups if after in group.carriers), None)
    if owner is None:
        return channels

    def moved(at: str, layer: str) -> str:
        return output if at == after and output in inputs[layer] else at

    whole = _united(owner, block, owner.carriers[after], moved)
    weights = [
        weight.model_copy(
            update={
                "axes": tuple(axis.model_copy(update={"at": moved(axis.at, weight.layers[0])}) for axis in weight.axes)
            }
        )
        for weight in channels.weights
    ]
    weights += [_owned(weight, owner.id, owner.carriers[after]) for weight in block.weights]
    kept = _connected(whole, weights, inputs)
    order = {name: place for place, name in enumerate(inputs)}
    group = whole.model_copy(
        update={
            "makers": tuple(name for name in sorted(whole.makers, key=order.__getitem__) if name in kept),
            "carriers": {name: whole.carriers[name] for name in kept},
            "followers": in_order((one for one in whole.followers if one.at in kept), order),
            "asks": in_order((one for one in whole.asks if one.at in kept), order),
        }
    )
    left = []
    for weight in weights:
        axes = tuple(axis for axis in weight.axes if axis.group != owner.id or axis.at in kept)
        if axes:
            left.append(weight.model_copy(update={"axes": axes}))
    left.sort(key=lambda weight: order[weight.layers[0]])
    groups = tuple(group if other.id == owner.id else other for other in channels.groups)
    return Channels(groups=groups, weights=tuple(left))


def _united(owner: ChannelGroup, block: Channels, times: int, moved: Callable[[str, str], str]) -> ChannelGroup:
    """Return the group extended by everything that the block's layers make and read, as if all were connected."""
    makers, carriers = list(owner.makers), dict(owner.carriers)
    followers = [one.model_copy(update={"at": moved(one.at, one.layer)}) for one in owner.followers]
    asks = [ask.model_copy(update={"at": moved(ask.at, ask.layer)}) for ask in owner.asks]
    for group in block.groups:
        makers += group.makers
        carriers |= {name: each * times for name, each in group.carriers.items() if name not in carriers}
        followers += [one.model_copy(update={"per_channel": one.per_channel * times}) for one in group.followers]
        asks += group.asks
    return owner.model_copy(
        update={"makers": tuple(makers), "carriers": carriers, "followers": tuple(followers), "asks": tuple(asks)}
    )


def _owned(weight: Weight, group: str, times: int) -> Weight:
    axes = (axis.model_copy(update={"group": group, "per_channel": axis.per_channel * times}) for axis in weight.axes)
    return weight.model_copy(update={"axes": tuple(axes)})


def _connected(group: ChannelGroup, weights: Iterable[Weight], inputs: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the carriers that must have as many channels as the group's first layer."""
    near: dict[str, set[str]] = {name: set() for name in group.carriers}

    def tie(one: str, other: str) -> None:
        if one in near and other in near:
            near[one].add(other)
            near[other].add(one)

    for name in group.carriers:
        for given in inputs[name] if name not in group.makers else ():
            tie(name, given)
    for weight in weights:
        first = weight.layers[0]
        for axis in weight.axes:
            for layer in weight.layers[1:]:
                if axis.at == first:
                    tie(first, layer)
                elif axis.at in inputs[first] and inputs[layer]:
                    tie(axis.at, inputs[layer][0])
    found, waiting = {group.id}, [group.id]
    for name in waiting:  # grows during the loop
        waiting += sorted(near[name] - found)
        found |= near[name]
    return found
