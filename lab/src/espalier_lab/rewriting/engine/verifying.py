"""Verification in float64 that an execution computes the same as the model: outputs, whole gradient, every buffer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from espalier_trainer.net2net.modules import ExampleInput, as_arguments, device_of

TOLERANCE = 1e-9
"""Maximum relative error of a correct rewrite in float64."""

_NOISE = 1e-6

Loss = Callable[[Any], Tensor]
"""The loss of a model's outputs."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors ‖a − b‖ / ‖b‖ in float64."""

    outputs: float
    gradient: float
    """Error of the gradient of all parameters together: single small ones are noise."""
    buffers: float
    """Maximum error of a buffer, with buffers scaled to at least 1e-6 of the largest: a mean of 0 is noise."""

    @property
    def largest(self) -> float:
        """Return the largest of the three; NaN or infinite if the execution fails that way."""
        return max((self.outputs, self.gradient, self.buffers), key=lambda one: (one != one, one))

    @property
    def right(self) -> bool:
        """Return whether the execution computes the same."""
        return self.largest <= TOLERANCE


def verify(
    module: nn.Module, execution: nn.Module, inputs: ExampleInput, loss: Loss, *, training: bool = True
) -> Errors:
    """Return the errors of `execution`, made from `module`, on one batch; both stay unchanged.

    Copies of both run one step in float64 on the module's device from the same random state, so random draws in another
    order are detected. It needs memory for two more models and their activations.
    """
    alone = _doubled(copy.deepcopy(module))
    twin, its_execution = copy.deepcopy((module, execution))
    _doubled(twin)
    _doubled(its_execution)
    args, kwargs = tree_map_only(Tensor, _as_double, as_arguments(inputs))
    devices = [device_of(module)] if device_of(module).type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        seed = torch.initial_seed()
        outputs: list[Tensor] = []
        expected: list[Tensor] = []
        for model, found in ((alone, expected), (its_execution, outputs)):
            torch.manual_seed(seed)
            model.train(training)
            result = model(*args, **kwargs)
            loss(result).backward()  # type: ignore[no-untyped-call]
            found.extend(leaf.detach() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
    return Errors(
        _error(outputs, expected),
        _error(_gradients(twin), _gradients(alone)),
        _largest(dict(twin.named_buffers()), dict(alone.named_buffers())),
    )


def _doubled(model: nn.Module) -> nn.Module:
    """Return the model in float64; its tensors stay the same objects, which an execution shares with its module."""
    model.zero_grad(set_to_none=True)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.double()
    return model


def _as_double(tensor: Tensor) -> Tensor:
    return tensor.detach().double() if tensor.is_floating_point() else tensor


def _gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradients of all parameters; zeros for a parameter without one."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    return [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]


def _largest(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    floating = [buffer for buffer in expected.values() if buffer.is_floating_point()]
    least = _NOISE * max((float(buffer.norm()) for buffer in floating), default=0.0)
    return max((_error([found[name]], [buffer], least) for name, buffer in expected.items()), default=0.0)


def _error(found: Iterable[Tensor], expected: Iterable[Tensor], least: float = 0.0) -> float:
    pairs = [(one.double(), other.double()) for one, other in zip(found, expected, strict=True)]
    if any(one.shape != other.shape for one, other in pairs):
        return float("inf")
    off: float = sum(float((one - other).square().sum()) for one, other in pairs) ** 0.5
    size: float = sum(float(other.square().sum()) for _, other in pairs) ** 0.5
    size = max(size, least)
    return off / size if size else off
