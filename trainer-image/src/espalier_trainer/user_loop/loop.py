"""The loop of a user's script: its protocol, its common part in all workers, and one step."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from espalier_trainer.elastic.batch_norm import synchronized
from espalier_trainer.elastic.group import Group, GroupBrokenError
from espalier_trainer.elastic.step import GradientSum, StepResult
from espalier_trainer.errors import OwnLoopError
from espalier_trainer.measuring.gradients import settle
from espalier_trainer.net2net.optimizer import members_of
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.user_loop.feed import Feed, Part
from espalier_trainer.user_loop.state import StepSettings, UserState

logger = logging.getLogger(__name__)


class UserLoop(Protocol):
    """The loop that `join` returns: the epochs, and the calls of a step."""

    @property
    def leads(self) -> bool:
        """Whether this worker reports, saves, and runs the code after the loop."""

    @property
    def workers(self) -> int:
        """Number of workers that train together now."""

    @property
    def should_step(self) -> bool:
        """Whether the current batch is the last of its optimizer step; always, without `join(..., accumulate=N)`."""

    @property
    def fraction(self) -> float:
        """Used share of the time budget, 0 to 1: the same in all workers, and constant during a step."""

    def time_left(self) -> float:
        """Return the remaining seconds of the time budget: the same in all workers, and constant during a step."""

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the numbers of the epochs: `count` of them, or as many as the time budget allows."""

    def stop(self) -> None:
        """End the loop after the current epoch, and complete the job; also call it before a `break` or `return`.

        The leader's call counts. A worker that leaves the loop without it, for example by an exception, has failed.
        """

    def backward(self, loss: Tensor) -> float:
        """Compute `loss.backward()` over the batches of all workers; return their mean loss.

        `loss` is a mean over the examples of the batch. If other workers have left, the step is dropped: no parameter
        has a gradient then, so `optimizer.step()` changes nothing, and `loss` itself is returned. For a step of several
        batches (`accumulate`), the loop takes the mean; before the last of them no parameter has a gradient, and the
        loss of this worker's batch is returned.
        """

    def report(self, **figures: float) -> None:
        """Add figures to the job's report; `validation_accuracy` with `validation_loss` counts as an evaluation."""

    def log_to(self, target: Any) -> None:
        """Also write the run's figures to TensorBoard's `SummaryWriter`, the result of `wandb.init`, or `mlflow`.

        Only the leader writes; call it in all workers, or where `loop.leads`. Raises `TrainerError` for anything else.
        """


class _Forgiving:
    """Group that may break during the user's forward: it keeps the error, which `backward` raises."""

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


class UserStep:
    """One optimizer step of the user's loop: the batches of this worker's part, one after the other."""

    def __init__(
        self, state: UserState, part: Part, group: Group | None, *, sync_batch_norm: bool, measured: bool = False
    ) -> None:
        self.part = part
        self.joint: StepResult | None = None
        """Result, once all members have taken the step."""
        self.dropped = False
        """Whether the step was dropped, because other workers have left: the batches are repeated."""
        self.done = self.stepped = False
        """Whether `optimizer.step` was called: with the step's gradients, and for the current batch at all."""
        self._state, self._group, self._sync = state, group, sync_batch_norm
        scaler = state.carried.scaler
        # The changing factor of a gradient scaler would count as noise.
        self._measured = measured and scaler is None
        self._scale = 1.0 if scaler is None else scaler.get_scale()
        self._most = len(members_of(state.optimizer)) if len(part.pieces) == 1 else 1
        self._calls = 0
        """Number of calls of `backward` for the current batch."""
        self._place = -1
        """Index of the current batch in the part."""
        self._sums: dict[nn.Parameter, Tensor] = {}
        """Gradients of the batches before the last one."""
        self._value: Tensor | None = None
        self._steering: StepSettings | None = None
        self._began = time.perf_counter()
        self._synced = ExitStack()
        self._forgiving: _Forgiving | None = None

    @property
    def last(self) -> bool:
        """Whether `backward` for the current batch completes the step."""
        return self._place == len(self.part.pieces) - 1

    def enter_batch(self) -> None:
        """Begin the next batch. Raises `OwnLoopError` if the script did not compute the one before."""
        self._require_computed()
        self._place, self._calls, self.stepped = self._place + 1, 0, False
        if self._group is not None and self._sync:
            self._synced.close()
            self._forgiving = _Forgiving(self._group)
            counts = self.part.pieces[self._place] > 0
            self._synced.enter_context(synchronized(self._state.model, self._forgiving, counts=counts))

    def backward(self, loss: Tensor) -> float:
        """Give all parameters the gradient of all workers' mean loss; return that loss. Raises `GroupBrokenError`.

        Before the last batch of the step, the gradients are put away, and the loss is that of this worker's batch.
        """
        if self._calls >= self._most:
            raise OwnLoopError(
                "backward() was called twice for one batch; add the losses and call it once, or give join a list of "
                "optimizers, one for each call; for gradients of several batches: join(..., accumulate=N); for a "
                "second pass over the batch (SAM): call loss.backward() in the first"
            )
        self._calls += 1
        self._state.check_schedulers()
        self._state.check_groups()
        rows, own = self.part.pieces[self._place], self.part.rows
        share = rows / own if own else 0.0
        # Where batch norms exchange gradients, these must already be those of the mean over all workers' examples.
        scale = share if self._forgiving is None else rows / self.part.examples
        keep_open = self._calls < self._most
        exchange = self._exchange() if self.last else None
        # Not if batch norms use the group in the backward pass, nor if this call is one of several.
        during: AbstractContextManager[None] = nullcontext()
        if exchange is not None and self._forgiving is None and self._most == 1:
            self._bring_back()
            during = exchange.during_backward()
        with ExitStack() if keep_open else self._synced, during:
            torch.autograd.backward(loss if scale == 1.0 else loss * scale)
        value = loss.detach().float() / self._scale
        if self._forgiving is not None and self._forgiving.broken is not None:
            raise self._forgiving.broken
        self._value = value * share if self._value is None else self._value + value * share
        if not self.last:
            self._put_away()
            return float(value)
        self._bring_back()
        joint = self._joined(self._value, exchange)
        self._value = None
        # A further call for the same batch: the losses of several optimizers add up.
        before = 0.0 if self.joint is None else self.joint.loss
        self.joint = replace(joint, loss=before + joint.loss)
        return joint.loss

    def drop(self) -> None:
        """Remove all gradients, so that `optimizer.step()` skips all parameters."""
        self.dropped, self.joint = True, None
        self._steering = self._state.steering()
        self._no_gradients()
        if self._state.carried.scaler is not None:
            # A scaler requires gradients; it skips a step with an infinite one.
            for optimizer in members_of(self._state.optimizer):
                parameter = optimizer.param_groups[0]["params"][0]
                parameter.grad = torch.full_like(parameter, torch.inf)

    def finish(self, *, left: bool = False) -> StepResult | None:
        """Return the result of the step; None if it was dropped, or if the script has `left` its batches within it.

        Changes of schedulers by the script at a dropped step are reverted. Raises `OwnLoopError` if the script did not
        make the calls of a step.
        """
        self._synced.close()
        if self.dropped:
            self._no_gradients()
            if self._steering is not None:
                self._state.steer(self._steering)
            return None
        taken = self.joint is not None and (self.done or self._skipped())
        if left and not taken and (self._calls or not self.stepped):
            self._no_gradients()
            return None
        self._require_computed()
        if self.joint is None or not taken:
            raise OwnLoopError(
                "optimizer.step() was not called after backward(loss); for gradient accumulation, call it for each "
                "batch, or where loop.should_step is true, and give join the number of batches: join(..., "
                "accumulate=N); a GradScaler, which skips steps, must also be given to join"
            )
        return self.joint

    # ---- within

    def _require_computed(self) -> None:
        if self._place >= 0 and not self._calls:
            raise OwnLoopError(
                "the loop took the next batch before backward(loss) was called for this one; call it once for each "
                "batch, instead of loss.backward()"
            )

    def _skipped(self) -> bool:
        """Return whether a gradient scaler has skipped the step, which lowers its factor."""
        scaler = self._state.carried.scaler
        return scaler is not None and scaler.get_scale() < self._scale

    def _put_away(self) -> None:
        """Add the gradients to those of earlier batches, so that `optimizer.step()` and `zero_grad()` find none."""
        for parameter in self._state.model.parameters():
            if parameter.grad is None:
                continue
            if parameter in self._sums:
                self._sums[parameter] += parameter.grad
            else:
                self._sums[parameter] = parameter.grad
            parameter.grad = None

    def _bring_back(self) -> None:
        for parameter, total in self._sums.items():
            parameter.grad = total if parameter.grad is None else total.add_(parameter.grad)
        self._sums = {}

    def _no_gradients(self) -> None:
        for parameter in self._state.model.parameters():
            parameter.grad = None
        self._sums = {}

    def _exchange(self) -> GradientSum | None:
        """Return the exchange that sums the gradients of all workers; None where this worker is alone."""
        if self._group is None:
            return None
        weight = self.part.rows / self.part.examples if self._forgiving is None else float(self.part.rows > 0)
        measured = self._measured and self._calls == 1
        return GradientSum(self._state.model, self._group, weight=weight, measured=measured)

    def _joined(self, value: Tensor, exchange: GradientSum | None) -> StepResult:
        part = self.part
        if exchange is None:
            # Wait for the device: otherwise steps would queue up past the deadline.
            return StepResult(float(value), (time.perf_counter() - self._began,), examples=part.examples)
        weight = part.rows / part.examples
        if exchange.measured:
            settle(value.device)
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
                "by values that all workers share, such as backward()'s result, and give schedulers to join"
            )
        return joint


class OptimizerHooks:
    """Wraps the user's `optimizer.step()`: detects the call, and scales the learning rate for this call only."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.step: UserStep | None = None
        self._kept: list[Any] = []
        for member in members_of(optimizer):
            member.register_step_pre_hook(self._before)
            member.register_step_post_hook(self._after)

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
            self.step.stepped, self.step.done = True, self.step.done or self.step.joint is not None


class JobLoop:
    """The common part of a job's loops, in the leader and in the other workers."""

    def __init__(self, state: UserState, feed: Feed, moment: Moment, *, sync_batch_norm: bool) -> None:
        self._state, self._feed, self._sync = state, feed, sync_batch_norm
        self._hooks = OptimizerHooks(state.optimizer)
        self._step: UserStep | None = None
        """The current step."""
        self._moment = moment
        """Position of the leader's script in the budget, for the scripts of all workers."""

    @property
    def should_step(self) -> bool:
        """Whether the current batch is the last of its optimizer step."""
        return self._step is None or self._step.last

    @property
    def fraction(self) -> float:
        """Used share of the time budget, 0 to 1, as the leader's script sees it."""
        return self._moment.share

    def time_left(self) -> float:
        """Return the remaining seconds of the time budget, as the leader's script sees them."""
        return self._moment.left

    def __len__(self) -> int:
        """Return the number of batches of an epoch, before workers divide them."""
        return self._feed.loaded

    @property
    def dataset(self) -> Any:
        """Data set of the loader that the script gave to `join`."""
        return self._feed.dataset
