"""How long does a policy file take to decide? CPU time of answers, and of their parts, on one core.

python benchmarks/answers.py [--repeats 7] [--markdown]

Jobs wait, of which every second one has a known speed; each takes 1 to 8 workers with one GPU. Nodes have 8 GPUs. The
network has 32 units and random weights, and never stops while somebody can get more. `all jobs scored` is the same
decision where all jobs are scored before each worker that is given. An answer is what the policy server does with a
question: read it, decide, wish nodes for the jobs that start, and write the answer. Medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from harness.printed import command, environment, rendered

from espalier_lab.scheduling.learned.files import AllocationLineage, AllocationPolicy, Serves, make_policy, write_policy
from espalier_lab.scheduling.learned.network import JobScorer
from espalier_lab.scheduling.learned.picture import PartialDecision
from espalier_lab.scheduling.learned.serving import LearnedAllocation
from espalier_lab.scheduling.learned.twin import Twin
from espalier_lab.scheduling.placement.beliefs import wide_prior
from espalier_lab.scheduling.product.reader import AllocationPolicyFile, tensors_of
from espalier_operator.policies.remote import SpeedTable, asked, question_of
from espalier_operator.policies.view import Candidate, View

SIZES: Final = ((200, 1_000), (1_000, 4_000), (2_000, 1_000))
"""Waiting jobs, and GPUs."""
NODE: Final = 8


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
    return f"{statistics.median(spent):,.0f} ({min(spent):,.0f} to {max(spent):,.0f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sizes", type=lambda text: tuple(map(int, text.split(":"))), nargs="+", default=SIZES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args(arguments)
    print(f"{command()}\n{environment('numpy')}\n{options.repeats} repeats, seed {options.seed}")
    rows = []
    for jobs, gpus in options.sizes:
        view, made = waiting(jobs, gpus), policy(options.seed, jobs, gpus)
        question = asked(view).to_json()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "policy.safetensors"
            write_policy(made, path)
            file = AllocationPolicyFile(path)
        allocation = LearnedAllocation(made)
        decision = allocation.decide(view)
        given = sum(share.workers for share in decision.shares)

        def answer(file: AllocationPolicyFile = file, question: bytes = question) -> object:
            return json.dumps(file.answer(question_of(question).view).to_json())

        rows.append(
            (
                f"{jobs:,} jobs, {gpus:,} GPUs",
                f"{given:,}",
                cpu(answer, options.repeats),
                cpu(lambda allocation=allocation, view=view: allocation.decide(view), options.repeats),
                cpu(lambda made=made, view=view: scoring_all(made, view), min(3, options.repeats)),
            )
        )
    head = ("waiting", "workers given", "answer, ms", "decision alone, ms", "all jobs scored, ms")
    print(rendered("CPU time of an answer", head, rows, markdown=options.markdown))


if __name__ == "__main__":
    main()
