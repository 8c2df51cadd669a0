"""Trials of widenings before they are offered: the wider model must compute the same on random weights and inputs.

Shapes do not show everything that a forward does with its channels: it may divide by their number, shuffle them, or
contain their number as a constant. So the groups are widened on a copy with perturbed weights (zero-initialised layers
would hide errors), in float64 if the model supports it. Outputs are compared in eval mode, in train mode, and in eval
mode again, which reads the running statistics of the step in train mode. All groups are tried together first; if that
fails, subsets.

Dropout is disabled: it drops copies independently, so a wider model is equal only in expectation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from espalier_core.causes import in_one_line
from espalier_core.growth.architecture import GrowthError
from espalier_trainer.net2net import randomness
from espalier_trainer.net2net.modules import (
    ExampleInput,
    as_arguments,
    copied,
    failing,
    held,
    in_type,
    mode,
    once,
    tensors_in,
    undisturbed,
)
from espalier_trainer.net2net.probe import WithoutDropout, random_like
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.reading import Answering
from espalier_trainer.net2net.trace.tracing import Traces, traces
from espalier_trainer.net2net.widening.flow import RESHAPES
from espalier_trainer.net2net.widening.groups import Groups, Replication, WideningGroup, apply_in_place, find_groups

_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-5}
"""Maximum difference relative to the greatest value of the output. A wrong channel count causes 1 / width or more;
rounding in float64 reached 5e-10, after batch norms that computed their variance from two values."""


def tried_groups(model: nn.Module, graph: Graph, example_input: ExampleInput) -> Groups:
    """Return the groups of `model` that pass the trial, each by itself; `graph` is its trace on the example."""
    with Answering.of(graph.answers):
        return once(model, example_input, "groups", lambda: _tried(model, graph, example_input))


def _tried(model: nn.Module, graph: Graph, example_input: ExampleInput) -> Groups:
    groups = find_groups(model, graph)
    if not groups.found:
        return groups
    perturbed = PerturbedModel.of(model, example_input)
    failed = perturbed.failing(groups.found)
    if len(groups.found) > 1:
        # Groups that passed together may depend on each other's width: `one.view_as(other)`.
        both = traces(model, example_input)
        passed = [group for group in groups.found if group.id not in failed]
        doubtful = dict.fromkeys(
            group
            for some in _apart(passed)
            if not _alike_with(model, some, both, groups, example_input)
            for group in some
        )
        for group in doubtful:
            if not _alike_with(model, [group], both, groups, example_input):
                failed |= perturbed.failing([group])
    return groups.without(model, failed)


def _apart(groups: Sequence[WideningGroup]) -> Iterator[list[WideningGroup]]:
    """Yield sets of groups such that each group is, for each other one, in a set without it.

    So a few trials show that no group needs another. A set that fails is tried group by group.
    """
    for bit in range((len(groups) - 1).bit_length()):
        for value in (0, 1):
            yield [group for place, group in enumerate(groups) if place >> bit & 1 == value]


def _alike_with(
    model: nn.Module, some: Sequence[WideningGroup], both: Traces, groups: Groups, example_input: ExampleInput
) -> bool:
    replications = {group: group.replication(group.next_width, seed=1) for group in some}
    wider = copied(model, share=True)
    apply_in_place(wider, replications)
    return executes_alike(wider, both, groups, replications, example_input)


def executes_alike(
    wider: nn.Module,
    before: Traces,
    groups: Groups,
    widened: Mapping[WideningGroup, Replication],
    example_input: ExampleInput,
) -> bool:
    """Return whether the wider model calls the same functions with the same numbers, on the expected shapes.

    Both modes are compared; `before` and `groups` are from before the widening, `widened` is the widening.

    If so, nothing else has changed, and the trial on values, which takes a hundred times as long, can be skipped. Sizes
    in reshapes may differ, because shapes are compared. Other numbers that differ (`normalized_shape` of a functional
    layer norm) may be right or wrong, so they need the trial.
    """
    try:
        after = traces(wider, example_input)
    except GrowthError:
        return False
    replications = {group.space: replication for group, replication in widened.items()}
    return all(
        _alike(one, other, groups, replications)
        for one, other in ((before.training, after.training), (before.evaluation, after.evaluation))
    )


def _alike(graph: Graph, after: Graph, groups: Groups, replications: Mapping[int, Replication]) -> bool:
    if graph.outputs != after.outputs or list(graph.operations) != list(after.operations):
        return False
    return all(
        (before.operator, before.inputs) == (now.operator, now.inputs)
        and (before.arguments == now.arguments or before.operator in RESHAPES)
        and (now.shape == groups.widened_shape(before, replications) or _only_followed(before, graph, groups))
        for before, now in zip(graph.operations.values(), after.operations.values(), strict=True)
    )


def _only_followed(tensor: Operation, graph: Graph, groups: Groups) -> bool:
    """Return whether a parameter or buffer, which may be widened, is read only where channels are followed.

    Any other reader (its norm in the forward) would take copies of channels for additional channels.
    """
    return (
        tensor.operator in ("Parameter", "Buffer")
        and tensor.name not in graph.outputs
        and all(reader in groups.layouts for reader in graph.consumers[tensor.name])
    )


@dataclass(frozen=True)
class PerturbedModel:
    """A model with perturbed weights, an input, and its outputs."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tolerance: float
    wanted: list[list[Tensor]]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        example_input: ExampleInput,
        types: Sequence[torch.dtype] = (torch.float64, torch.float32),
    ) -> PerturbedModel:
        """Run a perturbed copy of `model` in the first of these types in which it runs.

        Raises `GrowthError` if it cannot be run on random values.
        """
        failure: Exception | None = None
        if any(tensor.is_meta for _, tensor in held(model, "_parameters")):
            raise GrowthError(
                f"{type(model).__name__} is on the meta device, where nothing can be computed; give it values first"
            )
        for dtype in dict.fromkeys(types):
            trial = in_type(copied(model), dtype)
            args, kwargs = as_arguments(example_input)
            with undisturbed(model):
                randomness.seed_everything(0)
                _disturb(trial)
                args, kwargs = tree_map_only(Tensor, partial(random_like, dtype=dtype), (args, kwargs))
            # The user's forward may raise anything in float64 (a constant of another type): then float32 is tried.
            try:
                return cls(trial, args, kwargs, _TOLERANCE.get(dtype, 1.0), _run(trial, args, kwargs))
            except Exception as error:
                failure = error
        raise GrowthError(
            f"{type(model).__name__} fails on random values like the example input "
            f"({type(failure).__name__}: {failure}), so no widening can be tried"
        ) from failure

    def failing(self, groups: Sequence[WideningGroup]) -> dict[str, str]:
        """Return the ids of the groups that fail the trial, with the reasons."""
        return {group.id: why for group, why in failing(groups, self._problem)}

    def _problem(self, groups: Sequence[WideningGroup]) -> str | None:
        wider = copied(self.model)
        apply_in_place(wider, {group: group.replication(group.next_width, seed=1) for group in groups})
        # The user's forward may raise anything if it contains a width as a constant.
        try:
            found = _run(wider, self.args, self.kwargs)
        except Exception as error:
            said = f"{type(error).__name__}: {in_one_line(str(error))}"
            return f"the model's forward fails with more channels there ({said})"
        worst = self._off(found)
        if not worst <= self.tolerance:  # also true for nan
            if not self._off(_run(self.model, self.args, self.kwargs, seed=3)) <= self.tolerance:
                return (
                    "the model draws random numbers in its forward, and others with more channels there (relative "
                    f"difference {worst:.1e}); draw them in a size that does not depend on the channels, or by "
                    "nn.Dropout, which a widening preserves in expectation"
                )
            return (
                f"the model computes something else with more channels there (relative difference {worst:.1e}); "
                "let its forward not depend on the number or order of its channels"
            )
        return None

    def _off(self, found: Sequence[Sequence[Tensor]]) -> float:
        return max(map(_difference, found, self.wanted), default=0.0)


def _disturb(model: nn.Module) -> None:
    seen: set[int] = set()
    for _, parameter in held(model, "_parameters"):
        if id(parameter) not in seen and (parameter.is_floating_point() or parameter.is_complex()):
            seen.add(id(parameter))
            spread = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.1
            parameter.add_(torch.randn_like(parameter), alpha=spread)


def _run(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, seed: int = 2) -> list[list[Tensor]]:
    """Return the outputs in eval, train and again eval mode; the given copy is modified."""
    results = []
    model = copied(model)
    for training in (False, True, False):
        with undisturbed(model), mode(model, training=training), WithoutDropout():
            randomness.seed_everything(seed)
            try:
                result = model(*args, **kwargs)
            except ValueError:
                if not training:
                    raise
                continue  # batch norm on one value: the model has no train mode on this example
        results.append(tensors_in(result))
        if not results[-1]:
            raise TypeError(f"it returns {type(result).__name__}, in which no tensor is found")
    return results


def _difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    if [one.shape for one in found] != [one.shape for one in wanted]:
        return float("inf")
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        scale = max(other.abs().max().item(), 1e-30) if other.numel() else 1.0
        apart = (one - other).abs().max().item() / scale if other.numel() else 0.0
        if not apart <= worst:
            worst = apart
    return worst
