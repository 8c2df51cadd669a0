"""What steps, forwards and comparisons cost in virtual time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch

from espalier_core.growth.architecture import Architecture
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_lab.growth.collect.cost import StepCost
from espalier_lab.virtual_run import ChargedScheduler
from espalier_trainer.builtin_loop.trainer import Trainer
from espalier_trainer.data.source import Data
from espalier_trainer.distillation.shrinking import Shrinker
from espalier_trainer.models.zoo import build_model
from espalier_trainer.optimizers.building import build_optimizer

_ROUNDS, _STEPS = 7, 40


@dataclass(frozen=True, slots=True)
class Prices:
    """Of one study."""

    cost: StepCost
    dearer: float
    """Times as much as measured is what an added layer costs."""
    forward: float
    """A forward without gradients, as a share of a step."""
    speed: float
    """Of all GPUs together, in steps of one."""

    def step(self, architecture: Architecture | None) -> float:
        """Return the seconds of a step on one GPU."""
        return self.cost.base + self.dearer * (self.cost(architecture) - self.cost.base)


@dataclass
class Charged(ChargedScheduler):
    """Virtual time in which teaching and comparing are paid for."""

    prices: Prices | None = None
    batch: int = 1
    validation: int = 0
    """Examples."""
    trainer: Trainer | None = field(init=False, default=None)
    _asked_before: int = field(init=False, default=0)
    _tried: tuple[Architecture | None, Architecture | None] | None = field(init=False, default=None)

    def step_finished(self, architecture: Architecture | None) -> None:
        """Move time by a step, by the teacher's answers in it, and by a comparison that came before it."""
        shrinker = None if self.trainer is None else self.trainer.hooks
        if isinstance(shrinker, Shrinker) and self.prices is not None:
            if self._tried is not None and shrinker.kept is None:
                batches = self.validation / self.batch
                self.charge(batches * self.prices.forward * sum(map(self.prices.step, self._tried)))
                self._tried = None
            if shrinker.kept is not None:
                self._tried = (shrinker.kept.architecture, architecture)
            asked = 0 if shrinker.teacher is None else shrinker.teacher.asked
            if asked > self._asked_before and shrinker.kept is not None:
                share = (asked - self._asked_before) / self.batch * self.prices.forward
                self.charge(share * self.prices.step(shrinker.kept.architecture))
            self._asked_before = asked
        super().step_finished(architecture)


def forward_share(job: AdaptiveTrainingJob, data: Data) -> float:
    """Return what a forward without gradients costs of a step of the starting model; the fastest rounds count."""
    training = job.spec.training
    model = build_model(training.model, data.classes, data.example_input())
    inputs, labels = data.train.batch(torch.arange(min(training.batch_size, len(data.train))), None)
    optimizer = build_optimizer(training.optimizer, model)
    step = forward = math.inf
    for _ in range(_ROUNDS):
        model.train()
        began = time.perf_counter()
        for _ in range(_STEPS):
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            torch.autograd.backward(loss)
            optimizer.step()
        step = min(step, time.perf_counter() - began)
        model.eval()
        began = time.perf_counter()
        with torch.no_grad():
            for _ in range(_STEPS):
                model(inputs)
        forward = min(forward, time.perf_counter() - began)
    return forward / step
