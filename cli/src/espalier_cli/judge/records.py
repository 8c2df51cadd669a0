"""What the runs of a case came to, as files: a case and seed each has its own."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from espalier_api.advice import Action, AdviceRequest, Progress
from espalier_api.architecture import Architecture
from espalier_api.base import Record
from espalier_api.documents import DocumentError, read_document, write_document
from espalier_api.report import Metric
from espalier_cli.judge.case import Case

_DIGITS = 5
RecordT = TypeVar("RecordT", bound=Record)


class ArmRecord(Record):
    """One decision at a moment, and what it led to."""

    action: Action
    accuracy: float = Field(ge=0, le=1)
    """On the test split at the end of the budget."""
    validation_loss: float | None = None
    """At the end of the budget; None where it is not finite."""
    step_cost: float = Field(gt=0)
    """Of a step afterwards, where a step of the starting model costs 1."""


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


class CaseRecord(Record):
    """All arms of one case and seed."""

    case: str
    family: str
    seed: int
    steps: int
    batch_size: int
    architecture: Architecture | None
    """Of the starting model; None where it cannot be described."""
    places: dict[str, int] = Field(default_factory=dict)
    moments: tuple[MomentRecord, ...]
    left_out: tuple[str, ...] = ()
    """Growths that could not be carried out, with the reasons."""

    def request(self, moment: MomentRecord) -> AdviceRequest | None:
        """Return what the agent is asked at a moment; None where the model cannot grow."""
        if self.architecture is None or len(moment.arms) == 1:
            return None
        metrics = {
            "validation_accuracy": moment.validation_accuracy,
            "validation_loss": moment.validation_loss,
            "train_loss": moment.train_loss,
        }
        return AdviceRequest(
            job=f"judge/{self.family}"[:300],
            architecture=self.architecture,
            time_left_seconds=self.steps * (1 - moment.share),
            time_budget_seconds=self.steps,
            allowed_actions=tuple(arm.action for arm in moment.arms),
            progress=Progress(
                step=round(self.steps * moment.share),
                metrics=tuple(Metric(name=name, value=value) for name, value in metrics.items() if value is not None),
            ),
            places=self.places,
            batch_size=self.batch_size,
        )


class TrialRecord(Record):
    """What advice led to at a moment, alone and with trials."""

    share: float
    advice: Action
    confirmed: bool | None = None
    """Whether the trial spoke for the advice; None where the advice was to do nothing."""
    confirm_accuracy: float
    race_winner: Action
    race_accuracy: float
    losses: tuple[float | None, ...] = ()
    """Validation losses of the race's first round: of nothing, then of the growths."""


class TrialsRecord(Record):
    """The trials of one case and seed, for one policy."""

    case: str
    seed: int
    policy: str
    moments: tuple[TrialRecord, ...]


def key_of(case: Case, seed: int, *settings: object) -> str:
    """Return a file name that differs where anything differs that the result depends on, but the case's code."""
    optimizer = case.optimizer.to_json()
    facts = [case.name, case.family, case.steps, case.batch_size, optimizer, len(case.train), seed, *settings]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]
    readable = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in case.name)[:60]
    return f"{readable}-{seed}-{digest}.json"


def kept(path: Path, kind: type[RecordT]) -> RecordT | None:
    """Return a record that is there; None where it is not, or is damaged."""
    try:
        return read_document(path, kind)
    except (FileNotFoundError, DocumentError):
        return None


def keep(path: Path, record: Record) -> None:
    """Write a record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_document(path, record)


def rounded(value: float) -> float:
    """Return an accuracy or loss as it is stored."""
    return round(value, _DIGITS)
