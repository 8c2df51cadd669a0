"""Outcome tables: what every sequence of decisions led to, for one starting model and one scenario (Lamelas 6.4).

The format is that of the tables published with the paper, with the starting model's architecture added, so that
an agent can learn from a table of a model that it does not know.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from espalier_api.architecture import Architecture
from espalier_api.base import Record
from espalier_api.documents import DocumentError


class _TablePart(Record):
    # The published tables are snake_case; ours stay readable by the same programs.
    model_config = ConfigDict(alias_generator=None)


class SequenceOutcome(_TablePart):
    """The outcome of one sequence of decisions."""

    actions: tuple[int, ...]
    """Indices into the table's actions, in the order of the decisions."""
    time_left_s: tuple[float, ...]
    """Budget seconds left before each decision."""
    accuracy: float = Field(ge=0, le=1)
    """Final accuracy on the test split."""


class OutcomeTable(_TablePart):
    """All sequences of `decisions_per_episode` decisions among the actions, each with its outcome.

    Action i deepens the starting model's growth point i; the last action does nothing.
    """

    source: str
    model: str
    scenario: str
    time_budget_s: float = Field(gt=0)
    adapt_from_s: float = Field(ge=0)
    actions: tuple[str, ...] = Field(min_length=1)
    decisions_per_episode: int = Field(ge=1)
    sequences: tuple[SequenceOutcome, ...]
    architecture: Architecture | None = None
    """Of the starting model; absent in the published tables, whose models the agent knows by name."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        count = self.decisions_per_episode
        seen: set[tuple[int, ...]] = set()
        for index, outcome in enumerate(self.sequences):
            place = f"sequences[{index}]"
            if len(outcome.actions) != count or len(outcome.time_left_s) != count:
                raise ValueError(
                    f"{place}: {len(outcome.actions)} actions and {len(outcome.time_left_s)} times left, "
                    f"where decisions_per_episode is {count}"
                )
            for action in outcome.actions:
                if not 0 <= action < len(self.actions):
                    raise ValueError(f"{place}: action {action} is not among the {len(self.actions)} actions")
            for left in outcome.time_left_s:
                if not 0 <= left <= self.time_budget_s:
                    raise ValueError(f"{place}: time left {left} is outside the budget of {self.time_budget_s} s")
            if outcome.actions in seen:
                raise ValueError(f"{place}: sequence {list(outcome.actions)} is there twice")
            seen.add(outcome.actions)
        for sequence in itertools.product(range(len(self.actions)), repeat=count):
            if sequence not in seen:
                missing = len(self.actions) ** count - len(seen)
                raise ValueError(f"sequence {list(sequence)} is missing ({missing} in all)")
        if self.architecture and len(self.architecture.growth_points) != len(self.actions) - 1:
            raise ValueError(
                f"architecture has {len(self.architecture.growth_points)} growth points, "
                f"where {len(self.actions)} actions need {len(self.actions) - 1}"
            )
        return self

    @property
    def name(self) -> str:
        """`<model>-<scenario>`."""
        return f"{self.model}-{self.scenario}"

    def outcome(self, sequence: tuple[int, ...]) -> SequenceOutcome:
        """Return the outcome of a sequence; `KeyError` for one of another length or with an unknown action."""
        return self._by_sequence[sequence]

    @property
    def _by_sequence(self) -> dict[tuple[int, ...], SequenceOutcome]:
        return {outcome.actions: outcome for outcome in self.sequences}

    def rank(self, accuracy: float) -> int:
        """Return 1 + the number of sequences that end with a higher accuracy (rank 1 is the best)."""
        return 1 + sum(outcome.accuracy > accuracy for outcome in self.sequences)


def reward(accuracy: float) -> float:
    """Return equation 2 of Lamelas: 100·tan(a·π/2), for an accuracy a in [0, 1).

    An accuracy of 1 would be infinite; it is taken as the float just below 1 - 1e-6.
    """
    return 100.0 * math.tan(min(accuracy, 1.0 - 1e-6) * math.pi / 2.0)


def read_table(path: Path) -> OutcomeTable:
    """Read one table; `DocumentError` names the file, the place in it and the reason."""
    try:
        return OutcomeTable.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DocumentError(f"{path}: {place + ': ' if place else ''}{first['msg']}") from error
    except ValueError as error:
        raise DocumentError(f"{path}: not JSON text ({error})") from error


def read_tables(folder: Path) -> tuple[OutcomeTable, ...]:
    """Read all `*.json` tables of a folder, by name; `DocumentError` where there is none or one is damaged."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DocumentError(f"{folder}: holds no outcome table (*.json)")
    return tuple(read_table(path) for path in paths)
