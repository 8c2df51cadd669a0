"""More blocks: one growth continues a run of equal residual blocks by a copy of the last, or of the whole run.

Source of the exact form: Wu et al., "LLaMA Pro: Progressive LLaMA with Block Expansion" (2024), section 3.2.

Groups of channels afterwards (`continued`): a group that also has channels outside the copied blocks (such as the
residual stream, or a memory that they read) gets those of the copies. A group within one block has no counterpart: like
layers that growth inserts, copies bring no separate groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from espalier_core.growth.architecture import Architecture, BlockPoint, GrowthError, Layer
from espalier_core.growth.channel_groups import Ask, Axis, ChannelGroup, Channels, Follower, Weight, in_order
from espalier_core.growth.operation import GrowthOperation, Target

_Placed = TypeVar("_Placed", Follower, Ask, Axis)


@dataclass(frozen=True, slots=True)
class Copies:
    """The layers that are copied, and the names and connections of layers afterwards."""

    owned: frozenset[str]
    """Layers of the copied blocks."""
    renamed: Callable[[str], str]
    """Returns the copy of a layer; any other layer itself."""
    read: Callable[[str], str]
    """Returns the input of a copy for an input of its original."""
    rewired: Mapping[str, str]
    """New inputs of existing layers in place of the output of the run."""
    order: Mapping[str, int]
    """Places of all layers in the order of execution afterwards."""


def continued(channels: Channels, copies: Copies) -> Channels:
    """Return the groups and weights with those of the copies."""
    outer = {group.id for group in channels.groups if not set(group.carriers) <= copies.owned}
    weights = [_kept(weight, copies) for weight in channels.weights]
    for weight in channels.weights:
        axes = tuple(_copied(axis, weight.layers, copies) for axis in weight.axes if axis.group in outer)
        if set(weight.layers) <= copies.owned and axes:
            layers = tuple(map(copies.renamed, weight.layers))
            weights.append(weight.model_copy(update={"layers": layers, "axes": axes}))
    return Channels(
        groups=tuple(_group(group, copies, joined=group.id in outer) for group in channels.groups),
        # Within a layer, the weight comes before the bias, as in a module.
        weights=tuple(sorted(weights, key=lambda one: (copies.order[one.layers[0]], -len(one.shape)))),
    )


def _group(group: ChannelGroup, copies: Copies, *, joined: bool) -> ChannelGroup:
    followers = [_moved(one, (one.layer,), copies) for one in group.followers]
    asks = [_moved(one, (one.layer,), copies) for one in group.asks]
    makers, carriers = list(group.makers), dict(group.carriers)
    if joined:
        makers += [copies.renamed(name) for name in group.makers if name in copies.owned]
        carriers |= {copies.renamed(name): times for name, times in group.carriers.items() if name in copies.owned}
        for follower in group.followers:
            if follower.layer in copies.owned:
                placed = _copied(follower, (follower.layer,), copies)
                followers.append(placed.model_copy(update={"layer": copies.renamed(follower.layer)}))
        for ask in group.asks:
            if ask.layer in copies.owned:
                placed_ask = _copied(ask, (ask.layer,), copies)
                asks.append(placed_ask.model_copy(update={"layer": copies.renamed(ask.layer)}))
    return group.model_copy(
        update={
            "makers": tuple(sorted(makers, key=copies.order.__getitem__)),
            "carriers": dict(sorted(carriers.items(), key=lambda one: copies.order[one[0]])),
            "followers": in_order(followers, copies.order),
            "asks": in_order(asks, copies.order),
        }
    )


def _kept(weight: Weight, copies: Copies) -> Weight:
    return weight.model_copy(update={"axes": tuple(_moved(axis, weight.layers, copies) for axis in weight.axes)})


def _moved(placed: _Placed, layers: tuple[str, ...], copies: Copies) -> _Placed:
    """Return it with the new input of a layer that existed before."""
    if placed.at in layers or placed.at not in copies.rewired:
        return placed
    return placed.model_copy(update={"at": copies.rewired[placed.at]})


def _copied(placed: _Placed, layers: tuple[str, ...], copies: Copies) -> _Placed:
    """Return it with the input of the copy of its layer, or with the copy itself."""
    at = copies.renamed(placed.at) if placed.at in layers else copies.read(placed.at)
    return placed.model_copy(update={"at": at})


class AddBlock(GrowthOperation):
    """Targets are the runs of blocks of the description."""

    name = "AddBlock"
    verb = "add a block to"
    participle = "extended"
    target_is = "run of blocks"
    targets_are = "runs of blocks"
    inserts = True
    sizes = ("blocks added", "parameters that the next growth adds", "layers that the next growth adds")
    summary = "Another whole residual block in a run of equal ones. The shipped policy never chooses it."
    bound = 16
    # With `insertion: Scaled` a growth doubles the run, which is exponential.

    def targets(self, architecture: Architecture) -> tuple[str, ...]:
        """Return the ids of the runs."""
        return tuple(point.id for point in architecture.blocks or ())

    def grown(self, architecture: Architecture, target: str, width: int | None = None) -> Architecture:
        """Return `block_added`."""
        return block_added(architecture, target)

    def seen(self, architecture: Architecture) -> tuple[Target, ...]:
        """Return the layers that the next growth of each run copies, and its sizes."""
        found = []
        for point in architecture.blocks or ():
            copied = [layer for layer in architecture.layers if owner_of(layer.name, point.copied)]
            sizes = (point.grown, sum(layer.parameters for layer in copied), len(copied))
            found.append(Target(tuple(layer.name for layer in copied), sizes))
        return tuple(found)

    def is_described(self, architecture: Architecture) -> bool:
        """Return whether runs of blocks were searched for."""
        return architecture.blocks is not None


ADD_BLOCK: Final = AddBlock()


def owner_of(layer: str, blocks: tuple[str, ...]) -> str | None:
    """Return the path of the block that a layer belongs to; None for any other layer."""
    return next((block for block in blocks if layer == block or layer.startswith((f"{block}.", f"{block}:"))), None)


def block_added(architecture: Architecture, point_id: str) -> Architecture:
    """Return the description after one growth of a run; raise `GrowthError` if there is no such run, or it is cut.

    The inputs of copied layers follow those of their originals: another copied layer, the output of the run where the
    first original reads the run's input, or the same layer outside (a mask).
    """
    point = architecture.block_point(point_id)
    new = {block: f"{point.stem}{point.number + place}" for place, block in enumerate(point.copied)}

    def renamed(name: str) -> str:
        owner = owner_of(name, point.copied)
        return name if owner is None else new[owner] + name[len(owner) :]

    order = {layer.name: place for place, layer in enumerate(architecture.layers)}
    rewired = dict(zip(point.gives, map(renamed, point.gives), strict=True))
    bounds = [-1, *(order[name] for name in point.gives)]
    layers: list[Layer] = []
    waiting: dict[str, list[Layer]] = {}
    for call, (read, given) in enumerate(zip(point.reads, point.gives, strict=True)):
        inside = architecture.layers[bounds[call] + 1 : bounds[call + 1] + 1]
        waiting[given] = [
            layer.model_copy(
                update={
                    "name": renamed(layer.name),
                    "inputs": tuple(given if name == read else renamed(name) for name in layer.inputs),
                }
            )
            for layer in inside
            if owner_of(layer.name, point.copied)
        ]
        if not waiting[given]:
            raise GrowthError(f"{point_id!r}: no layer of {', '.join(point.copied)} comes before its output {given!r}")
    for layer in architecture.layers:
        inputs = tuple(rewired.get(name, name) for name in layer.inputs)
        layers.append(layer if inputs == layer.inputs else layer.model_copy(update={"inputs": inputs}))
        layers.extend(waiting.get(layer.name, ()))
    channels = architecture.channels
    if channels is not None:
        handed = dict(zip(point.reads, point.gives, strict=True))
        copies = Copies(
            owned=frozenset(layer.name for layer in architecture.layers if owner_of(layer.name, point.copied)),
            renamed=renamed,
            read=lambda name: handed[name] if name in handed else renamed(name),
            rewired=rewired,
            order={layer.name: place for place, layer in enumerate(layers)},
        )
        channels = continued(channels, copies)
    return Architecture(
        layers=tuple(layers),
        outputs=tuple(rewired.get(name, name) for name in architecture.outputs),
        growth_points=architecture.growth_points,
        channels=channels,
        blocks=tuple(_after(other, point, new, rewired) for other in architecture.blocks or ()),
        targets=architecture.targets,
    )


def _after(run: BlockPoint, grown: BlockPoint, new: dict[str, str], rewired: dict[str, str]) -> BlockPoint:
    """Return a run of blocks after the run `grown` got the blocks `new`."""
    if run.id != grown.id:
        # Another run reads the output of the last new block; its own output does not change.
        return run.model_copy(update={"reads": tuple(rewired.get(name, name) for name in run.reads)})
    update: dict[str, object] = {
        "gives": tuple(rewired[name] for name in run.gives),
        "number": run.number + len(new),
        "grown": run.grown + len(new),
    }
    if run.whole:
        # A later call of the run reads the output of the call before it.
        reads = tuple(rewired.get(name, name) for name in run.reads)
        update |= {"copied": (*run.copied, *new.values()), "reads": reads}
    else:
        update |= {"copied": tuple(new.values()), "reads": run.gives}
    return run.model_copy(update=update)
