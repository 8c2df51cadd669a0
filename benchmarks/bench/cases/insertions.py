"""In which way should whole blocks be inserted? Measured on corpora that were collected with `--way inserted`.

For each run of blocks: test accuracy at the end, exactly inserted compared with not growing, scaled and unfolding with
exactly inserted. Differences are means over seeds, then over all runs of a family; intervals are 95 %, over families.

Takes seconds.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.command import Option
from bench.printing import Parts, Table
from espalier_agent.data import carried_corpus
from espalier_core.estimates.gains import HARM
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_core.types.outcomes import ArmRecord, CaseRecord, read_corpus
from espalier_core.types.task import Task
from espalier_lab.intervals import Interval

CARRIED = ("inserted-free", "inserted-growth")
PAIRS = ((Insertion.EXACT, "none"), (Insertion.SCALED, Insertion.EXACT), (Insertion.UNFOLD, Insertion.EXACT))
OPTIONS = {"corpora": Option([], "files, in place of those that are carried", type=Path)}
Run = tuple[str, str, float, Action]
"""Family, case, moment and the run that grows."""


def arms(records: Sequence[CaseRecord]) -> Mapping[Run, Mapping[str, Sequence[ArmRecord]]]:
    """Return the arms of all seeds by run, and by the way to insert it; `none` is not growing."""
    found: dict[Run, dict[str, list[ArmRecord]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for moment in record.moments:
            nothing, *growths = moment.arms
            ways = [(Insertion.EXACT, arm) for arm in growths] + [(one.insertion, one.arm) for one in moment.inserted]
            for way, arm in ways:
                run = (record.family, record.case, moment.share, arm.action)
                found[run][way].append(arm)
                if way is Insertion.EXACT:
                    found[run]["none"].append(nothing)
    return found


def costs_more(ways: Mapping[str, Sequence[ArmRecord]]) -> bool:
    """Return whether a run has several blocks: all of them are copied, so a step costs more than with one exact one."""
    return len({arm.step_cost for way, trained in ways.items() if way != "none" for arm in trained}) > 1


def differences(runs: Mapping[Run, Mapping[str, float]], way: str, beside: str) -> Iterator[tuple[str, float]]:
    """Yield the family of each run with what `way` gains compared with another one, where there are both."""
    for (family, *_), ways in runs.items():
        if way in ways and beside in ways:
            yield family, ways[way] - ways[beside]


def row(name: str, found: Sequence[tuple[str, float]]) -> list[str]:
    """Return a row of the table."""
    families: dict[str, list[float]] = defaultdict(list)
    for family, gain in found:
        families[family].append(gain)
    mean, low, high = Interval.of([statistics.fmean(gains) for gains in families.values()])
    within = "" if low is None or high is None else f"({low:+.4f}, {high:+.4f})"
    worse, better = (sum(sign * gain > HARM[Task.CLASSIFICATION] for _, gain in found) / len(found) for sign in (-1, 1))
    return [name, f"{mean:+.4f}", within, f"{better:.0%}", f"{worse:.0%}", f"{len(families)}", f"{len(found)}"]


def run(options: argparse.Namespace) -> Parts:
    """Compare the ways in the corpora."""
    corpora = [*map(read_corpus, options.corpora)] or [carried_corpus(name) for name in CARRIED]
    trained = arms([record for corpus in corpora for record in corpus.cases])
    runs = {
        each: {way: statistics.fmean(arm.accuracy for arm in seen) for way, seen in ways.items()}
        for each, ways in trained.items()
    }
    longer = {each for each, ways in trained.items() if costs_more(ways)}
    tables = {"all": set(runs)}
    for share in sorted({each[2] for each in runs}):
        tables[f"at {share:.0%} of the budget"] = {each for each in runs if each[2] == share}
    tables |= {"runs of one block": set(runs) - longer, "runs of several": longer}
    for title, chosen in tables.items():
        of_these = {each: ways for each, ways in runs.items() if each in chosen}
        found = {(way, beside): list(differences(of_these, way, beside)) for way, beside in PAIRS}
        rows = [row(f"{way} - {beside}", each) for (way, beside), each in found.items() if each]
        yield Table(title, ["", "mean", "95 %", "better", "worse", "families", "runs"], rows)
