"""An arm of a trial, in the worker that tries it: a copy of the model grows, trains for a slice, and is evaluated."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from espalier_api.advice import Action
from espalier_api.architecture import GrowthError
from espalier_api.job import Insertion, TrainingSpec
from espalier_api.report import Arm, Slice
from espalier_trainer.checkpoint import Checkpoint
from espalier_trainer.core.hooks import Hooks
from espalier_trainer.core.state import StateCopy
from espalier_trainer.data.batches import EpochOrder, epoch_order
from espalier_trainer.data.source import Data
from espalier_trainer.elastic.apart import Line
from espalier_trainer.method import method_of
from espalier_trainer.network import Network
from espalier_trainer.ready import steps
from espalier_trainer.ready.state import JobState
from espalier_trainer.trials.orders import Order, Result

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Fall:
    """A learning rate that falls linearly, from `rate` at `began` to its `ends`-th part at `until`."""

    rate: float
    ends: float
    began: float
    until: float

    def at(self, now: float) -> float:
        """Return it at this time of the clock."""
        left = max(0.0, min(1.0, (self.until - now) / (self.until - self.began)))
        return self.rate * (self.ends + (1 - self.ends) * left)


class Trying:
    """Tries what the leader orders, on the state that this worker holds."""

    def __init__(
        self,
        training: TrainingSpec,
        insertion: Insertion,
        state: JobState,
        held: StateCopy,
        data: Data,
        seed: int,
        stop: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seed` is the job's, of the order of its examples; `stop` returns whether this worker must leave."""
        self._training, self._insertion = training, insertion
        self._state, self._held, self._data, self._seed = state, held, data, seed
        self._leaves, self._clock = stop, clock
        self._method = method_of(training, state.network.module)

    def __call__(self, order: Order, line: Line) -> Result:
        """Try all arms; those after a `stop`, or after the leader has dismissed this worker, are left out.

        Afterwards this worker holds the state of the last arm, if the order says so and it was finished, or none.
        Raises `LeaderAwayError`.
        """
        before = self._held.capture().copied()
        found: list[Arm] = []
        finished = False
        try:
            for action, rate in zip(order.actions, order.rates, strict=True):
                if self._leaves() or line.dismissed():
                    break
                found.append(self._tried(before, action, rate, order, line))
                logger.info("trial %s: %s", order.trial, found[-1])
            finished = bool(found) and order.keep and found[-1].loss is not None
        finally:
            if not finished:
                self._held.forget()
        return Result(trial=order.trial, arms=tuple(found))

    def _tried(self, before: Checkpoint, action: Action, rate: float, order: Order, line: Line) -> Arm:
        """Return what came of one arm; this worker then holds the state at its end."""
        began = self._clock()
        network = self._held.take(before)
        torch.manual_seed(order.seed)  # the arms differ by nothing but the action
        message, taken, state = "", 0, before.state

        def stop() -> bool:
            return self._leaves() or line.dismissed()

        slices: list[Slice] = []
        try:
            if action.grows:
                network = network.grown(action, self._data.example_input(), self._insertion, order.seed)
            epoch, cursor = state.epoch, state.cursor
            rates = _Fall(rate, order.ends, began, began + order.seconds)
            for share in order.shares:
                until = began + order.seconds * share / order.shares[-1]
                epoch, cursor, steps_taken = self._trained(network, epoch, cursor, rates, until, stop)
                taken += steps_taken
                message = self._measured(network, share, slices, stop)
                if message:
                    break
                if share < order.shares[-1]:
                    arm = Arm(action=str(action), steps=taken, slices=tuple(slices))
                    line.tell(Result(trial=order.trial, arms=(arm,)).model_dump_json())
            stands = {"epoch": epoch, "cursor": cursor, "step": state.step + taken, "epoch_loss_sum": 0.0}
            grown = {"architecture": network.architecture, "growth": network.history}
            self._held.lead_to(network, state.model_copy(update=stands | grown))
        except GrowthError as error:
            message = str(error)
        except torch.OutOfMemoryError as error:
            message = f"out of memory: {str(error).splitlines()[0]}"
        finished = len(slices) == len(order.shares)
        return Arm(
            action=str(action),
            loss=slices[-1].loss if finished else None,
            steps=taken,
            seconds=self._clock() - began,
            annealed=order.ends == 0,
            slices=tuple(slices),
            message=message,
        )

    def _measured(self, network: Network, share: float, slices: list[Slice], stop: Callable[[], bool]) -> str:
        """Add how the network does at the end of a slice; returns why it has to end there, '' where it need not."""
        evaluation = self._method.evaluation(network, self._data.validation, self._training.batch_size, stop)
        if evaluation is None:
            return "the worker was asked to leave" if self._leaves() else "it was broken off"
        if not math.isfinite(evaluation.loss):
            return f"its validation loss is {evaluation.loss}"
        slices.append(Slice(share=share, loss=evaluation.loss))
        return ""

    def _trained(
        self, network: Network, epoch: int, cursor: int, rate: _Fall, until: float, stop: Callable[[], bool]
    ) -> tuple[int, int, int]:
        """Train until `until`.

        Returns the epoch, the batches of it that are done, and the steps taken.
        """
        training, source, taken = self._training, self._data.train, 0
        batches = self._order(epoch)
        network.module.train()
        while (now := self._clock()) < until and not stop():
            if cursor >= len(batches):
                epoch, cursor = epoch + 1, 0
                batches = self._order(epoch)
            joint = steps.take(
                training,
                self._method,
                network,
                Hooks(),
                None,
                batches,
                source,
                cursor,
                rate.at(now),
            )
            cursor, taken = cursor + 1, taken + 1
            if not math.isfinite(joint.loss):
                break  # as the evaluation will say
        return epoch, cursor, taken

    def _order(self, epoch: int) -> EpochOrder:
        return epoch_order(len(self._data.train), self._training.batch_size, self._seed, epoch, self._state.device)
