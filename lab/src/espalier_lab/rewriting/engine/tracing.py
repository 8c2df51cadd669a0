"""A model's forward as recorded by torch.fx, without anything that the record would misrepresent."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from espalier_lab.rewriting.engine.errors import CONTEXT
from espalier_trainer.net2net.blocks import base_class
from espalier_trainer.training.execution import RewritesRefusedError


def traced(model: nn.Module, given: Mapping[str, Any]) -> fx.Graph:
    """Return the record of `model` by torch.fx; inputs that are not `given` have the forward's defaults.

    Raise `RewritesRefusedError` for anything that would be misrepresented, and any error of the forward on values that
    it cannot inspect.
    """
    parameters = inspect.signature(model.forward).parameters.items()
    left_out = {name: one.default for name, one in parameters if name not in given and one.default is not one.empty}
    with _Parameters():
        graph = _Tracer().trace(model, concrete_args=left_out)
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.target not in given:
            _erase_users(graph, node)  # checks that it has its default
    return graph


def _erase_users(graph: fx.Graph, node: fx.Node) -> None:
    for user in list(node.users):
        _erase_users(graph, user)
        graph.erase_node(user)


class _Parameters(TorchFunctionMode):
    """Within the context, nothing may be computed from parameters alone: torch.fx would record a constant."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function; raise `RewritesRefusedError` if parameters that are not proxies yield numbers."""
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
    """Records each layer of torch as one call, but looks into layers that host a growth.

    torch.fx records no contexts: computations within `torch.no_grad()` would get gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self._modes = _modes()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Add a node; raise `RewritesRefusedError` within a context that changes its computation."""
        if _modes() != self._modes:
            raise RewritesRefusedError(CONTEXT)
        return super().create_node(*args, **kwargs)

    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        """Return whether the call of a module is one node, also of a foreign batch norm, which counts its steps."""
        plain = super().is_leaf_module(module, path) or isinstance(module, _NormBase)
        return base_class(module) is type(module) and plain


def _modes() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
