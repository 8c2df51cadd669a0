"""The built-in training loop, in a worker that does not lead: takes part in the leader's steps.

For a trial, it trains a copy of the model by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from espalier_core.types.adaptation import Trials
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_trainer.builtin_loop.on_reclaim import on_reclaim
from espalier_trainer.builtin_loop.state import BuiltinState
from espalier_trainer.builtin_loop.steps import StepContext, take
from espalier_trainer.data.source import Data, EpochOrder, epoch_order
from espalier_trainer.elastic.group import GroupBrokenError
from espalier_trainer.elastic.member import Member, StepRequest
from espalier_trainer.elastic.membership import LEAST_ROWS, WorkerIdentity
from espalier_trainer.elastic.states import StateCopy
from espalier_trainer.elastic.step import StepPlan
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.process.settings import Rendezvous
from espalier_trainer.training.hooks import HookContext, Hooks
from espalier_trainer.training.method import method_of
from espalier_trainer.training.network import Network

if TYPE_CHECKING:
    from espalier_trainer.trials.solo import SoloStep

logger = logging.getLogger(__name__)


class BuiltinTrialSteps:
    """Implements `trials.solo.SoloTrialSteps`; nobody else computes anything."""

    def __init__(self, context: StepContext, state: BuiltinState, data: Data, seed: int) -> None:
        """`seed` is the job's, of the order of its examples."""
        self._context, self._state, self._data, self._seed = context, state, data, seed
        self._order: EpochOrder | None = None

    def batches(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        return len(self._of(epoch))

    def step(self, epoch: int, cursor: int, rate: float, moment: Moment) -> Generator[StepRequest, None, SoloStep]:
        """Take the step at batch `cursor`, with this learning rate."""
        from espalier_trainer.trials.solo import SoloStep

        yield from ()
        return SoloStep(take(self._context, self._state.network, self._of(epoch), cursor, StepPlan(rate=rate)).loss)

    def end_epoch(self, epoch: int) -> Generator[StepRequest, None, None]:
        """Do nothing: the rate follows the budget."""
        yield from ()

    def loss(self, stop: Callable[[], bool]) -> float | None:
        """Return the loss on the validation split; None where `stop` broke the evaluation off."""
        network, split = self._state.network, self._data.validation
        context = self._context
        evaluation = context.method.evaluation(network, split, context.training.batch_size, stop)
        return None if evaluation is None else evaluation.loss

    def leave(self, epoch: int, *, keep: bool) -> Generator[StepRequest, None, None]:
        """Do nothing."""
        yield from ()

    def _of(self, epoch: int) -> EpochOrder:
        if self._order is None or self._order.epoch != epoch:
            examples, size = len(self._data.train), self._context.training.batch_size
            self._order = epoch_order(examples, size, self._seed, epoch, self._state.device)
        return self._order


class BuiltinWorker:
    """One worker's life."""

    def __init__(
        self,
        job: AdaptiveTrainingJob,
        start: Network,
        data: Data,
        device: torch.device,
        seed: int,
        identity: WorkerIdentity,
        *,
        stop: Callable[[], bool],
    ) -> None:
        """`start` is the job's starting network, which every state is rebuilt from."""
        self._data, self._device, self._seed = data, device, seed
        self.hooks = on_reclaim(HookContext(job, data, start, seed, device))
        """Whom this member's examples are taught by; what is tried, and when, is the leader's matter."""
        method = method_of(job.spec.training, start.module)
        self._context = StepContext(job.spec.training, method, data.train, self.hooks)
        self._start = start
        example = data.example_input()
        state = BuiltinState(job, start, example, device, self.hooks)
        self.held = StateCopy(state, self.hooks)
        trial = None
        if job.spec.adaptation.trials is not Trials.OFF:
            from espalier_trainer.trials.solo import SoloTrial

            steps = BuiltinTrialSteps(replace(self._context, hooks=Hooks()), state, data, seed)
            trial = SoloTrial(steps, state, self.held, example, job.spec.adaptation.insertion, stop)
        self._member = Member(self.held, seed, device, identity, stop=stop, carry_out=trial)
        self._order: EpochOrder | None = None
        """Of the epoch of the last step: drawing a permutation of all examples takes longer than a small step."""

    @property
    def network(self) -> Network | None:
        """The network that this worker holds; None before the first generation."""
        return self.held.network

    def warm_up(self) -> None:
        """Take a step with the starting network, which the leader's state overwrites: the first one is slow.

        Memory that is filled for the first time costs more than the step itself, and all members would wait for it.
        """
        network, rows = self._start, max(LEAST_ROWS, self._context.training.batch_size // 2)
        inputs, _ = self._data.train.batch(torch.arange(min(rows, len(self._data.train))), None)
        network.module.train()
        try:
            torch.autograd.backward(self._context.method.outputs(network, inputs).sum() * 0)
            self._context.method.update(network)
        except torch.OutOfMemoryError as error:
            logger.info("a step to warm up does not fit into memory: %s", error)
        network.optimizer.zero_grad(set_to_none=True)

    def run(self, rendezvous: Rendezvous) -> bool:
        """Take part until the job ends (returns True), or until `stop` returns True (returns False)."""
        for request in self._member.requests(rendezvous):
            try:
                self._step(request)
            except GroupBrokenError as error:
                request.broken = error
        return self._member.ended

    def _step(self, request: StepRequest) -> None:
        network, group, command = self.held.network, request.group, request.command
        if network is None:
            raise GroupBrokenError("the leader took a step before it sent its state")
        if self._order is None or self._order.epoch != command.epoch:
            examples, size = len(self._data.train), self._context.training.batch_size
            self._order = epoch_order(examples, size, self._seed, command.epoch, self._device)
        if not network.module.training:
            network.module.train()
        network.advance(command.moment.share)
        plan = StepPlan(group, None, command.portion, command.measured)
        joint = take(self._context, network, self._order, command.cursor, plan)
        if request.taken(joint):
            self.held.stepped(command, joint.loss, command.portion.batches)
