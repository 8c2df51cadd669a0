"""The interface of growth operations on descriptions, without torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from espalier_core.growth.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Target:
    """One target of an operation, as the agent sees it."""

    layers: tuple[str, ...]
    """The layers concerned."""
    sizes: tuple[float, ...]
    """Numbers that distinguish targets further, as named by `sizes`; the agent reads their magnitudes."""


class GrowthOperation(ABC):
    """One way to grow a network, on its description.

    The trainer's part describes the targets of a model and carries the operation out. Both must commute: the
    description of the grown module equals `grown` of the description.
    """

    name: ClassVar[str]
    """Name in `adaptation.actions` of a job; the `kind` of an `Action`."""
    verb: ClassVar[str]
    """The verb for the operation in the labels of an outcome table: `deepen`."""
    participle: ClassVar[str]
    """The participle for a model after it: `deepened`."""
    target_is: ClassVar[str]
    """The noun for a target: `growth point`."""
    targets_are: ClassVar[str]
    """The plural of that noun: `growth points`."""
    summary: ClassVar[str]
    """One sentence for the schema of a job."""
    sized: ClassVar[bool] = False
    """Whether an action may name a width."""
    inserts: ClassVar[bool] = False
    """Whether an action may name how blocks are inserted."""
    sizes: ClassVar[tuple[str, ...]] = ()
    """Meanings of the numbers in `Target.sizes`."""
    bound: ClassVar[int | None] = None
    """Limit on parameters for a job without `maxParameters`, in multiples of the starting model; None: no limit."""

    @abstractmethod
    def targets(self, architecture: Architecture) -> tuple[str, ...]:
        """Return the ids of the targets, in an order that growth does not change."""

    @abstractmethod
    def grown(self, architecture: Architecture, target: str, width: int | None = None) -> Architecture:
        """Return the description after the operation; raise `GrowthError` if it cannot be carried out."""

    @abstractmethod
    def seen(self, architecture: Architecture) -> tuple[Target, ...]:
        """Return the targets as the agent sees them, in the order of `targets`."""

    def is_described(self, architecture: Architecture) -> bool:
        """Return whether the description covers the operation's targets, even if there are none."""
        return self.name in (architecture.targets or {})

    def width(self, architecture: Architecture, target: str) -> int | None:
        """Return the width of a target, for an operation that changes it; None for others."""
        return None

    def takes(self, architecture: Architecture, target: str, width: int) -> bool:
        """Return whether an action may name this width."""
        return False
