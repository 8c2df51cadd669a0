"""Goodput: progress per second, not steps per second (Pollux: Qiao et al., OSDI 2021)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from espalier_operator.policies.goodput_by_type import Objective, by_type
from espalier_operator.policies.view import Candidate, Decision, Elasticity, Share, SpeedModel, View

ROUND_SECONDS: Final = 60.0
"""Interval of decisions: the goodput of a job, and the knowledge of it, change as the job trains."""
_UNBOUNDED: Final = 1_000_000
_RESTARTS: Final = "restarts"
"""Key of the number of changes of each job's workers since it started; −1: not started."""
_WORKERS: Final = "workers"
"""Key of the workers of each job at the last decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputPolicy:
    """Each worker goes where it raises the utility of the speedups most, by the goodput of each job.

    The speedup of a job is its goodput divided by that with an equal part of all GPUs (eq. 9 of the paper). The
    utility is the sum of speedup**p / p with p = −fairness (its logarithm for 0), which orders allocations like the
    paper's mean (eq. 15); p = −1 is the default there too. The paper searches by a genetic algorithm. Here, all jobs
    get their base workers, the oldest first; then the best step is taken repeatedly: the job, and the number of workers
    for it, with the largest gain per GPU. A step leads to any number on one node, or to whole nodes.

    A change costs a restart. So a job grows only if its goodput rises even with the time lost to restarts so far and to
    one more (5.1 of the paper), and shrinks only if others need its GPUs.

    Where GPUs differ in type, `goodput_by_type` decides the type of base workers, in place of the oldest first. The
    rest of each type goes to jobs on it in the same way.
    """

    fairness: float = 1.0
    """Weight of the job with the smallest speedup; 0: proportional fairness."""
    growth: float = 4.0
    """Maximum ratio of a job's workers to those that it has tried, because its speed with more is a guess."""
    restart_seconds: float = 30.0
    """Seconds for which a job does not train after its workers have changed."""
    objective: Objective = "completion"
    """Where GPUs differ in type: `completion`, jobs end early on average; `makespan`, the last job ends early."""
    name: str = "goodput"
    elasticity: ClassVar[Elasticity] = Elasticity.WORKERS_AND_BATCH
    queue_order: ClassVar[str] = "by age"

    def __post_init__(self) -> None:
        if not 0 <= self.fairness <= 10:
            raise ValueError(f"fairness: {self.fairness:g} is out of range; must be between 0 and 10")
        if not 1 < self.growth < math.inf:
            raise ValueError(f"growth: {self.growth:g} is invalid; must be finite and above 1, or no job would grow")
        if not 0 <= self.restart_seconds < math.inf:
            raise ValueError(f"restart_seconds: {self.restart_seconds:g} is invalid; must be finite and at least 0")

    def decide(self, view: View) -> Decision:
        """Return shares that sum to at most all GPUs: the oldest job first; with GPU types, the most valuable first."""
        restarts = _restarts(view)
        if view.gpu_types and view.speeds is not None:
            places = by_type(view, view.speeds, self.restart_seconds, self.objective)
            workers = {job: job.min_workers for job in places.chosen}
            growing = [
                self._grow(
                    view, [job for job, own in places.chosen.items() if own == gpu_type], workers, free, restarts
                )
                for gpu_type, free in places.free.items()
            ]
            workers |= {job: 0 for job in view.jobs if job not in workers}
            types, nodes, until, memory = places.chosen, dict[str, tuple[str, ...]](), places.until, places.memory
        else:
            jobs = sorted(view.jobs, key=lambda job: (job.submitted_at, job.key))
            free, workers = view.gpus, dict[Candidate, int]()
            for job in jobs:
                needs = job.min_workers * job.gpus_per_worker
                workers[job] = job.min_workers if needs <= free else 0
                free -= needs if needs <= free else 0
            growing = [self._grow(view, jobs, workers, free, restarts)]
            types, nodes, until, memory = dict[Candidate, str](), near(view, workers), math.inf, dict[str, Any]()
        until = min(until, view.now + ROUND_SECONDS) if any(growing) else until
        return Decision(
            shares=tuple(
                Share(
                    job=job.key,
                    workers=count,
                    spare=0 if job.key in view.speed_models or not count else job.max_workers - count,
                    gpu_type=types.get(job),
                    nodes=nodes.get(job.key, ()),
                )
                for job, count in workers.items()
            ),
            preempts=True,
            until=until if until < math.inf else None,
            memory={**memory, _RESTARTS: restarts, _WORKERS: {job.key: job.workers for job in view.jobs}},
        )

    def _grow(
        self,
        view: View,
        jobs: Iterable[Candidate],
        workers: dict[Candidate, int],
        free: int,
        restarts: Mapping[str, int],
    ) -> bool:
        """Give more workers to jobs that have their base workers; return whether any has a speed model and may grow."""
        forecasts = {
            job: _worker_gain(view, job, view.speed_models[job.key], self.fairness, self.growth)
            for job in jobs
            if job.key in view.speed_models and workers[job]
        }
        free = _fill(forecasts.values(), workers, free)
        free = self._spare_restarts(view.now, forecasts, workers, free, restarts)
        changing = (forecast for job, forecast in forecasts.items() if workers[job] != job.workers)
        _fill(changing, workers, free)
        return any(job.max_workers > job.min_workers for job in forecasts)

    def _spare_restarts(
        self,
        now: float,
        forecasts: dict[Candidate, _WorkerGain],
        workers: dict[Candidate, int],
        free: int,
        restarts: Mapping[str, int],
    ) -> int:
        """Undo changes that are not worth a restart; return the GPUs that are then free."""
        smaller: list[tuple[float, _WorkerGain]] = []
        for job, forecast in forecasts.items():
            before, after = job.workers, workers[job]
            if before and after > before:
                age = now - job.submitted_at
                lost = restarts[job.key] * self.restart_seconds
                trained = max(0.0, age - lost) / (age + self.restart_seconds) if age else 0.0
                if forecast.goodput(after) * trained <= forecast.goodput(before):
                    free += (after - before) * job.gpus_per_worker
                    workers[job] = before
            elif 0 < after < before:
                smaller.append((forecast.utility(after) - forecast.utility(before), forecast))
        for _, forecast in sorted(smaller, key=lambda each: each[0]):
            job = forecast.job
            needs = (job.workers - workers[job]) * job.gpus_per_worker
            if needs <= free:
                free -= needs
                workers[job] = job.workers
        return free


def _restarts(view: View) -> dict[str, int]:
    """Return the number of observed changes of each job's workers since it started: a wish may be pending for hours."""
    counted, seen = view.memory.get(_RESTARTS, {}), view.memory.get(_WORKERS, {})
    found: dict[str, int] = {}
    for job in view.jobs:
        count = counted.get(job.key, -1)
        # Earlier versions stored only the count, and counted a change before it was made.
        last = seen.get(job.key, 0 if count < 0 else job.workers)
        found[job.key] = count + (job.workers not in (0, last))
    return found


@dataclass(slots=True, kw_only=True)
class _WorkerGain:
    """A job's gain by more workers."""

    job: Candidate
    speed_model: SpeedModel
    node_gpus: int
    """GPUs of the largest node."""
    most: int
    """Maximum number of its workers."""
    fairness: float
    fair: float = 0.0
    """Its goodput with an equal part of all GPUs."""
    _goodputs: dict[int, float] = field(default_factory=dict)
    _utilities: dict[int, float] = field(default_factory=dict)

    def goodput(self, workers: int) -> float:
        """Return its goodput with this number of workers, on as few nodes as possible."""
        known = self._goodputs.get(workers)
        if known is None:
            # A worker with more GPUs than any node has still counts as on one node.
            nodes = min(workers, -(-workers * self.job.gpus_per_worker // self.node_gpus))
            known = self._goodputs[workers] = self.speed_model.goodput(nodes, workers)
        return known

    def utility(self, workers: int) -> float:
        """Return the utility of its speedup."""
        known = self._utilities.get(workers)
        if known is None:
            known = self._utilities[workers] = self._utility(workers)
        return known

    def _utility(self, workers: int) -> float:
        speedup = self.goodput(workers) / self.fair if self.fair > 0 else 0.0
        if speedup <= 0:
            return -math.inf
        return math.log(speedup) if not self.fairness else -(speedup**-self.fairness) / self.fairness

    def step(self, workers: int, free: int) -> tuple[float, int] | None:
        """Return the largest gain per GPU beyond `workers`, with `free` more GPUs, and the number of workers then."""
        gpus = self.job.gpus_per_worker
        most, whole = min(self.most, workers + free // gpus), max(1, self.node_gpus // gpus)
        within = range(workers + 1, min(most, whole) + 1)
        across = range((max(workers, whole) // whole + 1) * whole, most + 1, whole)
        below = self.utility(workers)
        gains = (((self.utility(count) - below) / ((count - workers) * gpus), count) for count in (*within, *across))
        best = max(gains, default=(0.0, 0))
        return best if best[0] > 0 else None


def _worker_gain(view: View, job: Candidate, speed_model: SpeedModel, fairness: float, growth: float) -> _WorkerGain:
    forecast = _WorkerGain(
        job=job,
        speed_model=speed_model,
        node_gpus=max(view.nodes.values(), default=_UNBOUNDED),
        most=min(job.max_workers, max(job.min_workers, int(growth * speed_model.tried_workers))),
        fairness=fairness,
    )
    equal = max(1, round(view.gpus / len(view.jobs)) // job.gpus_per_worker)
    forecast.fair = forecast.goodput(min(job.max_workers, max(job.min_workers, equal)))
    return forecast


def _fill(forecasts: Iterable[_WorkerGain], workers: dict[Candidate, int], free: int) -> int:
    """Take the best step until there is none; return the GPUs that are left."""
    steps: list[tuple[float, int, int, _WorkerGain]] = []

    def consider(place: int, forecast: _WorkerGain) -> None:
        step = forecast.step(workers[forecast.job], free)
        if step is not None:
            heapq.heappush(steps, (-step[0], place, step[1], forecast))

    for place, forecast in enumerate(forecasts):
        consider(place, forecast)
    while steps and free:
        _, place, count, forecast = heapq.heappop(steps)
        needs = (count - workers[forecast.job]) * forecast.job.gpus_per_worker
        if needs <= free:
            free -= needs
            workers[forecast.job] = count
        consider(place, forecast)
    return free


def near(view: View, workers: Mapping[Candidate, int]) -> dict[str, tuple[str, ...]]:
    """Return the node of each worker, by job; nothing for a job without room, or where nodes are unknown.

    A job that keeps its number of workers keeps its nodes. Of the others, large ones choose first: the fullest node on
    which all remaining workers fit, or the emptiest one.
    """
    free = dict(view.nodes)
    found: dict[str, tuple[str, ...]] = {}
    moving: list[tuple[Candidate, int]] = []
    for job, count in workers.items():
        nodes = view.held.get(job.key, ())
        if not count or not free:
            continue
        if count != len(nodes) or not free.keys() >= set(nodes):
            moving.append((job, count))
            continue
        found[job.key] = nodes
        for node in nodes:
            # A job still holds GPUs that are announced to depart, which its node no longer offers.
            free[node] = max(0, free[node] - job.gpus_per_worker)
    room = _FreeNodes(free)
    for job, count in sorted(moving, key=lambda each: -each[1] * each[0].gpus_per_worker):
        taken = room.take(count, job.gpus_per_worker)
        if taken:
            found[job.key] = taken
    return found


class _FreeNodes:
    """Nodes by their number of free GPUs."""

    def __init__(self, free: Mapping[str, int]) -> None:
        self._nodes: list[dict[str, None]] = [{} for _ in range(max(free.values(), default=0) + 1)]
        for node, gpus in free.items():
            self._nodes[gpus][node] = None

    def take(self, count: int, gpus: int) -> tuple[str, ...]:
        """Take GPUs for `count` workers with `gpus` each; return the node of each, empty where not all fit."""
        taken: list[tuple[str, int, int]] = []
        left = count
        while left:
            free = self._best(left * gpus)
            fits = min(left, free // gpus)
            if not fits:
                for node, before, used in reversed(taken):
                    self._move(node, before - used, before)
                return ()
            node = next(iter(self._nodes[free]))
            self._move(node, free, free - fits * gpus)
            taken.append((node, free, fits * gpus))
            left -= fits
        return tuple(node for node, _, used in taken for _ in range(used // gpus))

    def _best(self, needs: int) -> int:
        """Return the smallest sufficient number of free GPUs of a node, else the largest."""
        enough = range(needs, len(self._nodes))
        less = reversed(range(min(needs, len(self._nodes))))
        return next((free for part in (enough, less) for free in part if self._nodes[free]), 0)

    def _move(self, node: str, before: int, after: int) -> None:
        del self._nodes[before][node]
        self._nodes[after][node] = None
