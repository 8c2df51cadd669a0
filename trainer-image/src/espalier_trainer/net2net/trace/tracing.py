"""Trace of a model from one run: operations in order, the readers of each, and the output of each module.

The user's own Python forward runs on *meta* tensors (shapes without data: no arithmetic, no side effect on buffers
or random state), while module hooks and a `TorchFunctionMode` record the calls. Compared with
`torch.fx.symbolic_trace` this sees real shapes, follows loops and branches that depend on shapes or settings, needs
no second pass for shapes, and does not patch the classes of `torch`. Neither can follow a decision that depends on the
*values* of a tensor. A model that reads values is run on the example's, and `reading` finds out whether they decide the
execution. If they do, the trace records that run; otherwise their answers are given to a run on meta tensors.

The forward runs in train mode, whatever the model's own mode is, because it then takes every branch that training needs
(auxiliary heads). If that fails (batch norm on one value), it runs in eval mode. A model may do something else in eval
mode (return features, fuse layers), so growth compares this trace with that of eval mode. A model that skips layers at
random (stochastic depth) runs with several seeds, always the same ones; the run that executes most is taken.

`change` compares the traces before and after a growth: a forward that divides by the number of its blocks or
parameters, or adds a term over all of them, runs the same operations afterwards, but not on the same numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map_only

from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net import randomness
from espalier_trainer.net2net.blocks import plainly
from espalier_trainer.net2net.modules import ExampleInput, as_arguments, copied, device_of, held, lent, mode, once
from espalier_trainer.net2net.refusals import RefusalReason, why_split, why_wrapped
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.reading import Answering, Notes, ValueReading, decision
from espalier_trainer.net2net.trace.recorder import Recorder

_SEEDS: Final = 8
"""Number of runs of a model that skips layers at random: with 12 layers, 10 % skipped, one skips none in 93 %."""


@dataclass(frozen=True)
class Traces:
    """The traces of a model in train mode and in eval mode."""

    training: Graph
    evaluation: Graph

    def answering(self) -> AbstractContextManager[object]:
        """Within the context, the model reads the values that it read in these traces."""
        return Answering.of({**self.evaluation.answers, **self.training.answers})


def traces(model: nn.Module, example_input: ExampleInput) -> Traces:
    """Return the traces of `model` in both modes; see `trace`."""
    return Traces(trace(model, example_input), trace(model, example_input, training=False))


def trace(model: nn.Module, example_input: ExampleInput, *, training: bool = True) -> Graph:
    """Return the trace of `model` on inputs of the example's shape; the model is not changed.

    Without `training` it runs in eval mode only.
    """
    return once(model, example_input, ("trace", training), lambda: _traced(model, example_input, training=training))


def _traced(model: nn.Module, example_input: ExampleInput, *, training: bool) -> Graph:
    _check_bare(model)
    args, kwargs = as_arguments(example_input)
    modes = (True, False) if training else (False,)
    failure: Exception | None = None
    for in_training in modes:
        try:
            return _fullest(model, args, kwargs, training=in_training)
        # The user's forward may raise anything on tensors without data: then the next way to run it is tried.
        except Exception as error:
            failure = error
    for in_training in modes:
        try:
            return _on_values(model, args, kwargs, training=in_training)
        except Exception as error:
            failure = error
    raise GrowthError(
        f"{type(model).__name__} fails on the example input ({type(failure).__name__}: {failure}); "
        "give one batch of the shape and device that its forward takes"
    ) from failure


def _fullest(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    training: bool,
    answers: Mapping[ValueReading, Any] | None = None,
) -> Graph:
    """Return the trace on meta tensors that executes most of the randomly skipped operations."""
    found: list[Graph] = []
    for seed in range(_SEEDS):
        copy = _copy_of(model, share=True)
        with randomness.kept(device_of(model), seed, model=copy) as drawn, Answering.of(answers or {}):
            found.append(_record(copy, args, kwargs, Notes(), training=training, device="meta"))
            if not drawn():
                break
    return found[0] if len(found) == 1 else max(found, key=lambda graph: len(graph.ungrown().operations))


def _on_values(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool) -> Graph:
    """Return the trace of a model that reads values, run on the example's.

    Where these decide nothing, the model then runs on meta tensors, with the same answers.
    """

    def run(notes: Notes, most: int | None = None) -> Graph:
        copy = _copy_of(model, share=False)
        with randomness.kept(device_of(model), 0, model=copy):
            return _record(copy, args, kwargs, notes, training=training, device=None, most=most)

    notes = Notes()
    graph = run(notes)
    most = 2 * len(graph.operations) + 1000
    decides = decision(notes, lambda other: run(other, most), graph.computes_as)
    if decides is not None:
        return replace(graph, data_dependent=decides)
    answers = notes.steady()
    try:
        return replace(_fullest(model, args, kwargs, training=training, answers=answers), answers=answers)
    # The user's forward may raise anything on tensors without data: then the run on values counts.
    except Exception:
        return replace(graph, answers=answers)


def _copy_of(model: nn.Module, *, share: bool) -> nn.Module:
    """Return a copy to run, since a forward may write to its weights and store results; `model` if it has no copy."""
    with suppress(GrowthError):
        return copied(model, share=share)
    return model


def _record(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    notes: Notes,
    *,
    training: bool,
    device: str | None,
    most: int | None = None,
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
    recorder = Recorder(model, weights, sizes, notes, most)
    with torch.no_grad(), mode(model, training=training), plainly(), recorder:
        recorder.inputs(_named(model, args, kwargs))
        recorder.outputs(functional_call(model, tensors, args, kwargs, tie_weights=False))
    return recorder.graph(real=device is None)


def _named(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by their names in the forward's signature."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    return {name: value for name, value in bound.arguments.items() if tree_leaves(value)}


def _check_bare(model: nn.Module) -> None:
    kind = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise GrowthError(f"{kind} is scripted and cannot be changed; grow the module it was made from, script again")
    if why := why_split(model) or why_wrapped(model):
        raise GrowthError(why)
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise GrowthError(
                f"{path!r} is scripted, and cannot be followed; put the module that it was made from in its place, "
                "grow, and script that part again"
            )
    for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise GrowthError(f"{path!r} has no shape yet (lazy module); run the model on one batch before growing it")


def change(before: Traces, after: Traces, again: Callable[[], Traces]) -> RefusalReason | None:
    """Return the first difference, outside of grown modules, in what the model computes; None where there is none.

    `again` traces the grown model once more: growth did not cause differences between these two traces (a counter of
    calls).
    """
    return _change(before.training, after.training, lambda: again().training) or _change(
        before.evaluation, after.evaluation, lambda: again().evaluation
    )


def _change(before: Graph, after: Graph, again: Callable[[], Graph]) -> RefusalReason | None:
    old, new = _ungrown(before), _ungrown(after)
    for name, operation in new.items():
        if operation.operator in ("Parameter", "Buffer") and name not in old:
            return RefusalReason(
                f"the model's forward reads {name!r}, which growth adds, outside of the module that holds it, as a sum "
                "over all parameters or their count does",
                "compute such a term in the loss, or over layers that you name",
                operation.written_at,
            )
    other = {
        name
        for name, operation in old.items()
        if name in new and len(new[name].inputs) == len(operation.inputs) and new[name].arguments != operation.arguments
    }
    if not other:
        return None
    steady = _ungrown(again())
    for name, operation in old.items():
        if name in other and name in steady and steady[name].arguments == new[name].arguments:
            return RefusalReason(
                f"{operation.operator} {name!r} of the model's forward is called with other numbers then "
                f"({operation.arguments} before, {new[name].arguments} after), as where it counts modules",
                "compute such a number once, in __init__",
                operation.written_at,
            )
    return None


def _ungrown(graph: Graph) -> dict[str, Operation]:
    """Return the operations that growth has not added; their inputs may be grown."""
    return {name: operation for name, operation in graph.operations.items() if operation.stack is None}
