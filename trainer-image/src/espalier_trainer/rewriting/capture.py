"""A model's forward as a graph: traced by torch.fx, read into known operators, run once to learn shapes and layouts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from espalier_api.architecture import GrowthError
from espalier_trainer import randomness
from espalier_trainer.net2net.blocks import base_class
from espalier_trainer.net2net.modules import ExampleInput, as_arguments, copied, device_of, mode, undisturbed
from espalier_trainer.rewriting.errors import RewritesRefusedError
from espalier_trainer.rewriting.graph import Graph
from espalier_trainer.rewriting.translating import Translation


def capture(module: nn.Module, example_inputs: ExampleInput) -> Graph:
    """Return what `module` computes in train mode, at the shapes of one batch; the module is not changed.

    It is run once without gradients, and the random generators are restored.

    Raises `RewritesRefusedError` for a model with hooks of its own, one that torch.fx cannot trace, that changes
    tensors in place which others may read, or attributes of its modules, draws random numbers that no input asks for,
    or computes a part without gradients or under autocast.
    """
    _check(module)
    try:
        copy = copied(module, parameters=True)
    except GrowthError as error:
        raise RewritesRefusedError(str(error)) from error
    args, kwargs = as_arguments(example_inputs)
    given = _given(module, args, kwargs)
    training = _translated(copy, given, training=True)
    try:
        both = training.key() == _translated(copy, given, training=False).key()
    except RewritesRefusedError:
        both = False
    return Graph(training.nodes, training.users, training.index, training.constants, both_modes=both)


class _Parameters(TorchFunctionMode):
    """Within the context, nothing may be computed of parameters alone: torch.fx would hold the result as a constant."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function; `RewritesRefusedError` where parameters that are no proxies give numbers."""
        result = func(*args, **dict(kwargs or {}))
        if any(isinstance(each, Tensor | float) for each in tree_leaves(result)):
            given = tree_leaves((args, kwargs))
            trained = any(isinstance(each, nn.Parameter) and each.requires_grad for each in given)
            if trained and not any(isinstance(each, fx.Proxy) for each in given):
                raise RewritesRefusedError(
                    f"the forward computes {getattr(func, '__name__', func)} of a parameter that torch.fx does not "
                    "follow (from `parameters()`), so a rewritten computation would hold its value; take the parameter "
                    "from its module's attribute"
                )
        return result


class _Tracer(fx.Tracer):
    """Takes each layer of torch as one call, but looks into those that host a growth.

    torch.fx records no contexts: what a forward does within `torch.no_grad()` would get gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self._modes = _modes()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node; `RewritesRefusedError` within a context that changes how it is computed."""
        if _modes() != self._modes:
            raise RewritesRefusedError(
                "a part of the forward runs within torch.no_grad, torch.autocast or an autograd.Function of its own, "
                "which a rewritten computation would not; take it out, or do without rewrites"
            )
        return super().create_node(*args, **kwargs)

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        """Return whether the call of a module is one node."""
        return base_class(module) is type(module) and super().is_leaf_module(module, path)


def _modes() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _translated(model: nn.Module, given: dict[str, Any], *, training: bool) -> Graph:
    versions = {name: buffer._version for name, buffer in model.named_buffers()}
    with mode(model, training=training):
        try:
            traced = _traced(model, given)
        except RewritesRefusedError:
            raise
        # Whatever the user's forward raises on values that it cannot look at.
        except Exception as error:
            line = (str(error).strip().splitlines() or [""])[0]
            raise RewritesRefusedError(
                f"torch.fx cannot trace {type(model).__name__} ({type(error).__name__}: {line}); its forward must not "
                "decide by the values of tensors"
            ) from error
        if versions != {name: buffer._version for name, buffer in model.named_buffers()}:
            raise RewritesRefusedError("the forward changes a buffer by its own code, not by a layer of torch")
        with undisturbed(model):
            return Translation(model, given).graph(traced)


def _traced(model: nn.Module, given: dict[str, Any]) -> fx.Graph:
    """Return what torch.fx records of `model`, which must do nothing on the way that a graph would hold as it was then.

    A draw that needs no input is made while the forward is traced, and an attribute has the value of that moment.
    """
    held = _attributes(model)
    with randomness.kept(device_of(model)) as drawn:
        with _Parameters():
            traced = _Tracer().trace(model, concrete_args=_left_out(model, given))
        if drawn():
            raise RewritesRefusedError(
                "the forward draws random numbers without an input (torch.rand(1), random.random()), so a rewritten "
                "computation would repeat one draw; draw them on an input (torch.rand(1, device=x.device)), and decide "
                "by torch.where"
            )
    now = _attributes(model)
    for name in now.keys() | held.keys():
        if not _same(now.get(name), held.get(name)) and not name.startswith("_tensor_constant"):  # torch.fx's own
            raise RewritesRefusedError(
                f"the forward changes {name!r}, an attribute of a module, which a rewritten computation would not; "
                "keep it out of the forward, or do without rewrites"
            )
    return traced


def _attributes(model: nn.Module) -> dict[str, Any]:
    """Return what modules hold, by path, without what torch holds for them; containers as they are now."""
    return {
        f"{path}.{name}" if path else name: _contents(value)
        for path, module in model.named_modules()
        for name, value in (vars(module) | module._buffers).items()
        if name not in ("_parameters", "_buffers", "_modules")
    }


def _contents(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(value.items())
    return tuple(value) if isinstance(value, list | set) else value


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are one object, equal numbers or texts, or tuples of such."""
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
        if not isinstance(value, Tensor):
            raise RewritesRefusedError(f"input {name!r} of the forward is {type(value).__name__}, not a tensor")
    return dict(bound.arguments)


def _left_out(module: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of the forward's parameters that are not given."""
    parameters = inspect.signature(module.forward).parameters.items()
    return {name: one.default for name, one in parameters if name not in given and one.default is not one.empty}


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
