"""The trainings for a table, as data: one run for each edge of the tree of decisions, and the controls.

A run begins where its parent ended: at an epoch boundary at which a decision is due. So the common parts of sequences
are trained once (for decisions at f1 < f2 < f3 of the budget: f1 + 4(f2-f1) + 16(f3-f2) + 64(1-f3) budgets, not 64).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class RunPurpose(StrEnum):
    """The purpose of a run."""

    TRUNK = "trunk"
    """From the beginning to the first decision."""
    EDGE = "edge"
    """One decision, and training to the next one, or to the end of the budget."""
    RESTART = "restart"
    """Control: at each decision the learning rate restarts, and nothing grows."""
    THROUGHPUT = "throughput"
    """Control: from the first decision on a step costs less, and nothing grows."""
    SCRATCH = "scratch"
    """Control: one of the deepest nets, from separate random weights, with the whole budget."""


@dataclass(frozen=True, slots=True)
class CollectionRun:
    """One training run."""

    kind: RunPurpose
    seed: int
    actions: tuple[int, ...] = ()
    """For an edge, all decisions up to its own; for a net from scratch, the growth points where it is deeper."""

    @property
    def key(self) -> str:
        """A name for files: `seed-0.edge-3-1`."""
        return "-".join([f"seed-{self.seed}.{self.kind}", *map(str, self.actions)])

    @property
    def parent(self) -> CollectionRun | None:
        """The run that this one continues from; None if it starts a training."""
        if self.kind in (RunPurpose.TRUNK, RunPurpose.SCRATCH):
            return None
        if self.kind is RunPurpose.EDGE and len(self.actions) > 1:
            return CollectionRun(RunPurpose.EDGE, self.seed, self.actions[:-1])
        return CollectionRun(RunPurpose.TRUNK, self.seed)

    def ends(self, decisions: int) -> bool:
        """Return whether it trains to the end of the budget, in a table with `decisions` decisions."""
        return self.kind is not RunPurpose.TRUNK and not (
            self.kind is RunPurpose.EDGE and len(self.actions) < decisions
        )


def sequences(actions: int, decisions: int) -> Iterator[tuple[int, ...]]:
    """Return all sequences of decisions, in lexicographic order."""
    return itertools.product(range(actions), repeat=decisions)


def runs_for(
    seeds: Sequence[int], points: int, decisions: int, *, controls: bool, groups: int = 0
) -> tuple[CollectionRun, ...]:
    """Return all runs of a table, each after its parent: seed by seed, depth first, so that few checkpoints are kept.

    The actions are the growth points, the groups of channels and, last, nothing. The deepest nets have all their layers
    at one growth point.
    """
    runs: list[CollectionRun] = []
    for seed in seeds:
        runs.append(CollectionRun(RunPurpose.TRUNK, seed))
        if controls:
            runs += [CollectionRun(RunPurpose.RESTART, seed), CollectionRun(RunPurpose.THROUGHPUT, seed)]
            runs += [CollectionRun(RunPurpose.SCRATCH, seed, (point,) * decisions) for point in range(points)]
        # Lexicographic over all lengths is depth first: (0,), (0, 0), (0, 0, 0), (0, 0, 1), ...
        prefixes = (p for length in range(1, decisions + 1) for p in sequences(points + groups + 1, length))
        runs += [CollectionRun(RunPurpose.EDGE, seed, prefix) for prefix in sorted(prefixes)]
    return tuple(runs)


def next_run(
    runs: Sequence[CollectionRun], done: Collection[CollectionRun], begun: Collection[CollectionRun]
) -> CollectionRun | None:
    """Return the first run that is not begun and whose parent is done; None if there is none yet."""
    return next((run for run in runs if run not in begun and (run.parent is None or run.parent in done)), None)
