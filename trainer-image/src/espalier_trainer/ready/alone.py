"""The ready training loop, in a worker that trains a copy by itself for a trial."""

from __future__ import annotations

from collections.abc import Callable, Generator

from espalier_core.types.job import TrainingSpec
from espalier_trainer.data.batches import EpochOrder, epoch_order
from espalier_trainer.data.source import Data
from espalier_trainer.elastic.member import Turn
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.ready import steps
from espalier_trainer.ready.state import JobState
from espalier_trainer.training.hooks import Hooks
from espalier_trainer.training.method import Method
from espalier_trainer.trials.arm import Taken


class Alone:
    """Implements `trials.arm.Alone`; a turn is never needed."""

    def __init__(self, training: TrainingSpec, method: Method, state: JobState, data: Data, seed: int) -> None:
        """`seed` is the job's, of the order of its examples."""
        self._training, self._method, self._state, self._data, self._seed = training, method, state, data, seed
        self._order: EpochOrder | None = None

    def batches(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return len(self._of(epoch))

    def step(self, epoch: int, cursor: int, rate: float, moment: Moment) -> Generator[Turn, None, Taken]:
        """Take the step at batch `cursor`, with this learning rate."""
        yield from ()
        source, order, network = self._data.train, self._of(epoch), self._state.network
        return Taken(steps.take(self._training, self._method, network, Hooks(), None, order, source, cursor, rate).loss)

    def end_epoch(self, epoch: int) -> Generator[Turn, None, None]:
        """Do nothing: the rate follows the budget."""
        yield from ()

    def loss(self, stop: Callable[[], bool]) -> float | None:
        """Return the loss on the validation split; None where `stop` broke the evaluation off."""
        network, split = self._state.network, self._data.validation
        evaluation = self._method.evaluation(network, split, self._training.batch_size, stop)
        return None if evaluation is None else evaluation.loss

    def leave(self, epoch: int, *, keep: bool) -> Generator[Turn, None, None]:
        """Do nothing."""
        yield from ()

    def _of(self, epoch: int) -> EpochOrder:
        if self._order is None or self._order.epoch != epoch:
            examples, size = len(self._data.train), self._training.batch_size
            self._order = epoch_order(examples, size, self._seed, epoch, self._state.device)
        return self._order
