"""A user's loop in a worker that trains a copy by itself for a trial, and the validation loss that its script gives."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from espalier_trainer.elastic.member import StepRequest
from espalier_trainer.elastic.membership import ONE
from espalier_trainer.elastic.states import Code, Command, StateCopy
from espalier_trainer.net2net.modules import mode, undisturbed
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.user_loop.feed import Feed
from espalier_trainer.user_loop.state import UserState

if TYPE_CHECKING:
    from espalier_trainer.trials.solo import SoloStep

Validate = Callable[[nn.Module], float | Tensor]
"""Returns the validation loss of a model, which is in eval mode and needs no gradients."""


class _BrokenOffError(Exception):
    """Ends an evaluation from within the model's forward."""


def validation_loss(validate: Validate, model: nn.Module, stop: Callable[[], bool]) -> float | None:
    """Return what the script's `validate` says of the model; None where `stop` broke it off."""

    def look(*_: Any) -> None:
        if stop():
            raise _BrokenOffError

    handle = model.register_forward_pre_hook(look)
    try:
        with undisturbed(model), mode(model, training=False):
            return float(validate(model))
    except _BrokenOffError:
        return None
    finally:
        handle.remove()


class UserTrialSteps:
    """Implements `trials.solo.SoloTrialSteps`: the script computes the steps, as requests without a group."""

    def __init__(self, state: UserState, held: StateCopy, feed: Feed, validate: Validate) -> None:
        self._state, self._held, self._feed, self._validate = state, held, feed, validate

    def batches(self, epoch: int) -> int:
        """Return the number of steps in an epoch."""
        return self._feed.batches(epoch)

    def step(self, epoch: int, cursor: int, rate: float, moment: Moment) -> Generator[StepRequest, None, SoloStep]:
        """Let the script take the step at batch `cursor`; its own learning rate is multiplied by `rate`."""
        from espalier_trainer.trials.solo import SoloStep

        request = StepRequest(None, Command(Code.STEP, epoch, cursor, portion=replace(ONE, rate=rate), moment=moment))
        yield request
        return SoloStep(None if request.joint is None else request.joint.loss, request.left)

    def end_epoch(self, epoch: int) -> Generator[StepRequest, None, None]:
        """Let the script run its code after the batches."""
        yield StepRequest(None, Command(Code.EPOCH, epoch))

    def loss(self, stop: Callable[[], bool]) -> float | None:
        """Return the validation loss; None where `stop` broke the evaluation off."""
        return validation_loss(self._validate, self._state.model, stop)

    def leave(self, epoch: int, *, keep: bool) -> Generator[StepRequest, None, None]:
        """Let the script run its code after the batches; what that changes is undone where the state is kept."""
        kept = self._held.capture().copied() if keep else None
        yield from self.end_epoch(epoch)
        if kept is not None:
            self._held.take(kept)
