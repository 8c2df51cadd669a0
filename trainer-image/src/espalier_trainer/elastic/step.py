"""One optimizer step of all members together."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from espalier_api.job import ElasticBatch
from espalier_trainer.core.hooks import Criterion
from espalier_trainer.data.batches import EpochOrder
from espalier_trainer.data.source import Source
from espalier_trainer.elastic.batch_norm import synchronized
from espalier_trainer.elastic.batches import LEAST_ROWS, consumed, shares
from espalier_trainer.elastic.group import Group
from espalier_trainer.measuring.gradients import Stopwatch, settle, squared_norm
from espalier_trainer.measuring.noise import Norms
from espalier_trainer.network import Network


@dataclass(frozen=True, slots=True)
class Joint:
    """The result of a step."""

    loss: float
    """Mean over the examples of all members, before the step."""
    seconds: tuple[float, ...]
    """Seconds that each member computed, by rank."""
    checks: tuple[float, ...] = ()
    """The value of each member to be compared, by rank."""
    examples: int = 0
    """Of all members; 0: not known."""
    sync_seconds: float | None = None
    """Seconds in which gradients were exchanged, without waiting for slower members; None: not measured."""
    norms: Norms | None = None
    """Squared norms of the members' gradients and of their mean; None: not measured."""
    norms_seconds: float = 0.0
    """What these cost."""


def share_of(
    policy: ElasticBatch, group: Group, order: EpochOrder, source: Source, cursor: int
) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """Return this member's (inputs, labels), the examples of all members, and the batches that the step takes.

    A member without a share gets no labels and some inputs that do not count: few models run on an empty batch.
    """
    own = shares(policy, group.world, cursor, len(order), order.rows)
    mine = own[group.rank]
    if mine.rows:
        inputs, labels = order.batch(source, mine.batch, slice(mine.first, mine.last))
    else:
        # The member's own batch may be beyond the end of the epoch.
        inputs, labels = order.batch(source, cursor, slice(LEAST_ROWS))
        labels = labels[:0]
    return inputs, labels, sum(each.rows for each in own), consumed(policy, group.world, cursor, len(order))


def indices_of(policy: ElasticBatch, group: Group, order: EpochOrder, cursor: int) -> Tensor:
    """Return the examples of this member's share."""
    mine = shares(policy, group.world, cursor, len(order), order.rows)[group.rank]
    return order.chosen(mine.batch, slice(mine.first, mine.last))


def joint_step(
    network: Network,
    group: Group,
    inputs: Tensor,
    labels: Tensor,
    examples: int,
    *,
    sync_batch_norm: bool = False,
    criterion: Criterion | None = None,
    measured: bool = False,
) -> Joint:
    """Take a step along the mean gradient over `examples`, of which `inputs`, `labels` are this member's.

    Without labels this member does not contribute, and computes only if the others' batch norms wait for it.
    `criterion` None: by cross entropy. `measured`: measure times and norms.
    The gradients of all parameters, the loss and the times go in one all-reduce. Nothing after it can fail, so either
    all remaining members have taken the step or none has. Raises `GroupBrokenError`.
    """
    began = time.perf_counter()
    network.optimizer.zero_grad(set_to_none=True)
    part = torch.zeros((), device=group.device)
    counts = len(labels) > 0
    if counts or sync_batch_norm:
        with synchronized(network.module, group, counts=counts) if sync_batch_norm else nullcontext():
            logits = network.module(inputs)
            loss = (criterion or _summed)(logits, labels) / examples if counts else logits.sum() * 0
            torch.autograd.backward(loss)
        part = loss.detach() if counts else part
    if measured:
        settle(group.device)
    share = len(labels) / examples if examples else 0.0
    joint = sum_gradients(
        network.module,
        group,
        part,
        time.perf_counter() - began,
        weight=float(counts),
        examples=examples,
        measured_share=share if measured else None,
    )
    network.optimizer.step()
    return joint


def _summed(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, labels, reduction="sum")


def sum_gradients(
    module: nn.Module,
    group: Group,
    part: Tensor,
    seconds: float,
    *,
    weight: float = 1.0,
    check: float = 0.0,
    examples: int = 0,
    measured_share: float | None = None,
) -> Joint:
    """Replace the gradients of all members by their weighted sum (`weight` is this member's), and sum their `part` of
    the loss.

    `seconds` and `check` of each come with it. `examples` are those of all members; with `measured_share`, this
    member's share of them, the exchange is timed and norms are measured. Raises `GroupBrokenError`.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    world = group.world
    figures = torch.zeros(3 + 2 * world, device=group.device)
    figures[0] = part
    figures[1 + group.rank] = seconds
    figures[1 + world + group.rank] = check
    own = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
    # Multiplication by 0 would keep values that are not finite; a member without examples must not contribute.
    own = own if weight == 1.0 else own * weight if weight else torch.zeros_like(own)
    watch = Stopwatch(group.device)
    if measured_share:
        with watch:
            # Its part of the mean is its own mean times its share, so the shares weight the squared norms.
            figures[-2] = squared_norm(own) / measured_share
            figures[-1] = 1.0
    cost = watch.seconds
    flat = torch.cat([own, figures])
    began = time.perf_counter()
    group.all_reduce(flat)
    *summed, figures = torch.split(flat, [*(parameter.numel() for parameter in parameters), len(figures)])
    for parameter, gradient in zip(parameters, summed, strict=True):
        parameter.grad = gradient.view_as(parameter).to(parameter.dtype)
    total, *rest, small, members = figures.tolist()
    took, computed = time.perf_counter() - began, tuple(rest[:world])
    joint = Joint(total, computed, tuple(rest[world:]), examples)
    if measured_share is None:
        return joint
    norms = None
    if group.rank == 0 and members > 1:
        with watch:
            large = float(squared_norm(flat[: len(own)]))
        cost += watch.seconds
        norms = Norms(small, examples / members, large, examples)
    sync = max(0.0, took - (max(computed) - seconds))
    return replace(joint, sync_seconds=sync, norms=norms, norms_seconds=cost)
