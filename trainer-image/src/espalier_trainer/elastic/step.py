"""One optimizer step of all members together."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn

from espalier_core.types.job import ElasticBatch
from espalier_trainer.data.source import EpochOrder, Source
from espalier_trainer.elastic.batch_norm import synchronized
from espalier_trainer.elastic.buckets import Exchange
from espalier_trainer.elastic.group import Group, GroupBrokenError
from espalier_trainer.elastic.membership import LEAST_ROWS, ONE, Portion, shares
from espalier_trainer.measuring.gradients import Norms, Stopwatch, settle
from espalier_trainer.optimizers.building import set_learning_rate
from espalier_trainer.training.hooks import Criterion
from espalier_trainer.training.method import PLAIN, Method
from espalier_trainer.training.network import Network

_FIXED_FIGURES: Final = 9
"""Number of figures of a step, besides three for each member."""
_NO_RATE: Final = -1.0
_NOT_TIMED: Final = -1.0
_RATE, _FOLLOWS, _VOID, _FAILED, _SMALL, _MEMBERS = -8, -5, -4, -3, -2, -1
"""Negative offsets of some figures; a rate takes three."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step to take."""

    group: Group | None = None
    """Group of all members; None if this worker is alone."""
    rate: float | None = None
    """Learning rate; None for the leader's, which only the leader knows."""
    portion: Portion = ONE
    """Portion of the epoch in this step."""
    measured: bool = False
    """Whether times and norms of gradients are measured in it."""
    follows: bool = False
    """Whether it announces another step to the other members; see `Team.begin_step`."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step."""

    loss: float
    """Mean loss over the examples of all members, before the step."""
    seconds: tuple[float, ...]
    """Seconds of computing of each member, by rank."""
    checks: tuple[float, ...] = ()
    """Value of each member to be compared, by rank."""
    examples: int = 0
    """Number of examples of all members; 0 if unknown."""
    sync_seconds: float | None = None
    """Seconds of the previous step's exchange of gradients, without waiting for slower members; None if not
    measured."""
    norms: Norms | None = None
    """Squared norms of the members' gradients and of their mean; None if not measured."""
    norms_seconds: float = 0.0
    """Seconds that measuring the norms took."""
    out_of_memory: bool = False
    """Whether a member was out of memory, so that no member has taken the step."""
    void: bool = False
    """Whether the leader has revoked the step, so that no member has taken it."""
    follows: bool = False
    """Whether a step like this one follows at the next batches, without a command."""
    rate: float | None = None
    """The leader's learning rate; None if it sent none."""
    scale: Tensor | float = 1.0
    """Factor by which the remaining gradients were multiplied (`Method.update`)."""


CriterionOf = Callable[[slice], Criterion | None]
"""Function from rows of a member's share to their loss function; None for cross entropy."""


def share_of(
    policy: ElasticBatch, group: Group, order: EpochOrder, source: Source, cursor: int, batches: int = 1
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return this member's (indices, inputs, labels) of a step that takes `batches` batches, and the number of examples
    of all members.

    A member without a share gets no indices and labels, and some inputs that do not count: few models run on an empty
    batch.
    """
    own = shares(policy, group.world, cursor, order.rows, batches)
    mine = own[group.rank]
    rows = slice(mine.first, mine.last)
    indices = order.chosen(mine.batch, rows, batches)
    if mine.rows:
        inputs, labels = order.batch(source, mine.batch, rows, batches)
    else:
        # The member's own batch may be beyond the end of the epoch.
        inputs, labels = order.batch(source, cursor, slice(LEAST_ROWS))
        labels = labels[:0]
    return indices, inputs, labels, sum(each.rows for each in own)


def joint_step(
    network: Network,
    plan: StepPlan,
    inputs: Tensor,
    labels: Tensor,
    examples: int,
    *,
    method: Method = PLAIN,
    criterion: CriterionOf | None = None,
    sync_batch_norm: bool = False,
) -> StepResult:
    """Take a step along the mean gradient over `examples`, of which `inputs`, `labels` are this member's.

    A member without labels does not contribute, and computes only if the others' batch norms wait for it. Gradients
    add up over the passes of the portion. `criterion` None stands for the loss of `method`, which also computes the
    outputs and updates the weights. The gradients of all parameters, the loss and the times go in one all-reduce.
    Nothing after it can fail, so either all remaining members have taken the step or none has: none if one was out of
    memory (`StepResult.out_of_memory`) or the leader has revoked the step (`StepResult.void`). The leader's rate, and
    whether a step follows, come to all members with the gradients. Raises `GroupBrokenError`, and where batch norms
    are synchronized `OutOfMemoryError`.
    """
    group, began = plan.group, time.perf_counter()
    if group is None:
        raise ValueError("a joint step needs a group of several members")
    network.optimizer.zero_grad(set_to_none=True)
    exchange = GradientSum(network.module, group, weight=float(len(labels) > 0), measured=plan.measured)
    part = torch.zeros((), device=group.device)
    counts, failed = len(labels) > 0, False
    if counts or sync_batch_norm:
        least = examples // group.world // LEAST_ROWS
        parts = parts_of(len(labels), min(plan.portion.passes, max(1, least)))
        try:
            for rows in parts:
                with synchronized(network.module, group, counts=counts) if sync_batch_norm else nullcontext():
                    logits = method.outputs(network, inputs[rows] if counts else inputs)
                    found = None if criterion is None or not counts else criterion(rows)
                    loss = (found or method.losses)(logits, labels[rows]) / examples if counts else logits.sum() * 0
                    # Synchronized batch norms use the group in the backward pass.
                    last = rows is parts[-1] and not sync_batch_norm
                    with exchange.during_backward() if last else nullcontext():
                        torch.autograd.backward(loss)
                part = part + loss.detach() if counts else part
        except torch.OutOfMemoryError:
            if sync_batch_norm:
                raise  # the others wait for this member in a batch norm
            network.optimizer.zero_grad(set_to_none=True)
            counts, failed, part = False, True, torch.zeros((), device=group.device)
            exchange.withdraw()
    if plan.measured:
        settle(group.device)
    share = len(labels) / examples if counts else 0.0
    joint = exchange.finish(
        part,
        time.perf_counter() - began,
        examples=examples,
        share=share,
        failed=failed,
        rate=plan.rate,
        follows=plan.follows,
    )
    if joint.out_of_memory or joint.void or not is_taken(network, joint.loss):
        network.optimizer.zero_grad(set_to_none=True)
        return joint
    if joint.rate is not None:
        set_learning_rate(network.optimizer, joint.rate)
    return replace(joint, scale=method.update(network))


def is_taken(network: Network, loss: Tensor | float) -> bool:
    """Return whether weights are updated along the gradient of this loss.

    They are not where it is not finite and the steps have an execution: the module will compute the step again.
    """
    return network.execution is None or math.isfinite(loss.detach() if isinstance(loss, Tensor) else loss)


def take_back(group: Group) -> None:
    """Revoke a step that all other members compute already: the leader takes part, and no member takes it.

    Must follow a step with `follows`. Raises `GroupBrokenError`.
    """
    buckets = group.buckets
    if buckets is None:
        raise GroupBrokenError("no step was taken before")
    figures = [0.0] * (buckets.figures - 1)
    figures[_VOID] = 1.0
    buckets.sum_nothing(group, figures)


def _in_parts(number: float) -> list[float]:
    """Return three 32-bit numbers whose sum is a 64-bit number, as figures have 32 bits."""
    parts = []
    for _ in range(3):
        parts.append(struct.unpack("f", struct.pack("f", number))[0])
        number -= parts[-1]
    return parts


def parts_of(rows: int, passes: int) -> tuple[slice, ...]:
    """Return `passes` parts of `rows` rows whose sizes differ by one at most."""
    return tuple(slice(rows * each // passes, rows * (each + 1) // passes) for each in range(passes))


class GradientSum:
    """Replaces the gradients of all members by their weighted sum, and sends the figures of a step with them."""

    def __init__(self, module: nn.Module, group: Group, *, weight: float = 1.0, measured: bool = False) -> None:
        """`weight` is the factor of this member's gradients; with `measured`, times and norms are measured."""
        self._group, self.measured = group, measured
        self._exchange = Exchange(module, group, _FIXED_FIGURES + 3 * group.world, weight=weight, measured=measured)

    def during_backward(self) -> AbstractContextManager[None]:
        """Return the context of the last backward pass, in which gradients are sent as they are computed.

        The context raises `GroupBrokenError`. It is optional: gradients not sent in it are sent after it.
        """
        return self._exchange.during_backward()

    def withdraw(self) -> None:
        """Send zeros from here on: this member's step has failed."""
        self._exchange.withdraw()

    def finish(
        self,
        part: Tensor,
        seconds: float,
        *,
        check: float = 0.0,
        examples: int = 0,
        share: float = 0.0,
        failed: bool = False,
        rate: float | None = None,
        follows: bool = False,
    ) -> StepResult:
        """Give all parameters the summed gradients, and sum the members' `part` of the loss.

        All members learn each other's `seconds`, `check` and `failed` (whether a member was out of memory), and the
        leader's `rate` and `follows`. `examples` is the number of all members' examples, `share` this member's share of
        them. Raises `GroupBrokenError`.
        """
        group, exchange, world = self._group, self._exchange, self._group.world
        numbers = [0.0] * (_FIXED_FIGURES + 3 * world)
        numbers[_FAILED] = float(failed)
        numbers[1 + group.rank] = seconds
        numbers[1 + world + group.rank] = check
        numbers[1 + 2 * world + group.rank] = _NOT_TIMED if group.exchanged is None else group.exchanged
        if group.rank == 0:
            numbers[_RATE:_FOLLOWS] = _in_parts(_NO_RATE if rate is None else rate)
            numbers[_FOLLOWS] = float(follows)
        figures = torch.tensor(numbers, device=group.device)
        figures[0] = part
        watch = Stopwatch(group.device)
        began = time.perf_counter()
        exchange.send_most()
        if self.measured and share:
            # Its part of the mean is its own mean times its share, so the shares weight the squared norms.
            figures[_SMALL] = exchange.squared_norm / share
            figures[_MEMBERS] = 1.0
        found = exchange.sum(figures).tolist()
        took = time.perf_counter() - began
        exchanged = found[1 + 2 * world : 1 + 3 * world]
        short, given = found[_FAILED] > 0, sum(found[_RATE:_FOLLOWS])
        joint = StepResult(
            found[0],
            tuple(found[1 : 1 + world]),
            tuple(found[1 + world : 1 + 2 * world]),
            examples,
            # The member that was ready last did not wait.
            sync_seconds=None if min(exchanged) < 0 else min(exchanged),
            out_of_memory=short,
            void=found[_VOID] > 0,
            follows=found[_FOLLOWS] > 0 and not short,
            rate=None if given < 0 else given,
        )
        taken = not (joint.out_of_memory or joint.void)
        # Measuring norms makes the exchange longer. On a GPU its beginning is only known then.
        group.exchanged = took if taken and self.measured == (group.device.type == "cuda") else None
        if not (self.measured and taken):
            return joint
        small, members = found[_SMALL], found[_MEMBERS]
        norms = None
        if group.rank == 0 and members > 1:
            with watch:
                large = float(exchange.squared_norm_of_sum())
            norms = Norms(small, examples / members, large, examples)
        # The norm of this member's gradients, computed on the way, took as long as that of the sum.
        return replace(joint, norms=norms, norms_seconds=2 * watch.seconds)
