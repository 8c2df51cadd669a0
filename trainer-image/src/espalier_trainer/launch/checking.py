"""Try a job's code and data, one step long: `python -m espalier_trainer.launch.checking JOB`, for `espalier validate
--deep`.

stdout has a JSON line for each stage and each finding; output of the user's code goes to stderr.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from espalier_core.growth import operation
from espalier_core.types.advice import offered
from espalier_core.types.environment import ExitCode
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.task import Task
from espalier_core.validation.reading import load_job
from espalier_trainer.builtin_loop.steps import StepContext, take
from espalier_trainer.data import load_data
from espalier_trainer.data.source import Source, epoch_order
from espalier_trainer.elastic.step import StepPlan
from espalier_trainer.errors import LossNotFiniteError, TrainerError
from espalier_trainer.launch.session import usable_device
from espalier_trainer.models.zoo import build_model
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.optimizers.schedules import build_schedule
from espalier_trainer.run.services import set_threads
from espalier_trainer.training.method import method_of
from espalier_trainer.training.network import Network, new_network
from espalier_trainer.training.progress import sentence

STAGE, FOUND, FAILED, DONE = "stage", "found", "failed", "done"
"""Keys of lines: a beginning stage, a finding, the reason why the job cannot run, and the end."""
_TARGETS: Final = {
    Task.CLASSIFICATION: "classes",
    Task.REGRESSION: "numbers to predict",
    Task.LANGUAGE_MODEL: "different tokens",
}
_NAMED: Final = 8
"""Maximum number of places to grow that are named; others are only counted."""


@dataclass(frozen=True, slots=True)
class _FirstBatch:
    """The first examples of a split."""

    source: Source
    count: int

    def __len__(self) -> int:
        return min(self.count, len(self.source))

    def batch(self, indices: Tensor, chance: np.random.Generator | None) -> tuple[Tensor, Tensor]:
        return self.source.batch(indices, chance)

    def to(self, device: torch.device) -> Source:
        return _FirstBatch(self.source.to(device), self.count)


def check(job: AdaptiveTrainingJob) -> Iterator[tuple[str, str]]:
    """Yield (`STAGE`, its name) and (`FOUND`, the finding); raise whatever the user's code raises."""
    training, adaptation, device = job.spec.training, job.spec.adaptation, usable_device()
    seed_everything(training.seed)
    yield STAGE, "loading the data"
    data = load_data(training.dataset, training.task)
    sizes = f"{len(data.train)} training, {len(data.validation)} validation and {len(data.test)} test examples"
    targets = f"{data.classes} {_TARGETS[data.task]}"
    yield FOUND, f"data: {sizes}, {targets}, inputs {tuple(data.example_input().shape[1:])}"
    yield STAGE, "building the model"
    model = build_model(training.model, data.classes, data.example_input(), training.task)
    set_threads(model, device)
    data = data.to(device)
    example = data.example_input()
    yield STAGE, "looking for places to grow"
    network, problem = new_network(
        model.to(device), training.optimizer, example, adaptation.described_insertion, adaptation.actions
    )
    yield FOUND, f"model: {network.parameters:,} trainable parameters, depth {network.depth}"
    if problem:
        yield FOUND, f"growth: {problem}"
    yield from ((FOUND, f"growth: {text}") for text in _places(network))
    yield STAGE, "building the schedule"
    build_schedule(training.schedule, training.optimizer.learning_rate)
    yield STAGE, "taking a step"
    network.module.train()
    order = epoch_order(len(data.train), training.batch_size, training.seed, 0, device)
    rate = training.optimizer.learning_rate
    method = method_of(training, model)
    joint = take(StepContext(training, method, data.train), network, order, 0, StepPlan(rate=rate))
    if not (np.isfinite(joint.loss) and network.is_finite()):
        raise LossNotFiniteError(f"the loss of the first step is {joint.loss}, or a weight after it", rate)
    yield FOUND, f"step: one batch of {order.rows} forward, backward and through {training.optimizer.name} on {device}"
    for name, split in (("validation", data.validation), ("test", data.test)):
        yield STAGE, f"evaluating on a batch of the {name} split"
        batch = _FirstBatch(split, training.batch_size)
        method.evaluation(network, batch, training.batch_size, lambda: False)
    yield FOUND, "evaluation: one batch each of the validation and the test split"


def _places(network: Network) -> Iterator[str]:
    if network.architecture is None:
        return
    targets: dict[str, list[str]] = {}
    for action in offered(network.architecture):
        targets.setdefault(action.kind, []).append(str(action.target))
    for kind, found in targets.items():
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        yield f"places to be {operation(kind).participle}: {', '.join(found[:_NAMED])}{more}"


def main(arguments: list[str]) -> int:
    """Check the job in the given file; return the exit code."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the user's code prints there
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Whole lines at once, even with PYTHONUNBUFFERED: the parent writes its own lines there.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    try:
        for kind, text in check(load_job(Path(arguments[0]), resource=None)):
            print(json.dumps({kind: text}), file=lines)
    except Exception as error:
        if not isinstance(error, TrainerError | LossNotFiniteError):
            traceback.print_exception(error)
        print(json.dumps({FAILED: sentence(error)}), file=lines)
        return int(ExitCode.INVALID)
    print(json.dumps({DONE: ""}), file=lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
