"""The interface of growth operations on descriptions, without torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from espalier_core.growth.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Target:
    """One place where an operation can be carried out, as the agent sees it."""

    layers: tuple[str, ...]
    """The layers that it concerns."""
    sizes: tuple[float, ...]
    """What else tells the operation's targets apart: its `sizes`. Their magnitudes are read."""


class GrowthOperation(ABC):
    """One way to grow a network, on its description.

    The trainer's part describes the targets of a model and carries the operation out. Both must commute: describing
    the grown module gives what `grown` makes of the description.
    """

    name: ClassVar[str]
    """In `adaptation.actions` of a job, and the `kind` of an `Action`."""
    verb: ClassVar[str]
    """What it does to a target, in an outcome table's labels: `deepen`."""
    participle: ClassVar[str]
    """What has then been done to the model: `deepened`."""
    target_is: ClassVar[str]
    """What a target is: `growth point`."""
    targets_are: ClassVar[str]
    """What several are: `growth points`."""
    summary: ClassVar[str]
    """One sentence for the schema of a job."""
    sized: ClassVar[bool] = False
    """Whether an action may name a width."""
    sizes: ClassVar[tuple[str, ...]] = ()
    """What the numbers in `Target.sizes` are."""
    bound: ClassVar[int | None] = None
    """How many times the parameters of the starting model a job may reach that allows it and has no `maxParameters`;
    None: without bound."""

    @abstractmethod
    def targets(self, architecture: Architecture) -> tuple[str, ...]:
        """Return the ids of what can be grown, in an order that growth does not change."""

    @abstractmethod
    def grown(self, architecture: Architecture, target: str, width: int | None = None) -> Architecture:
        """Return the description after the operation; raises `GrowthError` where it cannot be carried out."""

    @abstractmethod
    def seen(self, architecture: Architecture) -> tuple[Target, ...]:
        """Return the targets as the agent sees them, in the order of `targets`."""

    def is_described(self, architecture: Architecture) -> bool:
        """Return whether the description tells of the operation's targets, were it that there are none."""
        return self.name in (architecture.targets or {})

    def width(self, architecture: Architecture, target: str) -> int | None:
        """Return how wide a target is, for an operation that changes that; None for others."""
        return None

    def takes(self, architecture: Architecture, target: str, width: int) -> bool:
        """Return whether an action may name this width."""
        return False
