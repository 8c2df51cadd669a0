"""Where an inserted convolution looks: to the sides to which the one that it repeats was padded.

A convolution with `before` and `after` entries of padding (its own, or of pads before it) and kernel extent
`before + after` looks that far back and ahead. The inserted one gets the same sides, and its identity the tap between
them: after a causal convolution (padded on one side) it is causal, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import nn

from espalier_trainer.net2net.deepening.identity import tap_index
from espalier_trainer.net2net.trace.graph import Graph, Operation

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d

_PADS = re.compile(r"Pad|(?:Zero|Constant|Reflection|Replication|Circular)Pad[123]d")


def taps_of(graph: Graph, layer: Operation, module: Convolution) -> tuple[int, ...]:
    """Return for each spatial axis the kernel's tap that carries the identity, for a layer and what pads its input."""
    sides = _own_padding(module)
    name = layer.inputs[0]
    while name in graph.operations and _PADS.fullmatch(graph.operations[name].operator):
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
    """Return what a pad adds before and after each of the last axes; torch lists the last axis first."""
    attributes: Mapping[str, object] = pad.attributes
    given = attributes.get("padding", attributes.get("pad", attributes.get("arg1", ())))
    flat = [given] * 2 * axes if isinstance(given, int) else list(given) if isinstance(given, tuple) else []
    pairs = list(zip(flat[::2], flat[1::2], strict=False))[:axes]
    pairs += [(0, 0)] * (axes - len(pairs))
    return pairs[::-1]
