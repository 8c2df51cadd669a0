"""The driver by rounds: the bare policy decides each minute, and its decisions take effect at once.

It has no notices, cooldowns or quotas: for comparisons with published simulators, and for learning. A policy is called
again when a job arrives, ends or, if the policy depends on that, progresses, and when its decision requests it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from espalier_core.base import number_of
from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.idling import Idling
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_lab.simulator.spares import fill
from espalier_operator.policies import Policy
from espalier_operator.policies.view import Candidate, Decision, Elasticity, View

Q = TypeVar("Q")
A = TypeVar("A")

ROUND_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A simulated node."""

    name: str
    gpus: int
    gpu_type: str = "simulated"


def base_workers(job: SimulatedJob, policy: Policy) -> int:
    """Return the workers that `job` has or waits for: the minimum if the policy chooses their number."""
    return job.requested if policy.elasticity is Elasticity.FIXED else job.least_workers


def check_sizes(jobs: Iterable[SimulatedJob], policy: Policy, gpus: int) -> None:
    """Raise `TraceError` for a job that needs more GPUs than the cluster has."""
    larger = [job for job in jobs if base_workers(job, policy) > gpus]
    if larger:
        job = larger[0]
        where = f"{job.origin}: " if job.origin else ""
        others, most = number_of(len(larger) - 1, "other"), max(each.requested for each in larger)
        more = f", too few also for {others} of up to {most}" if larger[1:] else ""
        raise TraceError(
            f"{where}job {job.name}: needs {job.requested} GPUs; the cluster has {gpus}{more}: name a larger "
            "--cluster, or leave out such jobs with --skip larger"
        )


def submit(job: SimulatedJob, now: float, nodes: Sequence[int], start_seconds: float = 0.0) -> None:
    """Set the start of a job, first seen at `now`, as if all GPUs of these nodes were free."""
    job.start_seconds = now - job.submitted_at + start_seconds + job.pause_seconds
    if job.requested <= sum(nodes):
        job.ideal = placement_of(spread(list(nodes), job.requested))


class Rounds:
    """One simulation by rounds."""

    def __init__(
        self,
        jobs: Sequence[SimulatedJob],
        nodes: Sequence[SimulatedNode],
        policy: Policy,
        moved: Callable[[Mapping[str, Sequence[int]]], None] = lambda held: None,
    ) -> None:
        """Prepare. Raise `TraceError` for a job that never fits.

        `moved` is called whenever workers were placed or have ended, with the node index of each worker by job.
        """
        self._moved = moved
        self._jobs, self._policy = sorted(jobs, key=lambda job: job.submitted_at), policy
        self._nodes = [node.gpus for node in nodes]
        self._names = [node.name for node in nodes]
        self._indices = {name: index for index, name in enumerate(self._names)}
        self._gpus = sum(self._nodes)
        self._base = {job.name: base_workers(job, policy) for job in jobs}
        check_sizes(jobs, policy, self._gpus)
        self.now = 0.0
        self._memory: Any = {}
        self._held: dict[str, list[int]] = {}
        """The node of each worker, by job."""
        self._ended: dict[str, float] = {}
        """Jobs that have ended since the last decision, with their GPU-seconds."""

    def run(self, progress: Callable[[int], None] = lambda completed: None) -> None:
        """Run until all jobs are complete; `progress` is called with the number of complete jobs.

        Raise `TraceError` if the policy lets all jobs wait for ever.
        """
        answer(self.views(progress), self._policy.decide)

    def views(self, progress: Callable[[int], None] = lambda completed: None) -> Generator[View, Decision, None]:
        """Run until all jobs are complete, as `run` does, but let the caller answer each view with a decision."""
        coming, active = list(reversed(self._jobs)), list[SimulatedJob]()
        running = list[SimulatedJob]()
        until, follows, completed = math.inf, False, 0
        idling = Idling(self._policy.name, ROUND_SECONDS)
        while coming or active:
            if not active:
                ahead = coming[-1].submitted_at - self.now
                self.now += max(0, math.ceil(ahead / ROUND_SECONDS) - 1) * ROUND_SECONDS
            idling.count(() if running else [job.name for job in active])
            changed = False
            for job in running:  # waiting jobs do not change
                changed |= job.advance(self.now, ROUND_SECONDS) and follows
            self.now += ROUND_SECONDS
            ended = [job for job in running if job.completed_at is not None]
            if ended:
                running = [job for job in running if job.completed_at is None]
                active = [job for job in active if job.completed_at is None]
                completed += len(ended)
                progress(completed)
                for job in ended:
                    self._held.pop(job.name, None)
                    self._ended[job.name] = job.service
            while coming and coming[-1].submitted_at <= self.now:
                active.append(coming.pop())
                submit(active[-1], self.now, self._nodes)
                changed = True
            if active and (changed or ended or self.now >= until):
                decision = yield self._view(active)
                self._memory = decision.memory
                self._carry_out(decision, active)
                running = [job for job in active if job.workers]
                self._ended.clear()
                until = math.inf if decision.until is None else decision.until
                follows = decision.follows_progress

    def _view(self, active: Sequence[SimulatedJob]) -> View:
        speed_models = {job.name: job.speed_model for job in active}
        return View(
            now=self.now,
            gpus=self._gpus,
            jobs=tuple(
                Candidate(
                    key=job.name,
                    submitted_at=job.submitted_at,
                    min_workers=self._base[job.name],
                    max_workers=job.most_workers,
                    priority=job.priority,
                    workers=job.workers,
                    service=job.service,
                )
                for job in active
            ),
            nodes=dict(zip(self._names, self._nodes, strict=True)),
            held={name: tuple(self._names[node] for node in nodes) for name, nodes in self._held.items()},
            speed_models={name: speed_model for name, speed_model in speed_models.items() if speed_model is not None},
            bids={job.name: bids for job in active if (bids := job.bids)},
            ended=dict(self._ended),
            memory=self._memory,
        )

    def _carry_out(self, decision: Decision, active: Iterable[SimulatedJob]) -> None:
        """Give workers in the order of shares: all or none of the base, more if available, then the spare ones.

        Wishes for nodes come first. A job without a wish stays where it is, if others' wishes leave it room.
        """
        jobs = {job.name: job for job in active}
        workers = fill(decision.shares, self._base, self._gpus)
        free = list(self._nodes)
        held = {
            share.job: take(free, [self._indices[node] for node in share.nodes])
            for share in decision.shares
            if len(share.nodes) == workers[share.job] > 0
        }
        if min(free) < 0:
            raise ValueError(f"policy {self._policy.name}: wishes for more GPUs of a node than it has")
        for name, nodes in self._held.items():
            if name not in held and len(nodes) == workers.get(name) and fits(free, nodes):
                held[name] = take(free, nodes)
        for name, count in workers.items():
            if count and name not in held:
                held[name] = spread(free, count)
        for name, job in jobs.items():
            nodes = held.get(name, [])
            if nodes != self._held.get(name, []):
                job.place(placement_of(nodes))
        self._held = held
        self._moved(held)


def answer(asked: Generator[Q, A, None], reply: Callable[[Q], A]) -> None:
    """Answer the requests of `asked` until it ends."""
    question = next(asked, None)
    while question is not None:
        replied = reply(question)
        try:
            question = asked.send(replied)
        except StopIteration:
            return


def fits(free: Sequence[int], nodes: Sequence[int]) -> bool:
    """Return whether each node has free GPUs for its workers."""
    return all(free[node] >= nodes.count(node) for node in set(nodes))


def take(free: list[int], nodes: list[int]) -> list[int]:
    """Take the GPU of each worker; return `nodes`."""
    for node in nodes:
        free[node] -= 1
    return nodes


def spread(free: list[int], count: int) -> list[int]:
    """Take GPUs, from the node with the most free ones on; return the node of each."""
    taken: list[int] = []
    while len(taken) < count:
        most = max(free)
        node = free.index(most)
        number = min(most, count - len(taken))
        free[node] -= number
        taken += [node] * number
    return taken


def placement_of(nodes: Sequence[Hashable]) -> tuple[int, ...]:
    """Return the workers on each node, in the order of `nodes`."""
    return tuple(nodes.count(node) for node in dict.fromkeys(nodes))
