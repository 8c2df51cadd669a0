"""Which nodes the jobs of a plan avoid because workers failed there (`espalier_operator.model.blames`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from espalier_operator.model import Blame, JobFacts, Snapshot
from espalier_operator.model.constraints import Constraints, Expression, Term
from espalier_operator.planner.builder import Record


class Avoidance:
    """What each job asks of nodes in turn: the best first. Nodes that it must not use yet are in none."""

    def __init__(self, snapshot: Snapshot, record: Record, now: float) -> None:
        """Read the blames of the jobs; plan again when one of them no longer holds."""
        by_all = frozenset(each.node for each in snapshot.avoided if now < each.until)
        for each in snapshot.avoided:
            record.wake(each.until)
        self._own: dict[str, tuple[Constraints, ...]] = {}
        self._barred_until: dict[str, float] = {}
        self.asked: set[Constraints] = set()
        """All that is asked in addition to what jobs ask themselves."""
        for job in snapshot.jobs:
            if job.finished or not (by_all or job.blames):
                continue
            blames = [blame for blame in job.blames if now < blame.avoided_until]
            barred = [blame for blame in job.blames if now < blame.barred_until]
            for blame in job.blames:
                record.wake(blame.avoided_until)
                record.wake(blame.barred_until)
            refusing = (blame for blame in blames if blame.refused)
            nodes = by_all.union(_nodes(blames)), by_all.union(_nodes(refusing)), _nodes(barred)
            levels = [_without(job.terms.constraints, each) for each in nodes]
            self._own[job.key] = tuple(dict.fromkeys(levels))
            self.asked.update(levels)
            if barred:
                self._barred_until[job.key] = min(blame.barred_until for blame in barred)

    def levels(self, job: JobFacts) -> tuple[Constraints, ...]:
        """Return what a job asks of nodes: without those that it avoids; if there are none, without those that have
        refused its workers, and then without barred ones alone.
        """
        return self._own.get(job.key, (job.terms.constraints,))

    def barred_until(self, job: JobFacts) -> float | None:
        """Return until when the first of a job's nodes is barred; None: none is."""
        return self._barred_until.get(job.key)


def _nodes(blames: Iterable[Blame]) -> frozenset[str]:
    return frozenset(blame.node for blame in blames)


def _without(constraints: Constraints, nodes: Collection[str]) -> Constraints:
    """Return `constraints` of a pod that must not be bound to `nodes`."""
    if not nodes:
        return constraints
    others = Term(fields=(Expression("metadata.name", "NotIn", tuple(sorted(nodes))),))
    return replace(constraints, volumes=(*constraints.volumes, (others,)))
