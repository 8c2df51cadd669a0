"""The optimizers that a script gives to `join`: one or several, perhaps wrapped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from torch import nn
from torch.optim import LBFGS, Optimizer, SparseAdam

from espalier_trainer.errors import OwnLoopError
from espalier_trainer.net2net.optimizer import Several, members_of
from espalier_trainer.optimizers.building import kept_options

_STATELESS_WRAPPERS: Final = frozenset({"accelerate.optimizer.AcceleratedOptimizer"})
"""Wrappers without state, which continue to work when the optimizer in their `.optimizer` grows."""


def united(given: Optimizer | Sequence[Optimizer], model: nn.Module) -> Optimizer:
    """Return the optimizers as one. Raises `OwnLoopError` for one that cannot be handed over to other workers."""
    members = [_unwrapped(each) for each in (given if isinstance(given, list | tuple) else [given])]
    if not members:
        raise OwnLoopError("join: the list of optimizers is empty; give at least one")
    names = {parameter: name for name, parameter in model.named_parameters()}
    held: set[str] = set()
    for member in members:
        _require_kept(member)
        for parameter in (parameter for group in member.param_groups for parameter in group["params"]):
            if parameter not in names:
                raise OwnLoopError(
                    "join: the optimizer trains a parameter that is not the model's; put all that is trained into one "
                    "module, and give its parameters to the optimizer"
                )
            if names[parameter] in held:
                raise OwnLoopError(
                    f"join: the parameter {names[parameter]!r} is in two optimizers; give each parameter to one"
                )
            held.add(names[parameter])
    return members[0] if len(members) == 1 else Several(members)


def require_dense(optimizer: Optimizer) -> None:
    """Raise `OwnLoopError` for an optimizer that takes sparse gradients only: sums of several workers are dense."""
    if any(isinstance(member, SparseAdam) for member in members_of(optimizer)):
        raise OwnLoopError(
            "join: SparseAdam takes sparse gradients only, and gradients of several workers are summed as dense ones; "
            "give torch.optim.Adam and sparse=False to the embedding, or leave training.elasticBatch out of the job"
        )


def _require_kept(optimizer: Optimizer) -> None:
    """Raise `OwnLoopError` for an option of a group that no checkpoint can hold."""
    for group in optimizer.param_groups:
        for name, value in kept_options(group).items():
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                raise OwnLoopError(
                    f"join: the option {name!r} of a group of {type(optimizer).__name__} is a {type(value).__name__}; "
                    "checkpoints hold numbers, texts, lists and dictionaries of them: keep it elsewhere"
                ) from None


def _unwrapped(optimizer: object) -> Optimizer:
    kind = type(optimizer)
    inner = {
        name: value
        for name, value in getattr(optimizer, "__dict__", {}).items()
        if isinstance(value, Optimizer) and value is not optimizer
    }
    if inner:
        name, value = next(iter(inner.items()))
        if f"{kind.__module__}.{kind.__qualname__}" in _STATELESS_WRAPPERS:
            return value
        raise OwnLoopError(
            f"join: {kind.__name__} wraps another optimizer and has its own state, which other workers would not "
            f"get; give join the optimizer in its `.{name}`, and step that one (SAM steps it itself: call "
            "loss.backward() in its first pass, and loop.backward(loss) in its second)"
        )
    if not isinstance(optimizer, Optimizer):
        raise OwnLoopError(f"join: {kind.__name__} is not a torch.optim.Optimizer; give one, or a list of several")
    if isinstance(optimizer, LBFGS):
        raise OwnLoopError(
            "join: LBFGS computes the loss of a batch several times in a step, as often as it needs, while workers "
            "exchange gradients once a step; give another optimizer"
        )
    return optimizer
