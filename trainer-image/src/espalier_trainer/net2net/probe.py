"""On which entries of the input an entry of the output depends: the gradient of one with respect to the others.

A gradient of exactly 0 is what masks and causal padding make. The probe keeps apart what a model may not look at from
what it happens not to look at: weights are perturbed but zeros among them stay zeros (a mask of weights), except in
tensors that are zero everywhere (a branch that has not learned yet); activations with flat parts have a slope; dropout
is off. Indices have no gradient: the vectors that they select (embeddings) stand for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from espalier_trainer.net2net import randomness
from espalier_trainer.net2net.modules import (
    ExampleInput,
    as_arguments,
    copied,
    held,
    in_type,
    mode,
    tensors_in,
    unwatched,
)

_DROPOUTS = frozenset(
    {
        *(functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d),
        *(functional.alpha_dropout, functional.feature_alpha_dropout),
    }
)
_FLAT = frozenset(
    {
        *(functional.relu, functional.relu6, functional.hardtanh, functional.hardsigmoid, functional.hardswish),
        *(torch.relu, torch.relu_, Tensor.relu, Tensor.relu_),
    }
)
_MEANS: Mapping[object, Callable[..., Any]] = {
    functional.max_pool1d: functional.avg_pool1d,
    functional.max_pool2d: functional.avg_pool2d,
    functional.max_pool3d: functional.avg_pool3d,
    functional.adaptive_max_pool1d: functional.adaptive_avg_pool1d,
    functional.adaptive_max_pool2d: functional.adaptive_avg_pool2d,
    functional.adaptive_max_pool3d: functional.adaptive_avg_pool3d,
}
"""Instead of a maximum, which has a gradient at one of its entries, the mean of the same entries."""
_FRACTIONS = (0.5, 0.25, 0.75, 0.125, 0.875)
"""Where along its axes the entries of an output are taken: enough to see whether a window moves with them."""
_MAX_OUTPUTS = 8
_NEGLIGIBLE = 1e-30
"""Relative size of a gradient that counts as none: that of a mask which adds -100 before a softmax."""


class WithoutDropout(TorchFunctionMode):
    """Within the context, dropout passes on what it reads, and random slopes (`nn.RReLU`) have their mean."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, unless it is dropout; attention is computed without its own."""
        given = dict(kwargs or {})
        if func in _DROPOUTS and args:
            return args[0].clone()
        if func is functional.rrelu and args:
            return _mean_slope(*args, **given)
        if func is functional.multi_head_attention_forward:
            given["training"] = False  # says only whether it drops
        elif func is functional.scaled_dot_product_attention:
            args, given = (*args[:4], *((0.0,) if len(args) > 4 else ()), *args[5:]), given | _undropped(given)
        return func(*args, **given)


def _mean_slope(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *_rest: object, **_other: object) -> Tensor:
    return functional.leaky_relu(input, (lower + upper) / 2)


def _undropped(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"dropout_p": 0.0} if "dropout_p" in given else {}


class _Watching(WithoutDropout):
    """Gives activations a slope everywhere, and makes what integers select a source of gradients."""

    def __init__(self, sources: list[Tensor], indices: list[Tensor]) -> None:
        super().__init__()
        self._sources = sources
        self._indices = indices  # kept alive: known by their ids
        self._known = {id(tensor) for tensor in indices}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _FLAT and args:
            return functional.leaky_relu(args[0], 0.3)
        if func in _MEANS and args and (mean := _mean(_MEANS[func], *args, **dict(kwargs or {}))) is not None:
            return mean
        result = super().__torch_function__(func, types, args, kwargs)
        if not isinstance(result, Tensor) or not self._known:
            return result
        if not any(id(one) in self._known for one in tensors_in((args, kwargs))):
            return result
        if not result.is_floating_point():
            self._indices.append(result)
            self._known.add(id(result))
        elif not result.requires_grad:
            self._sources.append(result.detach().requires_grad_())
            return self._sources[-1].clone()
        return result


def _mean(pool: Callable[..., Any], given: Tensor, size: object, *args: object, **kwargs: object) -> Tensor | None:
    """Return the means of the windows of a maximum pooling; None if they have gaps, or if the places are asked for."""
    names = ("stride", "padding", "dilation", "ceil_mode", "return_indices")
    asked = {**dict(zip(names, args, strict=False)), **kwargs}
    if "adaptive" in pool.__name__:
        return None if args or any(kwargs.values()) else cast(Tensor, pool(given, size))
    if asked.pop("return_indices", False) or asked.pop("dilation", 1) not in (1, (1,), (1, 1), (1, 1, 1)):
        return None
    return cast(Tensor, pool(given, size, **{name: value for name, value in asked.items() if value is not None}))


@dataclass(frozen=True)
class Sample:
    """One entry of an output, and for each source whether the entry depends on each of its entries."""

    output: int
    shape: tuple[int, ...]
    at: tuple[int, ...]
    depends: tuple[Tensor, ...]

    @property
    def complete(self) -> bool:
        """Return whether the entry depends on everything of each example that it depends on at all."""
        for seen in self.depends:
            rows = seen.flatten(1) if seen.dim() > 1 else seen[:, None]
            if not bool((rows.all(1) == rows.any(1)).all()):
                return False
        return True


def perturbed(model: nn.Module) -> nn.Module:
    """Return a copy in float64 with other weights, in which nothing depends on what it could not depend on before."""
    trial = in_type(copied(model), torch.float64).requires_grad_(False)
    seen: set[int] = set()
    for _, parameter in held(trial, "_parameters"):
        if id(parameter) not in seen and parameter.is_floating_point():
            seen.add(id(parameter))
            scatter(parameter, zeros=not bool(parameter.any()))
    return trial


@torch.no_grad()
def scatter(parameter: Tensor, *, zeros: bool) -> None:
    """Change every entry of a parameter at random, and with `zeros` those that are 0, too."""
    spread = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.1
    parameter.mul_(1 + 0.5 * torch.rand_like(parameter))
    if zeros:
        parameter.add_(torch.randn_like(parameter), alpha=spread)


def random_like(given: Tensor, dtype: torch.dtype) -> Tensor:
    """Return random values of this type instead of floating ones; others stay, for they may be indices."""
    if given.is_complex():
        dtype = dtype.to_complex()
    return torch.randn_like(given, dtype=dtype) if given.is_floating_point() or given.is_complex() else given


def samples(
    model: nn.Module, example_input: ExampleInput, *, training: bool, dtype: torch.dtype = torch.float64
) -> list[Sample]:
    """Return what some entries of each output depend on; empty where the model passes no gradient to its input.

    The model, a copy of type `dtype`, is used up: batch norms move. Raises whatever its forward does on random values.
    """
    unwatched(model)
    args, kwargs = as_arguments(example_input)
    sources: list[Tensor] = []
    indices = [one for one in tensors_in((args, kwargs)) if not one.is_floating_point()]

    def sourced(given: Tensor) -> Tensor:
        if not given.is_floating_point():
            return given
        sources.append(random_like(given, dtype).requires_grad_())
        return sources[-1].clone()

    randomness.seed_everything(2)
    with torch.enable_grad(), mode(model, training=training), torch.backends.cudnn.flags(enabled=False):
        args, kwargs = tree_map_only(Tensor, sourced, (args, kwargs))
        with _Watching(sources, indices):
            result = model(*args, **kwargs)
        outputs = [one for one in tensors_in(result) if one.requires_grad]
        order = sorted(range(len(outputs)), key=lambda index: -outputs[index].numel())[:_MAX_OUTPUTS]
        return [
            Sample(index, tuple(outputs[index].shape), at, _dependence(outputs[index][at], sources))
            for index in order
            for at in _places(tuple(outputs[index].shape))
        ]


def _places(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return indices of entries: of examples in turn, and at the same fraction of every other axis."""
    fractions = _FRACTIONS if len(shape) > 2 else _FRACTIONS[:3]
    places = [
        tuple(
            number % size if axis == 0 and len(shape) > 1 else int(fraction * size) for axis, size in enumerate(shape)
        )
        for number, fraction in enumerate(fractions)
    ]
    return list(dict.fromkeys(places))


def _dependence(entry: Tensor, sources: list[Tensor]) -> tuple[Tensor, ...]:
    gradients = torch.autograd.grad(entry, sources, retain_graph=True, allow_unused=True)
    greatest = max((one.abs().max().item() for one in gradients if one is not None and one.numel()), default=0.0)
    return tuple(
        torch.zeros(source.shape, dtype=torch.bool) if one is None else (one.abs() > _NEGLIGIBLE * greatest).cpu()
        for one, source in zip(gradients, sources, strict=True)
    )
