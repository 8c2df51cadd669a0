"""One optimizer step of the ready trainer, alone or with all other workers."""

from __future__ import annotations

from torch import Tensor, nn

from espalier_api.job import ElasticBatch, TrainingSpec
from espalier_trainer.core.hooks import Criterion, Hooks
from espalier_trainer.data.batches import EpochOrder
from espalier_trainer.data.source import Source
from espalier_trainer.elastic.group import Group
from espalier_trainer.elastic.step import Joint, indices_of, joint_step, share_of
from espalier_trainer.network import Network
from espalier_trainer.optimizers import set_learning_rate


def take(
    training: TrainingSpec,
    network: Network,
    hooks: Hooks,
    group: Group | None,
    order: EpochOrder,
    source: Source,
    cursor: int,
    rate: float,
    *,
    measured: bool = False,
) -> tuple[Joint, int]:
    """Take the step at batch `cursor` of the epoch; returns what came of it, and how many batches it took.

    `measured`: times and norms of gradients are measured in it. Raises `GroupBrokenError` where another member of
    `group` is gone: then the step was not taken.
    """
    set_learning_rate(network.optimizer, rate)
    if group is None:
        inputs, labels = order.batch(source, cursor)
        loss = optimize(network, inputs, labels, hooks.criterion(order.chosen(cursor), inputs))
        return Joint(loss, (), examples=len(labels)), 1
    policy = training.elastic_batch or ElasticBatch.KEEP_GLOBAL
    inputs, labels, examples, batches = share_of(policy, group, order, source, cursor)
    criterion = hooks.criterion(indices_of(policy, group, order, cursor), inputs) if len(labels) else None
    sync = bool(training.sync_batch_norm)
    joint = joint_step(
        network, group, inputs, labels, examples, sync_batch_norm=sync, criterion=criterion, measured=measured
    )
    return joint, batches


def optimize(network: Network, inputs: Tensor, labels: Tensor, criterion: Criterion | None = None) -> float:
    """Take a step along the mean gradient over `labels`; returns the mean loss before it."""
    network.optimizer.zero_grad(set_to_none=True)
    logits = network.module(inputs)
    loss = nn.functional.cross_entropy(logits, labels) if criterion is None else criterion(logits, labels) / len(labels)
    loss.backward()  # type: ignore[no-untyped-call]
    network.optimizer.step()
    # Waits for the device: without it steps would queue up past the deadline.
    return float(loss.item())
