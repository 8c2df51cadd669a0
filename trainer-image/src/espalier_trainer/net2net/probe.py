"""Dependence of output entries on input entries, and the dependences that growth may add.

The gradient of an output with respect to the inputs measures it: masks and causal padding give a gradient of exactly 0.
The probe distinguishes entries that a model must not look at from entries that it happens not to look at: weights are
perturbed but zeros among them stay zeros (a mask of weights), except in tensors that are zero everywhere (a branch that
has not learned yet); activations with flat parts have a slope; dropout is off. Indices have no gradient: the vectors
that they select (embeddings) stand for them.

Growth may add no dependence, with one exception: a receptive field may become larger where it is a window that moves
with the output's entry, and only to a side to which it reaches as far as to the other. So a convolution after causal
ones must not look ahead, and a mask stays one; a window that reaches equally far to both sides may grow on both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
"""Mean pooling in place of maximum pooling, whose gradient is nonzero at one entry only."""
_FRACTIONS = (0.5, 0.25, 0.75, 0.125, 0.875)
"""Relative positions of the sampled entries along an output's axes: enough to see whether a window moves with them."""
_MAX_OUTPUTS = 8
_NEGLIGIBLE = 1e-30
"""Relative size of a gradient that counts as none: that of a mask which adds -100 before a softmax."""


class WithoutDropout(TorchFunctionMode):
    """Make dropout pass on its input, and random slopes (`nn.RReLU`) have their mean, within the context."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, except dropout, which is skipped; attention is computed without its own dropout."""
        given = dict(kwargs or {})
        if func in _DROPOUTS and args:
            return args[0].clone()
        if func is functional.rrelu and args:
            return _mean_slope(*args, **given)
        if func is functional.multi_head_attention_forward:
            given["training"] = False  # controls only its dropout
        elif func is functional.scaled_dot_product_attention:
            args, given = (*args[:4], *((0.0,) if len(args) > 4 else ()), *args[5:]), given | _undropped(given)
        return func(*args, **given)


def _mean_slope(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *_rest: object, **_other: object) -> Tensor:
    return functional.leaky_relu(input, (lower + upper) / 2)


def _undropped(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"dropout_p": 0.0} if "dropout_p" in given else {}


class _Watching(WithoutDropout):
    """Give activations a slope everywhere, and make vectors selected by integers sources of gradients."""

    def __init__(self, sources: list[Tensor], indices: list[Tensor]) -> None:
        super().__init__()
        self._sources = sources
        self._indices = indices  # kept alive, because they are identified by id
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
    """Return the means of the windows of a maximum pooling; None for dilated windows, or if indices are requested."""
    names = ("stride", "padding", "dilation", "ceil_mode", "return_indices")
    asked = {**dict(zip(names, args, strict=False)), **kwargs}
    if "adaptive" in pool.__name__:
        return None if args or any(kwargs.values()) else cast(Tensor, pool(given, size))
    if asked.pop("return_indices", False) or asked.pop("dilation", 1) not in (1, (1,), (1, 1), (1, 1, 1)):
        return None
    return cast(Tensor, pool(given, size, **{name: value for name, value in asked.items() if value is not None}))


@dataclass(frozen=True)
class Sample:
    """One entry of an output, and for each source a mask of the source's entries that it depends on."""

    output: int
    shape: tuple[int, ...]
    at: tuple[int, ...]
    depends: tuple[Tensor, ...]

    @property
    def complete(self) -> bool:
        """Return whether the entry, for each example that it depends on, depends on all of the example."""
        for seen in self.depends:
            rows = seen.flatten(1) if seen.dim() > 1 else seen[:, None]
            if not bool((rows.all(1) == rows.any(1)).all()):
                return False
        return True


def perturbed(model: nn.Module) -> nn.Module:
    """Return a copy in float64 with other weights, in which structural independences still hold."""
    trial = in_type(copied(model), torch.float64).requires_grad_(False)
    seen: set[int] = set()
    for _, parameter in held(trial, "_parameters"):
        if id(parameter) not in seen and parameter.is_floating_point():
            seen.add(id(parameter))
            scatter(parameter, zeros=not bool(parameter.any()))
    return trial


@torch.no_grad()
def scatter(parameter: Tensor, *, zeros: bool) -> None:
    """Change every nonzero entry of a parameter at random, and with `zeros` the zeros, too."""
    spread = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.1
    parameter.mul_(1 + 0.5 * torch.rand_like(parameter))
    if zeros:
        parameter.add_(torch.randn_like(parameter), alpha=spread)


def random_like(given: Tensor, dtype: torch.dtype) -> Tensor:
    """Return random values of this type in place of floating ones; integers stay, for they may be indices."""
    if given.is_complex():
        dtype = dtype.to_complex()
    return torch.randn_like(given, dtype=dtype) if given.is_floating_point() or given.is_complex() else given


def samples(
    model: nn.Module, example_input: ExampleInput, *, training: bool, dtype: torch.dtype = torch.float64
) -> list[Sample]:
    """Return the dependences of some entries of each output; empty where the model passes no gradient to its input.

    The model, a copy of type `dtype`, is changed: batch norms move. Raises what its forward raises on random values.
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
    """Return indices of entries: examples in turn, and the same fraction of every other axis."""
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


_EVEN = 1 / 8
"""Share of the window by which sides that count as equally long may differ (even kernels, pooling)."""


def forbidden(before: Sequence[Sample], after: Sequence[Sample]) -> str | None:
    """Return a description of the first new dependence that growth may not add; None where there is none."""
    if [(one.output, one.shape, one.at, len(one.depends)) for one in before] != [
        (one.output, one.shape, one.at, len(one.depends)) for one in after
    ]:
        return "its outputs have other shapes"
    for output in dict.fromkeys(one.output for one in before):
        old = [one for one in before if one.output == output]
        new = [one for one in after if one.output == output]
        for source in range(len(old[0].depends)):
            found = _forbidden([one.depends[source] for one in old], [one.depends[source] for one in new], old)
            if found is not None:
                return found
    return None


def _forbidden(before: Sequence[Tensor], after: Sequence[Tensor], samples: Sequence[Sample]) -> str | None:
    open_sides: set[tuple[int, int]] | None = None
    for old, new, sample in zip(before, after, samples, strict=True):
        added = new & ~old
        if not added.any():
            continue
        where = f"the entry {sample.at} of an output of shape {sample.shape} would depend on the input's entry "
        if not old.any():
            return f"{where}{_first(added)}"
        if open_sides is None:
            open_sides = _open_sides(before, samples)
        inside = torch.ones_like(added)
        for axis in range(old.dim()):
            low, high = _extent(old, axis)
            index = torch.arange(old.shape[axis]).view([-1 if other == axis else 1 for other in range(old.dim())])
            for side, outside in ((0, index < low), (1, index > high)):
                beyond = added & outside
                if beyond.any() and (axis, side) not in open_sides:
                    return f"{where}{_first(beyond)}"
                inside &= ~outside
        # A window may fill between its ends (dilated kernels); entries that none of its lines crosses do not count.
        filled = added & inside & ~(_between(old) if open_sides else torch.zeros_like(old))
        if filled.any():
            return f"{where}{_first(filled)}"
    return None


def _open_sides(depends: Sequence[Tensor], samples: Sequence[Sample]) -> set[tuple[int, int]]:
    """Return the (axis, side) pairs, side 0 before and 1 after, on which the windows may grow."""
    found: set[tuple[int, int]] = set()
    for axis, size in enumerate(depends[0].shape):
        for along, length in enumerate(samples[0].shape):
            if size < 2 or length < 2 or max(size, length) % min(size, length):
                continue
            if size != length and (axis != along or len(samples[0].shape) != depends[0].dim()):
                continue  # a strided axis is the same one only where it has the same place
            starts = [sample.at[along] * size // length for sample in samples]
            ends = [start + max(1, size // length) - 1 for start in starts]
            extents = [_extent(one, axis) for one in depends]
            before = [start - low for start, (low, _) in zip(starts, extents, strict=True)]
            beyond = [high - end for end, (_, high) in zip(ends, extents, strict=True)]
            slack = _EVEN * (max(before) + max(beyond))
            # Distances from both borders: after it, the axis is read from its end.
            if max(before) >= max(beyond) - slack and _moves(starts, before):
                found.add((axis, 0))
            if max(beyond) >= max(before) - slack and _moves([size - 1 - end for end in ends], beyond):
                found.add((axis, 1))
    return found


def _moves(distances: Sequence[int], reaches: Sequence[int]) -> bool:
    """Return whether a side of the window moves with the entry, given the distances to the border and the reaches.

    It does if its reach is the same at distant entries, and shorter only where the border cuts it.
    """
    reach = max(reaches)
    tolerance = max(1, _EVEN * reach)
    whole = [distance for distance, one in zip(distances, reaches, strict=True) if one >= reach - tolerance]
    cut = all(distance < reach for distance, one in zip(distances, reaches, strict=True) if one < reach - tolerance)
    return reach > 0 and cut and max(whole) - min(whole) > 2 * tolerance


def _extent(depends: Tensor, axis: int) -> tuple[int, int]:
    others = [other for other in range(depends.dim()) if other != axis]
    line = depends.any(dim=others) if others else depends
    found = line.nonzero().flatten()
    return (int(found[0]), int(found[-1])) if len(found) else (0, -1)


def _between(depends: Tensor) -> Tensor:
    """Return the entries that lie between two others on a line along some axis."""
    found = torch.zeros_like(depends)
    for axis in range(depends.dim()):
        seen = depends.to(torch.int32)
        found |= (seen.cumsum(axis) > 0) & (seen.flip(axis).cumsum(axis).flip(axis) > 0)
    return found


def _first(added: Tensor) -> tuple[int, ...]:
    return tuple(int(index) for index in added.nonzero()[0])
