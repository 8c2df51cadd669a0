"""The training state of a user's loop, changed in place: the script keeps holding the same objects."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from espalier_api.advice import offered
from espalier_api.architecture import Architecture, GrowthError
from espalier_api.job import Insertion
from espalier_trainer.checkpoint import Checkpoint, CheckpointIdentity, CheckpointState
from espalier_trainer.elastic.states import digest
from espalier_trainer.errors import CheckpointMismatchError, OwnLoopError
from espalier_trainer.models import signature_of, untrainable
from espalier_trainer.net2net.deepening.step import history_of
from espalier_trainer.net2net.history import GrowthStep, check_equal, replay
from espalier_trainer.net2net.modules import copied
from espalier_trainer.network import OPTIMIZER_PREFIX, Network, starting_architecture
from espalier_trainer.optimizers import group_options, load_optimizer_state
from espalier_trainer.schedules import Moment

_COUNTER, _FLOAT, _ITEMS, _TUPLE = "counter", "float", "items", "tuple"


class Stateful(Protocol):
    """Any other part of the training state, for example a learning-rate scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: numbers, texts, lists and dictionaries."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state."""


@dataclass(frozen=True, slots=True)
class Steering:
    """What determines steps: the options of the optimizer's groups, and the state of the other stateful objects."""

    groups: tuple[dict[str, Any], ...]
    others: tuple[dict[str, Any], ...]


class OwnState:
    """A model, its optimizer and other stateful objects; implements `core.state.TrainingState`."""

    in_place = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, others: Sequence[Stateful]) -> None:
        """Raises `OwnLoopError` if a part of the state cannot be sent to other workers."""
        self.model, self.optimizer, self._others = model, optimizer, tuple(others)
        self.network = Network(model, optimizer, None)
        """The model with its optimizer, as the rest of the trainer knows them."""
        self._start: nn.Module | None = None
        self._example: Tensor | None = None
        self.begun = False
        """Whether the state is of an epoch that has begun: the script's code before the batches has run."""
        self._in_front: Steering | None = None
        if problem := untrainable(model):
            raise OwnLoopError(f"join: {problem}")
        parameters = set(model.parameters())
        if any(parameter not in parameters for group in optimizer.param_groups for parameter in group["params"]):
            raise OwnLoopError(
                "join: the optimizer trains a parameter that is not the model's; put all that is trained into one "
                "module, and give its parameters to the optimizer"
            )
        self.state()
        self.check_schedulers()

    @property
    def device(self) -> torch.device:
        """Where the model is; the CPU where it has no parameters."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def may_grow(self, example: Tensor, insertion: Insertion, operations: Sequence[str]) -> str:
        """Keep a copy of the starting model, which growth needs; returns what the model cannot do, '' if nothing."""
        architecture, problem = starting_architecture(self.model, example, insertion, operations)
        if architecture is not None and offered(architecture):
            self.network = Network(self.model, self.optimizer, architecture)
            self._start, self._example = copied(self.model), example
        return problem

    def check_schedulers(self) -> None:
        """Raise `OwnLoopError` if a learning-rate scheduler of the optimizer was not passed to `join`."""
        wrapped = getattr(self.optimizer.step, "_wrapped_by_lr_sched", False)
        known = any(isinstance(other, LRScheduler) for other in self._others)
        if wrapped and not known:
            raise OwnLoopError(
                "a learning-rate scheduler was made for the optimizer, but not given to join: workers that come later "
                "would begin with its first rate; make it before join(model, optimizer, loader, scheduler)"
            )

    def rates(self) -> float:
        """Return the sum of the groups' learning rates, which must be equal in all workers."""
        return float(sum(float(group["lr"]) for group in self.optimizer.param_groups))

    def state(self) -> dict[str, object]:
        """Return the state of the others, as JSON types."""
        others = [_encoded(other.state_dict(), type(other).__name__) for other in self._others]
        return {"others": others, "begun": self.begun}

    def steering(self) -> Steering:
        """Return a copy of the state that `steer` restores."""
        groups = tuple(copy.deepcopy(group_options(group)) for group in self.optimizer.param_groups)
        return Steering(groups, tuple(copy.deepcopy(other.state_dict()) for other in self._others))

    def steer(self, steering: Steering) -> None:
        """Use `steering` for the next steps."""
        # The script may have added a group since.
        for group, options in zip(self.optimizer.param_groups, steering.groups, strict=False):
            group.update(options)
        for other, kept in zip(self._others, steering.others, strict=True):
            other.load_state_dict(kept)

    def enter_epoch(self) -> None:
        """Record that the script is about to run the code before its batches."""
        self._in_front = self.steering() if self.begun else None

    def enter_batches(self) -> None:
        """Record that the script has reached its batches: what the state already contains is not done twice."""
        if self._in_front is not None:
            self.steer(self._in_front)
        self._in_front, self.begun = None, True

    def leave_epoch(self) -> None:
        """Record that the script has run the code after its batches."""
        self.begun = False

    def note(self, state: CheckpointState) -> None:
        """Load everything but the tensors of a state, so that all workers use the leader's rates and schedulers."""
        others = cast(list[Any], state.schedule.get("others", []))
        self.steer(Steering(tuple(map(group_options, state.optimizer_groups)), tuple(map(_decoded, others))))
        self.begun = bool(state.schedule.get("begun"))

    def restart_schedule(self, moment: Moment) -> None:
        """Leave the learning rate to the script's own schedulers."""

    def digest(self, network: Network) -> int:
        """Return what must be equal in all members: parameters, optimizer, rates, and the others."""
        text = f"{digest(network)} {self.rates()!r} {json.dumps(self.state(), sort_keys=True)}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2

    def identity(self, job: str, examples: int, batch_size: int, seed: int) -> CheckpointIdentity:
        """Return the key that must be equal to resume from a checkpoint; it is of the model before any growth."""
        return CheckpointIdentity(
            job=job,
            model=signature_of(self.model),
            dataset=f"{examples} examples",
            optimizer=type(self.optimizer).__name__,
            batch_size=batch_size,
            seed=seed,
        )

    def adopt(self, network: Network) -> None:
        """Change the script's model and optimizer, in place, to those of `network`, which was made from them."""
        if network.module is not self.model:
            # The module keeps its identity and takes over the contents of the other one.
            self.model.__class__ = network.module.__class__
            vars(self.model).clear()
            vars(self.model).update(vars(network.module))
        if network.optimizer is not self.optimizer:
            self.optimizer.param_groups[:] = network.optimizer.param_groups
            self.optimizer.state.clear()
            self.optimizer.state.update(network.optimizer.state)
        self.network = Network(self.model, self.optimizer, network.architecture, network.history)

    def load(self, checkpoint: Checkpoint) -> None:
        """Load the state of a checkpoint. Raises `CheckpointMismatchError` if it belongs to another model."""
        state = checkpoint.state
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        held = {names[parameter] for group in self.optimizer.param_groups for parameter in group["params"]}
        left_out = {name for name, parameter in self.model.named_parameters() if parameter.requires_grad} - held
        try:
            if state.architecture is not None and state.architecture != self.network.architecture:
                self._rebuild(state.architecture, state.growth or history_of(state.architecture))
            self.model.load_state_dict(checkpoint.model)
            # The parameters that the script gave to its optimizer, trained or frozen, and those that have grown since.
            trained = {
                name for name, parameter in self.model.named_parameters() if parameter.requires_grad or name in held
            } - left_out
            tensors = checkpoint.under(OPTIMIZER_PREFIX)
            load_optimizer_state(
                self.optimizer, self.model, state.optimizer_groups, tensors, state.optimizer_values, trained
            )
            self.note(state)
        except (GrowthError, RuntimeError, ValueError, KeyError) as error:
            lines = str(error).strip().splitlines()
            raise CheckpointMismatchError(
                f"the state does not fit the script ({' '.join(line.strip() for line in lines[:3])}); all workers must "
                "run the same script; if it was changed, remove the checkpoint folder to begin again"
            ) from error

    def _rebuild(self, architecture: Architecture, history: tuple[GrowthStep, ...]) -> None:
        if self._start is None or self._example is None:
            raise GrowthError("the model has grown; all workers must call join(..., grow=True)")
        module = copied(self._start)
        if history:
            module = replay(module, history, self._example)
            check_equal(module, architecture, self._example)
        self.adopt(Network(module.train(self.model.training), self.optimizer, architecture, history))


def _encoded(value: Any, owner: str) -> Any:
    """Return `value` as JSON types that `_decoded` converts back; raises `OwnLoopError` if that is impossible."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}  # JSON cannot represent it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_encoded(each, owner) for each in value]
    if isinstance(value, tuple):
        return {_TUPLE: [_encoded(each, owner) for each in value]}
    if isinstance(value, dict):
        kind = _COUNTER if isinstance(value, Counter) else _ITEMS
        return {kind: [[_encoded(key, owner), _encoded(each, owner)] for key, each in value.items()]}
    raise OwnLoopError(
        f"join: the state of {owner} holds a {type(value).__name__}; only numbers, texts, lists and dictionaries are "
        "given to other workers: leave it out of join where all workers have it alike, else put tensors into the model"
    )


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    if isinstance(value, dict):
        ((kind, inner),) = value.items()
        if kind == _FLOAT:
            return float(inner)
        if kind == _TUPLE:
            return tuple(_decoded(each) for each in inner)
        pairs = {_decoded(key): _decoded(each) for key, each in inner}
        return Counter(pairs) if kind == _COUNTER else pairs
    return value
