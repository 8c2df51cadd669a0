"""More channels: one growth widens a group of layers whose channels can only change together (Net2WiderNet)."""

from __future__ import annotations

from typing import Final

from espalier_core.growth.architecture import Architecture, AttributeValue, GrowthError, GrowthPoint, Layer
from espalier_core.growth.channel_groups import Changes
from espalier_core.growth.operation import GrowthOperation, Target


class Widen(GrowthOperation):
    """Targets are the groups of channels of the description; an action may name a width, and doubles without one."""

    name = "Widen"
    verb = "widen"
    participle = "widened"
    target_is = "group of channels"
    targets_are = "groups of channels"
    summary = "Twice the channels in a group of layers. The shipped policy never chooses it."
    sized = True
    sizes = ("channels", "multiple of", "parameters that doubling adds", "layers that make the channels")
    bound = 16
    # Doubling is exponential: without a bound a few groups, doubled a few times, would fill any device.

    def targets(self, architecture: Architecture) -> tuple[str, ...]:
        """Return the ids of the groups."""
        return tuple(group.id for group in architecture.channel_groups)

    def grown(self, architecture: Architecture, target: str, width: int | None = None) -> Architecture:
        """Return `widened`, to twice the channels if no width is given."""
        return widened(architecture, target, self.new_width(architecture, target, width))

    def seen(self, architecture: Architecture) -> tuple[Target, ...]:
        """Return the layers that carry the channels of each group, and its sizes."""
        found = []
        for group in architecture.channel_groups:
            channels = architecture.channels
            added = {} if channels is None else channels.widened({group.id: group.width})[1].parameters
            sizes = (group.width, group.multiple_of, sum(added.values()), len(group.makers))
            found.append(Target(tuple(group.carriers), sizes))
        return tuple(found)

    def is_described(self, architecture: Architecture) -> bool:
        """Return whether groups of channels were searched for."""
        return architecture.channels is not None

    def width(self, architecture: Architecture, target: str) -> int | None:
        """Return the number of channels of the group."""
        return architecture.channel_group(target).width

    def takes(self, architecture: Architecture, target: str, width: int) -> bool:
        """Return whether the group can be widened to `width`."""
        return architecture.channel_group(target).accepts(width)

    def new_width(self, architecture: Architecture, target: str, width: int | None) -> int:
        """Return `width`, or twice the channels of the group; raise `GrowthError` if there is no such group."""
        now = architecture.channel_group(target).width
        return 2 * now if width is None else width


WIDEN: Final = Widen()


def widened(architecture: Architecture, group_id: str, width: int) -> Architecture:
    """Return the description with `width` channels in a group.

    Raise `GrowthError` if there is no such group, or if it cannot have this width.
    """
    group = architecture.channel_group(group_id)
    if architecture.channels is None or not group.accepts(width):
        raise GrowthError(
            f"{group_id!r} has {group.width} channels and cannot be widened to {width}; "
            f"give a multiple of {group.multiple_of} above {group.width}"
        )
    more = width - group.width
    channels, changes = architecture.channels.widened({group_id: more})
    return Architecture(
        layers=tuple(_changed(layer, changes) for layer in architecture.layers),
        outputs=architecture.outputs,
        growth_points=tuple(
            _widened_point(point, more * group.carriers.get(point.after, 0)) for point in architecture.growth_points
        ),
        channels=channels,
        blocks=architecture.blocks,
        targets=architecture.targets,
    )


def _widened_point(point: GrowthPoint, more: int) -> GrowthPoint:
    """Return the point after the output that its insertion reads gained `more` channels."""
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
    """Return an increased size: a number, or one entry of a shape."""
    if isinstance(value, tuple):
        return tuple(size + more if place == dim else size for place, size in enumerate(value))
    return value + more if isinstance(value, int) else value
