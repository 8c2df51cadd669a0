"""The built-in training loop in a worker that trains a copy of the model by itself for a trial."""

from __future__ import annotations

from collections.abc import Callable, Generator

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_trainer.builtin_loop.state import BuiltinState
from espalier_trainer.builtin_loop.steps import StepContext, take
from espalier_trainer.data.source import Data, EpochOrder, epoch_order
from espalier_trainer.elastic.member import StepRequest
from espalier_trainer.elastic.states import StateCopy
from espalier_trainer.elastic.step import StepPlan
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.trials.solo import SoloStep, SoloTrial


class BuiltinTrial(SoloTrial):
    """Trial that computes its own steps, with the learning rate that the order sets."""

    def __init__(
        self,
        context: StepContext,
        state: BuiltinState,
        held: StateCopy,
        data: Data,
        seed: int,
        job: AdaptiveTrainingJob,
        stop: Callable[[], bool],
    ) -> None:
        """`seed` determines the order of the examples."""
        super().__init__(state, held, data.example_input(), job.spec.adaptation.described_insertion, stop)
        self._context, self._data, self._seed = context, data, seed
        self._order: EpochOrder | None = None

    def batches(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return len(self._of(epoch))

    def step(self, epoch: int, cursor: int, rate: float, moment: Moment) -> Generator[StepRequest, None, SoloStep]:
        """Take the step at batch `cursor`, with this learning rate."""
        yield from ()
        return SoloStep(take(self._context, self._state.network, self._of(epoch), cursor, StepPlan(rate=rate)).loss)

    def loss(self, stop: Callable[[], bool]) -> float | None:
        """Return the loss on the validation split; None where `stop` cancelled the evaluation."""
        network, split, context = self._state.network, self._data.validation, self._context
        evaluation = context.method.evaluation(network, split, context.training.batch_size, stop)
        return None if evaluation is None else evaluation.loss

    def _of(self, epoch: int) -> EpochOrder:
        if self._order is None or self._order.epoch != epoch:
            examples, size = len(self._data.train), self._context.training.batch_size
            self._order = epoch_order(examples, size, self._seed, epoch, self._state.device)
        return self._order
