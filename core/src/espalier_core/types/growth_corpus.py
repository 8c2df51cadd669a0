"""A corpus of growth: what each decision led to, for many models, and where that is written.

Unlike an outcome table, a record has one decision at each of several moments, and may leave growths out. A corpus is
one file, compressed: models of a family have nearly the same description.
"""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Final

from pydantic import Field

from espalier_core.base import Record
from espalier_core.files.documents import MAX_BYTES, DocumentError, dumps, loads, read_bounded, write_bytes_atomically
from espalier_core.growth.architecture import Architecture
from espalier_core.types.adaptation import Insertion
from espalier_core.types.advice import Action, AdviceRequest, Progress
from espalier_core.types.report import Metric

SUFFIX: Final = ".json.xz"
MARKS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
"""Shares of what is left of the budget at which the validation loss of each arm is measured."""


class ArmRecord(Record):
    """One decision at a moment, and what it led to."""

    action: Action
    accuracy: float = Field(ge=0, le=1)
    """On the test split at the end of the budget."""
    validation_loss: float | None = None
    """At the end of the budget; None where it is not finite."""
    step_cost: float = Field(gt=0)
    """Of a step afterwards, where a step of the starting model costs 1."""
    slice_loss: float | None = None
    """Validation loss after a tenth of the rest, the rate falling to 0 within it; None where it is not finite."""
    losses: tuple[float | None, ...] = ()
    """Validation loss while the arm trains, at `MARKS`; empty where it was not measured."""


class InsertedRecord(Record):
    """A growth that is inserted in another way than exactly, and what it led to."""

    insertion: Insertion
    arm: ArmRecord


class MomentRecord(Record):
    """A moment at which the model could grow."""

    share: float = Field(gt=0, lt=1)
    """Of the budget that is used."""
    validation_accuracy: float = Field(ge=0, le=1)
    validation_loss: float | None = None
    train_loss: float | None = None
    """Of the last steps before."""
    arms: tuple[ArmRecord, ...]
    """First nothing, then growths in the description's order."""
    inserted: tuple[InsertedRecord, ...] = ()
    """The same whole blocks, inserted in other ways; empty where these were not tried. Nobody is asked to choose."""


class CaseRecord(Record):
    """All arms of one case and seed, decided in one way."""

    case: str
    family: str
    seed: int
    steps: int
    batch_size: int
    architecture: Architecture | None
    """Of the model that decides; None where it cannot be described."""
    grown: tuple[Action, ...] = ()
    """Growths before these moments; the description has them."""
    speed: float = Field(default=1.0, gt=0)
    """How many times as many steps all arms make in the rest of the budget, as with more workers."""
    places: dict[str, int] = Field(default_factory=dict)
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
        """Return what the agent is asked at a moment; None where the model cannot grow.

        Its seconds are steps of the starting model, so more speed means that more of them are left.
        """
        if self.architecture is None or len(moment.arms) == 1:
            return None
        used = self.steps * moment.share
        left = (self.steps - used) * self.speed
        metrics = {
            "validation_accuracy": moment.validation_accuracy,
            "validation_loss": moment.validation_loss,
            "train_loss": moment.train_loss,
        }
        return AdviceRequest(
            job=f"judge/{self.family}"[:300],
            architecture=self.architecture,
            time_left_seconds=left,
            time_budget_seconds=used + left,
            allowed_actions=tuple(arm.action for arm in moment.arms),
            progress=Progress(
                step=round(used),
                adaptations=len(self.grown),
                metrics=tuple(Metric(name=name, value=value) for name, value in metrics.items() if value is not None),
            ),
            places=self.places,
            batch_size=self.batch_size,
        )


class GrowthCorpus(Record):
    """Records of many models."""

    name: str = Field(min_length=1)
    source: str
    """How it was made, and how it can be made again."""
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
