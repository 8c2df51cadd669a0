"""A model's forward by torch.export, for models that torch.fx cannot trace: they read sizes, or take arbitrary inputs.

The flags of layers are part of the graph, which holds only in train mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_unflatten

from espalier_lab.rewriting.engine.errors import CONTEXT
from espalier_trainer.training.execution import RewritesRefusedError

_OF_NUMBERS: Final = frozenset({"_operator", "math", "builtins"})
"""Modules of functions that compute sizes, or take parts of tuples."""


def exported(model: nn.Module, given: Mapping[str, Any]) -> fx.Graph:
    """Return the graph of `model`, with parameters and buffers by path, for batches of any size.

    `given` are the inputs by their names. Tensors that the forward makes of numbers become attributes of `model`.

    Raise `RewritesRefusedError` if the graph would hold only for some sizes of a batch, a part of it runs in a separate
    context, or the model returns anything but tensors in lists, tuples or dictionaries; and any error of torch.export.
    """
    if nested := [name for name, one in given.items() if not isinstance(one, Tensor)]:
        raise RewritesRefusedError(f"input {nested[0]!r} is a dictionary; take its tensors as inputs of their own")
    sizes = {name: {0: torch.export.Dim.DYNAMIC} if one.dim() else None for name, one in given.items()}
    with _WithGradients():
        program = torch.export.export(model, (), dict(given), dynamic_shapes=sizes, strict=False)
    if program._guards_code:  # conditions that module() would check in each step
        raise RewritesRefusedError(f"its graph would hold for some sizes of a batch alone: {program._guards_code[0]}")
    module: Any = program.module(check_guards=False)
    graph: fx.Graph = module.graph
    names = iter(given)
    for node in graph.nodes:
        if node.op == "placeholder":
            node.target = next(names)  # torch.export calls `input` input_1
        elif node.op == "get_attr":
            _lift(str(node.target), module, model)
        elif node.op == "call_function" and not _is_known(node.target):
            raise RewritesRefusedError(CONTEXT)
    output = graph.output_node()
    result = tree_unflatten(list(output.args[0]), module._out_spec)  # type: ignore[arg-type]
    if type(result) not in (fx.Node, list, tuple, dict):
        raise RewritesRefusedError(
            f"it returns {type(result).__name__}; return its tensor from the forward of a module around it"
        )
    output.args = (result,)
    return graph


def _lift(path: str, module: nn.Module, model: nn.Module) -> None:
    """Copy the tensor at a path of `module` to `model`, if it has none."""
    owner, _, name = path.rpartition(".")
    if not hasattr(model.get_submodule(owner), name):
        setattr(model.get_submodule(owner), name, getattr(module.get_submodule(owner), name))


class _WithGradients(TorchFunctionMode):
    """Within the context, everything is computed with gradients: torch.export looks into an autograd.Function."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function; raise `RewritesRefusedError` if it computes a tensor without gradients."""
        result = func(*args, **dict(kwargs or {}))
        if not torch.is_grad_enabled() and isinstance(result, Tensor):
            raise RewritesRefusedError(CONTEXT)
        return result


def _is_known(target: object) -> bool:
    if isinstance(target, OpOverload):
        return target.namespace == "aten"
    return getattr(target, "__module__", "") in _OF_NUMBERS or target in (torch.sym_max, torch.sym_min, torch.sym_not)
