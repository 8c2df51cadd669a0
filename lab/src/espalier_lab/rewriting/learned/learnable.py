"""The interface of policies for PPO, whatever they read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from torch import Tensor, nn

from espalier_lab.rewriting.learned.environment import Action

EAGER: Final = 3.0
"""Initial reduction of the score of stopping, so that the first episodes are longer than a few steps."""


class Readable(Protocol):
    """A policy's input before a decision. Actions are numbers from 0 on; 0 stops."""

    def action(self, number: int) -> Action:
        """Return an action in the environment's form."""


S = TypeVar("S", bound=Readable)


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of B decisions among at most 1 + A actions."""

    logs: Tensor
    """(B, 1 + A): the logarithm of the probability of each action, -inf where there is none; the first stops."""
    values: Tensor
    """(B,): the expected return."""


class LearnablePolicy(nn.Module, ABC, Generic[S]):
    """Reads observations, and scores the actions that the masks allow."""

    @abstractmethod
    def read(self, observation: Any, info: dict[str, Any]) -> S:
        """Return the part of an observation that is kept, to decide now and to learn from later."""

    @abstractmethod
    def scores(self, seen: Sequence[S]) -> Scores:
        """Score the actions of some decisions."""

    def meet(self, seen: S) -> None:
        """Record an input seen while learning."""
