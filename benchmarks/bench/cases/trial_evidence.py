"""What do the losses of a trial say of the gain in the end? Measured on the corpora that are carried.

For each growth: log(loss of nothing / loss of the growth), or their difference in bits per character, after a slice of
`Confirm` and at the end of a `Race`, against the gain of the test score at the end. The loss is regressed on the gain,
not the reverse: what the rules of trials (`espalier_trainer.trials.rules`) need is how a gain shows, and how much that
errs. What is beyond some three times the spread of gains counts as that, so that single failures do not decide.

Takes seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.command import Option
from bench.printing import Parts, Table
from espalier_agent.data import carried_corpus, corpus_names
from espalier_core.estimates.gains import RACING, SHARES, SPREAD, LossScale
from espalier_core.types.job import Trials
from espalier_core.types.outcomes import MARKS, ArmRecord, CaseRecord, MomentRecord, read_corpus
from espalier_core.types.task import Task, score_of

MOST = 10 / 3
OPTIONS = {
    "corpora": Option(["free"], choices=corpus_names()),
    "files": Option([], "files of other corpora", type=Path),
}
Floats = npt.NDArray[np.float64]


def pairs(record: CaseRecord, moment: MomentRecord, share: float | None) -> list[tuple[float, float]]:
    """Return for each growth of a moment how its loss compares, and what it gained."""
    request = record.request(moment)
    if request is None:
        return []
    scale = LossScale.of(record.task, {each.name: each.value for each in request.progress.metrics})
    nothing, *growths = (*moment.arms, *(one.arm for one in moment.inserted))
    before, ended = loss(nothing, share), score_of(record.task, nothing.accuracy)
    found = [(loss(arm, share), score_of(record.task, arm.accuracy).ahead_of(ended)) for arm in growths]
    return [(scale.seen(before, after), gain) for after, gain in found if before is not None and after is not None]


def loss(arm: ArmRecord, share: float | None) -> float | None:
    """Return the validation loss after this share of a race, None: at the end of a slice of `Confirm`.

    None where it was not measured, or is not finite.
    """
    if share is None:
        return arm.slice_loss
    return arm.losses[MARKS.index(share)] if arm.losses else None


def run(options: argparse.Namespace) -> Parts:
    """Give slope and deviation of the evidence of both manners of trials."""
    cases = [case for name in options.corpora for case in carried_corpus(name).cases]
    cases += [case for path in options.files for case in read_corpus(path).cases]
    for task in Task:
        if of_task := [case for case in cases if case.task is task]:
            yield table(task, of_task)


def table(task: Task, cases: Sequence[CaseRecord]) -> Table:
    """Give the figures of a task."""
    rows, most = [], MOST * SPREAD[task]
    for manner, share in ((Trials.CONFIRM, None), *((Trials.RACE, share) for share in RACING[task])):
        found: Floats = np.array(
            [pair for case in cases for moment in case.moments for pair in pairs(case, moment, share)]
        )
        ratio, gain = np.clip(found, -most, most).T
        shown = float((ratio * gain).sum() / (gain * gain).sum())
        errs = float(np.sqrt(np.mean((ratio - shown * gain) ** 2)))
        correlation = float(np.corrcoef(ratio, gain)[0, 1])
        what = f"{manner} ({share or SHARES[manner]:.0%} of the rest)"
        rows.append([what, f"{len(found)}", f"{correlation:.2f}", f"{1 / shown:.2f}", f"{errs / shown:.3f}"])
    return Table(f"Losses of trials, {task}", ["after", "growths", "correlation", "slope", "deviation"], rows)
