"""Objectives of the tasks: the loss of examples, and the measures of a split.

An `Objective` turns the outputs of a model and the targets of a batch into a loss; its `ScoreTally` adds up a whole
split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from espalier_core.types.task import MEASURE_OF, Score, Task
from espalier_trainer.data.source import Source, TokenSource


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The quality of a model on a split."""

    score: Score
    """Score in the measure of its task."""
    loss: float
    """Mean loss over the examples."""
    figures: dict[str, float] = field(default_factory=dict)
    """Other figures, by name."""

    def named(self, split: str) -> dict[str, float]:
        """Return all figures by their names in reports, such as `validation_accuracy`."""
        found = {self.score.measure: self.score.value, "loss": self.loss} | self.figures
        return {f"{split}_{name}": value for name, value in found.items()}


class ScoreTally(Protocol):
    """Adds up the batches of a split."""

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Count a batch."""

    def total(self, examples: int) -> Evaluation:
        """Return the evaluation of all batches, of `examples` examples."""


class Objective(Protocol):
    """The loss and the evaluation of a task."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the examples' losses, a scalar in float32."""

    def misfit(self, outputs: Tensor, rows: int, classes: int) -> str:
        """Return the problem with a model's outputs for `rows` examples; '' if there is none.

        `classes` is the data set's number of classes, of tokens, or of numbers to predict.
        """

    def tally(self, source: Source) -> ScoreTally:
        """Return an empty tally for a split."""


def objective_of(task: Task) -> Objective:
    """Return the objective of a task."""
    return _OBJECTIVES[task]


def in_float32(outputs: Tensor) -> Tensor:
    """Return outputs in float32, in which losses are computed even after a forward in reduced precision."""
    return outputs.float()


class Classification:
    """Cross entropy of logits [N, C] with labels [N]."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the summed cross entropy."""
        return nn.functional.cross_entropy(in_float32(outputs), targets, reduction="sum")

    def misfit(self, outputs: Tensor, rows: int, classes: int) -> str:
        """Return the problem if the outputs are not logits [N, classes]."""
        if outputs.ndim != 2 or len(outputs) != rows:
            return "it must return logits [N, classes]"
        if outputs.shape[1] < classes:
            return f"has {outputs.shape[1]} outputs, but the data set has {classes} classes"
        return ""

    def tally(self, source: Source) -> ScoreTally:
        """Return an empty count of right answers."""
        return _Right(self)


class Regression:
    """Mean squared error of outputs [N, K], or [N] for one number, with targets [N, K]."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over examples of the mean of their K squared errors."""
        return (_columns(outputs) - _columns(targets)).square().mean(1).sum()

    def misfit(self, outputs: Tensor, rows: int, classes: int) -> str:
        """Return the problem if the outputs are not numbers [N, K]."""
        if tuple(_columns(outputs).shape) != (rows, classes):
            return f"it must return numbers [N, {classes}], as the data set has {classes} for each example"
        return ""

    def tally(self, source: Source) -> ScoreTally:
        """Return empty sums of squares."""
        return _Squares(self)


class LanguageModel:
    """Cross entropy of logits [N, T, V] with the tokens [N, T] that follow."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum over examples of the mean cross entropy of their T tokens."""
        flat = in_float32(outputs).reshape(-1, outputs.shape[-1])
        return nn.functional.cross_entropy(flat, targets.reshape(-1), reduction="sum") / targets.shape[1]

    def misfit(self, outputs: Tensor, rows: int, classes: int) -> str:
        """Return the problem if the outputs are not logits [N, T, tokens]."""
        if outputs.ndim != 3 or len(outputs) != rows:
            return "it must return logits [N, T, tokens]"
        if outputs.shape[2] < classes:
            return f"has {outputs.shape[2]} outputs for a token, but the data set has {classes} tokens"
        return ""

    def tally(self, source: Source) -> ScoreTally:
        """Return an empty sum of losses."""
        return _Tokens(self, source.characters_per_token if isinstance(source, TokenSource) else 1.0)


@dataclass
class _Right:
    objective: Objective
    right: Tensor | float = 0.0
    loss: Tensor | float = 0.0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self.right = self.right + (outputs.argmax(1) == targets).sum()
        self.loss = self.loss + self.objective.losses(outputs, targets).double()

    def total(self, examples: int) -> Evaluation:
        return Evaluation(_score(Task.CLASSIFICATION, float(self.right) / examples), float(self.loss) / examples)


@dataclass
class _Tokens:
    objective: Objective
    characters: float
    loss: Tensor | float = 0.0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        self.loss = self.loss + self.objective.losses(outputs, targets).double()

    def total(self, examples: int) -> Evaluation:
        """Return bits per character (nats per token / ln 2 / characters per token) and perplexity (e^nats)."""
        loss = float(self.loss) / examples
        perplexity = math.exp(loss) if loss < _MAX_NATS else math.inf
        return Evaluation(
            _score(Task.LANGUAGE_MODEL, loss / math.log(2) / self.characters), loss, {"perplexity": perplexity}
        )


@dataclass
class _Squares:
    """R² = 1 - sum (y - f)² / sum (y - mean y)², the mean over the K numbers, as scikit-learn's `r2_score`."""

    objective: Objective
    errors: Tensor | float = 0.0
    sums: Tensor | float = 0.0
    squares: Tensor | float = 0.0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        values, wanted = _columns(outputs).double(), _columns(targets).double()
        self.errors = self.errors + (values - wanted).square().sum(0)
        self.sums = self.sums + wanted.sum(0)
        self.squares = self.squares + wanted.square().sum(0)

    def total(self, examples: int) -> Evaluation:
        errors, sums, squares = (torch.as_tensor(each) for each in (self.errors, self.sums, self.squares))
        spread = squares - sums.square() / examples
        constant = spread <= squares * 1e-12
        ratio = errors / torch.where(constant, torch.ones_like(spread), spread)
        # For targets that are all equal, R² is 1 if predictions equal them, else 0.
        r2 = torch.where(constant, (errors <= squares * 1e-12).double(), 1 - ratio)
        loss = float(errors.mean()) / examples
        return Evaluation(_score(Task.REGRESSION, float(r2.mean())), loss, {"rmse": math.sqrt(max(0.0, loss))})


_MAX_NATS: Final = 700.0
"""Largest power of e that is a float."""


def _score(task: Task, value: float) -> Score:
    return Score.model_construct(measure=MEASURE_OF[task].name, value=value)


def _columns(values: Tensor) -> Tensor:
    """Return numbers as [N, K] in float32."""
    return in_float32(values).reshape(len(values), -1)


_OBJECTIVES: Final[dict[Task, Objective]] = {
    Task.CLASSIFICATION: Classification(),
    Task.REGRESSION: Regression(),
    Task.LANGUAGE_MODEL: LanguageModel(),
}
