"""The arms: nets of a fixed number of blocks, nets that grow from one block to four, and controls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import AliasChoices, Field

from espalier_core.base import Record
from espalier_core.growth.architecture import Architecture

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
    trial_seconds: float = 0.0
    """Virtual GPU-seconds that extra workers spent on a race."""
    seconds: float
    """Wall seconds that it took."""
