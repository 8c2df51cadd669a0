"""Assembly of an outcome table from the records of all runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TypedDict

from espalier_core.types.outcomes import Control, OutcomeTable, SequenceOutcome
from espalier_lab.growth.collect.plan import CollectionRun, RunPurpose, sequences
from espalier_lab.growth.collect.training import Collection, RunRecord

_ACCURACY_DIGITS, _TIME_DIGITS = 5, 4


class _Accuracies(TypedDict):
    accuracy: float
    accuracy_std: float | None
    accuracies: tuple[float, ...]


def assemble(
    collection: Collection,
    records: Mapping[CollectionRun, RunRecord],
    seeds: Sequence[int],
    scenario: str,
) -> OutcomeTable:
    """Return the table: means and deviations over the seeds, for each sequence and each control."""
    decisions = collection.decisions
    outcomes = []
    for actions in sequences(len(collection.actions), decisions):
        paths = [_path(seed, actions) for seed in seeds]
        left = zip(*([records[run].time_left_s[0] for run in path] for path in paths), strict=True)
        outcomes.append(
            SequenceOutcome(
                actions=actions,
                time_left_s=tuple(round(statistics.fmean(column), _TIME_DIGITS) for column in left),
                **_accuracies([records[path[-1]] for path in paths]),
            )
        )
    cost = collection.cost
    how = "wall time" if cost is None else f"virtual time: {cost}"
    return OutcomeTable(
        source=f"espalier agent collect, {how}",
        model=collection.job.metadata.name,
        scenario=scenario,
        time_budget_s=collection.job.spec.time_budget_seconds,
        adapt_from_s=collection.start_at,
        actions=(
            *(f"deepen {point}" for point in collection.points),
            *(f"widen {group}" for group in collection.groups),
            "do nothing",
        ),
        decisions_per_episode=decisions,
        sequences=tuple(outcomes),
        architecture=collection.architecture,
        seeds=tuple(seeds),
        controls=_controls(collection, records, seeds),
    )


def _path(seed: int, actions: tuple[int, ...]) -> list[CollectionRun]:
    """Return the edges of a sequence."""
    return [CollectionRun(RunPurpose.EDGE, seed, actions[: index + 1]) for index in range(len(actions))]


def _accuracies(records: Sequence[RunRecord]) -> _Accuracies:
    values: list[float] = []
    for record in records:
        if record.accuracy is None:
            raise ValueError(f"{record.key}: has no accuracy")
        values.append(round(record.accuracy, _ACCURACY_DIGITS))
    return {
        "accuracy": round(statistics.fmean(values), _ACCURACY_DIGITS),
        "accuracy_std": round(statistics.stdev(values), _ACCURACY_DIGITS) if len(values) > 1 else None,
        "accuracies": tuple(values),
    }


def _controls(
    collection: Collection, records: Mapping[CollectionRun, RunRecord], seeds: Sequence[int]
) -> tuple[Control, ...] | None:
    """Return the trained controls; None if there are none."""
    decisions = collection.decisions
    named = {
        (RunPurpose.RESTART, ()): ("restart", "at each decision the learning rate begins again, and nothing grows"),
        (RunPurpose.THROUGHPUT, ()): (
            "throughput",
            f"from the first decision on steps are {collection.throughput:g} times as fast, and nothing grows",
        ),
    } | {
        (RunPurpose.SCRATCH, (index,) * decisions): (
            f"scratch {point}",
            f"deeper by {decisions} layers at {point} from the beginning, all weights random, with the whole budget",
        )
        for index, point in enumerate(collection.points)
    }
    controls = [
        Control(
            name=name,
            description=description,
            **_accuracies([records[CollectionRun(kind, seed, actions)] for seed in seeds]),
        )
        for (kind, actions), (name, description) in named.items()
        if all(CollectionRun(kind, seed, actions) in records for seed in seeds)
    ]
    return tuple(controls) or None
