"""The block that repeats a layer: of what kind and size, so that it fits behind the layer's activation."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from espalier_trainer.net2net.graph import Operation
from espalier_trainer.net2net.insertion import Block, Norm


def block_like(
    module: nn.Module, layer: Operation, activation: Operation, activation_first: bool, norm: Norm | None
) -> Block:
    """Return what one insertion behind `layer` consists of."""
    attributes = tuple(sorted(activation.attributes.items()))
    if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        channels = int(str(layer.attributes["out_features"]))
        return Block("Linear", channels, activation.operator, attributes, activation_first, norm=norm)
    block = Block(
        operator=layer.operator,
        channels=module.out_channels,
        activation=activation.operator,
        activation_attributes=attributes,
        activation_first=activation_first,
        kernel_size=tuple(module.kernel_size),
        dilation=tuple(module.dilation),
        # A depthwise convolution stays one where it multiplies its channels; other groups divide the output anyway.
        groups=module.out_channels if module.groups == module.in_channels > 1 else module.groups,
        padding_mode=module.padding_mode,
        norm=norm,
    )
    return block if _fits(block, (layer.shape or ())[2:]) else replace(block, padding_mode="zeros")


def _fits(block: Block, size: tuple[int, ...]) -> bool:
    """Tell whether the padding can be read out of a map of this size."""
    room = {"reflect": 1, "circular": 0}.get(block.padding_mode)
    return room is None or all(max(sides) + room <= side for sides, side in zip(block.sides, size, strict=True))
