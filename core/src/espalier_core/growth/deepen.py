"""More layers: one growth adds a layer, with its companions, at a growth point (Net2DeeperNet)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from espalier_core.growth.architecture import Architecture, Layer
from espalier_core.growth.block import owner_of
from espalier_core.growth.channel_groups import inserted
from espalier_core.growth.operation import GrowthOperation, Target


class Deepen(GrowthOperation):
    """Targets are the growth points of the description."""

    name = "Deepen"
    verb = "deepen"
    participle = "deepened"
    target_is = "growth point"
    targets_are = "growth points"
    sizes = ("layers added", "parameters that the next growth adds")
    summary = "Another layer at a growth point."

    def targets(self, architecture: Architecture) -> tuple[str, ...]:
        """Return the ids of the growth points."""
        return tuple(point.id for point in architecture.growth_points)

    def grown(self, architecture: Architecture, target: str, width: int | None = None) -> Architecture:
        """Return `deepened`."""
        return deepened(architecture, target)

    def seen(self, architecture: Architecture) -> tuple[Target, ...]:
        """Return the layer that each point follows, and its sizes."""
        return tuple(
            Target((point.after,), (point.grown, sum(layer.parameters for layer in point.insertion)))
            for point in architecture.growth_points
        )

    def is_described(self, architecture: Architecture) -> bool:
        """Return True: growth points are part of every description."""
        return True


DEEPEN: Final = Deepen()


def deepened(architecture: Architecture, point_id: str) -> Architecture:
    """Return the description after one growth at `point_id`; raise `GrowthError` if there is no such point."""
    point = architecture.growth_point(point_id)
    prefix = f"{point.block}.{point.grown}."

    def absolute(relative: str) -> str:
        return prefix + relative if relative else point.after

    added = tuple(
        layer.model_copy(update={"name": prefix + layer.name, "inputs": tuple(absolute(name) for name in layer.inputs)})
        for layer in point.insertion
    )
    output = added[-1].name

    def rewired(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(output if name == point.after else name for name in names)

    layers: list[Layer] = []
    for layer in architecture.layers:
        inputs = rewired(layer.inputs)
        layers.append(layer if inputs == layer.inputs else layer.model_copy(update={"inputs": inputs}))
        if layer.name == point.after:
            layers.extend(added)
    points = []
    for other in architecture.growth_points:
        update: dict[str, object] = {}
        if other.id == point_id:
            update["grown"] = other.grown + 1
        if other.after == point.after:
            update["after"] = output
        points.append(other.model_copy(update=update) if update else other)
    outputs = rewired(architecture.outputs)
    blocks = architecture.blocks and tuple(
        run.model_copy(update={"reads": rewired(run.reads)})
        for run in architecture.blocks
        if not _returned(output, owner_of(output, run.copied), layers, outputs)
    )
    channels = None
    if architecture.channels is not None and point.channels is not None:
        reads = {layer.name: layer.inputs for layer in layers}
        channels = inserted(architecture.channels, point.channels.renamed(absolute), point.after, output, reads)
    return Architecture(
        layers=tuple(layers),
        outputs=outputs,
        growth_points=tuple(points),
        channels=channels,
        blocks=blocks,
        targets=architecture.targets,
    )


def _returned(name: str, block: str | None, layers: Sequence[Layer], outputs: Sequence[str]) -> bool:
    """Return whether a block returns a new layer: then the block is no longer a sum, and its run has ended."""
    if block is None:
        return False
    return name in outputs or any(name in layer.inputs and owner_of(layer.name, (block,)) is None for layer in layers)
