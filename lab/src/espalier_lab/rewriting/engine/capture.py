"""A model's forward as a graph: traced, read into known operators, run once to find shapes and layouts."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from espalier_core.growth.architecture import GrowthError
from espalier_lab.rewriting.engine.exporting import exported
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.tracing import traced
from espalier_lab.rewriting.engine.translating import Translation
from espalier_trainer.net2net import randomness
from espalier_trainer.net2net.modules import ExampleInput, as_arguments, copied, device_of, mode, undisturbed
from espalier_trainer.training.execution import RewritesRefusedError


def capture(module: nn.Module, example_inputs: ExampleInput, *, exports: bool = True) -> OpGraph:
    """Return the computation of `module` in train mode, at the shapes of one batch; the module is not changed.

    It is run once without gradients, and the random generators are restored. torch.fx traces it; with `exports`,
    torch.export does where torch.fx cannot, which takes seconds. Its graph holds only in train mode, and for the type
    of these inputs: under autocast, a part would have another type.

    Raise `RewritesRefusedError` for a model that has hooks or cannot be traced, that changes tensors in place which
    others may read, or attributes of its modules, that draws random numbers independent of its inputs, or computes a
    part without gradients or under autocast.
    """
    _check(module)
    try:
        copy = copied(module, parameters=True)
    except GrowthError as error:
        raise RewritesRefusedError(str(error)) from error
    args, kwargs = as_arguments(example_inputs)
    given = _given(module, args, kwargs)
    try:
        training = _translated(copy, given, traced, training=True)
    except _UntraceableError as error:
        if not exports:
            raise RewritesRefusedError(
                f"torch.fx cannot trace {type(module).__name__} ({error}), and torch.export is not tried where time "
                "is short; its forward must not decide by values or sizes of tensors"
            ) from error
        return _by_export(copy, given, error)
    try:
        both = training.key() == _translated(copy, given, traced, training=False).key()
    except RewritesRefusedError:
        both = False
    return OpGraph(training.nodes, training.users, training.index, training.constants, both_modes=both)


class _UntraceableError(RewritesRefusedError):
    """The forward uses values that the tracer does not know."""


def _translated(
    model: nn.Module, given: dict[str, Any], trace: Callable[[nn.Module, dict[str, Any]], fx.Graph], *, training: bool
) -> OpGraph:
    versions = {name: buffer._version for name, buffer in model.named_buffers()}
    with mode(model, training=training):
        try:
            graph = _unchanged(model, lambda: trace(model, given))
        except RewritesRefusedError:
            raise
        # Any error that the user's forward raises on values that it cannot inspect.
        except Exception as error:
            line = (str(error).strip().splitlines() or [""])[0]
            raise _UntraceableError(f"{type(error).__name__}{_place(error)}: {line}") from error
        if versions != {name: buffer._version for name, buffer in model.named_buffers()}:
            raise RewritesRefusedError("the forward changes a buffer by its own code, not by a layer of torch")
        with undisturbed(model):
            return Translation(model, given).graph(graph)


def _by_export(model: nn.Module, given: dict[str, Any], untraceable: RewritesRefusedError) -> OpGraph:
    """Return the graph of a model that torch.fx cannot trace. Raise `RewritesRefusedError` with both reasons."""
    try:
        found = _translated(model, given, exported, training=True)
    except RewritesRefusedError as error:
        remedy = "; its forward must not decide by the values of tensors" * isinstance(error, _UntraceableError)
        raise RewritesRefusedError(
            f"{type(model).__name__} cannot be traced by torch.fx ({untraceable}), nor by torch.export: {error}{remedy}"
        ) from error
    return replace(found, both_modes=False)


def _place(error: Exception) -> str:
    """Return the place of the innermost code outside torch that raised an error; '' if there is none."""
    ours = (Path(torch.__file__).parent, Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(Path(frame.filename).is_relative_to(each) for each in ours) and not frame.filename.startswith("<"):
            return f" at {frame.filename}:{frame.lineno}"
    return ""


def _unchanged(model: nn.Module, trace: Callable[[], fx.Graph]) -> fx.Graph:
    """Return the record of `trace` for `model`, whose forward must not depend on the moment of tracing.

    A draw that needs no input is made while the forward is traced, and an attribute has the value of that moment.
    """
    held = _attributes(model)
    with randomness.kept(device_of(model)) as drawn:
        graph = trace()
        if drawn():
            raise RewritesRefusedError(
                "the forward draws random numbers without an input (torch.rand(1), random.random()), so a rewritten "
                "computation would repeat one draw; draw them on an input (torch.rand(1, device=x.device)), and decide "
                "by torch.where"
            )
    now = _attributes(model)
    for name in now.keys() | held.keys():
        if not _same(now.get(name), held.get(name)) and not name.rpartition(".")[2].startswith(_OF_TRACERS):
            raise RewritesRefusedError(
                f"the forward changes {name!r}, an attribute of a module, which a rewritten computation would not; "
                "keep it out of the forward, or do without rewrites"
            )
    return graph


_OF_TRACERS: Final = ("_tensor_constant", "lifted_tensor_")
"""Attributes in which torch.fx and torch.export store tensors that the forward makes of numbers."""


def _attributes(model: nn.Module) -> dict[str, Any]:
    """Return the attributes of modules by path, without those that torch uses; containers in their current state."""
    return {
        f"{path}.{name}" if path else name: _contents(value)
        for path, module in model.named_modules()
        for name, value in (*_own(module), *module._buffers.items())
    }


def _own(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the attributes that are not parts of a module, a tensor with its version: it may be changed in place.

    The versions of buffers are compared separately.
    """
    return [
        (name, (value, value._version) if isinstance(value, Tensor) and not value.is_inference() else value)
        for name, value in vars(module).items()
        if name not in ("_parameters", "_buffers", "_modules")
    ]


def _contents(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple((key, _contents(one)) for key, one in value.items())
    return (
        tuple(map(_contents, value))
        if isinstance(value, Sequence | Set) and not isinstance(value, str | bytes)
        else value
    )


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are one object, equal numbers or texts, or tuples of such values."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one is other or (isinstance(one, int | float | str) and bool(one == other))


def _given(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs by the names of the forward's parameters."""
    try:
        signature = inspect.signature(module.forward)
        bound = signature.bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise RewritesRefusedError(f"the example inputs do not fit the forward: {error}") from error
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and name in bound.arguments:
            raise RewritesRefusedError(f"the forward takes any number of inputs (`{name}`); name them")
    for name, value in bound.arguments.items():
        if not isinstance(value, Tensor) and not (
            isinstance(value, dict) and all(isinstance(one, Tensor) for one in value.values())
        ):
            raise RewritesRefusedError(
                f"input {name!r} of the forward is {type(value).__name__}, neither a tensor nor a dictionary of tensors"
            )
    return dict(bound.arguments)


def _check(module: nn.Module) -> None:
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule) or kind in ("OptimizedModule", "DistributedDataParallel"):
        raise RewritesRefusedError(f"{kind} is compiled or wrapped; give the module that it was made from")
    for path, parameter in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(parameter):
            raise RewritesRefusedError(f"{path!r} has no shape yet (lazy module); run the model on one batch first")
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise RewritesRefusedError("hooks are registered for all modules; remove them to have the model rewritten")
    for path, inner in module.named_modules():
        if isinstance(inner, torch.jit.ScriptModule):
            raise RewritesRefusedError(f"{path!r} is scripted and cannot be looked into")
        if any(getattr(inner, f"_{kind}_hooks") for kind in ("forward", "forward_pre", "backward", "backward_pre")):
            raise RewritesRefusedError(
                f"{path or kind!r} has hooks, which a rewritten computation would not call; remove them, or do without"
            )
