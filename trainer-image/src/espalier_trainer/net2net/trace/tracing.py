"""Runs a model once to trace it: operations in order, the operations that read each, the output of each module.

The user's own Python forward runs on *meta* tensors (shapes without data: no arithmetic, no side effect on buffers
or random state), while module hooks and a `TorchFunctionMode` write down what is called. Compared with
`torch.fx.symbolic_trace` this sees real shapes, follows loops and branches that depend on shapes or settings, needs
no second pass for shapes, and does not patch the classes of `torch`. Neither can follow a decision that depends on the
*values* of a tensor. Such a model is run once on real data in eval mode, and the trace records that.

The forward runs in train mode, whatever the model's own mode is, because it then takes every branch that training needs
(auxiliary heads). If that fails (batch norm on one value), it runs in eval mode. A model may do something else in eval
mode (return features, fuse layers), so growth compares this trace with that of eval mode. A model that draws which of
its layers it skips (stochastic depth) runs with several seeds, always the same; the run that executes most is taken.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map_only

from espalier_api.architecture import GrowthError
from espalier_trainer import randomness
from espalier_trainer.net2net.blocks import plainly
from espalier_trainer.net2net.modules import ExampleInput, as_arguments, device_of, held, lent, mode
from espalier_trainer.net2net.remembered import once
from espalier_trainer.net2net.trace.graph import Graph
from espalier_trainer.net2net.trace.recorder import Recorder

_SEEDS: Final = 8
"""Runs of a model that skips layers by chance: with twelve layers and a tenth skipped, one skips none in 93 %."""


@dataclass(frozen=True)
class Traces:
    """What a model executes in train mode, and in eval mode."""

    training: Graph
    evaluation: Graph


def traces(model: nn.Module, example_input: ExampleInput) -> Traces:
    """Return what `model` executes in each mode; see `trace`."""
    return Traces(trace(model, example_input), trace(model, example_input, training=False))


def trace(model: nn.Module, example_input: ExampleInput, *, training: bool = True) -> Graph:
    """Return what `model` executes on inputs of the example's shape; the model is not changed.

    Without `training` it runs in eval mode only.

    Raises `GrowthError` for a wrapped, scripted or uninitialised model, and where its forward fails on the example.
    """
    return once(model, example_input, ("trace", training), lambda: _traced(model, example_input, training=training))


def _traced(model: nn.Module, example_input: ExampleInput, *, training: bool) -> Graph:
    _check_bare(model)
    args, kwargs = as_arguments(example_input)
    failure: Exception | None = None
    for in_training, device in ((True, "meta"), (False, "meta"), (False, None)):
        if in_training and not training:
            continue
        try:
            return _fullest(model, args, kwargs, training=in_training, device=device)
        # Whatever the user's forward raises on tensors without data: the next way of running it decides.
        except Exception as error:
            failure = error
    raise GrowthError(
        f"{type(model).__name__} fails on the example input ({type(failure).__name__}: {failure}); "
        "give one batch of the shape and device that its forward takes"
    ) from failure


def _fullest(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool, device: str | None
) -> Graph:
    """Return the trace that executes most of what the model executes by chance; on meta tensors, masks draw nothing."""
    found: list[Graph] = []
    for seed in range(_SEEDS):
        with randomness.kept(device_of(model), seed, model=model) as drawn:
            found.append(_record(model, args, kwargs, training=training, device=device))
            if device is None or not drawn():
                break
    return found[0] if len(found) == 1 else max(found, key=lambda graph: len(graph.ungrown().operations))


def _record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    training: bool,
    device: str | None,
) -> Graph:
    tensors = lent(model, device)
    weights: dict[int, str] = {}
    for path, twin in tensors.items():
        weights.setdefault(id(twin), path)
    sizes = {
        path: parameter.numel() if weights[id(tensors[path])] == path and parameter.requires_grad else 0
        for path, parameter in held(model, "_parameters")
    }
    if device is not None:
        args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to(device), (args, kwargs))
    recorder = Recorder(model, weights, sizes)
    with torch.no_grad(), mode(model, training=training), plainly(), recorder:
        recorder.inputs(_named(model, args, kwargs))
        recorder.outputs(functional_call(model, tensors, args, kwargs, tie_weights=False))
    return recorder.graph(real=device is None)


def _named(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by their names in the signature of the forward."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    return {name: value for name, value in bound.arguments.items() if tree_leaves(value)}


def _check_bare(model: nn.Module) -> None:
    kind = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise GrowthError(f"{kind} is scripted and cannot be changed; grow the module it was made from, script again")
    inner = {
        "OptimizedModule": "_orig_mod",
        "DistributedDataParallel": "module",
        "DataParallel": "module",
        "FullyShardedDataParallel": "module",
    }.get(kind)
    if inner is not None:
        raise GrowthError(
            f"{kind} wraps the model; grow its `.{inner}` and wrap the result again (a job's model must not be wrapped)"
        )
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise GrowthError(
                f"{path!r} is scripted, and cannot be followed; put the module that it was made from in its place, "
                "grow, and script that part again"
            )
    for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise GrowthError(f"{path!r} has no shape yet (lazy module); run the model on one batch before growing it")
