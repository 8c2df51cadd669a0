"""Deepening as groups of channels see it: a group is cut in two where new layers stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from espalier_core.growth.channel_groups import ChannelGroup, Channels, Weight, in_order


def inserted(
    channels: Channels, block: Channels, after: str, output: str, inputs: Mapping[str, tuple[str, ...]]
) -> Channels:
    """Return the channels of a network when a block stands after the output of layer `after`.

    `block` is that of the new layers, under their final names; its group `""` has the channels that they read.
    `output` is the last of them, which is read now by what read `after`; `inputs` says what each layer of the
    whole reads then. A group keeps what still hangs together with its first layer: the block makes channels of its
    own for what comes after, unless another way (an addition) leads around it.
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
    """Return the group with all that the block's layers make and read, as if it all hung together."""
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
    """Return the carriers that have to have as many channels as the group's first layer."""
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
    for name in waiting:  # grows while it is read
        waiting += sorted(near[name] - found)
        found |= near[name]
    return found
