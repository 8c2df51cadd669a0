"""Collect an outcome table: train a job's model under every sequence of decisions (Lamelas, section 6.4).

python hack/collect_outcomes.py examples/digits.yaml --start-at 30% --seeds 3 --processes 2 --output table.json

A GPU arrives at `--start-at`; from then on there is one decision at each epoch boundary. What comes before the first
decision is trained once a seed, and every sequence starts from its checkpoint. Time is virtual: a step costs what it
was measured to cost for its architecture, at the beginning or before (`--step-cost`), so that the table does not
depend on what else the machine does; the costs are written into the table. With several seeds the table holds their
mean accuracies.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from espalier_api.advice import Action
from espalier_api.architecture import Architecture
from espalier_api.job import AdaptiveTrainingJob
from espalier_api.outcomes import OutcomeTable, SequenceOutcome
from espalier_api.validation import load_job
from espalier_cli.timeline import parse_moment
from espalier_trainer.advisor import Scripted
from espalier_trainer.architecture import describe
from espalier_trainer.checkpoint import CheckpointStore
from espalier_trainer.data import load_data
from espalier_trainer.loop import Trainer
from espalier_trainer.models import build_model
from espalier_trainer.net2net import deepen
from espalier_trainer.optimizers import build_optimizer
from espalier_trainer.randomness import seed_everything
from espalier_trainer.scheduler import Arrival, VirtualScheduler

TIMED_STEPS, ROUNDS = 60, 7


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds a step: of the starting model, and more for each layer added at a growth point."""

    base: float
    added: dict[str, float]

    def __call__(self, architecture: Architecture | None) -> float:
        """Return the seconds of a step of `architecture`."""
        history = architecture.growth_history if architecture else {}
        return self.base + sum(self.added[point] * count for point, count in history.items())


def measure_cost(job: AdaptiveTrainingJob) -> StepCost:
    """Time training steps of the starting model and of the model grown once at each point, in turn.

    The fastest round of each counts, for whatever else runs only makes rounds slower.
    """
    data = load_data(job.spec.training.dataset)
    example = data.example_input()
    start = build_model(job.spec.training.model, data.classes, example)
    points = [point.id for point in describe(start, example).growth_points]
    models = {"": start} | {point: deepen(start, point, example) for point in points}
    inputs, labels = data.train.batch(torch.arange(job.spec.training.batch_size), None)
    fastest = dict.fromkeys(models, float("inf"))
    for _ in range(ROUNDS):
        for name, model in models.items():
            model.train()
            optimizer = build_optimizer(job.spec.training.optimizer, model)
            began = time.perf_counter()
            for _ in range(TIMED_STEPS):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
            fastest[name] = min(fastest[name], (time.perf_counter() - began) / TIMED_STEPS)
    return StepCost(fastest[""], {point: max(0.0, fastest[point] - fastest[""]) for point in points})


def given_cost(text: str, points: list[str]) -> StepCost:
    """Return the cost that `--step-cost` says."""
    base, *added = (float(part) / 1e3 for part in text.split(","))
    return StepCost(base, dict(zip(points, added, strict=True)))


@dataclass(frozen=True, slots=True)
class Collection:
    """What is to be collected."""

    job: AdaptiveTrainingJob
    cost: StepCost
    start_at: float
    decisions: int

    def train(self, seed: int, folder: Path, actions: tuple[Action, ...] | None) -> tuple[list[float], float | None]:
        """Train, from the newest checkpoint in `folder` where there is one; without `actions`, to `start_at` only.

        Returns the budget seconds left at each decision, and the accuracy on the test split.
        """
        torch.set_num_threads(1)
        seed_everything(seed)
        training = self.job.spec.training
        data = load_data(training.dataset)
        arrivals = (Arrival(self.start_at, 2),)
        scheduler = VirtualScheduler(self.job.spec.time_budget_seconds, self.cost, arrivals)
        advisor = Scripted(actions or ())
        trainer = Trainer(
            self.job,
            build_model(training.model, data.classes, data.example_input()),
            data,
            scheduler,
            advisor=advisor,
            checkpoints=CheckpointStore(folder),
            seed=seed,
            stop=(lambda: scheduler.used_seconds() >= self.start_at) if actions is None else (lambda: False),
        )
        result = trainer.run()
        return [request.time_left_seconds for request in advisor.asked], result.test_accuracy


def prepared(job: AdaptiveTrainingJob, decisions: int) -> AdaptiveTrainingJob:
    """Return the job without what costs time and changes nothing here: evaluations and regular checkpoints."""
    whole = job.to_json()
    spec = whole["spec"]
    if not isinstance(spec, dict):
        raise TypeError(f"spec is {type(spec).__name__}")
    spec["training"]["evaluateEveryEpochs"] = 1_000_000
    spec["checkpoint"]["intervalSeconds"] = 86400
    spec["adaptation"] |= {"mode": "Auto", "maxAdaptations": decisions}
    return AdaptiveTrainingJob.model_validate(whole)


def train_sequence(
    collection: Collection, seed: int, prefix: Path, sequence: tuple[int, ...]
) -> tuple[tuple[int, ...], list[float], float]:
    """Train one sequence from the shared prefix."""
    points = list(collection.cost.added)
    actions = tuple(Action.deepen(points[index]) if index < len(points) else Action.nothing() for index in sequence)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(prefix, folder, dirs_exist_ok=True)
        left, accuracy = collection.train(seed, Path(folder), actions)
    if accuracy is None or len(left) != collection.decisions:
        raise RuntimeError(
            f"sequence {sequence}: {len(left)} of {collection.decisions} decisions were made; start earlier"
        )
    return sequence, left, accuracy


def collect(collection: Collection, seeds: range, processes: int) -> tuple[SequenceOutcome, ...]:
    """Train all sequences for all seeds; return the means over the seeds."""
    sequences = list(itertools.product(range(len(collection.cost.added) + 1), repeat=collection.decisions))
    lefts: dict[tuple[int, ...], list[list[float]]] = {sequence: [] for sequence in sequences}
    accuracies: dict[tuple[int, ...], list[float]] = {sequence: [] for sequence in sequences}
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
    ):
        prefixes = {seed: Path(scratch) / str(seed) for seed in seeds}
        for future in [pool.submit(collection.train, seed, folder, None) for seed, folder in prefixes.items()]:
            future.result()
        runs = [
            pool.submit(train_sequence, collection, seed, prefixes[seed], sequence)
            for seed in seeds
            for sequence in sequences
        ]
        for done, future in enumerate(as_completed(runs), start=1):
            sequence, left, accuracy = future.result()
            lefts[sequence].append(left)
            accuracies[sequence].append(accuracy)
            print(f"\r{done}/{len(runs)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return tuple(
        SequenceOutcome(
            actions=sequence,
            time_left_s=tuple(round(statistics.fmean(column), 4) for column in zip(*lefts[sequence], strict=True)),
            accuracy=round(statistics.fmean(accuracies[sequence]), 5),
        )
        for sequence in sequences
    )


def main() -> None:
    """Collect one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path)
    parser.add_argument("--start-at", required=True, help="when the GPU arrives: 20s, or 30%% of the budget")
    parser.add_argument("--time-budget", type=float, help="instead of spec.timeBudgetSeconds")
    parser.add_argument("--decisions", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--scenario", help="the scenario's name in the table; default: --start-at")
    parser.add_argument(
        "--step-cost", help="ms of a step, then ms more for a layer at each growth point: 1.9,0.6,0.5,0.2"
    )
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    job = prepared(load_job(arguments.job), arguments.decisions)
    if arguments.time_budget:
        spec = job.spec.model_copy(update={"time_budget_seconds": arguments.time_budget})
        job = job.model_copy(update={"spec": spec})
    budget = job.spec.time_budget_seconds
    start_at = parse_moment(arguments.start_at, budget)
    data = load_data(job.spec.training.dataset)
    example = data.example_input()
    architecture = describe(build_model(job.spec.training.model, data.classes, example), example)
    points = [point.id for point in architecture.growth_points]
    cost = given_cost(arguments.step_cost, points) if arguments.step_cost else measure_cost(job)
    print(f"a step costs {cost.base * 1e3:.2f} ms, and {cost.added} s a layer added", file=sys.stderr)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    outcomes = collect(Collection(job, cost, start_at, arguments.decisions), seeds, arguments.processes)

    table = OutcomeTable(
        source=(
            f"hack/collect_outcomes.py, mean of seeds {seeds.start} to {seeds.stop - 1}, virtual time: a step costs "
            f"{cost.base * 1e3:.3f} ms and for a layer added "
            + ", ".join(f"{point} {seconds * 1e3:.3f} ms" for point, seconds in cost.added.items())
        ),
        model=job.metadata.name,
        scenario=arguments.scenario or arguments.start_at,
        time_budget_s=budget,
        adapt_from_s=start_at,
        actions=(*(f"deepen {point}" for point in cost.added), "do nothing"),
        decisions_per_episode=arguments.decisions,
        sequences=outcomes,
        architecture=architecture,
    )
    arguments.output.write_text(json.dumps(table.to_json()) + "\n", encoding="utf-8")
    best = max(outcomes, key=lambda outcome: outcome.accuracy)
    nothing = table.outcome((len(cost.added),) * arguments.decisions)
    print(
        f"{arguments.output}: best {best.actions} {best.accuracy:.4f}, nothing {nothing.accuracy:.4f} "
        f"(rank {table.rank(nothing.accuracy)} of {len(outcomes)})"
    )


if __name__ == "__main__":
    main()
