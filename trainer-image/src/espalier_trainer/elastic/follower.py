"""Everyone but the leader, in the ready trainer: takes part in the leader's steps with the job's model and data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from espalier_api.job import AdaptiveTrainingJob, ElasticBatch
from espalier_trainer.checkpoint import Checkpoint, CheckpointState
from espalier_trainer.data.batches import EpochOrder, epoch_order
from espalier_trainer.data.source import Data
from espalier_trainer.distillation.shrinking import shrinker_for
from espalier_trainer.elastic.group import Group, GroupBrokenError
from espalier_trainer.elastic.member import Member
from espalier_trainer.elastic.membership import NEWCOMER
from espalier_trainer.elastic.states import Word
from espalier_trainer.elastic.step import indices_of, joint_step, share_of
from espalier_trainer.network import OPTIMIZER_PREFIX, Network, resumed_network
from espalier_trainer.optimizers import optimizer_state, set_learning_rate


@dataclass
class _Held:
    """The training state that this worker has a copy of."""

    network: Network
    state: CheckpointState


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
        stop: Callable[[], bool],
    ) -> None:
        """`start` is the job's starting network, which every state is rebuilt from."""
        self._job, self._start, self._data, self._device, self._seed = job, start, data, device, seed
        self._policy = job.spec.training.elastic_batch or ElasticBatch.KEEP_GLOBAL
        self._example = data.example_input()
        self._shrinker = shrinker_for(job, data, start, seed, device)
        """Whom this member's examples are taught by; what is tried, and when, is the leader's matter."""
        self._member = Member(self, seed, device, base=base, index=index, stop=stop)
        self._held: _Held | None = None
        self._order: EpochOrder | None = None
        """Of the epoch of the last step: drawing a permutation of all examples takes longer than a small step."""

    @property
    def network(self) -> Network | None:
        """The network that this worker holds; None before the first generation."""
        return None if self._held is None else self._held.network

    @property
    def step(self) -> int:
        """Steps of the state that it holds."""
        return NEWCOMER if self._held is None else self._held.state.step

    def run(self, place: str) -> bool:
        """Take part until the job ends (True), or until `stop` says to go (False)."""
        for turn in self._member.turns(place):
            try:
                self._step(turn.group, turn.word)
            except GroupBrokenError as error:
                turn.broken = error
        return self._member.ended

    def take(self, checkpoint: Checkpoint) -> Network:
        """Hold this state from now on; returns its network."""
        self._held = None  # the memory may not do for both
        network = resumed_network(self._start, checkpoint, self._job.spec.training.optimizer, self._example)
        if self._shrinker is not None:
            self._shrinker.restore(checkpoint, self._example)
        self._held = _Held(network, checkpoint.state)
        return network

    def note(self, state: CheckpointState) -> None:
        """Take over what of the state is no tensor."""
        self._needed().state = state

    def forget(self) -> None:
        """Hold nothing."""
        self._held = None

    def capture(self) -> Checkpoint:
        """Return the state that it holds."""
        held = self._needed()
        checkpoint = held_checkpoint(held.network, held.state)
        if self._shrinker is not None:
            checkpoint.training.update(self._shrinker.capture()[1])
        return checkpoint

    def _step(self, group: Group, word: Word) -> None:
        held = self._needed()
        training = self._job.spec.training
        if self._order is None or self._order.epoch != word.epoch:
            examples = len(self._data.train)
            self._order = epoch_order(examples, training.batch_size, self._seed, word.epoch, self._device)
        set_learning_rate(held.network.optimizer, word.rate)
        inputs, labels, examples, batches = share_of(self._policy, group, self._order, self._data.train, word.cursor)
        held.network.module.train()
        criterion = None
        if self._shrinker is not None and len(labels):
            chosen = indices_of(self._policy, group, self._order, word.cursor)
            criterion = self._shrinker.criterion(chosen, inputs)
        sync = bool(training.sync_batch_norm)
        joint = joint_step(held.network, group, inputs, labels, examples, sync_batch_norm=sync, criterion=criterion)
        held.state = stepped(held.state, word, joint.loss, batches)

    def _needed(self) -> _Held:
        if self._held is None:
            raise GroupBrokenError("the leader steps before it gave its state")
        return self._held


def stepped(state: CheckpointState, word: Word, loss: float, batches: int) -> CheckpointState:
    """Return `state` after the step that `word` was for, which took `batches` batches."""
    before = state.epoch_loss_sum if word.cursor else 0.0
    return state.model_copy(
        update={
            "epoch": word.epoch,
            "cursor": word.cursor + batches,
            "step": state.step + 1,
            "epoch_loss_sum": before + loss * batches,
        }
    )


def held_checkpoint(network: Network, state: CheckpointState) -> Checkpoint:
    """Return a member's copy of the training state: what it was last told, with its network as it is now."""
    groups, tensors, values = optimizer_state(network.optimizer, network.module)
    now = state.model_copy(update={"optimizer_groups": tuple(groups), "optimizer_values": values})
    training = {f"{OPTIMIZER_PREFIX}{name}": tensor for name, tensor in tensors.items()}
    training["random.cpu"] = torch.get_rng_state()
    return Checkpoint(now, network.module.state_dict(), training)
