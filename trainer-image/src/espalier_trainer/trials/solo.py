"""An arm of a trial, in the worker that tries it: a copy of the model grows, trains for a slice, and is evaluated."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass

import torch

from espalier_core.causes import in_one_line
from espalier_core.growth.architecture import GrowthError
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_core.types.report import Arm, Slice
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.elastic.member import StepRequest, TrialChannel
from espalier_trainer.elastic.states import StateCopy, TrainingState
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.trials.rules import TrialOrder, TrialResult

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SoloStep:
    """The result of a step."""

    loss: float | None
    """Loss; None if the step was not taken."""
    ends_epoch: bool = False
    """Whether the loop goes on with the next epoch, even if batches are left of this one."""


@dataclass(frozen=True, slots=True)
class _Fall:
    """A learning rate that falls linearly, from `rate` at `began` to `ends` times that at `until`."""

    rate: float
    ends: float
    began: float
    until: float

    def at(self, now: float) -> float:
        """Return the rate at this time of the clock."""
        left = max(0.0, min(1.0, (self.until - now) / (self.until - self.began)))
        return self.rate * (self.ends + (1 - self.ends) * left)


@dataclass
class _Stands:
    """Position of an arm in its epoch, with the fields of `CheckpointState`."""

    epoch: int
    cursor: int
    epoch_loss_sum: float

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch, self.cursor, self.epoch_loss_sum = self.epoch + 1, 0, 0.0


class SoloTrial(ABC):
    """A training loop that carries out the leader's orders on the state that this worker holds.

    Subclasses compute the steps. Steps computed elsewhere, such as in a user's script, are yielded as requests, and
    done when the generator is resumed.
    """

    def __init__(
        self,
        state: TrainingState,
        held: StateCopy,
        example: ExampleInput,
        insertion: Insertion,
        stop: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`held` is a copy of the leader's state in `state`; `stop` returns whether this worker must leave."""
        self._state, self._held = state, held
        self._example, self._insertion = example, insertion
        self._leaves, self._clock = stop, clock

    @abstractmethod
    def batches(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""

    @abstractmethod
    def step(self, epoch: int, cursor: int, rate: float, moment: Moment) -> Generator[StepRequest, None, SoloStep]:
        """Take the step at batch `cursor`. `rate` comes from `TrainingState.trial_rates`."""

    @abstractmethod
    def loss(self, stop: Callable[[], bool]) -> float | None:
        """Return the validation loss; None where `stop` cancelled the evaluation."""

    def end_epoch(self, epoch: int) -> Generator[StepRequest, None, None]:
        """Run the code after the batches of an epoch."""
        yield from ()

    def leave(self, epoch: int, *, keep: bool) -> Generator[StepRequest, None, None]:
        """Leave an unfinished epoch; with `keep`, without a change of the state."""
        yield from ()

    def __call__(self, text: str, channel: TrialChannel) -> Generator[StepRequest, None, str]:
        """Try all arms of an order, except those after a `stop`, or after the leader has dismissed this worker.

        Return the result. Afterwards this worker holds the state of the last arm, if the order says so and it was
        finished, or none. Raises `LeaderAwayError`.
        """
        order = TrialOrder.model_validate_json(text)
        before = self._held.capture().copied()
        found: list[Arm] = []
        finished = False
        try:
            for action, rate in zip(order.actions, order.rates, strict=True):
                if self._leaves() or channel.dismissed():
                    break
                found.append((yield from self._tried(before, action, rate, order, channel)))
                logger.info("trial %s: %s", order.trial, found[-1])
            finished = bool(found) and order.keep and found[-1].loss is not None
        finally:
            if not finished:
                self._held.forget()
        return TrialResult(trial=order.trial, arms=tuple(found)).model_dump_json()

    def _tried(
        self, before: Checkpoint, action: Action, rate: float, order: TrialOrder, channel: TrialChannel
    ) -> Generator[StepRequest, None, Arm]:
        """Return the result of one arm; this worker then holds the state at its end."""
        began = self._clock()
        self._held.take(before)
        torch.manual_seed(order.seed)  # the arms differ only in the action
        message, taken, state = "", 0, before.state
        stands = _Stands(state.epoch, state.cursor, state.epoch_loss_sum)

        def stop() -> bool:
            return self._leaves() or channel.dismissed()

        slices: list[Slice] = []
        try:
            if action.grows:
                grown = self._state.network.grown(action, self._example, self._insertion, order.seed)
                self._state.adopt(grown)
                del grown  # the state may have copied it, and it takes memory
            rates = _Fall(rate, order.ends, began, began + order.seconds)
            for share in order.shares:
                until = began + order.seconds * share / order.shares[-1]
                taken += yield from self._trained(stands, rates, order, until, stop)
                message = self._measured(share, slices, stop)
                if message:
                    break
                if share < order.shares[-1]:
                    arm = Arm(action=str(action), steps=taken, slices=tuple(slices))
                    channel.report(TrialResult(trial=order.trial, arms=(arm,)).model_dump_json())
            network = self._state.network
            now = asdict(stands) | {
                "step": state.step + taken,
                "architecture": network.architecture,
                "growth": network.history,
            }
            self._held.lead_to(network, state.model_copy(update=now))
        except GrowthError as error:
            message = str(error)
        except torch.OutOfMemoryError as error:
            message = f"out of memory: {in_one_line(str(error))}"
        finished = len(slices) == len(order.shares)
        arm = Arm(
            action=str(action),
            loss=slices[-1].loss if finished else None,
            steps=taken,
            seconds=self._clock() - began,
            annealed=order.ends == 0,
            slices=tuple(slices),
            message=message,
        )
        if stands.cursor and not self._leaves():
            yield from self.leave(stands.epoch, keep=order.keep and finished)  # not in the next arm's time
        return arm

    def _measured(self, share: float, slices: list[Slice], stop: Callable[[], bool]) -> str:
        """Append the network's loss at the end of a slice; return why the arm must end there, '' where it need not."""
        loss = self.loss(stop)
        if loss is None:
            return "the worker was asked to leave" if self._leaves() else "it was cancelled"
        if not math.isfinite(loss):
            return f"its validation loss is {loss}"
        slices.append(Slice(share=share, loss=loss))
        return ""

    def _trained(
        self, stands: _Stands, rate: _Fall, order: TrialOrder, until: float, stop: Callable[[], bool]
    ) -> Generator[StepRequest, None, int]:
        """Train from the position `stands` until the time `until`; return the number of steps taken."""
        taken = 0
        self._state.network.module.train()
        while (now := self._clock()) < until and not stop():
            if stands.cursor >= self.batches(stands.epoch):
                yield from self.end_epoch(stands.epoch)
                stands.next_epoch()
            moment = order.moment(now - rate.began)
            self._state.advance(moment.share)
            step = yield from self.step(stands.epoch, stands.cursor, rate.at(now), moment)
            if step.ends_epoch:
                stands.next_epoch()
            else:
                stands.cursor += 1
                stands.epoch_loss_sum += step.loss or 0.0
            taken += step.loss is not None
            if step.loss is not None and not math.isfinite(step.loss):
                break  # the evaluation will report it
        return taken
