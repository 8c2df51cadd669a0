"""Modules that no gradient reaches in training: layers added after them would never learn.

A forward may keep gradients out of a part of the model (`torch.no_grad()` around a backbone, `detach` after it). One
run with gradients, on meta tensors, adds a zero to the output of each module and checks which zeros get a gradient.
Layers that are frozen by `requires_grad`, within a part that passes gradients on, are no obstacle: a new layer after
them learns.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from espalier_trainer.net2net.blocks import plainly
from espalier_trainer.net2net.modules import (
    ExampleInput,
    as_arguments,
    copied,
    lent,
    mode,
    once,
    tensors_in,
    undisturbed,
    unwatched,
)
from espalier_trainer.net2net.refusals import RefusalReason
from espalier_trainer.net2net.trace.graph import Graph

logger = logging.getLogger(__name__)


def severed(model: nn.Module, graph: Graph, example_input: ExampleInput) -> frozenset[str]:
    """Return the modules whose output no gradient reaches; none where nothing in the trace hints at that."""
    if not (graph.real or graph.severed or graph.unread()):
        return frozenset()
    return once(model, example_input, "severed", lambda: _measured(model, example_input, real=graph.real))


def why_severed(graph: Graph, path: str) -> RefusalReason:
    """Return the reason why a layer added after a module of `severed` would never learn."""
    around = [scope for scope in graph.severed if not scope or path == scope or path.startswith(f"{scope}.")]
    calls = graph.severed[max(around, key=len)] if around else ()
    return RefusalReason(
        f"no gradient reaches the output of {path!r} (torch.no_grad(), detach, or a result that is not used), so a "
        "layer added there would never learn",
        "grow at another place, or compute it with gradients",
        calls[0] if len(calls) == 1 else "",
    )


def _measured(model: nn.Module, example_input: ExampleInput, *, real: bool) -> frozenset[str]:
    for training, device in ((True, "meta"), (False, "meta"), (False, None)):
        if device is None and not real:
            break
        # The user's forward, or torch's backward pass, may raise anything on tensors without data.
        try:
            return _without_gradient(model, example_input, training=training, device=device)
        except Exception:
            logger.debug("gradients of %s cannot be followed", type(model).__name__, exc_info=True)
    return frozenset()


def _without_gradient(
    model: nn.Module, example_input: ExampleInput, *, training: bool, device: str | None
) -> frozenset[str]:
    zeros: dict[str, list[Tensor]] = {}

    def watch(path: str, _module: nn.Module, _args: Any, result: Any) -> Any:
        return tree_map_only(Tensor, partial(added, path), result)

    def added(path: str, result: Tensor) -> Tensor:
        if not result.is_floating_point():
            return result
        zeros.setdefault(path, []).append(torch.zeros((), dtype=result.dtype, device=result.device, requires_grad=True))
        return result + zeros[path][-1]

    model = unwatched(copied(model, share=device is not None))
    with ExitStack() as within:
        within.enter_context(plainly())
        for path, module in model.named_modules():
            within.callback(module.register_forward_hook(partial(watch, path)).remove)
        both_passes(model, example_input, training=training, device=device)
    return frozenset(path for path, ones in zeros.items() if all(one.grad is None for one in ones))


def both_passes(model: nn.Module, example_input: ExampleInput, *, training: bool, device: str | None) -> None:
    """Run `model` forward and backward on an example, with gradients for all tensors that contribute to an output.

    On meta tensors (device "meta") the model is not changed; on its own device (None) it gets gradients and its buffers
    move. Raises whatever its forward or torch's backward pass raises.
    """
    args, kwargs = as_arguments(example_input)
    if device is not None:
        args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to(device), (args, kwargs))
    tensors = {} if device is None else {f"model.{path}": one for path, one in lent(model, device).items()}
    with ExitStack() as within:
        within.enter_context(undisturbed(model))
        within.enter_context(mode(model, training=training))
        within.enter_context(warnings.catch_warnings(action="ignore"))  # a forward may warn of missing gradients
        within.enter_context(torch.enable_grad())
        functional_call(_Both(model), tensors, (args, kwargs), tie_weights=False)


class _Both(nn.Module):
    """A forward and a backward pass: a checkpoint within it runs the forward again while parameters are lent."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compute the gradients of all tensors that contribute to an output."""
        returned = tensors_in(self.model(*args, **kwargs))
        if not returned:
            raise TypeError("the model's result contains no tensor")
        results = [one for one in returned if one.requires_grad]
        if results:
            torch.autograd.backward(results, [torch.ones_like(one) for one in results])
