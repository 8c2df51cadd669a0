"""Results of the runs of a case, as files, one per case and seed."""

from __future__ import annotations

import hashlib
import json

from pydantic import Field

from espalier_core.base import Record
from espalier_core.types.advice import Action
from espalier_lab.growth.judge.case import JudgeCase

_DIGITS = 5


class TrialRecord(Record):
    """The result of advice at a moment, alone and with trials."""

    share: float
    advice: Action
    confirmed: bool | None = None
    """Whether the trial confirmed the advice; None if the advice was to do nothing."""
    confirm_accuracy: float
    race_winner: Action
    race_accuracy: float
    auto_accuracy: float
    """Accuracy by `Auto` with as many extra GPUs as a race."""
    lent: dict[str, float] = Field(default_factory=dict)
    """Time of lent GPUs by kind of trial, in budgets of one GPU."""


class TrialsRecord(Record):
    """The trials of one case and seed, for one policy."""

    case: str
    seed: int
    policy: str
    moments: tuple[TrialRecord, ...]


def key_of(case: JudgeCase, seed: int, *settings: object) -> str:
    """Return a file name that depends on everything that affects the result, except the case's code."""
    optimizer = case.optimizer.to_json()
    facts = [case.name, case.family, case.steps, case.batch_size, optimizer, len(case.train), seed, *settings]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]
    readable = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in case.name)[:60]
    return f"{readable}-{seed}-{digest}.json"


def rounded(value: float) -> float:
    """Return an accuracy or loss in its stored precision."""
    return round(value, _DIGITS)
