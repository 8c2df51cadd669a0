"""Access to a model's tensors, and running and copying a model without side effects.

Within `remembering`, results about a model that several searches share, such as its trace, are computed once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net import randomness

T = TypeVar("T")
W = TypeVar("W")

ExampleInput = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""One batch as the model's forward takes it: a tensor, positional arguments, or keyword arguments."""


def as_arguments(example_input: ExampleInput) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of an example input."""
    if isinstance(example_input, Mapping):
        return (), dict(example_input)
    if isinstance(example_input, tuple):
        return example_input, {}
    return (example_input,), {}


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors in nested tuples, lists, dictionaries and dataclasses, in order."""
    if isinstance(values, Tensor):
        return [values]
    found: list[Tensor] = []
    for leaf in tree_leaves(values):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif is_dataclass(leaf) and not isinstance(leaf, type):  # a leaf for torch
            found += tensors_in([getattr(leaf, field.name, None) for field in fields(leaf)])
    return found


def held(model: nn.Module, kind: str) -> Iterator[tuple[str, Tensor]]:
    """Yield path and tensor of each of the model's `_parameters` or `_buffers`, once for each module that holds it.

    So a tied tensor is yielded several times. A module with several names is visited under the first only:
    `functional_call` does not restore an attribute that it replaces twice.
    """
    for path, module in model.named_modules():
        for name, tensor in getattr(module, kind).items():
            if tensor is not None:
                yield f"{path}.{name}" if path else name, tensor


def lent(model: nn.Module, device: str | None) -> dict[str, Tensor]:
    """Return tensors on this device to run the model with, by path, tied where the model's own are.

    On the model's own device (None) these are its parameters and copies of its buffers.
    """
    twins: dict[int, Tensor] = {}
    found: dict[str, Tensor] = {}
    for path, parameter in held(model, "_parameters"):
        found[path] = twins.setdefault(id(parameter), _stand_in(parameter, device))
    for path, buffer in held(model, "_buffers"):
        found[path] = twins.setdefault(id(buffer), _stand_in(buffer, device) if device else buffer.detach().clone())
    return found


def _stand_in(tensor: Tensor, device: str | None) -> Tensor:
    if device is None:
        return tensor
    twin = torch.empty_like(tensor, device=device)
    return nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin


def unwatched(model: nn.Module) -> nn.Module:
    """Remove the backward hooks, which belong to the user's training, from a copy for measuring; return the copy."""
    for module in model.modules():
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
    return model


def in_type(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert a model's real numbers to this type, in place, and complex ones to its complex type; return the model."""

    def converted(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return tensor.to(dtype.to_complex())
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    model._apply(converted)  # type: ignore[no-untyped-call]
    return model


def failing(places: Sequence[T], problem: Callable[[Sequence[T]], W | None]) -> list[tuple[T, W]]:
    """Return the places that fail a trial, with the reasons: all are tried together first; if that fails, halves."""
    found = problem(places) if places else None
    if found is None:
        return []
    if len(places) == 1:
        return [(places[0], found)]
    half = len(places) // 2
    return failing(places[:half], problem) + failing(places[half:], problem)


@contextmanager
def mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put every module in one mode within the context; afterwards restore each module's previous mode."""
    before = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in before:
            module.training = training
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter; the CPU where the model has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Compute without gradients; afterwards restore all random generators, including those of the model's devices."""
    devices = {tensor.device for tensor in model.parameters() if tensor.device.type == "cuda"}
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=list(devices)),
        randomness.kept(torch.device("cpu"), model=model),
    ):
        yield


def copied(model: nn.Module, *, share: bool = False, parameters: bool = False) -> nn.Module:
    """Return a copy of `model` that has its own tensors, or with `share` the same ones, or the same `parameters` only.

    `copy.deepcopy` cannot copy tensors that a module computed and kept (the weight of `torch.nn.utils.weight_norm`);
    the copy has their values until it computes its own. Raises `GrowthError` where a module cannot be copied.
    """
    memo: dict[int, object] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    kinds = ("_parameters", "_buffers") if share else ("_parameters",) if parameters else ()
    memo |= {id(tensor): tensor for kind in kinds for _, tensor in held(model, kind)}
    try:
        twin = copy.deepcopy(model, memo)
    # A module of the user may raise anything if it holds an object that cannot be copied: a lock, a file, a generator.
    except Exception as error:
        raise GrowthError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}); growth returns a copy, so "
            "keep objects that copy.deepcopy does not accept out of its modules"
        ) from error
    for name, value in vars(model).items():
        if vars(twin).get(name) is None:
            vars(twin)[name] = value  # attributes that its class omits from copies: a LightningModule's trainer
    return twin


class _Memory:
    """Answers about a model on an example."""

    def __init__(self, model: nn.Module, example_input: ExampleInput) -> None:
        self.model, self.example_input = model, example_input
        self.found: dict[Hashable, Any] = {}


_MEMORY: ContextVar[_Memory | None] = ContextVar("espalier_remembered", default=None)


@contextmanager
def remembering(model: nn.Module, example_input: ExampleInput) -> Iterator[None]:
    """Compute each answer about `model` on this example once within the context, which must not change them."""
    before = _MEMORY.get()
    if before is not None and before.model is model and before.example_input is example_input:
        yield
        return
    token = _MEMORY.set(_Memory(model, example_input))
    try:
        yield
    finally:
        _MEMORY.reset(token)


def once(model: nn.Module, example_input: ExampleInput, question: Hashable, answer: Callable[[], T]) -> T:
    """Return the result of `answer`, or an earlier result for the same `question` about a remembered model."""
    memory = _MEMORY.get()
    if memory is None or memory.model is not model or memory.example_input is not example_input:
        return answer()
    if question not in memory.found:
        memory.found[question] = answer()
    return cast(T, memory.found[question])
