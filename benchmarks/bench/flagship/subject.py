"""The arms of a study of models that grow by blocks, and what it trains: a model, its data, and what its steps cost.

Arms are nets of a fixed number of blocks, nets that grow from one block to four, and controls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import torch
from pydantic import AliasChoices, Field

from espalier_core.base import Record
from espalier_core.growth.architecture import Architecture
from espalier_core.types.job import AdaptiveTrainingJob, DatasetSpec
from espalier_core.types.task import Task
from espalier_core.validation.reading import with_spec
from espalier_trainer.data import load_data
from espalier_trainer.data.source import Data

SMALL, LARGE = 1, 4
"""Blocks before and after growth."""


class Arm(StrEnum):
    """How the blocks come; numbers are those of one run of blocks."""

    ONE = "1 block"
    TWO = "2 blocks"
    FOUR = "4 blocks"
    SCALED = "1 → 4, scaled copies"
    UNFOLDED = "1 → 4, unfolded copies"
    EXACT = "1 → 4, exact"
    INITIALISED = "blocks initialised again, the rest kept"
    EMBEDDINGS = "only the embeddings kept"
    ADVISED = "grown as the agent advises"
    RACED = "grown if a race says so"
    FROM_ZERO = "0 → 4, drawn"
    DRAWN = "1 → 4, three drawn"
    BETWEEN = "unfolded, the second copies between"
    REWARMED = "unfolded, the rate of new blocks warms up"
    BOTTLENECK = "exact, one by one, at the bottleneck"

    @property
    def blocks(self) -> int:
        """The blocks of each run at the end."""
        return _FIXED.get(self, LARGE)

    @property
    def grows(self) -> bool:
        """Whether it begins as the small net."""
        return self not in _FIXED

    @property
    def is_control(self) -> bool:
        """Whether it becomes a large net at the moment of the growth, with less of the small one."""
        return self in CONTROLS


_FIXED: Final = {Arm.ONE: 1, Arm.TWO: 2, Arm.FOUR: 4}
FIXED: Final = tuple(_FIXED)
GROWN: Final = (Arm.UNFOLDED, Arm.SCALED, Arm.EXACT)
DECIDED: Final = (Arm.ADVISED, Arm.RACED)
"""Not by a plan: they may end with any number of blocks. Made where asked for."""
RECIPES: Final = (Arm.FROM_ZERO, Arm.DRAWN, Arm.BETWEEN, Arm.REWARMED, Arm.BOTTLENECK)
"""Published ones, of `recipes`. Made where asked for."""
CONTROLS: Final = (Arm.INITIALISED, Arm.EMBEDDINGS)
"""At the moment of the growth they become large nets, too, with less of the small one."""


def blocks_of(architecture: Architecture | None) -> int:
    """Return the number of blocks of a model, in all of its runs."""
    points = architecture.blocks if architecture is not None else None
    if not points:
        raise ValueError("the model is not described as runs of blocks")
    return sum(point.number for point in points)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Virtual seconds of a step: measured once, `base` and for each block `block`, on one core."""

    base: float
    block: float

    def __call__(self, architecture: Architecture | None) -> float:
        """Return the seconds of a step."""
        return self.base + self.block * blocks_of(architecture)


class Cell(Record, frozen=True):
    """One run to be made."""

    budget: float
    """Virtual seconds."""
    arm: Arm
    moment: float | None
    """Share of the budget at which it grows; None for a fixed number of blocks."""
    rate: float
    """Initial learning rate."""
    seed: int


class Run(Record):
    """A run that was made."""

    cell: Cell
    figure: float = Field(validation_alias=AliasChoices("figure", "bits"))
    """On the test split, at the end; lower is better. Files of before this was also measured of images say `bits`."""
    validation: float
    """The same on the validation split, by which learning rates are chosen."""
    steps: int
    blocks: int
    losses: tuple[float, ...] = ()
    """Of a scaled growth: the loss of a validation batch before it, and after each part of it."""
    answered: tuple[str, ...] = ()
    """Of an arm that decides: the actions carried out, in order."""
    gradients: tuple[float, ...] = ()
    """Of a growth: gradients of new blocks by those of old ones, in the windows of `gradients`."""
    trial_seconds: float = 0.0
    """Virtual GPU-seconds that extra workers spent on a race."""
    seconds: float
    """Wall seconds that it took."""


@dataclass(frozen=True)
class Subject:
    """A job, and what its runs have in common. Its model has an option `blocks`: the number in each of its runs."""

    name: str
    job: AdaptiveTrainingJob
    """Of the small net."""
    runs: tuple[str, ...]
    """The runs of blocks that grow, all at the same moment."""
    cost: StepCost
    measure: str
    """What figures are; lower is better."""
    short: str
    """The same in a word."""
    kept: Mapping[Arm, tuple[str, ...]]
    """The controls, each with what the names of the parameters begin with that it keeps of the small net."""
    first_rate: float
    """The first learning rate that is tried."""
    epoch: Mapping[str, Any] = field(default_factory=dict)
    """Options of the data set in the runs: growth comes at the ends of epochs, so these are short."""
    figure: Callable[[float], float] = lambda score: score
    """Returns the figure of a score."""
    load: Callable[[DatasetSpec, Task], Data] = load_data
    device: str = "cpu"
    """Where nets are trained."""

    @property
    def task(self) -> Task:
        """What the model is trained for."""
        return self.job.spec.training.task

    @cached_property
    def shortened(self) -> AdaptiveTrainingJob:
        """The job, with epochs as its runs have them."""
        return with_spec(self.job, training={"dataset": {"options": dict(self.epoch)}})

    @cached_property
    def data(self) -> Data:
        """Its data, read once, on the device."""
        return self.load(self.shortened.spec.training.dataset, self.task).to(torch.device(self.device))
