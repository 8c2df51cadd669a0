"""What does it save to take GPUs from who loses least? Histories of a cohort, planned with what is known and without.

Jobs of one queue run on GPUs that they borrow; jobs of the other come, take them back for a while, and go. Jobs differ
in how often they save a checkpoint and in how long they take to start. Each history is played twice with the same
arrivals: `known` by plans that see the checkpoints and starts, `old` by plans that do not, which stop the youngest.
`lost` are the GPU-hours of training that are repeated, or spent on starts; a part of the stops (`--unsaved`) come to an
end before the checkpoint is written. `less` is what is saved in a history, in percent, with the 95 % interval of its
mean (Student's t); negative is worse.
"""

from __future__ import annotations

import argparse
import random
import statistics
from dataclasses import dataclass, replace
from typing import Final

from bench.command import Option
from bench.printing import Parts, Table
from bench.statistics import saved
from espalier_operator.model import JobFacts, JobTerms, Node, Snapshot, Stopping, Worker, WorkerRole, WorkerState
from espalier_operator.model.actions import Admit, Requeue, Stop
from espalier_operator.model.queues import QueueLimits, Quota
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy

OPTIONS: Final = {
    "seeds": Option(15),
    "hours": Option(12.0, "of each history"),
    "unsaved": Option([0.0, 0.1, 1.0], "parts of the stops in which no checkpoint is written"),
}
QUICK: Final = {"seeds": 2, "hours": 1.0}
GPUS: Final = 16
STEP: Final = 15.0
SAVING: Final = 15.0
"""Seconds from the demand to stop to the checkpoint."""
QUEUES: Final = tuple(
    QueueLimits(name=name, cohort="all", quotas=(Quota(nominal=nominal),))
    for name, nominal in (("borrows", 0), ("lends", GPUS))
)


@dataclass
class Borrower:
    """A job that runs for good, and what it does."""

    facts: JobFacts
    every: float
    """Seconds from one checkpoint to the next."""
    start: float

    def at(self, now: float, *, known: bool) -> JobFacts:
        """Return its facts; what it saves and how it starts is left out where that is not `known`."""
        began = self.facts.admitted_at
        if began is None:
            return self.facts
        trains = now >= began + self.start
        seen = replace(self.facts, trained=trains, training=trains, leader_running=self.facts.stopping is None)
        return replace(seen, saved_at=self.saved_at(now), start_seconds=self.start) if known else seen

    def saved_at(self, now: float) -> float:
        """Return up to when its training is saved."""
        began = self.facts.admitted_at or 0.0
        return began + (max(0.0, now - began - self.start) // self.every * self.every + self.start) * (
            now >= began + self.start + self.every
        )


def history(seed: int, hours: float, unsaved: float, *, known: bool) -> float:
    """Return the GPU-hours that are lost."""
    rng, fate = random.Random(seed), random.Random(-seed)
    terms = JobTerms(min_replicas=1, max_replicas=1, queue="borrows", base_preemptible=True, time_budget_seconds=1e9)
    borrowers = {
        f"a/{index}": Borrower(
            JobFacts(key=f"a/{index}", terms=terms, submitted_at=0.0),
            every=60.0 * 60.0 ** rng.random(),
            start=20.0 * 30.0 ** rng.random(),
        )
        for index in range(GPUS)
    }
    arrivals, at = list[tuple[float, int, float]](), rng.expovariate(1 / 900)
    while at < 3600 * hours:
        arrivals.append((at, rng.choice((1, 2, 4)), rng.uniform(600, 2400)))
        at += rng.expovariate(1 / 900)
    lenders, ends, lost, now = dict[str, JobFacts](), dict[str, float](), 0.0, 0.0
    nodes = (Node(name="n", gpu_type="a", allocatable=GPUS),)
    while now < 3600 * hours:
        while arrivals and arrivals[0][0] <= now:
            came, workers, seconds = arrivals.pop(0)
            own = replace(terms, min_replicas=workers, max_replicas=workers, queue="lends", base_preemptible=False)
            key = f"b/{came:.3f}"
            lenders[key], ends[key] = JobFacts(key=key, terms=own, submitted_at=came), seconds
        for key in [key for key, job in lenders.items() if now >= (job.admitted_at or now) + ends[key]]:
            del lenders[key]
        for _ in range(9):
            facts = [*lenders.values(), *(each.at(now, known=known) for each in borrowers.values())]
            workers_now = tuple(
                _worker(job, index)
                for job in facts
                if job.admitted_at is not None
                for index in range(job.terms.min_replicas)
            )
            seen = Snapshot(taken_at=now, nodes=nodes, jobs=tuple(facts), workers=workers_now, queues=QUEUES)
            actions = plan(seen, FairPolicy(), now).actions
            for action in actions:
                borrower = borrowers.get(action.job)
                if isinstance(action, Admit) and borrower is None:
                    lenders[action.job] = replace(lenders[action.job], admitted_at=now, gpu_type="a")
                elif isinstance(action, Admit) and borrower is not None:
                    borrower.facts = replace(borrower.facts, admitted_at=now, gpu_type="a")
                elif isinstance(action, Stop) and borrower is not None:
                    began = borrower.facts.admitted_at or 0.0
                    repeated = now - borrower.saved_at(now) if fate.random() < unsaved else 0.0
                    start = 0.0 if repeated and borrower.saved_at(now) == began else min(borrower.start, now - began)
                    lost += repeated + start
                    borrower.facts = replace(borrower.facts, stopping=Stopping(reason=action.reason, deadline=now))
                elif isinstance(action, Requeue) and borrower is not None:
                    borrower.facts = replace(borrower.facts, admitted_at=None, gpu_type=None, stopping=None)
            if not actions or any(isinstance(action, Stop) for action in actions):
                break
        now += max(STEP, SAVING)
    return lost / 3600


def _worker(job: JobFacts, index: int) -> Worker:
    return Worker(
        name=f"{job.key}-{index}",
        job=job.key,
        role=WorkerRole.BASE,
        index=index,
        node="n",
        gpus=1,
        state=WorkerState.RUNNING,
    )


def run(options: argparse.Namespace) -> Parts:
    """Play the histories, each in both ways."""
    rows = []
    for unsaved in options.unsaved:
        old, new = (
            [history(seed, options.hours, unsaved, known=known) for seed in range(options.seeds)]
            for known in (False, True)
        )
        less = saved(new, old)
        rows.append(
            (
                f"{unsaved:.0%}",
                f"{statistics.median(old):.2f}",
                f"{statistics.median(new):.2f}",
                less.text(".0f"),
                f"{less.wins} of {less.count}",
            )
        )
    head = ("unsaved", "old, GPU-hours lost", "known", "less, %", "better")
    yield Table(f"{GPUS} jobs on borrowed GPUs, {options.hours:g} hours, {options.seeds} histories", head, rows)
