"""The training state of the built-in loop: the job's network, with its optimizer and learning-rate schedule."""

from __future__ import annotations

import torch
from torch import Tensor

from espalier_core.types.job import AdaptiveTrainingJob
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointIdentity, CheckpointState
from espalier_trainer.elastic.states import TrialRates, digest
from espalier_trainer.errors import CheckpointMismatchError
from espalier_trainer.optimizers.schedules import Moment, build_schedule
from espalier_trainer.training.hooks import Hooks
from espalier_trainer.training.network import Network, resumed_network


class BuiltinState:
    """Implements `elastic.states.TrainingState`."""

    in_place = False

    def __init__(
        self, job: AdaptiveTrainingJob, start: Network, example: Tensor, device: torch.device, hooks: Hooks
    ) -> None:
        """`start` is the job's starting network, from which every state is rebuilt."""
        self._optimizer, self._start, self._example, self._hooks = job.spec.training.optimizer, start, example, hooks
        self._linear = job.spec.training.schedule.name == "BudgetLinear"
        self.schedule = build_schedule(job.spec.training.schedule, self._optimizer.learning_rate)
        self.network, self.device = start, device

    def state(self) -> dict[str, object]:
        """Return the schedule's state."""
        return self.schedule.state()

    def tensors(self) -> dict[str, Tensor]:
        """Return none: a schedule has numbers only."""
        return {}

    def adopt(self, network: Network) -> None:
        """Replace the network in training by `network`."""
        self.network = network
        network.module.train()

    def advance(self, used: float) -> None:
        """Advance the network before a step; see `Network.advance`."""
        self.network.advance(used)

    def load(self, checkpoint: Checkpoint) -> None:
        """Load the state of a checkpoint.

        Raises `CheckpointMismatchError` for a checkpoint of another model or schedule.
        """
        self.network = self._start  # memory may not suffice for two grown networks
        network = resumed_network(self._start, checkpoint, self._optimizer, self._example)
        self.network = self._hooks.restore(checkpoint, network)
        if network.optimizer is not self._start.optimizer:
            self._start.optimizer.state.clear()  # left from a worker's warm-up
        self.note(checkpoint.state)

    def note(self, state: CheckpointState) -> None:
        """Load the schedule's state. Raises `CheckpointMismatchError` for another schedule's state."""
        try:
            self.schedule.load_state(state.schedule)
        except KeyError as error:
            raise CheckpointMismatchError(
                f"the checkpoint was made with another training.schedule (it has no {error}); "
                "change it back, or remove the checkpoint folder to begin again"
            ) from error

    def restart_schedule(self, moment: Moment) -> None:
        """Restart the schedule."""
        self.schedule.restart(moment)

    def trial_rates(self, current: float | None, restarts: bool) -> TrialRates:
        """Return the initial learning rates of a trial."""
        initial = self._optimizer.learning_rate
        same = initial if current is None else current
        return TrialRates(initial if restarts else same, same, self._linear)

    def digest(self, network: Network) -> int:
        """Return a hash of the parameters and the optimizer's state."""
        return digest(network)


def identity(job: AdaptiveTrainingJob, seed: int) -> CheckpointIdentity:
    """Return the identity that must be equal to resume from a checkpoint."""
    training = job.spec.training
    return CheckpointIdentity(
        job=job.key,
        model=training.model.model_dump_json(by_alias=True, exclude_none=True),
        dataset=training.dataset.name or training.dataset.entrypoint or "",
        optimizer=training.optimizer.name,
        batch_size=training.batch_size,
        seed=seed,
    )
