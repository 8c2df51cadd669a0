"""The arguments of `join` besides the model: optimizers, schedulers, scalers, averages of the weights.

Optimizers may be several, possibly wrapped. The states of the other objects travel with the model's. Averages follow
the model's growth: a module that is a copy of the model (in a `torch.optim.swa_utils.AveragedModel`, or in an attribute
of a user's object) grows by the same steps, and so computes the same as before; a dictionary of tensors by parameter
name gets the new parameters, and the new buffers if it holds the old ones.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, cast

import torch
import xxhash
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import LBFGS, Optimizer, SparseAdam
from torch.optim.lr_scheduler import LRScheduler

from espalier_trainer.encoding import PREFIX, EncodingError, decoded, encoded
from espalier_trainer.errors import OwnLoopError
from espalier_trainer.net2net.history import GrowthStep, gradual
from espalier_trainer.net2net.in_place import become
from espalier_trainer.net2net.modules import ExampleInput, device_of
from espalier_trainer.net2net.optimizer import Several, members_of
from espalier_trainer.optimizers.building import kept_options

_STATELESS_WRAPPERS: Final = frozenset({"accelerate.optimizer.AcceleratedOptimizer"})
"""Wrappers without state, which keep working when the optimizer in their `.optimizer` grows."""


def united(given: Optimizer | Sequence[Optimizer], model: nn.Module) -> Optimizer:
    """Return the optimizers as one. Raises `OwnLoopError` for one that cannot be sent to other workers."""
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
                    "join: the optimizer trains a parameter that is not the model's; put everything trained into one "
                    "module, and give its parameters to the optimizer"
                )
            if names[parameter] in held:
                raise OwnLoopError(
                    f"join: the parameter {names[parameter]!r} is in two optimizers; give each parameter to one"
                )
            held.add(names[parameter])
    return members[0] if len(members) == 1 else Several(members)


def require_dense(optimizer: Optimizer) -> None:
    """Raise `OwnLoopError` for an optimizer that takes sparse gradients only: sums over workers are dense."""
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


class Stateful(Protocol):
    """Another part of the training state, for example a learning-rate scheduler or an average of the weights."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: tensors, numbers, texts, lists and dictionaries."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Load a state."""


class StatefulObjects:
    """The `others` of a script, in the order given to `join`."""

    def __init__(self, others: Sequence[Stateful], model: nn.Module) -> None:
        """Raises `OwnLoopError` for a state that cannot be sent to other workers."""
        self.others, self._model = tuple(others), model
        self.encoded()

    @property
    def scaler(self) -> GradScaler | None:
        """Gradient scaler; None where there is none, or none that scales."""
        found = (other for other in self.others if isinstance(other, GradScaler) and other.is_enabled())
        return next(found, None)

    @property
    def has_scheduler(self) -> bool:
        """Whether a learning-rate scheduler is among the objects."""
        # Accelerate wraps schedulers.
        return any(isinstance(getattr(other, "scheduler", other), LRScheduler) for other in self.others)

    def encoded(self) -> tuple[list[Any], dict[str, Tensor]]:
        """Return their states as JSON types, and the tensors in them by their names in a checkpoint."""
        tensors: dict[str, Tensor] = {}
        states = [_encoded(other, tensors) for other in self.others]
        return states, {f"{PREFIX}{name}": tensor for name, tensor in tensors.items()}

    def digest(self) -> str:
        """Return a hash of the tensors."""
        found = xxhash.xxh3_64()
        for tensor in self.encoded()[1].values():
            found.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()

    def decoded(self, states: list[Any], tensors: dict[str, Tensor] | None) -> tuple[dict[str, Any], ...]:
        """Return the states for `load`; with `tensors` None, with the tensors that the objects hold now."""
        own = {name.removeprefix(PREFIX): tensor for name, tensor in self.encoded()[1].items()}
        if tensors is None:
            return tuple(decoded(state, own) for state in states)
        device = device_of(self._model)
        here = {name: each.to(own[name].device if name in own else device) for name, each in tensors.items()}
        return tuple(decoded(state, here) for state in states)

    def kept(self) -> tuple[dict[str, Any], ...]:
        """Return copies of their states."""
        return tuple(copy.deepcopy(other.state_dict()) for other in self.others)

    def load(self, states: Sequence[dict[str, Any]]) -> None:
        """Load the states, in order."""
        for other, state in zip(self.others, states, strict=True):
            other.load_state_dict(state)

    # ---- growth

    def require_growable(self) -> None:
        """Raise `OwnLoopError` where an object holds tensors whose growth with the model is undefined."""
        for other in self.others:
            tensors: dict[str, Tensor] = {}
            _encoded(other, tensors)
            matrices = [tensor for tensor in tensors.values() if tensor.dim()]
            if matrices and not [*self._copies(other), *self._shadows(other)]:
                raise OwnLoopError(
                    f"grow=True: the state of {type(other).__name__} holds tensors that would not grow with the model; "
                    "keep an average of the weights in a copy of the model (torch.optim.swa_utils.AveragedModel) or in "
                    "a dictionary of tensors by parameter name"
                )

    def grow(self, steps: Sequence[GrowthStep], example: ExampleInput) -> Callable[[nn.Module], None]:
        """Grow the copies of the model; call this before the model grows. Raises `GrowthError`.

        Return a function that must be called with the grown model afterwards.
        """

        def again(module: nn.Module) -> nn.Module:
            for step in steps:
                module = step.again(module, example)
            return module

        return self._follow(again)

    def advance(self, steps: Sequence[GrowthStep], used: float) -> None:
        """Advance gradual growths of the copies of the model; see `GrowthStep.advance`."""
        for module in [module for other in self.others for module in self._copies(other)]:
            for step in gradual(steps):
                step.advance(module, used)

    def rebuild(self, grown: Callable[[], nn.Module]) -> Callable[[nn.Module], None]:
        """Give the copies of the model the structure of the module that `grown` returns; states are loaded later."""
        return self._follow(lambda _module: grown())

    def _follow(self, grown: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], None]:
        copies = [module for other in self.others for module in self._copies(other)]
        before = set(self._model.state_dict())
        shadows = [(shadow, _left_out(shadow, self._model)) for other in self.others for shadow in self._shadows(other)]
        for module in copies:
            training = module.training
            with _trained_as(self._model, module):
                become(module, grown(module))
            module.train(training)

        def extend(model: nn.Module) -> None:
            held, kinds = model.state_dict(), _kinds(model)
            for shadow, left_out in shadows:
                for name in set(shadow) - set(held):
                    del shadow[name]
                for name, tensor in held.items():
                    new = name not in before and kinds[name] not in left_out
                    if new or (name in shadow and shadow[name].shape != tensor.shape):
                        shadow[name] = tensor.detach().clone()

        return extend

    def _copies(self, other: object) -> Iterator[nn.Module]:
        """Yield the modules in `other` with the model's parameters and buffers, except the model itself."""
        shapes = _shapes(self._model)
        candidates: list[object] = [other, *vars(other).values()]
        if isinstance(other, nn.Module):
            candidates += [module for name, module in other.named_children()]
        seen: set[int] = set()
        for each in candidates:
            if isinstance(each, nn.Module) and each is not self._model and id(each) not in seen:
                seen.add(id(each))
                if _shapes(each) == shapes:
                    yield each

    def _shadows(self, other: object) -> Iterator[dict[str, Tensor]]:
        """Yield the dictionaries in `other` with a tensor for each of the model's trained parameters, by name."""
        shapes = _shapes(self._model)
        trained = {name for name, parameter in self._model.named_parameters() if parameter.requires_grad}
        for value in vars(other).values():
            if not isinstance(value, dict) or not trained <= set(value):
                continue
            if all(isinstance(each, Tensor) and shapes.get(name) == each.shape for name, each in value.items()):
                yield cast(dict[str, Tensor], value)


@contextmanager
def _trained_as(model: nn.Module, module: nn.Module) -> Iterator[None]:
    """Freeze a copy of `model` where the model is frozen, since growth depends on what trains; restore it afterwards.

    Parameters added in the block are frozen if the whole copy was.
    """
    own = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(trained.get(name, own[name]))
    frozen = not any(own.values())
    try:
        yield
    finally:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(own.get(name, parameter.requires_grad) and not frozen)


def _encoded(other: Stateful, tensors: dict[str, Tensor]) -> Any:
    try:
        return encoded(other.state_dict(), tensors)
    except EncodingError as error:
        raise OwnLoopError(
            f"join: the state of {type(other).__name__} holds a {error}; only tensors, numbers, texts, lists and "
            "dictionaries can be sent to other workers: leave it out of join if all workers have an equal one"
        ) from None


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def _left_out(shadow: Mapping[str, Tensor], model: nn.Module) -> set[str]:
    """Return the kinds of a model's tensors that a shadow does not hold completely: it gets no new ones of these."""
    return {kind for name, kind in _kinds(model).items() if name not in shadow}


def _kinds(model: nn.Module) -> dict[str, str]:
    """Return each tensor's kind by name: a trained parameter, a frozen one, a buffer of numbers, or one of integers."""
    trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    return {
        name: ("trained" if trained[name] else "frozen")
        if name in trained
        else ("numbers" if tensor.is_floating_point() else "integers")
        for name, tensor in model.state_dict().items()
    }
