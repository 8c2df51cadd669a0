"""The loop of a user's script: its protocol, the loop without a job, and one step."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from espalier_trainer.elastic.batch_norm import synchronized
from espalier_trainer.elastic.group import Group, GroupBrokenError
from espalier_trainer.elastic.step import GradientSum, Joint
from espalier_trainer.errors import OwnLoopError
from espalier_trainer.measuring.gradients import settle
from espalier_trainer.own.feed import Part
from espalier_trainer.own.state import OwnState, Steering

logger = logging.getLogger(__name__)


class Loop(Protocol):
    """What `join` returns: the epochs, and the calls of a step."""

    @property
    def leads(self) -> bool:
        """Whether this worker reports, saves, and runs the code after the loop."""

    @property
    def workers(self) -> int:
        """Number of workers that train together now."""

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the numbers of the epochs, `count` of them, or as many as the time budget allows."""

    def backward(self, loss: Tensor) -> float:
        """Do what `loss.backward()` does, over the batches of all workers; returns their mean loss.

        `loss` is a mean over the examples of the batch. If other workers have left, the step is dropped: no parameter
        has a gradient then, so `optimizer.step()` changes nothing, and `loss` itself is returned.
        """

    def report(self, **figures: float) -> None:
        """Put figures into the job's report; `validation_accuracy` with `validation_loss` count as an evaluation."""


class Alone:
    """The loop of a script that was not started as a job: a plain loop."""

    leads = True
    workers = 1

    def __init__(self, state: OwnState) -> None:
        self._state = state

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield `count` numbers."""
        if count is None:
            raise OwnLoopError("epochs() of a script without a job has no time budget that ends it; call epochs(count)")
        return iter(range(count))

    def backward(self, loss: Tensor) -> float:
        """Call `loss.backward()`; returns the loss."""
        self._state.check_schedulers()
        torch.autograd.backward(loss)
        return float(loss.detach())

    def report(self, **figures: float) -> None:
        """No worker needs it."""


class _Forgiving:
    """A group that may break during the user's forward: it keeps the error, and `backward` raises it."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.broken: GroupBrokenError | None = None

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum over all members, unless the group is broken."""
        if self.broken is None:
            try:
                self._group.all_reduce(tensor)
            except GroupBrokenError as error:
                self.broken = error


class Step:
    """One iteration of the user's loop: from the batch to `optimizer.step()`."""

    def __init__(
        self, state: OwnState, part: Part, group: Group | None, *, sync_batch_norm: bool, measured: bool = False
    ) -> None:
        self.part = part
        self.joint: Joint | None = None
        """Its result, once all members have taken it."""
        self.asked = self.done = False
        """Whether `backward` and `optimizer.step` were called."""
        self._state, self._group, self._measured = state, group, measured
        self._steering: Steering | None = None
        self._began = time.perf_counter()
        self._synced = ExitStack()
        self._forgiving = None if group is None or not sync_batch_norm else _Forgiving(group)
        if self._forgiving is not None:
            self._synced.enter_context(synchronized(state.model, self._forgiving, counts=part.rows > 0))

    def backward(self, loss: Tensor) -> Joint:
        """Give all parameters the gradient of all workers' mean loss. Raises `GroupBrokenError`."""
        if self.asked:
            raise OwnLoopError(
                "backward() was called twice for one batch; add the losses and call it once; for a larger batch give "
                "the DataLoader another batch_size instead of gradient accumulation"
            )
        self.asked = True
        self._state.check_schedulers()
        part, group = self.part, self._group
        weight = part.rows / part.examples
        exchange = None
        if group is not None:
            exchange = GradientSum(self._state.model, group, weight=weight, measured=self._measured)
        # Batch norms that are synchronized use the group in the backward pass.
        during = nullcontext() if exchange is None or self._forgiving is not None else exchange.during_backward()
        with self._synced, during:
            torch.autograd.backward(loss)
        value = loss.detach().float()
        if group is None or exchange is None:
            # Waits for the device: otherwise steps would queue up past the deadline.
            self.joint = Joint(float(value), (time.perf_counter() - self._began,), examples=part.examples)
            return self.joint
        if self._forgiving is not None and self._forgiving.broken is not None:
            raise self._forgiving.broken
        if self._measured:
            settle(group.device)
        joint = exchange.finish(
            value * weight if part.rows else torch.zeros_like(value),
            time.perf_counter() - self._began,
            check=self._state.rates(),
            examples=part.examples,
            share=weight,
        )
        if len(set(joint.checks)) > 1:
            raise OwnLoopError(
                f"the workers' learning rates differ (sums over the groups, by worker: {joint.checks}); decide on them "
                "by what all workers share, such as what backward() returns, and give schedulers to join"
            )
        self.joint = joint
        return joint

    def drop(self) -> None:
        """Remove all gradients, so that `optimizer.step()` skips all parameters."""
        self._steering = self._state.steering()
        for parameter in self._state.model.parameters():
            parameter.grad = None

    def finish(self) -> Joint | None:
        """Return the result of the step; None if it was dropped: the same batch is repeated.

        Changes that the script made to schedulers at a dropped step are undone. Raises `OwnLoopError` if the script did
        not make the calls of a step.
        """
        self._synced.close()
        if not self.asked:
            raise OwnLoopError(
                "the loop took the next batch before backward(loss) was called for this one; call it once for each "
                "batch, in place of loss.backward()"
            )
        if self.joint is not None and not self.done:
            raise OwnLoopError(
                "optimizer.step() was not called after backward(loss); gradient accumulation is not supported: give "
                "the DataLoader a larger batch_size, and use bfloat16 where a GradScaler would leave steps out"
            )
        if self.joint is None and self._steering is not None:
            self._state.steer(self._steering)
        return self.joint


class Hooks:
    """Wraps the user's `optimizer.step()`: detects the call, and scales the learning rate for this call only."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.step: Step | None = None
        self._kept: list[Any] = []
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _before(self, optimizer: torch.optim.Optimizer, *given: Any) -> None:
        factor = 1.0 if self.step is None else self.step.part.portion.rate
        self._kept = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor if factor != 1 else group["lr"]

    def _after(self, optimizer: torch.optim.Optimizer, *given: Any) -> None:
        # A scheduler computes its next rate from the rate that it set.
        for group, rate in zip(optimizer.param_groups, self._kept, strict=True):
            group["lr"] = rate
        if self.step is not None:
            self.step.done = True
