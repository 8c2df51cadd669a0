"""How long does a policy file take to decide? CPU time of answers, and of their parts, on one core.

Jobs wait, of which every second one has a known speed; each takes 1 to 8 workers with one GPU. Nodes have 8 GPUs. The
network has 32 units and random weights, and never stops while somebody can get more. `all jobs scored` is the same
decision where all jobs are scored before each worker that is given. An answer is what the policy server does with a
question: read it, decide, wish nodes for the jobs that start, and write the answer. Medians.

Takes a minute.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from bench.command import Option
from bench.printing import Parts, Table
from bench.statistics import median_and_range
from espalier_lab.scheduling.learned.files import AllocationLineage, AllocationPolicy, Serves, make_policy, write_policy
from espalier_lab.scheduling.learned.network import JobScorer
from espalier_lab.scheduling.learned.picture import PartialDecision
from espalier_lab.scheduling.learned.serving import LearnedAllocation
from espalier_lab.scheduling.learned.twin import Twin
from espalier_lab.scheduling.placement.beliefs import wide_prior
from espalier_lab.scheduling.product.reader import AllocationPolicyFile, tensors_of
from espalier_operator.policies.remote import SpeedTable, asked, question_of
from espalier_operator.policies.view import Candidate, View

NODE: Final = 8
OPTIONS: Final = {
    "repeats": Option(7),
    "sizes": Option(["200:1000", "1000:4000", "2000:1000"], "waiting jobs and GPUs"),
    "seed": Option(0),
}
QUICK: Final = {"repeats": 1, "sizes": ["6:16", "8:8"]}


def speeds(remaining_steps: float, serial: float, most: int) -> SpeedTable:
    """Return the speed of a job with 1 to `most` workers, of whose steps a part does not get faster (Amdahl's law)."""
    seconds = tuple(serial + (1 - serial) / workers for workers in range(1, most + 1))
    goodputs = tuple(1 / each for each in seconds)
    return SpeedTable(remaining_steps=remaining_steps, tried_workers=1, seconds=seconds, goodputs=goodputs)


def waiting(jobs: int, gpus: int) -> View:
    """Return jobs that wait for GPUs, none of which runs."""
    candidates = tuple(
        Candidate(key=f"ns/job-{index:05}", submitted_at=-37.0 * index, min_workers=1, max_workers=1 + index % 8)
        for index in range(jobs)
    )
    speed_models = {
        job.key: speeds(1_000.0 + 13 * index, (index % 19) / 20, job.max_workers)
        for index, job in enumerate(candidates)
        if index % 2
    }
    nodes = {f"node-{index:04}": NODE for index in range(gpus // NODE)}
    return View(now=0.0, gpus=gpus, jobs=candidates, speed_models=speed_models, nodes=nodes, continuous=True)


def policy(seed: int, jobs: int, gpus: int) -> AllocationPolicy:
    """Return a policy with random weights and a placement prior."""
    lineage = AllocationLineage(
        name="random", learnt_from="nothing", algorithm="drawn at random", seed=seed, decisions=0,
        serves=Serves(min_gpus=1, max_gpus=gpus, max_jobs=jobs),
    )  # fmt: skip
    weights = {**Twin(1, seed=seed).frozen().weights, "stop.offset": np.full(1, -100, np.float32)}
    return make_policy(JobScorer(weights), lineage, tensors_of(wide_prior()))


def scoring_all(policy: AllocationPolicy, view: View) -> None:
    """Decide by the scores of all jobs before each worker."""
    picture = PartialDecision.of(view)
    while (mask := picture.mask()).any():
        chosen = int(policy.network.scores(picture.inputs(), mask).argmax())
        if chosen == len(view.jobs):
            break
        picture.give(chosen)


def cpu(work: Callable[[], object], repeats: int) -> str:
    """Return the median of the CPU milliseconds of some runs, with the smallest and the largest."""
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        spent.append(1_000 * (time.process_time() - began))
    return median_and_range(spent)


def row(jobs: int, gpus: int, options: argparse.Namespace) -> tuple[str, ...]:
    """Measure one size."""
    view, made = waiting(jobs, gpus), policy(options.seed, jobs, gpus)
    question = asked(view).to_json()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        write_policy(made, path)
        file = AllocationPolicyFile(path)
    allocation = LearnedAllocation(made)
    given = sum(share.workers for share in allocation.decide(view).shares)
    return (
        f"{jobs:,} jobs, {gpus:,} GPUs",
        f"{given:,}",
        cpu(lambda: json.dumps(file.answer(question_of(question).view).to_json()), options.repeats),
        cpu(lambda: allocation.decide(view), options.repeats),
        cpu(lambda: scoring_all(made, view), min(3, options.repeats)),
    )


def run(options: argparse.Namespace) -> Parts:
    """Measure each size."""
    head = ("waiting", "workers given", "answer, ms", "decision alone, ms", "all jobs scored, ms")
    sizes = [map(int, size.split(":")) for size in options.sizes]
    yield Table("CPU time of an answer", head, [row(*size, options) for size in sizes])
