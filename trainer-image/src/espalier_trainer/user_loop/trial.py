"""A user's loop in a worker that trains a copy by itself for a trial."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

from espalier_core.types.job import Insertion
from espalier_trainer.elastic.member import StepRequest
from espalier_trainer.elastic.membership import ONE
from espalier_trainer.elastic.states import Code, Command, StateCopy
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.trials.solo import SoloStep, SoloTrial
from espalier_trainer.user_loop.feed import Feed
from espalier_trainer.user_loop.state import UserState

Loss = Callable[[Callable[[], bool]], float | None]
"""Function that returns the validation loss; None where the given function cancelled the evaluation."""


class UserTrial(SoloTrial):
    """Trial whose steps the script computes, as requests without a group."""

    def __init__(
        self,
        state: UserState,
        held: StateCopy,
        feed: Feed,
        loss: Loss,
        example: ExampleInput,
        insertion: Insertion,
        stop: Callable[[], bool],
    ) -> None:
        """The other arguments are those of `SoloTrial`."""
        super().__init__(state, held, example, insertion, stop)
        self._feed, self._measure = feed, loss

    def batches(self, epoch: int) -> int:
        """Return the number of steps in an epoch."""
        return self._feed.batches(epoch)

    def step(self, epoch: int, cursor: int, rate: float, moment: Moment) -> Generator[StepRequest, None, SoloStep]:
        """Let the script take the step at batch `cursor`; its own learning rate is multiplied by `rate`."""
        portion = replace(ONE, rate=rate)
        request = StepRequest(None, Command(Code.STEP, epoch, cursor, portion=portion, moment=moment))
        yield request
        return SoloStep(None if request.joint is None else request.joint.loss, request.left)

    def end_epoch(self, epoch: int) -> Generator[StepRequest, None, None]:
        """Let the script run its code after the batches."""
        yield StepRequest(None, Command(Code.EPOCH, epoch))

    def loss(self, stop: Callable[[], bool]) -> float | None:
        """Return the validation loss; None where `stop` cancelled the evaluation."""
        return self._measure(stop)

    def leave(self, epoch: int, *, keep: bool) -> Generator[StepRequest, None, None]:
        """Let the script run its code after the batches; revert its changes if the state is kept."""
        kept = self._held.capture().copied() if keep else None
        yield from self.end_epoch(epoch)
        if kept is not None:
            self._held.take(kept)
