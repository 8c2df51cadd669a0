"""The task of a job, and the measure by which its model is judged.

Accuracy is better when it is higher, bits per character when they are lower. Compare two values of a measure with
`Score.ahead_of`, which is positive where the first is better, whatever the measure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import Field

from espalier_core.base import Record


class Task(StrEnum):
    """The learning task; it determines the loss and the measure by which the model is judged."""

    CLASSIFICATION = "Classification"
    """One of several classes. Loss: cross entropy. Measure: accuracy."""
    REGRESSION = "Regression"
    """One number or several. Loss: mean squared error. Measure: R²; also reported: the root mean squared error."""
    LANGUAGE_MODEL = "LanguageModel"
    """The next token of a text. Loss: cross entropy of a token. Measure: bits per character (lower is better); also
    reported: the perplexity of a token."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A quantity by which models of a task are compared."""

    name: str
    """Name of the measure in the names of figures: `validation_<name>`."""
    title: str
    """Name of the measure for people."""
    higher_is_better: bool = True
    digits: int = 4
    """Number of decimals shown."""


ACCURACY: Final = Measure("accuracy", "accuracy")
R2: Final = Measure("r2", "R²")
BITS_PER_CHARACTER: Final = Measure("bits_per_character", "bits per character", higher_is_better=False, digits=3)
MEASURES: Final[Mapping[str, Measure]] = {each.name: each for each in (ACCURACY, R2, BITS_PER_CHARACTER)}
MEASURE_OF: Final[Mapping[Task, Measure]] = {
    Task.CLASSIFICATION: ACCURACY,
    Task.REGRESSION: R2,
    Task.LANGUAGE_MODEL: BITS_PER_CHARACTER,
}


class Score(Record):
    """The quality of a model by a measure."""

    measure: str
    """`accuracy`, `r2` or `bits_per_character`."""
    value: float = Field(allow_inf_nan=False)
    """Value of the measure."""

    @property
    def by(self) -> Measure:
        """The measure; one of a newer version is assumed to be better when it is higher."""
        return MEASURES.get(self.measure) or Measure(self.measure, self.measure.replace("_", " "))

    def ahead_of(self, other: Score) -> float:
        """Return the lead over `other`, negative where `other` is better.

        Raise `ValueError` for a score by another measure.
        """
        if self.measure != other.measure:
            raise ValueError(f"{self.measure} and {other.measure} cannot be compared; compare jobs of one task")
        return self.value - other.value if self.by.higher_is_better else other.value - self.value

    @property
    def quality(self) -> float | None:
        """The score between 0 and 1, higher is better, as agents learn from it; None where it is out of range.

        It is the accuracy; R², 0 where the model is worse than the mean of the targets; or, for bits per character, the
        (geometric) mean probability of the right character, 2^-bits.
        """
        if self.measure == BITS_PER_CHARACTER.name:
            return 2.0**-self.value if self.value >= 0 else None
        found = max(0.0, self.value) if self.measure == R2.name else self.value
        return found if 0 <= found <= 1 else None

    @property
    def shown(self) -> str:
        """The value as text."""
        return f"{self.value:.{self.by.digits}f}"

    def __str__(self) -> str:
        return f"{self.by.title} {self.shown}"


MIN_QUALITY: Final = 1e-6
"""Lower bound on the probability of the right character, which is 0 for a diverged model."""


def score_of(task: Task, quality: float) -> Score:
    """Return the score of a model by its `quality`; an R² below 0 has the quality 0."""
    value = -math.log2(max(quality, MIN_QUALITY)) if task is Task.LANGUAGE_MODEL else quality
    return Score(measure=MEASURE_OF[task].name, value=value)


def accuracy_score(value: float | None) -> Score | None:
    """Return an accuracy as a score."""
    return None if value is None or not math.isfinite(value) else Score(measure=ACCURACY.name, value=value)


def accuracy_of(score: Score | None) -> float | None:
    """Return the value of a score that is an accuracy, None for any other."""
    return score.value if score is not None and score.measure == ACCURACY.name else None


def other_than_accuracy(score: Score | None) -> Score | None:
    """Return a score that has no separate field in reports and events: any but an accuracy."""
    return None if score is None or score.measure == ACCURACY.name else score


def task_by(figures: Mapping[str, float]) -> Task:
    """Return the task of a run by the measure of its score on the validation split; without one, a classification."""
    score = score_in(figures, "validation")
    return next((task for task, by in MEASURE_OF.items() if score is not None and by == score.by), Task.CLASSIFICATION)


def score_in(figures: Mapping[str, float], split: str) -> Score | None:
    """Return the score on a split (`validation`, `test`) among named figures, None if there is none."""
    for name in MEASURES:
        value = figures.get(f"{split}_{name}")
        if value is not None and math.isfinite(value):
            return Score(measure=name, value=value)
    return None
