"""The ready training loop, in a worker that does not lead: takes part in the leader's steps."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_trainer.data.batches import EpochOrder, epoch_order
from espalier_trainer.data.source import Data
from espalier_trainer.elastic.batches import LEAST_ROWS
from espalier_trainer.elastic.broken import GroupBrokenError
from espalier_trainer.elastic.loop_state import StateCopy
from espalier_trainer.elastic.member import Member, Turn
from espalier_trainer.process.settings import Rendezvous
from espalier_trainer.ready import steps
from espalier_trainer.ready.alone import Alone
from espalier_trainer.ready.on_reclaim import on_reclaim
from espalier_trainer.ready.state import JobState
from espalier_trainer.training.method import method_of
from espalier_trainer.training.network import Network
from espalier_trainer.trials.arm import Trying

logger = logging.getLogger(__name__)


class Follower:
    """One worker's life."""

    def __init__(
        self,
        job: AdaptiveTrainingJob,
        start: Network,
        data: Data,
        device: torch.device,
        seed: int,
        *,
        base: bool,
        index: int,
        node: str = "",
        stop: Callable[[], bool],
    ) -> None:
        """`start` is the job's starting network, which every state is rebuilt from."""
        self._training, self._data, self._device, self._seed = job.spec.training, data, device, seed
        self._method = method_of(job.spec.training, start.module)
        self.hooks = on_reclaim(job, data, start, seed, device)
        """Whom this member's examples are taught by; what is tried, and when, is the leader's matter."""
        self._start = start
        example = data.example_input()
        state = JobState(job, start, example, device, self.hooks)
        self.held = StateCopy(state, self.hooks)
        alone = Alone(job.spec.training, self._method, state, data, seed)
        trying = Trying(alone, state, self.held, example, job.spec.adaptation.insertion, stop)
        self._member = Member(self.held, seed, device, base=base, index=index, node=node, stop=stop, carry_out=trying)
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
        network, rows = self._start, max(LEAST_ROWS, self._training.batch_size // 2)
        inputs, _ = self._data.train.batch(torch.arange(min(rows, len(self._data.train))), None)
        network.module.train()
        try:
            torch.autograd.backward(self._method.outputs(network, inputs).sum() * 0)
            self._method.update(network)
        except torch.OutOfMemoryError as error:
            logger.info("a step to warm up does not fit into memory: %s", error)
        network.optimizer.zero_grad(set_to_none=True)

    def run(self, rendezvous: Rendezvous) -> bool:
        """Take part until the job ends (returns True), or until `stop` returns True (returns False)."""
        for turn in self._member.turns(rendezvous):
            try:
                self._step(turn)
            except GroupBrokenError as error:
                turn.broken = error
        return self._member.ended

    def _step(self, turn: Turn) -> None:
        network, group, command = self.held.network, turn.group, turn.command
        if network is None:
            raise GroupBrokenError("the leader took a step before it sent its state")
        if self._order is None or self._order.epoch != command.epoch:
            examples, size = len(self._data.train), self._training.batch_size
            self._order = epoch_order(examples, size, self._seed, command.epoch, self._device)
        if not network.module.training:
            network.module.train()
        network.advance(command.moment.share)
        source, cursor = self._data.train, command.cursor
        training, portion, measured = self._training, command.portion, command.measured
        method, hooks, order = self._method, self.hooks, self._order
        joint = steps.take(
            training, method, network, hooks, group, order, source, cursor, None, portion, measured=measured
        )
        if turn.taken(joint):
            self.held.stepped(command, joint.loss, portion.batches)
