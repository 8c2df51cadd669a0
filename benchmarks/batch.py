"""Does a batch size that follows goodput pay? `batch: Goodput` compared with `Fixed`: same data, seeds and budget.

python benchmarks/batch.py [--seeds 6] [--time-budget SECONDS] [--processes 1] [--cases cpu device sgd] [--markdown]

The example's network and data (examples/digits.yaml, never grown), one worker and two that train together, in runs of
the ready trainer. Time is virtual: a step costs what the throughput model says for its examples, passes and workers,
so nothing depends on what else the machine does. Cases:
  cpu     the costs of this machine: measured first, by one process and by two over gloo on the loopback interface
  device  assumed: 10 ms a step and 10 µs an example, 5 ms for an exchange; a device on which 64 examples are few
  sgd     the same device, with SGD (momentum .9, rate .05), for which AdaScale was made, in place of Adam
Two workers are real: a second process takes part in each step. Evaluations are free, and so are the estimates of the
gradient noise, which cost 1 % of the steps at most (make bench-measuring).

`loss` and `accuracy` are those on the test split at the end of the budget. `time to target` is the share of the budget
after which the validation loss was first as low as the largest final one among the runs with `Fixed` of this case and
number of workers; runs that never got there count as 1. `difference` is Goodput minus Fixed with the same seed: the
mean with its 95 % interval (Student's t). `size` is the mean over steps of the batch, `changes` how often it changed.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from batching.training import Run, led, train
from harness.printed import environment, progress, rendered
from harness.runs import job_of, parser, run_all
from harness.statistics import paired
from paying.training import prepare_process

from espalier_core.estimates.goodput import Throughput, fitted, step_times
from espalier_core.types.job import AdaptiveTrainingJob, BatchSizing
from espalier_core.types.measurements import Measurements
from espalier_core.validation.reading import with_spec
from espalier_lab.virtual_run import WallScheduler
from espalier_trainer.signals.scheduler import ReplicaChange

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.yaml"
DEVICE: Final = Throughput(alpha_compute=0.01, beta_compute=0.00001, alpha_local=0.005)
MEASURED_SIZES: Final = (64, 256, 1024)
ROUNDS: Final = 3


def measured(job: AdaptiveTrainingJob) -> Throughput:
    """Return what steps cost on this machine: of the rounds, the fastest counts."""
    prepare_process()
    best: dict[tuple[int, int], Any] = {}
    for _ in range(ROUNDS):
        for workers in (1, 2):
            for size in MEASURED_SIZES:
                training = {"batchSize": size, "elasticBatch": "keepGlobal" if workers > 1 else None}
                short = with_spec(job, timeBudgetSeconds=1.5, adaptation={"mode": "Off"}, training=training)
                scheduler = WallScheduler(1.5, lambda _: 0.0, (ReplicaChange(0, workers),))
                with ExitStack() as stack:
                    leader = led(stack, short, scheduler, workers, 0)
                    leader.trainer.run()
                report = leader.reporter.report
                found = () if report is None else report.measurements.speeds
                for speed in found:
                    key = speed.workers, speed.batch_size
                    if speed.workers == workers and (key not in best or speed.step_seconds < best[key].step_seconds):
                        best[key] = speed
    for speed in best.values():
        progress(
            f"{speed.workers} workers, {speed.batch_size} examples each: a step of {1000 * speed.step_seconds:.2f} ms, "
            f"exchange {1000 * speed.sync_seconds:.2f} ms"
        )
    model = fitted(step_times(Measurements(speeds=tuple(best.values()))))
    if model is None:
        raise RuntimeError("no step was measured; give the machine some rest")
    return model


def rows(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for case, workers in sorted({(run.case, run.workers) for run in runs}):
        alike = [run for run in runs if (run.case, run.workers) == (case, workers)]
        by_arm = {
            arm: sorted((run for run in alike if run.batch is arm), key=lambda run: run.seed) for arm in BatchSizing
        }
        fixed, goodput = by_arm[BatchSizing.FIXED], by_arm[BatchSizing.GOODPUT]
        target = max(run.validation[-1][1] for run in fixed)
        for arm, found in by_arm.items():
            yield [
                f"{case}, {workers}",
                arm.value,
                f"{statistics.fmean(run.accuracy for run in found):.4f}",
                f"{statistics.fmean(run.loss for run in found):.3f}",
                f"{statistics.fmean(run.reached(target) for run in found):.2f}",
                f"{statistics.fmean(run.mean_size for run in found):.0f}",
                f"{statistics.fmean(len(run.sizes) - 1 for run in found):.1f}",
                f"{statistics.fmean(run.epochs for run in found):.0f}",
            ]
        pairs = list(zip(fixed, goodput, strict=True))
        yield [
            "",
            "difference",
            _between([other.accuracy - one.accuracy for one, other in pairs], 4),
            _between([other.loss - one.loss for one, other in pairs], 3),
            _between([other.reached(target) - one.reached(target) for one, other in pairs], 2),
            *[""] * 3,
        ]


def _between(differences: Sequence[float], places: int) -> str:
    found = paired(differences)
    return f"{found.mean:+.{places}f} ({found.low:+.{places}f} to {found.high:+.{places}f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, train and print."""
    made = parser(__doc__, seeds=6)
    made.add_argument("--cases", nargs="+", choices=("cpu", "device", "sgd"), default=["cpu", "device", "sgd"])
    made.add_argument("--workers", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    made.add_argument("--runs", type=Path, help="appends each run, a line of JSON")
    made.add_argument("--markdown", action="store_true")
    options = made.parse_args(arguments)
    job = job_of(EXAMPLE, options)
    costs = {case: measured(job) if case == "cpu" else DEVICE for case in options.cases}
    for case, cost in costs.items():
        progress(f"{case}: {cost}")
    runs: list[Run] = []

    def done(place: str, run: Run) -> None:
        runs.append(run)
        if options.runs is not None:
            with options.runs.open("a") as file:
                file.write(run.model_dump_json() + "\n")
        progress(
            f"{place} {run.case}, {run.workers} workers, {run.batch}, seed {run.seed}: accuracy {run.accuracy:.4f}, "
            f"{run.steps} steps, sizes {' '.join(map(str, run.sizes))}"
        )

    budgets = {
        case: job if case == "cpu" else with_spec(job, timeBudgetSeconds=5 * job.spec.time_budget_seconds)
        for case in options.cases
    }
    calls = [
        (budgets[case], case, costs[case], arm, workers, seed)
        for seed in range(options.seeds)
        for case in options.cases
        for workers in options.workers
        for arm in BatchSizing
    ]
    run_all(train, calls, options.processes, done)
    print(environment("torch"), f"load {os.getloadavg()[0]:.1f}", sep="; ")
    head = ["case, workers", "batch", "accuracy", "loss", "time to target", "size", "changes", "epochs"]
    title = f"{options.seeds} seeds, {job.spec.time_budget_seconds:g} s of this CPU, five times as much of the device"
    print(rendered(title, head, rows(runs), markdown=options.markdown))


if __name__ == "__main__":
    main()
