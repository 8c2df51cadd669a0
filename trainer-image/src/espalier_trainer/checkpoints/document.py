"""A checkpoint in memory: the whole state of a training run. `store` keeps it in files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from espalier_core.base import Record
from espalier_core.files.documents import DocumentError, loads
from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import CurvePoint
from espalier_core.types.measurements import GradientNoise, Measurements
from espalier_core.types.report import Adaptation, Metric
from espalier_trainer.checkpoints.examples import Example
from espalier_trainer.errors import CheckpointMismatchError
from espalier_trainer.net2net.history import UNREADABLE, Growth

DocumentT = TypeVar("DocumentT", bound=Record)


class CheckpointIdentity(Record):
    """Values that must be equal to resume from a checkpoint."""

    job: str
    model: str
    dataset: str
    optimizer: str
    batch_size: int
    seed: int

    def require(self, other: CheckpointIdentity) -> None:
        """Raise `CheckpointMismatchError`, naming the differences, unless `other` is equal."""
        ours, theirs = self.model_dump(), other.model_dump()
        differences = [f"{key}: {theirs[key]!r} there, {ours[key]!r} here" for key in ours if ours[key] != theirs[key]]
        if differences:
            raise CheckpointMismatchError(
                f"the checkpoint is of another training run ({'; '.join(differences)}); set another checkpoint.path, "
                "or remove the folder to begin again"
            )


class BatchState(Record):
    """State of the batch size's adaptation."""

    batches: int = Field(default=1, ge=1)
    """Batch size divided by the author's."""
    fits: int = Field(default=0, ge=0)
    """Maximum number of examples that a worker has computed in a pass with the current model."""
    pass_limit: int | None = Field(default=None, ge=1)
    """Limit of examples in a pass, set after a worker was out of memory; None if none was."""
    parameters: int = Field(default=0, ge=0)
    """Number of parameters of the current model."""
    noise: GradientNoise | None = None
    """Noise that scales the learning rate; after a growth, the smaller model's until a new one is known."""
    progress: float = Field(default=0.0, ge=0)
    """Number of steps of the author's batch size that all steps are worth (AdaScale's scale-invariant iterations)."""
    scheduled: int = Field(default=0, ge=0)
    """Number of epochs that the learning rate's schedule has counted."""


class ExecutionState(Record):
    """State that checkpoints and other workers need to compute steps in the same way, without a search."""

    channels_last: bool = False
    """Whether kernels are in channels-last layout."""
    plan: dict[str, Any] | None = None
    """Derivation of the step computation from the module (`training.execution`); None for the module itself."""


class CheckpointState(Record):
    """The state of a training run without its tensors."""

    identity: CheckpointIdentity
    architecture: Architecture | None = None
    """Description of the model; None where it cannot be described, and so has never grown."""
    growth: tuple[Growth, ...] = ()
    """Growth steps of the starting model, in order; absent in checkpoints from before widening, whose growth in
    depth is in the architecture."""
    packages: dict[str, str] | None = None
    """Packages of the operations that have grown the model, by the growth's `kind`; None if all are built in."""
    epoch: int = Field(ge=0)
    """Number of epochs begun before the current one."""
    step: int = Field(ge=0)
    cursor: int = Field(ge=0)
    """Number of batches of the current epoch already trained on."""
    epoch_loss_sum: float
    """Sum of the losses of these batches."""
    used_seconds: float = Field(ge=0)
    example: Example | None = None
    """Shapes of a batch of two inputs of the model; None where unknown."""
    consultations: int = Field(ge=0)
    adaptations: tuple[Adaptation, ...]
    metrics: tuple[Metric, ...]
    curve: tuple[CurvePoint, ...] = ()
    depth_before: int
    parameters_before: int
    max_step_gap_seconds: float
    schedule: dict[str, object]
    optimizer_groups: tuple[dict[str, object], ...]
    optimizer_values: dict[str, dict[str, object]]
    """Non-tensor state of the optimizer, by parameter name."""
    shrinking: dict[str, object] | None = None
    """State of hooks (`training.hooks`); None where they have none."""
    batching: BatchState | None = None
    """State of the batch size's adaptation; None where the author of the job sets the batch size."""
    measurements: Measurements = Measurements()
    execution: ExecutionState = ExecutionState()
    """Computation of steps; by default that of the module's code."""
    random: dict[str, object]
    """Generator states of Python and numpy; torch's are tensors."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in memory."""

    state: CheckpointState
    model: dict[str, Tensor]
    training: dict[str, Tensor]

    def under(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors in `training` whose names begin with `prefix`, by the rest of their names."""
        return {name.removeprefix(prefix): each for name, each in self.training.items() if name.startswith(prefix)}

    def copied(self, room: Checkpoint | None = None) -> Checkpoint:
        """Return a copy, independent of the network it was made from, on the CPU: a device may be nearly full.

        Tensors of `room`, an earlier copy that is no longer read, are overwritten where they fit.
        """
        model, training = (
            {name: _copied(tensor, there.get(name)) for name, tensor in tensors.items()}
            for tensors, there in self._beside(room)
        )
        return Checkpoint(self.state.model_copy(deep=True), model, training)

    def room(self, room: Checkpoint | None = None) -> Checkpoint:
        """Return memory for a copy, each page of it in use, with the tensors of an earlier `room` that fit.

        The tensors of this checkpoint are not read, so they may change meanwhile.
        """
        model, training = (
            {name: _made(tensor, there.get(name)) for name, tensor in tensors.items()}
            for tensors, there in self._beside(room)
        )
        return Checkpoint(self.state, model, training)

    def _beside(self, room: Checkpoint | None) -> tuple[tuple[dict[str, Tensor], dict[str, Tensor]], ...]:
        """Return the tensors of the model and of training, each with those of an earlier copy."""
        there: tuple[dict[str, Tensor], ...] = ({}, {}) if room is None else (room.model, room.training)
        return (self.model, there[0]), (self.training, there[1])


def loads_grown(text: str, model: type[DocumentT], source: str) -> DocumentT:
    """Parse a `CheckpointState`, or a document that contains one; `source` names it in errors.

    Raises `DocumentError` as `loads` does, and `CheckpointMismatchError` if the model has grown by an operation whose
    package is missing here, or has another version.
    """
    try:
        return loads(text, model, source)
    except DocumentError as error:
        cause = error.__cause__
        faults = cause.errors() if isinstance(cause, ValidationError) else []
        fault = next((each for each in faults if each["type"] == UNREADABLE), None)
        if fault is None:
            raise
        package = _packages(json.loads(text), fault["loc"]).get(fault["input"].get("kind"))
        named = f"the package {package}" if package else "the package of this operation"
        raise CheckpointMismatchError(
            f"{source}: the model has grown by an operation that is missing or differs here ({fault['msg']}); install "
            f"{named} where the trainer runs"
        ) from error


def _packages(body: object, place: Iterable[int | str]) -> dict[object, object]:
    """Return the `packages` of the innermost part of a document that has some and contains the `place`."""
    found: object = None
    for part in place:
        if not isinstance(body, dict):
            break
        found = body.get("packages", found)
        body = body.get(part)
    return found if isinstance(found, dict) else {}


def _copied(tensor: Tensor, room: Tensor | None) -> Tensor:
    """Return a copy on the CPU, in `room` if it fits."""
    if room is None or not _fits(tensor, room):
        return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return room.copy_(tensor.detach())


def _made(tensor: Tensor, room: Tensor | None) -> Tensor:
    """Return a tensor on the CPU for a copy: `room` if it fits."""
    if room is None or not _fits(tensor, room):
        return torch.full(tensor.shape, 1, dtype=tensor.dtype)  # zeros may be memory without physical pages
    return room


def _fits(tensor: Tensor, room: Tensor) -> bool:
    return room.shape == tensor.shape and room.dtype == tensor.dtype
