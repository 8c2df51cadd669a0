"""The optimizer of a job, its state as tensors by parameter *name*, and the memory layout of these tensors.

Names survive growth and rebuilding; positions do not: a grown optimizer may hold its parameters in another order
than the model lists them.

All tensors of a parameter have its memory layout. torch's fused optimizers on the CPU read a parameter, its gradient
and its moments as flat memory, and check neither strides nor order. With a gradient of another layout they update the
wrong elements, silently. Autograd's own gradients have their parameters' layout; tensors from other workers, files and
growth may not.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence, Set
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from espalier_core.types.job import OptimizerSpec
from espalier_trainer.encoding import EncodingError, decoded, encoded
from espalier_trainer.errors import OwnLoopError

_KERNEL: int = 4
"""Number of dimensions of a 2D convolution's kernel."""


def laid_as(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return `tensor` in the layout of `parameter`: itself where it has that layout or another shape; else a copy."""
    if tensor.shape != parameter.shape or tensor.stride() == parameter.stride():
        return tensor
    room = torch.empty_like(parameter, dtype=tensor.dtype, device=tensor.device, memory_format=torch.preserve_format)
    return room.copy_(tensor)


@torch.no_grad()
def lay_moments(optimizer: Optimizer) -> None:
    """Give the state of each parameter, in place, the layout of the parameter."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, Tensor):
                    state[key] = laid_as(value.detach(), parameter)


def has_layouts(module: nn.Module) -> bool:
    """Return whether channels-last is another layout for this module: it has 2D kernels and no 3D ones.

    A 1×1 kernel has one layout only, but the activations after it depend on the choice.
    """
    ranks = [parameter.dim() for parameter in module.parameters()]
    return _KERNEL in ranks and max(ranks) <= _KERNEL


def lay(module: nn.Module, optimizer: Optimizer | None, *, channels_last: bool) -> None:
    """Give kernels, and with `optimizer` their moments, one layout or the other; parameters stay the same objects."""
    module.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    if optimizer is not None:
        lay_moments(optimizer)


GroupState = dict[str, Any]
"""One parameter group as JSON types: its options, and `params` as names."""

SEPARATOR = "|"
"""Separator of a parameter's name, its state's key and the number of a tensor in it; no module name contains it."""


_FLOAT: Final = "float"
"""Key of a number that JSON cannot represent."""
_ENCODED: Final = "encoded"
"""Key of a value that is not a number, text or tensor; it is in a list, as documents leave None out."""
_MATRIX: Final = 2
"""Minimum number of dimensions of parameters with weight decay."""
_FUSED_ON: Final = ("cpu", "cuda")
"""Device types with fused updates, among those that a trainer uses."""


def build_optimizer(spec: OptimizerSpec, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the job over all trainable parameters."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    options: dict[str, Any] = {"lr": spec.learning_rate, "weight_decay": spec.weight_decay}
    if spec.name in ("SGD", "RMSprop"):
        options["momentum"] = spec.momentum
    if spec.betas is not None:
        options["betas"] = spec.betas
    groups: list[Any] = parameters
    if spec.decay_matrices_only:
        vectors = [parameter for parameter in parameters if parameter.ndim < _MATRIX]
        others = [parameter for parameter in parameters if parameter.ndim >= _MATRIX]
        both = ({"params": others}, {"params": vectors, "weight_decay": 0.0})
        groups = [group for group in both if group["params"]]
    kind: type[torch.optim.Optimizer] = getattr(torch.optim, spec.name)
    if spec.fused and "fused" in inspect.signature(kind).parameters and _fuses(model, parameters):
        options["fused"] = True
    return kind(groups, **options)


def _fuses(model: nn.Module, parameters: Sequence[nn.Parameter]) -> bool:
    """Return whether torch's fused optimizers can update these parameters; else they fail in the first step."""
    sparse = any(isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.sparse for each in model.modules())
    return not sparse and all(each.is_floating_point() and each.device.type in _FUSED_ON for each in parameters)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[list[GroupState], dict[str, Tensor], dict[str, dict[str, Any]]]:
    """Return (groups, tensors by `<parameter>|<key>`, other values by parameter).

    A value may hold tensors, which are under `<parameter>|<key>|<number>`. Raises `OwnLoopError` if one cannot be
    kept.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups: list[GroupState] = []
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for group in optimizer.param_groups:
        groups.append({**kept_options(group), "params": [names[parameter] for parameter in group["params"]]})
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"{names[parameter]}{SEPARATOR}{key}"] = value
                    continue
                parts: dict[str, Tensor] = {}
                try:
                    values.setdefault(names[parameter], {})[key] = _kept_value(value, parts)
                except EncodingError as error:
                    raise OwnLoopError(
                        f"the state {key!r} that {type(optimizer).__name__} keeps for {names[parameter]!r} holds a "
                        f"{error}; checkpoints hold tensors, numbers, texts, lists and dictionaries of them: keep it "
                        "elsewhere"
                    ) from None
                for number, tensor in parts.items():
                    tensors[f"{names[parameter]}{SEPARATOR}{key}{SEPARATOR}{number}"] = tensor
    return groups, tensors, values


def load_optimizer_state(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    groups: Sequence[GroupState],
    tensors: dict[str, Tensor],
    values: dict[str, dict[str, Any]],
    trained: Set[str] | None = None,
) -> None:
    """Give the optimizer the saved groups and state, in place.

    `trained` names the parameters that must have been saved, None for the model's trainable ones. Raises
    `ValueError` where others were.
    """
    parameters = dict(model.named_parameters())
    saved = [name for group in groups for name in group["params"]]
    if trained is None:
        trained = {name for name, parameter in parameters.items() if parameter.requires_grad}
    if set(saved) != trained:
        differing = sorted(set(saved) ^ trained)
        raise ValueError(f"the optimizer's parameters differ from the model's: {', '.join(differing[:5])}")
    # The class's own load_state_dict casts to the parameters' devices and types, and uses positions.
    position = {name: index for index, name in enumerate(saved)}
    state: dict[int, dict[str, Any]] = {}
    parts: dict[tuple[str, str], dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, field, number, *_ = (*key.split(SEPARATOR), "")
        if number:
            parts.setdefault((name, field), {})[number] = tensor.to(parameters[name].device)
        else:
            state.setdefault(position[name], {})[field] = tensor
    others: dict[str, dict[str, Any]] = {}
    for name, fields in values.items():
        for key, value in fields.items():
            if isinstance(value, dict) and value.keys() == {_ENCODED}:
                (inner,) = value[_ENCODED]
                others.setdefault(name, {})[key] = decoded(inner, parts.get((name, key), {}))
            elif isinstance(value, str):
                others.setdefault(name, {})[key] = value
            else:
                state.setdefault(position[name], {})[key] = _restored(value)
    own = [*optimizer.param_groups]
    optimizer.param_groups.clear()
    for group in groups:
        optimizer.add_param_group({**group_options(group), "params": [parameters[name] for name in group["params"]]})
    optimizer.load_state_dict(
        {
            "state": state,
            "param_groups": [
                {**group_options(group), "params": [position[name] for name in group["params"]]} for group in groups
            ],
        }
    )
    # A script may hold a group to set its rate.
    for place, (group, new) in enumerate(zip(own, optimizer.param_groups, strict=False)):
        group.clear()
        group.update(new)
        optimizer.param_groups[place] = group
    if type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict:
        _restore_types(optimizer, parameters, tensors)
    for name, fields in others.items():  # load_state_dict would convert each element or letter
        optimizer.state[parameters[name]].update(fields)
    lay_moments(optimizer)  # saved moments have the layout of files


def _restore_types(
    optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], tensors: dict[str, Tensor]
) -> None:
    """Restore the types in which the state was saved: torch casts all but `step` to the parameter's type.

    That would round 32-bit master weights, and convert bytes to numbers. A class with its own `load_state_dict` has
    made its own casts.
    """
    of_torch = type(optimizer).__module__.startswith("torch.optim.")
    for key, tensor in tensors.items():
        name, field, *parts = key.split(SEPARATOR)
        parameter = parameters[name]
        # torch's own moments have the type of the parameter, even if the script has changed that since.
        if parts or field == "step" or (of_torch and tensor.shape == parameter.shape):
            continue
        if optimizer.state[parameter][field].dtype != tensor.dtype:
            optimizer.state[parameter][field] = tensor.to(device=parameter.device, copy=True)


def group_options(group: GroupState) -> GroupState:
    """Return a group's options without its parameters; lists are restored to tuples (Adam's betas)."""
    return {
        key: tuple(map(_restored, value)) if isinstance(value, list) else _restored(value)
        for key, value in group.items()
        if key != "params"
    }


def kept_options(group: GroupState) -> GroupState:
    """Return a group's options without its parameters, as JSON types where they can be: a rate may be a tensor."""
    return {key: _kept(value) for key, value in group.items() if key != "params"}


def _kept_value(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a value of an optimizer's state as JSON types, and put the tensors in it into `tensors`."""
    if isinstance(value, np.generic | int | float | str):
        return _kept(value)
    return {_ENCODED: [encoded(value, tensors)]}


def _kept(value: Any) -> Any:
    """Return numbers of torch and numpy as Python's, and numbers that JSON cannot represent as texts."""
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    if isinstance(value, dict):
        return {key: _kept(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_kept(each) for each in value] if isinstance(value, list) else tuple(map(_kept, value))
    return value


def _restored(value: Any) -> Any:
    """Return the argument of `_kept`, with Python's numbers."""
    if isinstance(value, dict):
        if value.keys() == {_FLOAT}:
            return float(value[_FLOAT])
        return {key: _restored(each) for key, each in value.items()}
    return [_restored(each) for each in value] if isinstance(value, list) else value
