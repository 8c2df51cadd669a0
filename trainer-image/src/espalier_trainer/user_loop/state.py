"""The training state of a user's loop, changed in place: the script keeps holding the same objects."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.types.advice import offered
from espalier_core.types.job import Insertion
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointIdentity, CheckpointState
from espalier_trainer.elastic.states import TrialRates, digest
from espalier_trainer.encoding import PREFIX
from espalier_trainer.errors import CheckpointMismatchError, OwnLoopError
from espalier_trainer.models.zoo import signature_of, untrainable
from espalier_trainer.net2net.deepening.deepen import history_of
from espalier_trainer.net2net.history import GrowthStep, check_equal, replay
from espalier_trainer.net2net.in_place import grow_into
from espalier_trainer.net2net.modules import ExampleInput, copied, device_of
from espalier_trainer.net2net.optimizer import members_of
from espalier_trainer.optimizers.building import (
    SEPARATOR,
    GroupState,
    group_options,
    load_optimizer_state,
    optimizer_state,
)
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.training.network import OPTIMIZER_PREFIX, Network, starting_architecture, with_targets
from espalier_trainer.user_loop.stateful import Stateful, StatefulObjects, united


@dataclass(frozen=True, slots=True)
class StepSettings:
    """Settings that determine steps: options of the optimizer's groups, and states of the other stateful objects."""

    groups: tuple[dict[str, Any], ...]
    others: tuple[dict[str, Any], ...]


class UserState:
    """A model, its optimizer and other stateful objects; implements `elastic.states.TrainingState`."""

    in_place = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        others: Sequence[Stateful],
    ) -> None:
        """Raises `OwnLoopError` if a part of the state cannot be sent to other workers."""
        if problem := untrainable(model):
            raise OwnLoopError(f"join: {problem}")
        self.model, self.optimizer, self.carried = model, united(optimizer, model), StatefulObjects(others, model)
        self.network = Network(model, self.optimizer, None)
        """The model with its optimizer, in the form that the rest of the trainer uses."""
        self._start: nn.Module | None = None
        self._described: Architecture | None = None
        """Description of the starting model; None where it may not grow."""
        self._cannot_grow = "this script does not allow growth; all workers must call join(..., grow=True)"
        self._example: ExampleInput | None = None
        self.begun = False
        """Whether the state belongs to an epoch that has begun: the script's code before the batches has run."""
        self._in_front: StepSettings | None = None
        self._members = self._counted()
        """Number of parameters in each of the optimizer's groups, as given to `join` and since grown."""
        self.check_schedulers()

    @property
    def device(self) -> torch.device:
        """Device of the model; the CPU where it has no parameters."""
        return device_of(self.model)

    def may_grow(self, example: ExampleInput, insertion: Insertion, operations: Sequence[str]) -> str:
        """Keep a copy of the starting model, which growth needs; return the growth that it does not support, or ''."""
        self.carried.require_growable()
        architecture, problem = starting_architecture(self.model, example, insertion, operations)
        if architecture is not None and offered(architecture):
            self.network = Network(self.model, self.optimizer, architecture)
            self._start, self._described, self._example = copied(self.model), architecture, example
        else:
            self._cannot_grow = f"here it cannot: {problem}"
        return problem

    def check_schedulers(self) -> None:
        """Raise `OwnLoopError` if a learning-rate scheduler of the optimizer was not passed to `join`."""
        wrapped = any(getattr(each.step, "_wrapped_by_lr_sched", False) for each in members_of(self.optimizer))
        if wrapped and not self.carried.has_scheduler:
            raise OwnLoopError(
                "a learning-rate scheduler was made for the optimizer, but not given to join: workers that join later "
                "would begin with its first rate; make it before join(model, optimizer, loader, scheduler)"
            )

    def check_groups(self) -> None:
        """Raise `OwnLoopError` if the script has added parameters to the optimizer, or removed some."""
        if self._counted() != self._members:
            raise OwnLoopError(
                "the script has changed which parameters its optimizer holds: a run that resumes and workers that join "
                "later begin with those given to join, and could not load this state; give all of them to the "
                "optimizer before join, and to unfreeze a part, set its requires_grad in each epoch from that one on"
            )

    def _counted(self) -> list[int]:
        return [len(group["params"]) for group in self.optimizer.param_groups]

    def check_optimizer(self) -> None:
        """Raise `OwnLoopError` if the optimizer, which has stepped, keeps a state that no checkpoint can hold."""
        for member in members_of(self.optimizer):
            found = next((key for key in member.state if not isinstance(key, Tensor)), None)
            if found is not None:
                raise OwnLoopError(
                    f"{type(member).__name__} keeps a state for {found!r}, not a parameter, so a resumed run and "
                    "other workers would not get it; keep it in the state of the parameters, or as an option of a group"
                )
        optimizer_state(self.optimizer, self.model)

    def rates(self) -> float:
        """Return the sum of the groups' learning rates, which must be equal in all workers."""
        return float(sum(float(group["lr"]) for group in self.optimizer.param_groups))

    def state(self) -> dict[str, object]:
        """Return the states of the other objects, as JSON types, which refer to the tensors of `tensors`."""
        return {"others": self.carried.encoded()[0], "begun": self.begun}

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors in the states of the other objects."""
        return self.carried.encoded()[1]

    def steering(self) -> StepSettings:
        """Return a copy of the state that `steer` restores."""
        groups = tuple(copy.deepcopy(group_options(group)) for group in self.optimizer.param_groups)
        return StepSettings(groups, self.carried.kept())

    def steer(self, steering: StepSettings) -> None:
        """Use `steering` for the next steps."""
        # The script may have added a group since.
        for group, options in zip(self.optimizer.param_groups, steering.groups, strict=False):
            group.update(options)
        self.carried.load(steering.others)

    def enter_epoch(self) -> None:
        """Record that the script is about to run the code before its batches."""
        self._in_front = self.steering() if self.begun else None

    def enter_batches(self) -> None:
        """Record that the script has reached its batches, without repeating changes that the state already contains."""
        if self._in_front is not None:
            self.steer(self._in_front)
        self._in_front, self.begun = None, True

    def leave_epoch(self) -> None:
        """Record that the script has run the code after its batches."""
        self.begun = False

    def note(self, state: CheckpointState) -> None:
        """Load the non-tensor part of a state, so that all workers use the leader's rates and schedulers."""
        self._note(state, None)

    def _note(self, state: CheckpointState, tensors: dict[str, Tensor] | None) -> None:
        others = self.carried.decoded(cast(list[Any], state.schedule.get("others", [])), tensors)
        self.steer(StepSettings(tuple(map(group_options, state.optimizer_groups)), others))
        self.begun = bool(state.schedule.get("begun"))

    def restart_schedule(self, moment: Moment) -> None:
        """Leave the learning rate to the script's own schedulers."""

    def trial_rates(self, current: float | None, restarts: bool) -> TrialRates:
        """Return factors of the rates that the script sets."""
        return TrialRates(1.0, 1.0, linear=False)

    def digest(self, network: Network) -> int:
        """Return a hash that must be equal in all members: of parameters, optimizer, rates, and the other objects."""
        others = f"{json.dumps(self.state(), sort_keys=True)} {self.carried.digest()}"
        text = f"{digest(network)} {self.rates()!r} {others}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2

    def identity(self, job: str, examples: int, batch_size: int, seed: int) -> CheckpointIdentity:
        """Return the identity that must be equal to resume from a checkpoint, with the model before any growth."""
        return CheckpointIdentity(
            job=job,
            model=signature_of(self.model),
            dataset=f"{examples} examples",
            optimizer=" and ".join(type(each).__name__ for each in members_of(self.optimizer)),
            batch_size=batch_size,
            seed=seed,
        )

    def adopt(self, network: Network) -> None:
        """Change the script's model and optimizer, in place, to those of `network`, which was made from them.

        Averages of the weights grow by the same steps. Raises `GrowthError` where they cannot.
        """
        steps = network.history[len(self.network.history) :]
        extend = self.carried.grow(steps, self._example) if steps and self._example is not None else None
        self._become(network)
        if extend is not None:
            extend(self.model)

    def advance(self, used: float) -> None:
        """Advance the network before a step, and with it the copies of the model that the script keeps."""
        if self.network.unfolds:
            self.network.advance(used)
            self.carried.advance(self.network.history, used)

    def _become(self, network: Network) -> None:
        pairs = zip(members_of(self.optimizer), members_of(network.optimizer), strict=True)
        grow_into(self.model, network.module, list(pairs))
        self.network = Network(self.model, self.optimizer, network.architecture, network.history)
        self._members = self._counted()

    def load(self, checkpoint: Checkpoint) -> None:
        """Load the state of a checkpoint. Raises `CheckpointMismatchError` if it belongs to another model."""
        state = checkpoint.state
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        held = {names[parameter] for group in self.optimizer.param_groups for parameter in group["params"]}
        known = set(names.values())
        try:
            if state.architecture is not None:
                history = state.growth or history_of(state.architecture)
                if history != self.network.history:
                    # A worker's own tensors may be part of the state, and growth in place overwrites them.
                    checkpoint = checkpoint.copied()
                self._rebuild(state.architecture, history)
            self.model.load_state_dict(checkpoint.model)
            # The parameters that the script gave to its optimizer, trained or frozen. Of parameters that have grown
            # since, which are unknown here, the optimizer took those whose neighbours it holds.
            saved = {name for group in state.optimizer_groups for name in cast(GroupState, group)["params"]}
            trained = {name for name, _ in self.model.named_parameters() if name in (held if name in known else saved)}
            self._load_optimizers(checkpoint, trained)
            self._members = self._counted()
            self._note(state, checkpoint.under(PREFIX))
        except (GrowthError, RuntimeError, ValueError, KeyError) as error:
            lines = str(error).strip().splitlines()
            raise CheckpointMismatchError(
                f"the state does not fit the script ({' '.join(line.strip() for line in lines[:3])}); all workers must "
                "run the same script; if it was changed, remove the checkpoint folder to begin again"
            ) from error

    def _load_optimizers(self, checkpoint: Checkpoint, trained: set[str]) -> None:
        state, tensors = checkpoint.state, checkpoint.under(OPTIMIZER_PREFIX)
        members, groups = members_of(self.optimizer), list(state.optimizer_groups)
        if len(members) == 1:
            load_optimizer_state(self.optimizer, self.model, groups, tensors, state.optimizer_values, trained)
            return
        counts = [len(member.param_groups) for member in members]
        if len(groups) != sum(counts):
            raise ValueError(f"the optimizers have {sum(counts)} groups of parameters, the state {len(groups)}")
        for member, count in zip(members, counts, strict=True):
            own, groups = groups[:count], groups[count:]
            names = {name for group in own for name in cast(GroupState, group)["params"]}
            load_optimizer_state(
                member,
                self.model,
                own,
                {key: tensor for key, tensor in tensors.items() if key.partition(SEPARATOR)[0] in names},
                {name: values for name, values in state.optimizer_values.items() if name in names},
                trained & names,
            )

    def _rebuild(self, architecture: Architecture, history: tuple[GrowthStep, ...]) -> None:
        if self._start is None or self._example is None:
            if history:
                raise GrowthError(f"the model has grown, and {self._cannot_grow}")
            return  # it can be trained without growth
        architecture = with_targets(architecture, self._described, history)
        if (architecture, history) == (self.network.architecture, self.network.history):
            return
        module = copied(self._start)
        if history:
            module = replay(module, history, self._example)
            check_equal(module, architecture, self._example)
        extend = self.carried.rebuild(lambda: copied(module))
        self._become(Network(module.train(self.model.training), self.optimizer, architecture, history))
        extend(self.model)
