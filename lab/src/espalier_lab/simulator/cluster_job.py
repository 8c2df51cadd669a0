"""A job of a trace on the cluster: its state machine, its workers, and its progress. No clock, no I/O.

The state is the one of every backend (`espalier_operator.job`); the leader's reports and the ends of processes come
from the job of the trace, which trains with the running workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from espalier_core.types.allocation import Direction
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_lab.simulator.latencies import Latencies
from espalier_lab.simulator.rounds import placement_of
from espalier_operator.job import progress, transitions
from espalier_operator.job.state import End, JobState, Observation, Timing, WorkerStart
from espalier_operator.job.view import facts_of
from espalier_operator.model import JobFacts, JobTerms, Placement, Worker, WorkerRole, WorkerState
from espalier_operator.model.actions import Action

_TIMING: Final = Timing()
_NEVER_WRITTEN: Final = datetime.fromtimestamp(0, UTC)
"""Time of day of a report, which is not used."""
_Place = tuple[WorkerRole, int]


@dataclass(frozen=True, slots=True)
class _HeldGpus:
    worker: Worker
    runs_from: float


class ClusterJob:
    """One job on the simulated cluster."""

    def __init__(self, job: SimulatedJob, terms: JobTerms, latencies: Latencies) -> None:
        """Create it from a job of a trace that is being submitted."""
        self.job, self.key, self.terms, self._latencies = job, job.name, terms, latencies
        self.state = JobState(submitted_at=job.submitted_at)
        self._workers: dict[_Place, _HeldGpus] = {}
        self._known: tuple[Worker, ...] | None = ()
        """The same in the planner's form; None: they have changed."""
        self._nodes: list[str] = []
        """The nodes of the workers with which it trains."""
        self._ran_seconds = 0.0
        """Run time of its leaders by their own count, which counts once they have ended."""
        self._acknowledged, self._acknowledges_at = 0, 0.0
        self._last_start = 0.0
        """Time at which the last of its workers runs, or would have run."""
        self._saved_at: float | None = None
        """Time at which its leader has ended, or will end, on request."""
        self._seen: tuple[object, Observation] = (None, Observation())
        self._facts: tuple[float, JobFacts] | None = None
        """Time of the last observation, and its result until the job is changed."""

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Its workers that hold GPUs."""
        if self._known is None:
            self._known = tuple(held.worker for held in self._workers.values())
        return self._known

    def facts(self, now: float) -> JobFacts:
        """Return the facts for the planner, with the budgets counted up to `now`."""
        if self._facts is None or (self._facts[0] != now and (self._workers or self.state.active)):
            seen, before = self._observe(now), self.state.grant.generation
            self.state = progress.look(self.state, seen, self.terms, now, _TIMING)
            if self.state.grant.generation > before:
                self._acknowledges_at = now
            self._facts = now, facts_of(self.key, self.state, seen, self.terms, now, _TIMING)
        return self._facts[1]

    def advance(self, now: float, seconds: float) -> bool:
        """Let `seconds` pass from `now` on; return whether a policy could know about progress."""
        if self.job.completed_at is not None:
            return False
        changed = self.job.advance(now, seconds)
        if self._nodes:
            end = now + seconds if self.job.completed_at is None else self.job.completed_at
            self._ran_seconds += max(0.0, end - now)
        if self.job.completed_at is not None:
            running = replace(self._observe(now), reported_at=self.job.completed_at)
            self.state = progress.look(self.state, running, self.terms, self.job.completed_at, _TIMING)
        return changed

    def next_moment(self, now: float) -> float:
        """Return the time after `now` at which the next decided event happens; infinity: never."""
        if max(self._last_start, self._acknowledges_at, self._saved_at or now) <= now:
            return math.inf
        times = [held.runs_from for held in self._workers.values()]
        times += [self._acknowledges_at, self._saved_at or now]
        return min((time for time in times if time > now), default=math.inf)

    def act(self, action: Action, now: float, placement: Placement) -> None:
        """Apply a decision; added workers are on the nodes of `placement`, removed ones are gone."""
        self._facts, self._known = None, None
        before, self.state = self.state, transitions.after(self.state, action, self.terms, now, _TIMING)
        if self.state.stopping is not None and before.stopping is None:
            self._saved_at = now + (self._latencies.save_seconds if self._nodes else 0.0)
        if self.state.grant.generation > before.grant.generation:
            asked = self.state.grant.direction is Direction.DOWN and self.state.reclaim is not None
            self._acknowledges_at = now + (self._latencies.acknowledge_seconds if asked else 0.0)
        if not self.state.active:
            self._workers.clear()
            self._saved_at = None
            return
        for place in [
            place for place in self._workers if place[0] is WorkerRole.EXTRA and place[1] >= self.state.extra
        ]:
            del self._workers[place]
        extra = list(placement.extra)
        wanted = [(WorkerRole.BASE, index) for index in range(self.terms.min_replicas)]
        wanted += [(WorkerRole.EXTRA, index) for index in range(self.state.extra)]
        for place in wanted:
            if place not in self._workers:
                node = placement.base[place[1]] if place[0] is WorkerRole.BASE else extra.pop(0)
                self._last_start = now + self._latencies.start_seconds
                self._workers[place] = _HeldGpus(self._worker(place, node), self._last_start)

    @property
    def is_moved(self) -> bool:
        """Whether its number of workers differs from the one with which it trains."""
        return len(self._workers) != len(self._nodes)

    def move(self, nodes: Sequence[str]) -> None:
        """Put its workers on these nodes, base workers first."""
        self._facts, self._known = None, None
        for (place, held), node in zip(sorted(self._workers.items()), nodes, strict=True):
            if held.worker.node != node:
                self._workers[place] = replace(held, worker=replace(held.worker, node=node))

    def move_back(self) -> None:
        """Put its workers back where they last trained."""
        if not self.is_moved:
            self.move(self._nodes)

    def settle(self, now: float) -> None:
        """Let the job train with its current workers, after all decisions of `now` are carried out."""
        if self.job.completed_at is not None:
            return
        if not self._workers and not self._nodes:
            self.job.idle_gpus = 0
            return
        kept = self._kept(now)
        nodes = [
            held.worker.node or ""
            for (role, index), held in self._workers.items()
            if held.runs_from <= now and (role is WorkerRole.BASE or index < kept)
        ]
        if not self._leader_runs(now) or self._saved_at is not None:
            nodes = []
        if sorted(nodes) != sorted(self._nodes):
            self.job.gpu_type = self.state.gpu_type
            self.job.place(placement_of(nodes))
            self._nodes = nodes
        self.job.idle_gpus = len(self._workers) - len(nodes)

    # ---- within

    def _kept(self, now: float) -> int:
        """Return the number of extra workers that it has not released."""
        reclaim = self.state.reclaim
        return self.state.extra if reclaim is None or now < self._acknowledges_at else reclaim.extra

    def _leader_runs(self, now: float) -> bool:
        """Return whether all base workers run: a gang starts together."""
        base = [held for (role, _), held in self._workers.items() if role is WorkerRole.BASE]
        return bool(base) and all(held.runs_from <= now for held in base)

    def _worker(self, place: _Place, node: str | None) -> Worker:
        role, index = place
        return Worker(
            name=f"{self.key} {role} {index}",
            job=self.key,
            role=role,
            index=index,
            node=node,
            gpus=self.terms.gpus_per_worker,
            state=WorkerState.RUNNING,
        )

    def _observe(self, now: float) -> Observation:
        """Return the observation of a backend; a new one only if it differs."""
        if now >= self._acknowledges_at:
            self._acknowledged = self.state.grant.generation
        starts = [held.runs_from for (role, _), held in self._workers.items() if role is WorkerRole.EXTRA]
        extra = len(starts), sum(start <= now for start in starts)
        runs, complete = self._leader_runs(now), self.job.completed_at is not None
        saved = self._saved_at is not None and now >= self._saved_at
        look = (self.state.attempts, self._acknowledged, extra, runs, complete, saved)
        if look != self._seen[0]:
            self._seen = look, self._look(extra, runs=runs, complete=complete, saved=saved)
        return replace(self._seen[1], reported_at=now)

    def _look(self, extra: tuple[int, int], *, runs: bool, complete: bool, saved: bool) -> Observation:
        if not self._workers:
            return Observation()
        ended = End(code=0, at=self.job.completed_at, external=False) if complete or saved else None
        base = tuple(
            WorkerStart(
                id=f"{index}-{attempt}",
                running=runs and ended is None,
                started_at=self._workers[WorkerRole.BASE, index].runs_from,
                end=ended,
            )
            for index, attempt in enumerate(self.state.attempts)
        )
        phase = TrainerPhase.COMPLETED if complete else TrainerPhase.STOPPED if saved else TrainerPhase.TRAINING
        report = Report(
            job=self.key,
            incarnation=base[0].id,
            acknowledged_generation=self._acknowledged,
            phase=phase,
            used_seconds=self._ran_seconds,
            reason=Reason.COMPLETED if complete else None,
            updated_time=_NEVER_WRITTEN,
        )
        reporter = base[0].id if runs else ""
        bound, running = extra
        return Observation(base=base, extra_bound=bound, extra_running=running, report=report, reporter=reporter)
