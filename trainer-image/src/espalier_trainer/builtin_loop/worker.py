"""The built-in training loop in a worker other than the leader: it takes part in the leader's steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

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
from espalier_trainer.process.settings import Rendezvous
from espalier_trainer.training.hooks import HookContext, Hooks
from espalier_trainer.training.method import method_of
from espalier_trainer.training.network import Network

logger = logging.getLogger(__name__)


class BuiltinWorker:
    """A worker other than the leader."""

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
        """`start` is the job's starting network, from which every state is rebuilt."""
        self._data, self._device, self._seed = data, device, seed
        self.hooks = on_reclaim(HookContext(job, data, start, seed, device))
        """Hooks with this worker's loss for distillation; the leader decides on trials."""
        method = method_of(job.spec.training, start.module)
        self._context = StepContext(job.spec.training, method, data.train, self.hooks)
        self._start = start
        example = data.example_input()
        state = BuiltinState(job, start, example, device, self.hooks)
        self.held = StateCopy(state, self.hooks)
        trial = None
        if job.spec.adaptation.trials is not Trials.OFF:
            from espalier_trainer.builtin_loop.trial import BuiltinTrial

            trial = BuiltinTrial(replace(self._context, hooks=Hooks()), state, self.held, data, seed, job, stop)
        self._member = Member(self.held, seed, device, identity, stop=stop, carry_out=trial)
        self._order: EpochOrder | None = None
        """Order of the last step's epoch: drawing a permutation of all examples takes longer than a small step."""

    @property
    def network(self) -> Network | None:
        """Network that this worker holds; None before the first generation."""
        return self.held.network

    def warm_up(self) -> None:
        """Take a step with the starting network, which the leader's state overwrites: the first step is slow.

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
        """Take part until the job ends (return True), or until `stop` returns True (return False)."""
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
