"""What becomes of groups of channels when a run of blocks gets copies of some of its blocks.

A group that has channels outside the copied blocks, too (those of the residual stream, of a memory that they read),
also has those of the copies. A group within one block has no counterpart: like layers that growth inserts, copies bring
no separate groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from espalier_core.growth.channel_groups import Ask, Axis, ChannelGroup, Channels, Follower, Weight, in_order

_Placed = TypeVar("_Placed", Follower, Ask, Axis)


@dataclass(frozen=True, slots=True)
class Copies:
    """Which layers are copied, and how layers are named and connected afterwards."""

    owned: frozenset[str]
    """Layers of the copied blocks."""
    renamed: Callable[[str], str]
    """The copy of a layer; any other layer itself."""
    read: Callable[[str], str]
    """What a copy reads instead of what its original reads."""
    rewired: Mapping[str, str]
    """What layers that were there before read instead of the output of the run."""
    order: Mapping[str, int]
    """Places of all layers afterwards."""


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
        # Of one layer the weight before the bias, as in a module.
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
    """Return it with what a layer that was there before reads now."""
    if placed.at in layers or placed.at not in copies.rewired:
        return placed
    return placed.model_copy(update={"at": copies.rewired[placed.at]})


def _copied(placed: _Placed, layers: tuple[str, ...], copies: Copies) -> _Placed:
    """Return it with what the copy of its layer reads, or with the copy itself."""
    at = copies.renamed(placed.at) if placed.at in layers else copies.read(placed.at)
    return placed.model_copy(update={"at": at})
