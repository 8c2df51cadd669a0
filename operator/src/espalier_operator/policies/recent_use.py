"""Fair share of base GPUs over time: who held how many lately, and how long who waits. Pure, but for what it counts.

As Slurm's PriorityDecayHalfLife and Maui's fairshare (Jackson, Snell and Clement, JSSPP 2001): what was held counts
half as much after each half-life. The figure is an average, in GPUs: with h GPUs held for t seconds, and
d = 2^(-t / half-life), use becomes d use + (1 - d) h. Extra GPUs do not count: they are spare.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import TypeAdapter, ValidationError

from espalier_operator.model import JobFacts, Snapshot
from espalier_operator.model.queues import QueueLimits

SHARES_KEPT: Final = 200
"""How many shares the text of `to_json` names, the largest: it is kept in an annotation."""
_LEAST: Final = 1e-3
"""Who used less, and holds nothing, is forgotten."""
_DIGITS: Final = 2
"""Decimals of a GPU by which shares are distinguished: of those that are nearly equal the older job goes first."""


@dataclass(frozen=True, slots=True)
class _KeptUse:
    at: float
    gpus: dict[str, float] = field(default_factory=dict)


_KEPT: Final = TypeAdapter(_KeptUse)

_Ranked = tuple[JobFacts, tuple[float, int], JobFacts]
"""Facts of a job that waits, its recent use and age, and the facts with these."""


class RecentUse:
    """What each queue has used, or each namespace where its jobs name no queue that there is."""

    def __init__(self, half_life_seconds: float, kept: str | None = None) -> None:
        """Continue from what `to_json` returned; begin with nothing if it cannot be read. 0 seconds: count nothing."""
        self._half_life = half_life_seconds
        self._gpus: dict[str, float] = {}
        self._held: Counter[str] | None = None
        """By share: what it holds since `_at`; None: what it will be seen to hold."""
        self._at: float | None = None
        self._known: dict[str, _Ranked] = {}
        """By waiting job: what was made of its facts last."""
        if kept is not None:
            try:
                read = _KEPT.validate_json(kept)
            except ValidationError:
                return
            self._at = read.at
            self._gpus = {name: gpus for name, gpus in read.gpus.items() if math.isfinite(gpus) and gpus >= 0.0}

    def seen(self, snapshot: Snapshot) -> Snapshot:
        """Count up to the time of `snapshot`, and return it with what its waiting jobs are ranked by."""
        queues = {queue.name: queue for queue in snapshot.queues}
        held = Counter[str]()
        for job in snapshot.jobs:
            if job.admitted_at is not None and not job.finished:
                held[_share_of(job, queues)] += job.base_gpus_held
        self._count(snapshot.taken_at, held if self._held is None else self._held)
        self._held = held
        ranked: dict[str, _Ranked] = {}
        jobs = tuple(self._ranked(job, queues, snapshot, ranked) for job in snapshot.jobs)
        self._known = ranked
        return replace(snapshot, jobs=jobs)

    def to_json(self, now: float | None = None) -> str:
        """Return what was counted up to `now`, or the last snapshot, for `RecentUse` after a restart."""
        if now is not None and self._held is not None:
            self._count(now, self._held)
        largest = sorted(self._gpus.items(), key=lambda entry: (-entry[1], entry[0]))[:SHARES_KEPT]
        gpus = {name: round(gpus, 4) for name, gpus in largest}
        return json.dumps({"at": round(self._at or 0.0, 3), "gpus": gpus}, separators=(",", ":"))

    def _count(self, now: float, held: Mapping[str, int]) -> None:
        if self._half_life > 0 and self._at is not None and now > self._at:
            decay = 2.0 ** (-(now - self._at) / self._half_life)
            names = self._gpus.keys() | held.keys()
            gpus = {name: self._gpus.get(name, 0.0) * decay + held.get(name, 0) * (1.0 - decay) for name in names}
            self._gpus = {name: amount for name, amount in gpus.items() if amount >= _LEAST or held.get(name)}
        self._at = now

    def _ranked(
        self, job: JobFacts, queues: Mapping[str, QueueLimits], snapshot: Snapshot, ranked: dict[str, _Ranked]
    ) -> JobFacts:
        if job.admitted_at is not None or job.finished:
            return job
        share, aging = _share_of(job, queues), snapshot.rules.aging_seconds
        weight = queues[job.terms.queue].weight if job.terms.queue in queues else 1
        waited = max(0.0, snapshot.taken_at - job.submitted_at)
        recent_use = round(self._gpus.get(share, 0.0) / weight, _DIGITS)
        rank = recent_use, int(waited / aging) if aging > 0 else 0
        known = self._known.get(job.key)
        if known is None or known[0] is not job or known[1] != rank:
            known = job, rank, replace(job, recent_use=rank[0], aged=rank[1])
        ranked[job.key] = known
        return known[2]


def _share_of(job: JobFacts, queues: Mapping[str, QueueLimits]) -> str:
    """Return whose use a job counts for. No name of a queue or of a namespace contains a space."""
    return f"queue {job.terms.queue}" if job.terms.queue in queues else f"namespace {job.namespace}"
