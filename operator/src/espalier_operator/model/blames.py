"""Nodes that refuse or fail the workers of jobs: which a job avoids, and which all jobs avoid. Pure.

kube-scheduler knows nothing of it: a node whose device plugin is broken is ready and has free GPUs. A job avoids such a
node while others have GPUs for it, for half an hour, and twice as long each time it fails again. All jobs avoid a node
that failed several jobs, other than those that fail wherever they start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from espalier_core.types.status import MAX_AVOIDED_NODES
from espalier_operator.clock import doubled

_AVOIDED: Final = 1800.0, 6 * 3600.0
"""For how long a node is avoided after it failed a job once, and at most, in seconds."""
_BARRED: Final = 10.0, 1800.0
"""For how long a node is not tried again, though no other has GPUs for the job."""
_SEVERAL: Final = 2
"""Jobs that a node must have failed until all avoid it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """A node that refused a worker of a job, failed its start, or ended it."""

    node: str
    """Name of the machine."""
    at: float
    """When it last did."""
    times: int = 1
    """How often in a row."""
    message: str = ""
    """The last cause, for people."""
    refused: bool = False
    """By the node's own word; otherwise the worker failed there, and its program may be the cause."""
    elsewhere: bool = False
    """The job has trained on other nodes since: it is not the cause itself."""
    loan: int = 0
    """The newest loan of extra workers that it failed."""

    @property
    def avoided_until(self) -> float:
        """Until when the job prefers other nodes."""
        first, longest = _AVOIDED
        return self.at + doubled(first, self.times - 1, longest)

    @property
    def barred_until(self) -> float:
        """Until when the job rather waits than tries it again. A worker that failed has delays of its own."""
        first, longest = _BARRED
        return self.at + (doubled(first, self.times - 1, longest) if self.refused else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Avoided:
    """A node that all jobs avoid."""

    node: str
    jobs: int
    """How many jobs it failed."""
    until: float
    message: str = ""


def blaming(blames: Iterable[Blame], new: Blame) -> tuple[Blame, ...]:
    """Return the blames of a job with a new one, counted from the last one of its node unless that is long ago."""
    others, times, loan = [], 1, new.loan
    for blame in blames:
        if blame.node != new.node:
            others.append(blame)
            continue
        loan = max(loan, blame.loan)
        if new.at < blame.at + 2.0 * (blame.avoided_until - blame.at):
            times += blame.times
    return (*others, replace(new, times=times, loan=loan))[-MAX_AVOIDED_NODES:]


def trained_on(blames: Iterable[Blame], nodes: Collection[str]) -> tuple[Blame, ...]:
    """Return the blames of a job that has trained for a while on `nodes`: others alone fail its base workers."""
    kept = (blame for blame in blames if blame.loan or blame.node not in nodes)
    return tuple(blame if blame.node in nodes else replace(blame, elsewhere=True) for blame in kept)


def avoided_by_all(records: Iterable[tuple[Blame, ...]], now: float) -> tuple[Avoided, ...]:
    """Return the nodes that failed several jobs, by name, from the blames of each job.

    A job whose workers several nodes refuse or fail, and that has trained on none since, may be the cause itself.
    """
    failed: dict[str, list[Blame]] = defaultdict(list)
    for blames in records:
        standing = [blame for blame in blames if now < blame.avoided_until]
        for blame in standing:
            if blame.elsewhere or (blame.refused and len(standing) == 1):
                failed[blame.node].append(blame)
    return tuple(_avoided(node, found) for node, found in sorted(failed.items()) if len(found) >= _SEVERAL)


def _avoided(node: str, blames: list[Blame]) -> Avoided:
    until = sorted((blame.avoided_until for blame in blames), reverse=True)[_SEVERAL - 1]
    return Avoided(node=node, jobs=len(blames), until=until, message=max(blames, key=lambda blame: blame.at).message)
