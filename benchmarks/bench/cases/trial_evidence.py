"""What do the losses of a trial say of the gain in the end? Measured on the corpora that are carried.

For each growth: log(loss of nothing / loss of the growth), after a slice of `Confirm` and at the end of a `Race`,
against the gain in test accuracy at the end. The loss is regressed on the gain, not the reverse: what the
rules of trials (`espalier_trainer.trials.rules`) need is how a gain shows, and how much that errs. Gains beyond .1 and
ratios beyond .1 count as .1, so that single failures do not decide.

Takes seconds.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from bench.command import Option
from bench.printing import Parts, Table
from espalier_agent.data import carried_corpus, corpus_names
from espalier_core.estimates.gains import RACING, SHARES, seen
from espalier_core.types.job import Trials
from espalier_core.types.outcomes import MARKS, ArmRecord, MomentRecord

MOST = 0.1
OPTIONS = {"corpora": Option(["free"], choices=corpus_names())}
Floats = npt.NDArray[np.float64]


def pairs(moment: MomentRecord, share: float | None) -> list[tuple[float, float]]:
    """Return for each growth of a moment how its loss compares, and what it gained."""
    nothing, *growths = moment.arms
    before = loss(nothing, share)
    found = [(loss(arm, share), arm.accuracy - nothing.accuracy) for arm in growths]
    return [(seen(before, after), gain) for after, gain in found if before is not None and after is not None]


def loss(arm: ArmRecord, share: float | None) -> float | None:
    """Return the validation loss after this share of a race, None: at the end of a slice of `Confirm`.

    None where it was not measured, or is not finite.
    """
    if share is None:
        return arm.slice_loss
    return arm.losses[MARKS.index(share)] if arm.losses else None


def run(options: argparse.Namespace) -> Parts:
    """Give slope and deviation of the evidence of both manners of trials."""
    moments = [moment for name in options.corpora for case in carried_corpus(name).cases for moment in case.moments]
    rows = []
    for manner, share in ((Trials.CONFIRM, None), *((Trials.RACE, share) for share in RACING)):
        found: Floats = np.array([pair for moment in moments for pair in pairs(moment, share)])
        ratio, gain = np.clip(found, -MOST, MOST).T
        shown = float((ratio * gain).sum() / (gain * gain).sum())
        errs = float(np.sqrt(np.mean((ratio - shown * gain) ** 2)))
        correlation = float(np.corrcoef(ratio, gain)[0, 1])
        what = f"{manner} ({share or SHARES[manner]:.0%} of the rest)"
        rows.append([what, f"{len(found)}", f"{correlation:.2f}", f"{1 / shown:.2f}", f"{errs / shown:.3f}"])
    yield Table("Losses of trials", ["after", "growths", "correlation", "slope", "deviation"], rows)
