"""Larger kernels of the same function: new taps of weight 0 around the old ones, and as much more padding.

With `k' = k + 2m` taps and `d*m` more padding on either side (d the dilation), tap `j + m` of the larger kernel reads
what tap `j` of the old one read, at every output position and for every stride; new taps are 0 and get a gradient in
the first step. Source: Wei, Wang, Rui, Chen, "Network Morphism" (2016), which calls it kernel size morphing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrize import is_parametrized

from espalier_api.architecture import GrowthError
from espalier_trainer.net2net.deepening.conditions import tied_weights
from espalier_trainer.net2net.modules import ExampleInput, copied
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.tracing import trace

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def grow_kernel(
    model: nn.Module, layer_id: str, new_size: int | Sequence[int], example_input: ExampleInput
) -> nn.Module:
    """Return a copy of `model` in which one convolution has a kernel of `new_size` taps; `model` is not changed.

    `layer_id` is the convolution's path, `new_size` one number for all spatial dimensions or one for each. A weight
    `(out, in / groups, 3, 3)` becomes `(out, in / groups, 5, 5)`, a padding of 1 becomes 2, `"same"` stays `"same"`.
    The copy computes the same in eval and in train mode, old parameters get the same gradients and keep their names;
    give the optimizer to `grow_optimizer`.

    Raises `GrowthError`, naming the layer and the reason: no convolution of the model, a size that is not larger by
    an even number, a padding mode other than zeros, a weight that is tied, parametrized or read elsewhere in the
    forward, a forward that then does something else.
    """
    graph = trace(model, example_input)
    convolution = _convolution(model, layer_id, graph)
    size = _size(convolution, layer_id, new_size)
    grown = copied(model)
    _resize(cast(nn.modules.conv._ConvNd, grown.get_submodule(layer_id)), size)
    _check_same(graph, grown, layer_id, example_input)
    return grown


def centred(values: Tensor, size: Sequence[int], fill: Tensor | None = None) -> Tensor:
    """Return `values`, whose last dimensions are a kernel, in the middle of a kernel of `size`.

    New taps are 0, or `fill`, of the shape of `values` with 1 for each kernel dimension. The layout in memory stays.
    """
    old = values.shape[-len(size) :]
    margin = [(new - before) // 2 for new, before in zip(size, old, strict=True)]
    sides = [side for one in reversed(margin) for side in (one, one)]
    result = functional.pad(values, sides)
    if fill is not None:
        new_taps = functional.pad(torch.zeros(old, device=values.device), sides, value=1.0).bool()
        result = torch.where(new_taps, fill.to(result.dtype), result)
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(values.dim())
    if layout is not None and not values.is_contiguous() and values.is_contiguous(memory_format=layout):
        return result.contiguous(memory_format=layout)
    return result.contiguous()


def _convolution(model: nn.Module, path: str, graph: Graph) -> nn.modules.conv._ConvNd:
    modules = dict(model.named_modules())
    module = modules.get(path)
    refused = f"the kernel of {path!r} cannot grow: "
    if not isinstance(module, _CONVOLUTIONS):
        known = ", ".join(name for name, one in modules.items() if isinstance(one, _CONVOLUTIONS)) or "none"
        found = "there is no such module" if module is None else f"it is {type(module).__name__}"
        raise GrowthError(f"{refused}{found}, expected a Conv1d, Conv2d or Conv3d; the model's convolutions: {known}")
    if not graph.calls.get(path):
        raise GrowthError(f"{refused}it is not called by itself in the model's forward")
    if is_parametrized(module) or "weight" not in module._parameters:
        raise GrowthError(
            f"{refused}its weight is parametrized (weight or spectral norm); remove the parametrization before growth"
        )
    tied = tied_weights(model).get(path)
    if tied is not None:
        raise GrowthError(f"{refused}it shares a parameter with {tied!r}; untie them before growth")
    if module.padding_mode != "zeros":
        raise GrowthError(
            f"{refused}it pads by {module.padding_mode!r}, which reads more of the map the wider the padding and "
            "fails on small ones; use padding_mode='zeros'"
        )
    if f"{path}.weight" in graph.operations:
        reader = graph.consumers[f"{path}.weight"][0]
        raise GrowthError(f"{refused}its weight is also read by {reader!r}; give that a parameter of its own")
    return module


def _size(module: nn.modules.conv._ConvNd, path: str, new_size: int | Sequence[int]) -> tuple[int, ...]:
    old = tuple(module.kernel_size)
    size = (new_size,) * len(old) if isinstance(new_size, int) else tuple(new_size)
    if (
        len(size) != len(old)
        or size == old
        or any(new < before or (new - before) % 2 for new, before in zip(size, old, strict=True))
    ):
        raise GrowthError(
            f"the kernel of {path!r} has size {old} and cannot become {size}; give {len(old)} sizes, each the old "
            "one or larger by an even number, so that the old taps stay in the middle"
        )
    return size


@torch.no_grad()
def _resize(module: nn.modules.conv._ConvNd, size: tuple[int, ...]) -> None:
    more = [
        (new - old) // 2 * dilation
        for new, old, dilation in zip(size, module.kernel_size, module.dilation, strict=True)
    ]
    weight = module.weight
    module.weight = nn.Parameter(centred(weight, size), weight.requires_grad)
    module.kernel_size = size
    if module.padding == "same":
        return  # (k - 1) * d in all, half of it before: both halves grow by m * d
    before = (0,) * len(size) if isinstance(module.padding, str) else module.padding
    padding = tuple(one + added for one, added in zip(before, more, strict=True))
    module.padding = padding
    module._reversed_padding_repeated_twice = [side for side in reversed(padding) for _ in range(2)]


def _check_same(before: Graph, grown: nn.Module, path: str, example_input: ExampleInput) -> None:
    """Raise `GrowthError` unless the grown model executes what it did before, on tensors of the same shapes."""

    def plain(operation: Operation) -> Operation:
        return replace(operation, attributes={}, parameters=0) if operation.module == path else operation

    problem = "does something else with a larger kernel there; let it not depend on the kernel's size or padding"
    try:
        after = trace(grown, example_input)
    except GrowthError as error:
        raise GrowthError(f"the kernel of {path!r} cannot grow: the model's forward {problem} ({error})") from error
    if list(map(plain, before.operations.values())) != list(map(plain, after.operations.values())):
        raise GrowthError(f"the kernel of {path!r} cannot grow: the model's forward {problem}")
