"""Outcomes of decisions on growth: tables of all sequences for one model (Lamelas 6.4), and corpora of many models.

Tables have the format of the tables published with the paper, with the starting model's architecture added, so that an
agent can learn from a table of a model that it does not know. A record of a corpus has one decision at each of several
moments, and may leave growths out. A corpus is one compressed file: models of a family have nearly the same
description.
"""

from __future__ import annotations

import itertools
import json
import lzma
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from espalier_core.base import Record
from espalier_core.files.documents import (
    MAX_BYTES,
    DocumentError,
    DoubledKeyError,
    dumps,
    first_fault,
    loads,
    read_bounded,
    without_doubles,
    write_bytes_atomically,
)
from espalier_core.growth import operation, target_counts
from espalier_core.growth.architecture import Architecture
from espalier_core.types.adaptation import Insertion
from espalier_core.types.advice import Action, AdviceRequest, CurvePoint, Progress, offered
from espalier_core.types.report import Metric
from espalier_core.types.task import Task, score_of

MEAN_TOLERANCE: Final = 1e-4
"""Tolerance between a stored mean or deviation and the value computed from its figures; both are rounded."""

# Strict: text and booleans are not figures, although they could be parsed as such.
_Index = Annotated[int, Field(strict=True)]
_Seconds = Annotated[float, Field(strict=True)]
_Accuracy = Annotated[float, Field(strict=True, ge=0, le=1)]
_Text = Annotated[str, Field(min_length=1)]
"""A bound on the length also ensures valid Unicode: JSON can contain a lone surrogate."""
MAX_DECISIONS: Final = 32
"""Maximum number of decisions; a table of all longer sequences could not be collected."""
SUFFIX: Final = ".json.xz"
MARKS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
"""Shares of the remaining budget at which the validation loss of each arm is measured."""


class _TablePart(Record):
    # The published tables are snake_case; ours stay readable by the same programs.
    model_config = ConfigDict(alias_generator=None)


class _Measured(_TablePart):
    accuracy: _Accuracy
    """Final accuracy on the test split; for several seeds, their mean."""
    accuracy_std: Annotated[float, Field(strict=True, ge=0, le=1)] | None = None
    """Sample standard deviation (n - 1) over the seeds; None for fewer than two."""
    accuracies: tuple[_Accuracy, ...] | None = None
    """Final accuracy of each of the table's seeds, in their order."""


class SequenceOutcome(_Measured):
    """The outcome of one sequence of decisions."""

    actions: tuple[_Index, ...]
    """Indices into the table's actions, in the order of the decisions."""
    time_left_s: tuple[_Seconds, ...]
    """Budget seconds left before each decision; for several seeds, their mean."""


class Control(_Measured):
    """Another training under the same budget, to compare the sequences with."""

    name: str = Field(min_length=1)
    description: str


class OutcomeTable(_TablePart):
    """All sequences of `decisions_per_episode` decisions among the actions, each with its outcome.

    The first actions are all growths that the starting model's description offers, in its order: each deepens a growth
    point, then, where it has groups of channels, each doubles one. The last action does nothing.
    """

    source: _Text
    model: _Text
    scenario: _Text
    time_budget_s: float = Field(gt=0, strict=True)
    adapt_from_s: float = Field(ge=0, strict=True)
    actions: tuple[_Text, ...] = Field(min_length=1)
    decisions_per_episode: int = Field(ge=1, le=MAX_DECISIONS, strict=True)
    sequences: tuple[SequenceOutcome, ...] = Field(min_length=1)
    architecture: Architecture | None = None
    """Architecture of the starting model; absent in the published tables, whose models the agent knows by name."""
    seeds: tuple[_Index, ...] | None = Field(default=None, min_length=1)
    """Seeds of the runs that every accuracy is the mean of; absent if unknown."""
    controls: tuple[Control, ...] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        count = self.decisions_per_episode
        _check_distinct("actions", self.actions)
        if self.adapt_from_s >= self.time_budget_s:
            raise ValueError(
                f"adapt_from_s {self.adapt_from_s} is not before the end of the budget, {self.time_budget_s}"
            )
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
            for earlier, later in itertools.pairwise(outcome.time_left_s):
                if later > earlier:
                    raise ValueError(f"{place}: time left rises from {earlier} to {later} s")
            if outcome.actions in seen:
                raise ValueError(f"{place}: sequence {list(outcome.actions)} appears twice")
            seen.add(outcome.actions)
        for sequence in itertools.product(range(len(self.actions)), repeat=count):
            if sequence not in seen:
                missing = len(self.actions) ** count - len(seen)
                raise ValueError(f"sequence {list(sequence)} is missing ({missing} in all)")
        self._check_actions()
        self._check_seeds()
        return self

    def _check_actions(self) -> None:
        if self.architecture is None:
            return
        growths = offered(self.architecture)
        if len(growths) != len(self.actions) - 1:
            raise ValueError(
                f"architecture has {target_counts(self.architecture)}, "
                f"where {len(self.actions)} actions need {len(self.actions) - 1}"
            )
        for growth in growths:
            if not str(growth.target).isprintable():
                what = operation(growth.kind).target_is
                raise ValueError(f"architecture: {what} {growth.target!r} has a name that cannot be printed")

    def _check_seeds(self) -> None:
        _check_distinct("seeds", self.seeds or ())
        controls = self.controls or ()
        _check_distinct("controls", [control.name for control in controls])
        measured: list[tuple[str, _Measured]] = [
            *((f"sequences[{index}]", outcome) for index, outcome in enumerate(self.sequences)),
            *((f"controls[{index}]", control) for index, control in enumerate(controls)),
        ]
        for place, one in measured:
            if one.accuracies is None:
                continue
            if len(one.accuracies) != len(self.seeds or ()):
                raise ValueError(
                    f"{place}: {len(one.accuracies)} accuracies, where the table has {len(self.seeds or ())} seeds"
                )
            mean = statistics.fmean(one.accuracies)
            if abs(mean - one.accuracy) > MEAN_TOLERANCE:
                raise ValueError(f"{place}: accuracy {one.accuracy} is not the mean of its accuracies, {mean:.5f}")
            spread = statistics.stdev(one.accuracies) if len(one.accuracies) > 1 else 0.0
            if one.accuracy_std is not None and abs(spread - one.accuracy_std) > MEAN_TOLERANCE:
                raise ValueError(
                    f"{place}: accuracy_std {one.accuracy_std} is not that of its accuracies, {spread:.5f}"
                )

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


def _check_distinct(place: str, values: Sequence[object]) -> None:
    seen = set()
    for index, value in enumerate(values):
        if value in seen:
            raise ValueError(f"{place}[{index}]: {value!r} appears twice")
        seen.add(value)


def reward(accuracy: float) -> float:
    """Return equation 2 of Lamelas: 100·tan(a·π/2), for an accuracy a in [0, 1).

    An accuracy of 1 would be infinite; it is taken as the float just below 1 - 1e-6.
    """
    return 100.0 * math.tan(min(accuracy, 1.0 - 1e-6) * math.pi / 2.0)


def read_table(path: Path) -> OutcomeTable:
    """Read one table; `DocumentError` names the file, the place in it and the reason."""
    try:
        text = read_bounded(path).decode()
        return OutcomeTable.model_validate(json.loads(text, object_pairs_hook=without_doubles))
    except ValidationError as error:
        raise DocumentError(f"{path}: {first_fault(error)}") from error
    except DoubledKeyError as error:
        raise DocumentError(f"{path}: {error}") from error
    except DocumentError:
        raise
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{path}: not JSON text ({error})") from error
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read ({error.strerror})") from error


def read_tables(folder: Path) -> tuple[OutcomeTable, ...]:
    """Read all tables of a folder, by name; `DocumentError` where there is none or one is damaged."""
    return tuple(read_table(path) for path in table_files(folder))


def table_files(folder: Path) -> list[Path]:
    """Return the tables of a folder (`*.json`), by name; `DocumentError` where there is none."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DocumentError(f"{folder}: holds no outcome table (*.json)")
    return paths


class ArmRecord(Record):
    """One decision at a moment, and its outcome."""

    action: Action
    accuracy: float = Field(ge=0, le=1)
    """Accuracy on the test split at the end of the budget; for other tasks `Score.quality`."""
    validation_loss: float | None = None
    """Validation loss at the end of the budget; None where it is not finite."""
    step_cost: float = Field(gt=0)
    """Cost of a step afterwards, in steps of the starting model."""
    slice_loss: float | None = None
    """Validation loss after a tenth of the rest, the rate falling to 0 within it; None where it is not finite."""
    losses: tuple[float | None, ...] = ()
    """Validation loss while the arm trains, at `MARKS`; empty where it was not measured."""


class InsertedRecord(Record):
    """A growth that is inserted in another way than exactly, and its outcome."""

    insertion: Insertion
    arm: ArmRecord


class MomentRecord(Record):
    """A moment at which the model could grow."""

    share: float = Field(gt=0, lt=1)
    """Share of the budget that is used."""
    validation_accuracy: float = Field(ge=0, le=1)
    validation_loss: float | None = None
    train_loss: float | None = None
    """Training loss of the last steps before the moment."""
    arms: tuple[ArmRecord, ...]
    """Doing nothing first, then growths in the description's order."""
    inserted: tuple[InsertedRecord, ...] = ()
    """The same whole blocks, inserted in other ways; empty where these were not tried."""

    @property
    def every(self) -> tuple[ArmRecord, ...]:
        """All arms; the actions of those inserted in other ways name theirs."""
        others = (
            one.arm.model_copy(update={"action": one.arm.action.model_copy(update={"insertion": one.insertion})})
            for one in self.inserted
        )
        return (*self.arms, *others)


class CaseRecord(Record):
    """All arms of one case and seed, decided in one way."""

    case: str
    family: str
    seed: int
    steps: int
    batch_size: int
    task: Task = Task.CLASSIFICATION
    architecture: Architecture | None
    """Architecture of the model before the decision; None where it cannot be described."""
    grown: tuple[Action, ...] = ()
    """Growths before these moments; the description has them."""
    speed: float = Field(default=1.0, gt=0)
    """Factor on the number of steps of all arms in the rest of the budget, as with more workers."""
    places: dict[str, int] = Field(default_factory=dict)
    curve: tuple[CurvePoint, ...] = ()
    """Validation losses while it trained until the last moment, ascending; empty where they were not measured."""
    moments: tuple[MomentRecord, ...]
    left_out: tuple[str, ...] = ()
    """Growths that could not be carried out, with the reasons."""

    def without(self, kind: str) -> CaseRecord:
        """Return the record as of a job that does not allow a growth operation."""
        moments = tuple(
            moment.model_copy(update={"arms": tuple(arm for arm in moment.arms if arm.action.kind != kind)})
            for moment in self.moments
        )
        return self.model_copy(update={"moments": moments})

    def request(self, moment: MomentRecord) -> AdviceRequest | None:
        """Return the request to the agent at a moment; None where the model cannot grow.

        Its seconds are steps of the starting model, so a higher speed leaves more of them.
        """
        if self.architecture is None or len(moment.arms) == 1:
            return None
        used = self.steps * moment.share
        left = (self.steps - used) * self.speed
        score = score_of(self.task, moment.validation_accuracy)
        metrics = {
            f"validation_{score.measure}": score.value,
            "validation_loss": moment.validation_loss,
            "train_loss": moment.train_loss,
        }
        return AdviceRequest(
            job=f"judge/{self.family}"[:300],
            architecture=self.architecture,
            time_left_seconds=left,
            time_budget_seconds=used + left,
            allowed_actions=tuple(arm.action for arm in moment.every),
            progress=Progress(
                step=round(used),
                adaptations=len(self.grown),
                metrics=tuple(Metric(name=name, value=value) for name, value in metrics.items() if value is not None),
                curve=tuple(point for point in self.curve if point.share < moment.share),
            ),
            places=self.places,
            batch_size=self.batch_size,
            task=self.task,
        )


class GrowthCorpus(Record):
    """Records of many models."""

    name: str = Field(min_length=1)
    source: str
    """Origin of the corpus, and how to make it again."""
    cases: tuple[CaseRecord, ...] = Field(min_length=1)


def write_corpus(corpus: GrowthCorpus, path: Path) -> None:
    """Write a corpus; the same one gives the same bytes."""
    write_bytes_atomically(path, lzma.compress(dumps(corpus).encode(), preset=9))


def read_corpus(path: Path) -> GrowthCorpus:
    """Read a corpus; `DocumentError` names the file and the reason."""
    try:
        packed = read_bounded(path)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        opened = lzma.LZMADecompressor()
        text = opened.decompress(packed, MAX_BYTES)
        whole = text.decode()
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise DocumentError(
            f"{path}: is not a corpus ({error}); make it with `espalier agent collect --corpus`"
        ) from error
    if not opened.eof:
        raise DocumentError(f"{path}: is damaged, or larger than {MAX_BYTES / 2**20:g} MiB, which is more than is read")
    return loads(whole, GrowthCorpus, str(path))
