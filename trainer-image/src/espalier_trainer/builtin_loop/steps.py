"""One optimizer step of the ready trainer, alone or with all other workers."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from espalier_core.types.job import ElasticBatch, TrainingSpec
from espalier_trainer.data.source import EpochOrder, Source
from espalier_trainer.elastic.group import Group
from espalier_trainer.elastic.membership import LEAST_ROWS, ONE, Portion
from espalier_trainer.elastic.step import CriterionOf, StepResult, is_taken, joint_step, parts_of, share_of
from espalier_trainer.measuring.gradients import Passes, Stopwatch
from espalier_trainer.optimizers.building import set_learning_rate
from espalier_trainer.training.hooks import Criterion, Hooks
from espalier_trainer.training.method import PLAIN, Method
from espalier_trainer.training.network import Network


def take(
    training: TrainingSpec,
    method: Method,
    network: Network,
    hooks: Hooks,
    group: Group | None,
    order: EpochOrder,
    source: Source,
    cursor: int,
    rate: float | None,
    portion: Portion = ONE,
    *,
    measured: bool = False,
    follows: bool = False,
) -> StepResult:
    """Take the step of `portion` at batch `cursor` of the epoch; returns what came of it.

    `rate` None: the leader's, who alone knows it. `measured`: times and norms of gradients are measured in it.
    `follows`: the leader says that another step follows, see `Team.begin_step`. Raises `GroupBrokenError` where another
    member of `group` is gone: then the step was not taken.
    """
    batches = portion.batches
    if group is None:
        if rate is not None:
            set_learning_rate(network.optimizer, rate)
        inputs, labels = order.batch(source, cursor, batches=batches)
        indices = order.chosen(cursor, batches=batches)
        passes = min(portion.passes, len(labels) // LEAST_ROWS)
        if passes <= 1:
            return optimize(network, inputs, labels, method, hooks.criterion(indices, inputs))
        watched = Passes(network.module, order.epoch + cursor) if measured else None
        return accumulate(network, inputs, labels, method, partial(_criterion, hooks, indices, inputs), passes, watched)
    policy = training.elastic_batch or ElasticBatch.KEEP_GLOBAL
    indices, inputs, labels, examples = share_of(policy, group, order, source, cursor, batches)
    return joint_step(
        network,
        group,
        inputs,
        labels,
        examples,
        sync_batch_norm=bool(training.sync_batch_norm),
        criterion=partial(_criterion, hooks, indices, inputs),
        passes=portion.passes,
        measured=measured,
        method=method,
        rate=rate,
        follows=follows,
    )


def optimize(
    network: Network,
    inputs: Tensor,
    labels: Tensor,
    method: Method = PLAIN,
    criterion: Criterion | None = None,
) -> StepResult:
    """Take a step along the mean gradient over `labels`; returns what came of it."""
    network.optimizer.zero_grad(set_to_none=True)
    loss = _loss(network, inputs, labels, method, criterion)
    torch.autograd.backward(loss)
    scale = method.update(network) if is_taken(network, loss) else 1.0
    # Waits for the device: without it steps would queue up past the deadline.
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
