"""What a training step costs in virtual time: measured for the starting model and each layer added, or given."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from espalier_api.architecture import Architecture
from espalier_api.job import AdaptiveTrainingJob
from espalier_trainer.data.source import Data
from espalier_trainer.models import build_model
from espalier_trainer.net2net import deepen
from espalier_trainer.optimizers import build_optimizer

ROUNDS = 7
STEPS = 60
"""In a round."""


class StepCostError(ValueError):
    """A step cost that cannot be used. The message names it and what is wanted."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds a step: of the starting model, and more for each layer added at a growth point."""

    base: float
    added: tuple[tuple[str, float], ...]

    def __call__(self, architecture: Architecture | None) -> float:
        """Return the seconds of a step of `architecture`."""
        history = architecture.growth_history if architecture else {}
        return self.base + sum(seconds * history.get(point, 0) for point, seconds in self.added)

    def __str__(self) -> str:
        """Say it in milliseconds."""
        layers = ", ".join(f"{point} {seconds * 1e3:.3f} ms" for point, seconds in self.added)
        return f"a step costs {self.base * 1e3:.3f} ms and for a layer added {layers}"


def parse_cost(text: str, points: Sequence[str]) -> StepCost:
    """Return the cost that `1.9,0.6,0.5,0.2` means: ms a step, then ms more for a layer at each growth point."""
    wanted = f"write {1 + len(points)} numbers of ms: a step, then what a layer adds at {', '.join(points)}"
    try:
        base, *added = (float(part) / 1e3 for part in text.split(","))
    except ValueError as error:
        raise StepCostError(f"--step-cost {text!r}: not numbers; {wanted}") from error
    if len(added) != len(points):
        raise StepCostError(f"--step-cost {text!r}: {1 + len(added)} numbers; {wanted}")
    if not all(map(math.isfinite, (base, *added))) or base <= 0 or min(added, default=0.0) < 0:
        raise StepCostError(f"--step-cost {text!r}: a step must cost more than 0, a layer not less than 0; {wanted}")
    return StepCost(base, tuple(zip(points, added, strict=True)))


def measure_cost(job: AdaptiveTrainingJob, data: Data, points: Sequence[str], device: torch.device) -> StepCost:
    """Time training steps of the starting model and of the model grown once at each point, in turn.

    The fastest round of each counts, for whatever else runs only makes rounds slower.
    """
    training = job.spec.training
    data = data.to(device)
    example = data.example_input()
    start = build_model(training.model, data.classes, example).to(device)
    insertion = job.spec.adaptation.insertion
    models = {"": start} | {point: deepen(start, point, example, insertion) for point in points}
    inputs, labels = data.train.batch(torch.arange(min(training.batch_size, len(data.train)), device=device), None)
    fastest = dict.fromkeys(models, math.inf)
    for _ in range(ROUNDS):
        for name, model in models.items():
            model.train()
            optimizer = build_optimizer(training.optimizer, model)
            began = time.perf_counter()
            for _ in range(STEPS):
                optimizer.zero_grad(set_to_none=True)
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                loss.item()
            fastest[name] = min(fastest[name], (time.perf_counter() - began) / STEPS)
    return StepCost(fastest[""], tuple((point, max(0.0, fastest[point] - fastest[""])) for point in points))
