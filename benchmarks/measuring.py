"""What it costs to measure a job: the same run with and without, in turns of 20 steps, on one thread.

    .venv/bin/python benchmarks/measuring.py [--rounds 9] [--seconds 4]

Three jobs on the digits data: the example's net, the same with batches of 256, and a wider CNN, whose steps are longer.
Real runs of the ready trainer (`ready.Trainer`), in real time, without growth. Within a run, every other 20 steps are
measured. `with` and `without` are the mean time between the ends of two steps; those five times longer than the median
contain an evaluation and are left out, on both sides. `cost` is the median over rounds of the difference within a
round, `spread` the half of the distance of its quartiles. `noise` is what the trainer itself has timed: the share of
estimates of the noise of gradients in the measured steps, which its sampling keeps below 1 %. Not reported: several
workers, CUDA.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from harness.printed import environment, progress, rendered
from torch import nn

from espalier_core.types.job import AdaptationMode, AdaptiveTrainingJob
from espalier_core.validation.reading import parse_jobs
from espalier_lab.virtual_run import WallScheduler
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.data import load_data
from espalier_trainer.elastic.step import StepResult
from espalier_trainer.measuring.speeds import NoiseSampling
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.run.meter import RunMeter, WorkerPlacement
from espalier_trainer.run.services import Services
from espalier_trainer.training.network import Network

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.yaml"
OUTLIER = 5.0
TURN = 20


@dataclass
class Case:
    """One job and its figures, one of each list a round."""

    name: str
    batch: int
    model: Callable[[], nn.Module] | None = None
    """None: the example's."""
    measured: list[float] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)


class Paid(NoiseSampling):
    """A sampling that adds up what was paid, and the time of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = self.cost = 0.0

    def stepped(self, seconds: float) -> None:
        """Count a step."""
        self.seconds += seconds
        super().stepped(seconds)

    def paid(self, seconds: float) -> None:
        """Count a measurement."""
        self.cost += seconds
        super().paid(seconds)


class InTurns(RunMeter):
    """Measures every other `TURN` steps."""

    steps = 0

    @property
    def on(self) -> bool:
        """Whether this step is measured."""
        return self.steps // TURN % 2 == 0

    def begin(self) -> bool:
        """Begin a step."""
        return self.on and super().begin()

    def look(self, joint: StepResult, network: Network) -> None:
        """Measure a step, in its turn."""
        if self.on:
            super().look(joint, network)

    def stepped(self, place: WorkerPlacement, seconds: float, epoch: int, step: int, loss: float) -> None:
        """Count a step, in its turn."""
        if self.on:
            super().stepped(place, seconds, epoch, step, loss)
        self.steps += 1


def wide() -> nn.Module:
    """Return a CNN of 0.4 million parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(128, 256, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def train(case: Case, seconds: float) -> None:
    """Train for `seconds`, and add the figures of this round."""
    (job,) = parse_jobs(EXAMPLE.read_text(encoding="utf-8"), str(EXAMPLE))
    training = job.spec.training.model_copy(update={"batch_size": case.batch, "evaluate_every_epochs": 50})
    adaptation = job.spec.adaptation.model_copy(update={"mode": AdaptationMode.OFF})
    update = {"training": training, "adaptation": adaptation, "time_budget_seconds": seconds}
    job = AdaptiveTrainingJob.model_validate(job.model_copy(update={"spec": job.spec.model_copy(update=update)}))
    seed_everything(0)
    data = load_data(training.dataset)
    model = build_model(training.model, data.classes, data.example_input()) if case.model is None else case.model()
    gaps: list[float] = []
    services = Services(WallScheduler(seconds, lambda _: 0.0, ()), step_took=gaps.append)
    trainer = Trainer(job, model, data, services, seed=0)
    sampling, meter = Paid(), InTurns(trainer.network)
    meter._sampling = trainer._run.meter._sampling = sampling
    trainer._run.meter = meter
    trainer.run()
    usual = OUTLIER * statistics.median(gaps)
    # The first gap ends with the second step.
    requests = [(gap, (number + 1) // TURN % 2 == 0) for number, gap in enumerate(gaps) if gap <= usual]
    case.measured.append(statistics.fmean(gap for gap, on in requests if on))
    case.plain.append(statistics.fmean(gap for gap, on in requests if not on))
    case.noise.append(sampling.cost / sampling.seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4.0, help="of training of each job in each round")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = [Case("digits, batch 64", 64), Case("digits, batch 256", 256), Case("wide CNN, batch 64", 64, wide)]
    for number in range(options.rounds):
        for case in cases:
            progress(f"{number + 1}/{options.rounds}  {case.name}")
            train(case, options.seconds)
    rows = [_row(case) for case in cases]
    title = f"Seconds of a step with and without measuring, medians of {options.rounds} rounds"
    print(rendered(title, ["job", "with, ms", "without, ms", "cost", "spread", "noise"], rows))
    print(environment("torch"))


def _row(case: Case) -> list[str]:
    costs = [one / other - 1 for one, other in zip(case.measured, case.plain, strict=True)]
    quartiles = statistics.quantiles(costs, n=4) if len(costs) > 1 else [0.0, 0.0, 0.0]
    return [
        case.name,
        f"{1e3 * statistics.median(case.measured):.3f}",
        f"{1e3 * statistics.median(case.plain):.3f}",
        f"{statistics.median(costs):+.2%}",
        f"{(quartiles[2] - quartiles[0]) / 2:.2%}",
        f"{statistics.median(case.noise):.2%}",
    ]


if __name__ == "__main__":
    main()
