"""One inserted block: its layers, its construction, and the values that make it an identity.

With `f` the activation, `W` the new layer and `x` the output of the host module:

- `f` idempotent (f(f(x)) = f(x)): `x = f(z)` becomes `f(W x)`, W the identity (Net2Net's insertion);
- `f` not idempotent: `x` becomes `x + f(W x)`, W zero; needs f(0) = 0.

Where the activation is not a separate module (`F.relu` in a forward, a ReLU shared by several layers), the block is
inserted at its *input* `z`, before the existing activation: `z` becomes `W f(z)`, or `z + W f(z)`. The sequence of
layers is the same as above. All four forms are exact in eval and in train mode.

An inserted convolution looks to the same sides as the one that it repeats. A convolution with `before` and `after`
entries of padding (its own, or from pads before it) and kernel extent `before + after` looks that far back and ahead.
The inserted one gets the same sides, with the identity at the tap between them: after a causal convolution (padded on
one side) it is causal, too.

Sources of the values: Chen, Goodfellow, Shlens, "Net2Net" (2016), section 2.3 (identity layers); Lamelas section 4.3
(identity batch norm). They are written in place, into tensors of any floating type and device.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor, nn

from espalier_core.growth.architecture import AttributeValue, Layer
from espalier_core.types.job import Insertion
from espalier_trainer.net2net.blocks import InsertedBlock, InsertedResidual
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.operators import IDEMPOTENT
from espalier_trainer.net2net.trace.tracing import trace

SLOPE_AT_ZERO: Mapping[str, str] = {"LeakyReLU": "negative_slope", "ELU": "alpha"}
"""Setting that gives an activation's slope at 0 (torch uses the slope from the left); with 0 it is a ReLU."""

_PRELU_SLOPE = 0.25
"""torch's initial slope of a PReLU."""


@dataclass(frozen=True, slots=True)
class Norm:
    """The batch norm of a block."""

    operator: str
    eps: float
    momentum: float | None


@dataclass(frozen=True, slots=True)
class DeepeningBlock:
    """The composition of one insertion; equal blocks are built identically."""

    operator: str
    """`Linear`, `Conv1d`, `Conv2d` or `Conv3d`."""
    channels: int
    """Features or channels, in and out."""
    activation: str
    activation_attributes: tuple[tuple[str, AttributeValue], ...] = ()
    activation_first: bool = False
    """Whether the host's output is the activation's input."""
    kernel_size: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    taps: tuple[int, ...] = ()
    """Index of the kernel's tap that carries the identity, per spatial dimension."""
    groups: int = 1
    padding_mode: str = "zeros"
    norm: Norm | None = None
    """Batch norm after the new layer, `None` for the exact insertion."""

    @property
    def residual(self) -> bool:
        """Return whether the new layers are a branch in addition to the identity."""
        return self.activation not in IDEMPOTENT

    @property
    def sides(self) -> tuple[tuple[int, int], ...]:
        """Padding before and after, per spatial dimension."""
        return tuple(map(padding_sides, self.kernel_size, self.dilation, self.taps))

    def widened(self, channels: int) -> DeepeningBlock:
        """Return the block for `channels` channels: a depthwise convolution stays one."""
        return replace(self, channels=channels, groups=channels if self.groups == self.channels > 1 else self.groups)

    @property
    def pointwise(self) -> bool:
        """Return whether the block mixes channels only, not positions."""
        return all(size == 1 for size in self.kernel_size)

    def without_neighbours(self) -> DeepeningBlock:
        """Return the pointwise block, which reads no neighbouring positions; this one if it is pointwise already."""
        if self.pointwise:
            return self
        ones = (1,) * len(self.kernel_size)
        return replace(self, kernel_size=ones, dilation=ones, taps=(0,) * len(ones), padding_mode="zeros")

    def variant(self, insertion: Insertion) -> DeepeningBlock:
        """Return the block for this insertion: the exact one has no batch norm."""
        return self if Insertion(insertion).normed else replace(self, norm=None)


def block_like(
    module: nn.Module, graph: Graph, layer: Operation, activation: Operation, activation_first: bool, norm: Norm | None
) -> DeepeningBlock:
    """Return the block of one insertion after `layer` of a traced model."""
    attributes = tuple(sorted(activation.attributes.items()))
    if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return DeepeningBlock(
            "Linear", (layer.shape or ())[-1], activation.operator, attributes, activation_first, norm=norm
        )
    block = DeepeningBlock(
        operator=layer.operator,
        channels=module.out_channels,
        activation=activation.operator,
        activation_attributes=attributes,
        activation_first=activation_first,
        kernel_size=tuple(module.kernel_size),
        dilation=tuple(module.dilation),
        taps=taps_of(graph, layer, module),
        # A depthwise convolution stays one where it multiplies its channels; other groups divide the output anyway.
        groups=module.out_channels if module.groups == module.in_channels > 1 else module.groups,
        padding_mode=module.padding_mode,
        norm=norm,
    )
    return block if _fits(block, (layer.shape or ())[2:]) else replace(block, padding_mode="zeros")


def _fits(block: DeepeningBlock, size: tuple[int, ...]) -> bool:
    """Return whether a map of this size is large enough for the padding mode."""
    room = {"reflect": 1, "circular": 0}.get(block.padding_mode)
    return room is None or all(max(sides) + room <= side for sides, side in zip(block.sides, size, strict=True))


def is_pointwise(inserted: Iterable[Layer]) -> bool:
    """Return whether an insertion mixes channels only; a linear layer always does."""
    sizes = [layer.attributes.get("kernel_size", (1,)) for layer in inserted]
    return all(isinstance(size, tuple) and set(size) == {1} for size in sizes)


def build(block: DeepeningBlock, like: Tensor | None = None) -> nn.Module:
    """Return the new layers with identity values, on `like`'s device and with its floating type and layout.

    Without `like` they are on the meta device, which has no values.
    """
    layers = _layers(block)
    module = InsertedResidual(layers) if block.residual else InsertedBlock(layers)
    if like is not None:
        module = module.to(dtype=like.dtype).to_empty(device=like.device)
        initialise(module, block)
        layout = _layout(like)
        if layout is not None:
            module = module.to(memory_format=layout)
    return module


def _layout(kernel: Tensor) -> torch.memory_format | None:
    """Return the channels-last layout of a kernel that has it; None for 1×1 kernels, where layouts do not differ."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(kernel.dim())
    if layout is None or kernel.is_contiguous() or not kernel.is_contiguous(memory_format=layout):
        return None
    return layout


@torch.no_grad()
def initialise(module: nn.Module, block: DeepeningBlock) -> None:
    """Set every parameter and buffer of a built block to the values that make it an identity."""
    for layer in module.children():
        if isinstance(layer, nn.PReLU):
            layer.weight.fill_(_PRELU_SLOPE)
        elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.reset_running_stats()
            layer.bias.zero_()
            if block.residual:
                layer.weight.zero_()
            else:
                identity_scale_(layer.weight, cast(Tensor, layer.running_var), layer.eps)
        elif isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            if layer.bias is not None:
                layer.bias.zero_()
            # With a batch norm the branch is closed by its gamma, and the layer after it may start open.
            if block.residual and block.norm is None:
                layer.weight.zero_()
            elif isinstance(layer, nn.Linear):
                identity_matrix_(layer.weight)
            else:
                identity_kernel_(layer.weight, block.taps)


@lru_cache(maxsize=1024)
def insertion_layers(block: DeepeningBlock) -> tuple[Layer, ...]:
    """Return the description of a built block; names and inputs are relative to it, and `""` is its input."""
    size = tuple(max(1, 2 * (before + after)) for before, after in block.sides)
    shape = (2, block.channels, *size) if size else (2, block.channels)
    graph = trace(build(block), torch.empty(shape, device="meta"))
    return relative_layers(graph, "input")


def relative_layers(graph: Graph, given: str) -> tuple[Layer, ...]:
    """Return the layers of a traced block; the input `given` is named `""`."""
    return tuple(
        layer.model_copy(update={"inputs": tuple("" if name == given else name for name in layer.inputs)})
        for layer in graph.layers()
        if layer.name != given
    )


def _layers(block: DeepeningBlock) -> OrderedDict[str, nn.Module]:
    """Return the block's modules on the meta device: building draws no random numbers and allocates nothing."""
    with torch.device("meta"):
        activation = cast(nn.Module, getattr(nn, block.activation)(**dict(block.activation_attributes)))
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if block.operator == "Linear":
            layers["linear"] = nn.Linear(block.channels, block.channels, bias=block.norm is None)
        else:
            layers |= _convolution(block)
        if block.norm is not None:
            layers["norm"] = getattr(nn, block.norm.operator)(
                block.channels, eps=block.norm.eps, momentum=block.norm.momentum
            )
    layers["activation"] = activation
    layers.move_to_end("activation", last=not block.activation_first)
    return layers


_PADS: Mapping[str, str] = {
    "zeros": "ZeroPad",
    "reflect": "ReflectionPad",
    "replicate": "ReplicationPad",
    "circular": "CircularPad",
}


def _convolution(block: DeepeningBlock) -> OrderedDict[str, nn.Module]:
    dimensions = len(block.kernel_size)
    even = any(before != after for before, after in block.sides)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if even:
        # No symmetric padding keeps the size; an own padding also spares `padding="same"` its warning.
        flat = [side for pair in reversed(block.sides) for side in pair]
        layers["pad"] = getattr(nn, f"{_PADS[block.padding_mode]}{dimensions}d")(tuple(flat))
    layers["conv"] = getattr(nn, block.operator)(
        block.channels,
        block.channels,
        block.kernel_size,
        padding=0 if even else tuple(before for before, _ in block.sides),
        dilation=block.dilation,
        groups=block.groups,
        bias=block.norm is None,
        padding_mode="zeros" if even else block.padding_mode,
    )
    return layers


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

_PAD_OPERATORS = re.compile(r"Pad|(?:Zero|Constant|Reflection|Replication|Circular)Pad[123]d")


def taps_of(graph: Graph, layer: Operation, module: Convolution) -> tuple[int, ...]:
    """Return, per spatial axis, the kernel's tap that carries the identity, given a layer and the pads of its input."""
    sides = _own_padding(module)
    name = layer.inputs[0]
    while name in graph.operations and _PAD_OPERATORS.fullmatch(graph.operations[name].operator):
        pad = graph.operations[name]
        sides = [
            (one + before, other + after)
            for (one, other), (before, after) in zip(sides, _pads(pad, len(sides)), strict=True)
        ]
        if not pad.inputs:
            break
        name = pad.inputs[0]
    return tuple(
        _tap(before, after, size, dilation)
        for (before, after), size, dilation in zip(sides, module.kernel_size, module.dilation, strict=True)
    )


def _tap(before: int, after: int, size: int, dilation: int) -> int:
    extent = dilation * (size - 1)
    if before == after or before < 0 or after < 0:
        return tap_index(size)
    if before + after == extent:
        return -(-before // dilation)
    if before == 0:
        return 0
    return size - 1 if after == 0 else tap_index(size)


def _own_padding(module: Convolution) -> list[tuple[int, int]]:
    if module.padding == "same":
        extents = [dilation * (size - 1) for size, dilation in zip(module.kernel_size, module.dilation, strict=True)]
        # Even kernels: torch pads one more at the end, as the inserted ones do.
        return [(extent // 2, extent - extent // 2) for extent in extents]
    if isinstance(module.padding, str):
        return [(0, 0) for _ in module.kernel_size]
    return [(side, side) for side in module.padding]


def _pads(pad: Operation, axes: int) -> list[tuple[int, int]]:
    """Return a pad's padding before and after each of the last axes; torch lists the last axis first."""
    attributes: Mapping[str, object] = pad.attributes
    given = attributes.get("padding", attributes.get("pad", attributes.get("arg1", ())))
    flat = [given] * 2 * axes if isinstance(given, int) else list(given) if isinstance(given, tuple) else []
    pairs = list(zip(flat[::2], flat[1::2], strict=False))[:axes]
    pairs += [(0, 0)] * (axes - len(pairs))
    return pairs[::-1]


def tap_index(kernel_size: int) -> int:
    """Return the index of the kernel's tap that carries the identity: the centre, or left of it in an even kernel."""
    return (kernel_size - 1) // 2


def padding_sides(kernel_size: int, dilation: int, tap: int) -> tuple[int, int]:
    """Return the padding before and after at which, with stride 1, tap `tap` is aligned with the output."""
    return dilation * tap, dilation * (kernel_size - 1 - tap)


@torch.no_grad()
def identity_matrix_(weight: Tensor) -> None:
    """Make a square weight (features, features) the identity matrix."""
    weight.zero_()
    weight.fill_diagonal_(1)


@torch.no_grad()
def identity_kernel_(weight: Tensor, taps: tuple[int, ...]) -> None:
    """Make a kernel (channels, channels / groups, *size) return its input, within each group of channels."""
    channels, in_group = weight.shape[:2]
    weight.zero_()
    output = torch.arange(channels, device=weight.device)
    weight[(output, output % in_group, *(torch.full_like(output, tap) for tap in taps))] = 1


@torch.no_grad()
def identity_scale_(gamma: Tensor, variance: Tensor, eps: float) -> None:
    """Set a batch norm's gamma to sqrt(variance + eps), the exact divisor of the batch norm.

    The published identity batch norm (gamma = variance = 1) divides by sqrt(1 + eps) and is wrong by eps / 2, 5e-6 of
    the value at torch's default.
    """
    gamma.copy_(torch.sqrt(variance.double() + eps))


def channel_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance (both float64, per channel) of (batch, channels, *size) activations."""
    dims = [0, *range(2, values.dim())]
    variance, mean = torch.var_mean(values.double(), dim=dims, correction=0)
    return mean, variance
