"""The `Channels` of a traced model: its widening groups, described so that the description can be widened by itself.

A network keeps the groups of its starting model, as it keeps its growth points. A group is offered if it could be
widened without the blocks that growth has inserted between its layers: these are treated as transparent. The internal
channels of such blocks do not form separate groups.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterator, Mapping
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor, nn

from espalier_core.growth.channel_groups import Ask, Axis, ChannelGroup, Channels, Follower, Weight, in_order
from espalier_trainer.net2net.deepening.insertion import DeepeningBlock, build
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.operators import LAYERS
from espalier_trainer.net2net.trace.tracing import trace
from espalier_trainer.net2net.widening.groups import Groups, WideningGroup, find_groups
from espalier_trainer.net2net.widening.spaces import Edit, Segment

_OF_INPUTS = frozenset({"in_channels", "in_features", "groups"})
"""Attributes that hold the size of a layer's input; others hold the size of its output."""
_JOINT_NORMS = frozenset({"LayerNorm", "RMSNorm", "GroupNorm"})
_BEFORE, _BLOCK = "before", "block"


def channels_of(model: nn.Module, graph: Graph, groups: Groups, only: Container[str] | None = None) -> Channels:
    """Return the channels of a model; `graph` is its trace, and `groups` are the groups found in it.

    `only` names the groups that may be offered; None for all.
    """
    offered = tuple(group for group in _offered(graph, groups) if only is None or group.id in only)
    return _Channels(model, graph, groups).of(offered)


@lru_cache(maxsize=1024)
def insertion_channels(block: DeepeningBlock) -> Channels:
    """Return the channels of a built block, with names relative to it; the group `""` is its input."""
    with torch.device("meta"):
        linear = block.operator == "Linear"
        kind = nn.Linear if linear else getattr(nn, block.operator)
        around = [kind(block.channels, block.channels, *(() if linear else (1,))) for _ in range(2)]
    size = tuple(max(1, 2 * (before + after)) for before, after in block.sides)
    model = nn.Sequential(OrderedDict([(_BEFORE, around[0]), (_BLOCK, build(block)), ("after", around[1])]))
    graph = trace(model, torch.empty((2, block.channels, *size), device="meta"))
    groups = find_groups(model, graph)
    return _inside(_Channels(model, graph, groups).of(groups.found))


def _inside(channels: Channels) -> Channels:
    """Return the channels inside the block, without the two layers around it, with names relative to the block."""
    prefix = f"{_BLOCK}."

    def kept(layer: str) -> bool:
        return layer.startswith(prefix)

    groups = tuple(
        group.model_copy(
            update={
                "id": "" if group.id == _BEFORE else group.id.removeprefix(prefix),
                "makers": tuple(filter(kept, group.makers)),
                "carriers": {name: times for name, times in group.carriers.items() if kept(name)},
                "followers": tuple(one for one in group.followers if kept(one.layer)),
                "asks": tuple(ask for ask in group.asks if kept(ask.layer)),
            }
        )
        for group in channels.groups
    )
    names = {group.id: own.id for group, own in zip(channels.groups, groups, strict=True)}
    weights = tuple(
        weight.model_copy(
            update={"axes": tuple(axis.model_copy(update={"group": names[axis.group]}) for axis in weight.axes)}
        )
        for weight in channels.weights
        if kept(weight.layers[0])
    )
    return Channels(groups=groups, weights=weights).renamed(
        lambda name: "" if name == _BEFORE else name.removeprefix(prefix)
    )


def _offered(graph: Graph, groups: Groups) -> tuple[WideningGroup, ...]:
    """Return the groups that the model would have without growth: channels before and after a block are one group."""
    parent: dict[int | None, int | None] = {}

    def root(space: int | None) -> int | None:
        while parent.get(space, space) != space:
            space = parent[space]
        return space

    def spaces(name: str) -> list[int | None]:
        layout = groups.layouts.get(name)
        return [None] if layout is None else [segment.space for segment in layout.segments]

    for stack in graph.stacks.values():
        for one, other in zip(spaces(stack.input), spaces(stack.output), strict=False):
            ours, theirs = root(one), root(other)
            if ours is None or theirs is None:
                parent[ours], parent[theirs] = None, None
            else:
                parent[max(ours, theirs)] = min(ours, theirs)
    first: dict[int | None, str] = {}
    grown = {operation.module for operation in graph.operations.values() if operation.stack is not None}
    spaces_of = {maker: group.space for group in groups.found for maker in group.makers}
    for operation in graph.operations.values():
        if operation.module in spaces_of and operation.module not in grown:
            first.setdefault(root(spaces_of[operation.module]), operation.module)
    return tuple(
        group for group in groups.found if root(group.space) is not None and first.get(root(group.space)) == group.id
    )


class _Channels:
    """Description of the groups found in one trace."""

    def __init__(self, model: nn.Module, graph: Graph, groups: Groups) -> None:
        self._model, self._graph, self._groups = model, graph, groups
        self._operations = graph.ordered()
        self._order = {operation.name: place for place, operation in enumerate(self._operations)}

    def of(self, offered: tuple[WideningGroup, ...]) -> Channels:
        by_space = {group.space: group for group in offered}
        return Channels(groups=tuple(map(self._group, offered)), weights=tuple(self._weights(by_space)))

    def _group(self, group: WideningGroup) -> ChannelGroup:
        carriers = {
            operation.name: times
            for operation in self._operations
            if (times := self._times(operation.name, group.space))
        }
        makers = tuple(
            operation.name
            for operation in self._operations
            if operation.module in group.makers and operation.name in carriers
        )
        return ChannelGroup(
            id=group.id,
            width=group.width,
            makers=makers,
            carriers=carriers,
            followers=in_order(self._followers(group), self._order),
            asks=in_order(self._asks(carriers, makers), self._order),
        )

    def _times(self, name: str, space: int) -> int:
        """Return the number of entries in an operation's output for each channel of a space."""
        layout = self._groups.layouts.get(name)
        return 0 if layout is None else _per_channel(layout.segments, space)

    def _users(self, path: str) -> Iterator[Operation]:
        """Yield the operations that use a module's own settings and parameters."""
        for operation in self._operations:
            if operation.module == path or (
                operation.module is None and operation.scope == path and operation.operator == "LayerNorm"
            ):
                yield operation

    def _followers(self, group: WideningGroup) -> Iterator[Follower]:
        for resize in group.resizes:
            for user in self._users(resize.module):
                # A layer norm that is called as a function has its shape as the first argument.
                attribute = resize.attribute if user.module is not None else "arg1"
                if attribute in user.attributes:
                    at = user.inputs[0] if attribute in _OF_INPUTS else user.name
                    times = _per_channel(resize.segments, group.space)
                    yield Follower(layer=user.name, attribute=attribute, at=at, per_channel=times)

        for edit in group.edits:
            for user in self._users_of(edit.paths):
                if user.operator in ("Parameter", "Buffer"):
                    at, times = self._place(user, edit, group.space), _per_channel(edit.segments, group.space)
                    yield Follower(layer=user.name, attribute="shape", at=at, per_channel=times, dim=edit.dim)

    def _asks(self, carriers: Mapping[str, int], makers: Container[str]) -> Iterator[Ask]:
        for operation in self._operations:
            name = operation.name
            if operation.operator in _JOINT_NORMS and name in carriers:
                yield Ask(layer=name, at=name, even=True)
            if operation.operator not in LAYERS or operation.module is None:
                continue
            module = cast(nn.modules.conv._ConvNd, self._model.get_submodule(operation.module))
            parts = getattr(module, "groups", 1)
            if parts > 1 and parts != module.in_channels:
                if operation.inputs[0] in carriers:
                    yield Ask(layer=name, at=operation.inputs[0], parts=parts)
                if name in makers:
                    yield Ask(layer=name, at=name, parts=parts)

    def _weights(self, offered: Mapping[int, WideningGroup]) -> Iterator[Weight]:
        edits: dict[tuple[str, ...], dict[int, Edit]] = {}
        for group in offered.values():
            for edit in group.edits:
                edits.setdefault(edit.paths, {})[edit.dim] = edit
        found = []
        for paths, mine in edits.items():
            owner, _, name = paths[0].rpartition(".")
            tensor = cast(Tensor, getattr(self._model.get_submodule(owner), name))
            users = self._users_of(paths)
            if not (isinstance(tensor, nn.Parameter) and tensor.requires_grad and users):
                continue
            axes = tuple(
                Axis(
                    dim=dim,
                    group=offered[space].id,
                    at=self._place(users[0], edit, space),
                    per_channel=_per_channel(edit.segments, space),
                    parts=edit.groups if edit.split else 1,
                )
                for dim, edit in sorted(mine.items())
                for space in sorted({s.space for s in edit.segments if s.space in offered}, key=lambda s: s or 0)
                if space is not None
            )
            layers = tuple(user.name for user in users)
            found.append(Weight(layers=layers, shape=tuple(tensor.shape), axes=axes))
        # The weight of a layer before its bias, as in `named_parameters`.
        yield from sorted(found, key=lambda weight: (self._order[weight.layers[0]], -len(weight.shape)))

    def _users_of(self, paths: tuple[str, ...]) -> list[Operation]:
        """Return the operations that use a tensor of these names, in execution order."""
        owners = {path.rpartition(".")[0] for path in paths}
        return [one for one in self._operations if one.name in paths or (one.module in owners and one.module)]

    def _place(self, user: Operation, edit: Edit, space: int) -> str:
        if edit.split:
            return user.inputs[0]
        if user.operator != "Parameter":
            return user.name
        readers = self._graph.consumers[user.name]
        return next((reader for reader in readers if self._times(reader, space)), user.name)


def _per_channel(segments: tuple[Segment, ...], space: int) -> int:
    return sum(segment.repeat for segment in segments if segment.space == space)
