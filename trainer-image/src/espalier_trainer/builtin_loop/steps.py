"""One optimizer step of the built-in loop, alone or with all other workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from espalier_core.types.job import ElasticBatch, TrainingSpec
from espalier_trainer.data.source import EpochOrder, Source
from espalier_trainer.elastic.membership import LEAST_ROWS
from espalier_trainer.elastic.step import CriterionOf, StepPlan, StepResult, is_taken, joint_step, parts_of, share_of
from espalier_trainer.measuring.gradients import Passes, Stopwatch
from espalier_trainer.optimizers.building import set_learning_rate
from espalier_trainer.training.hooks import Criterion, Hooks
from espalier_trainer.training.method import PLAIN, Method
from espalier_trainer.training.network import Network


@dataclass(frozen=True, slots=True)
class StepContext:
    """The common arguments of all steps of a loop."""

    training: TrainingSpec
    method: Method
    source: Source
    """The training split."""
    hooks: Hooks = field(default_factory=Hooks)


def take(context: StepContext, network: Network, order: EpochOrder, cursor: int, plan: StepPlan) -> StepResult:
    """Take the planned step at batch `cursor` of the epoch; return its result.

    Raises `GroupBrokenError` where another member of the group is gone: then the step was not taken.
    """
    method, hooks, batches = context.method, context.hooks, plan.portion.batches
    if plan.group is None:
        if plan.rate is not None:
            set_learning_rate(network.optimizer, plan.rate)
        inputs, labels = order.batch(context.source, cursor, batches=batches)
        indices = order.chosen(cursor, batches=batches)
        passes = min(plan.portion.passes, len(labels) // LEAST_ROWS)
        if passes <= 1:
            return optimize(network, inputs, labels, method, hooks.criterion(indices, inputs))
        watched = Passes(network.module, order.epoch + cursor) if plan.measured else None
        return accumulate(network, inputs, labels, method, partial(_criterion, hooks, indices, inputs), passes, watched)
    policy = context.training.elastic_batch or ElasticBatch.KEEP_GLOBAL
    indices, inputs, labels, examples = share_of(policy, plan.group, order, context.source, cursor, batches)
    return joint_step(
        network,
        plan,
        inputs,
        labels,
        examples,
        method=method,
        criterion=partial(_criterion, hooks, indices, inputs),
        sync_batch_norm=bool(context.training.sync_batch_norm),
    )


def optimize(
    network: Network,
    inputs: Tensor,
    labels: Tensor,
    method: Method = PLAIN,
    criterion: Criterion | None = None,
) -> StepResult:
    """Take a step along the mean gradient over `labels`."""
    network.optimizer.zero_grad(set_to_none=True)
    loss = _loss(network, inputs, labels, method, criterion)
    torch.autograd.backward(loss)
    scale = method.update(network) if is_taken(network, loss) else 1.0
    # Wait for the device: otherwise steps would queue up past the deadline.
    return StepResult(float(loss.item()), (), examples=len(labels), scale=scale)


def accumulate(
    network: Network,
    inputs: Tensor,
    labels: Tensor,
    method: Method,
    criterion: CriterionOf,
    passes: int,
    watched: Passes | None = None,
) -> StepResult:
    """Take the same step with gradients that add up over `passes` parts of the examples; `watched` measures them."""
    network.optimizer.zero_grad(set_to_none=True)
    total, cost = torch.zeros((), device=inputs.device), 0.0
    for rows in parts_of(len(labels), passes):
        share = (rows.stop - rows.start) / len(labels)
        loss = share * _loss(network, inputs[rows], labels[rows], method, criterion(rows))
        torch.autograd.backward(loss)
        total += loss.detach()
        if watched is not None:
            with (watch := Stopwatch(inputs.device)):
                watched.look(share)
            cost += watch.seconds
    norms = None if watched is None else watched.norms(len(labels), passes)
    scale = method.update(network) if is_taken(network, total) else 1.0
    return StepResult(float(total.item()), (), examples=len(labels), norms=norms, norms_seconds=cost, scale=scale)


def _criterion(hooks: Hooks, indices: Tensor, inputs: Tensor, rows: slice) -> Criterion | None:
    return hooks.criterion(indices[rows], inputs[rows])


def _loss(network: Network, inputs: Tensor, labels: Tensor, method: Method, criterion: Criterion | None) -> Tensor:
    outputs = method.outputs(network, inputs)
    return (criterion or method.losses)(outputs, labels) / len(labels)
