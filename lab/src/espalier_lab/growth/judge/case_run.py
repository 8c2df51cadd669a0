"""The training of one case in virtual time, which can be copied, grown, and continued.

A step costs what `espalier_core.growth.architecture` models, in units in which a step of the starting model costs 1.
Nothing depends on the machine: equal seeds give equal runs.

It has its own loop instead of `espalier_lab.virtual_run` of other studies: the trainer grows at the ends of epochs, but
a case is copied, tried and grown at any step, on which its records and the policies learnt from them rest.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from espalier_core.growth.architecture import step_seconds
from espalier_core.growth.deepen import DEEPEN
from espalier_core.types.advice import Action, CurvePoint
from espalier_core.types.job import Insertion
from espalier_core.types.outcomes import CaseRecord, MomentRecord
from espalier_core.types.task import Task
from espalier_lab.growth.judge.case import CaseError, JudgeCase, JudgeSplit
from espalier_trainer.growth.consultation import known_places
from espalier_trainer.net2net.modules import mode
from espalier_trainer.optimizers.building import set_learning_rate
from espalier_trainer.optimizers.schedules import BudgetLinear, Moment
from espalier_trainer.training.network import Network, new_network

_EVALUATED: Final = 1024
"""Number of examples evaluated at once."""
_ROUNDING: Final = 1e-9
_IGNORED: Final = -100
"""The target that torch's cross entropy ignores."""


@dataclass(frozen=True, slots=True)
class SplitScore:
    """The score of a model on a split."""

    accuracy: float
    """Share of targets with the largest output; for regression, R², not below 0; for a language model, the (geometric)
    mean probability of the right character, 2^-bits (`espalier_core.types.task.Score.quality`)."""
    loss: float
    """Mean cross entropy, or mean squared error."""


@dataclass(frozen=True, slots=True)
class TrialSlice:
    """Part of a budget for a trial, in steps of the starting model."""

    begins: float
    ends: float

    def rate(self, initial: float, used: float) -> float:
        """Return the learning rate in the slice: linearly from `initial` to 0."""
        span = self.ends - self.begins
        return initial * min(1.0, max(0.0, (self.ends - used) / span)) if span > 0 else 0.0


@dataclass
class CaseRun:
    """A training at some point of its budget. `advance` changes it; copy it to use it twice."""

    case: JudgeCase
    seed: int
    network: Network
    cost: float
    """Cost of a step, without more workers."""
    speed: float = 1.0
    """Factor on the speed of steps by more workers."""
    used: float = 0.0
    """Used part of the budget, which is `case.steps`."""
    origin: float = 0.0
    """Budget time at which the learning rate last restarted."""
    steps: int = 0
    diverged: bool = False
    recent: float = math.inf
    """Training loss of about the last ten steps; infinite before the first."""
    random: Tensor | None = None
    """State of torch's generator, from which modules draw."""
    base_seconds: float = 1.0
    """Modelled seconds of a step of the starting model."""

    @classmethod
    def begin(cls, case: JudgeCase, seed: int, operations: tuple[str, ...] = (DEEPEN.name,)) -> Self:
        """Return the beginning of a case's training; raise `CaseError` if its model does not accept its data."""
        module = case.built(seed)
        random = torch.get_rng_state()
        try:
            with torch.no_grad(), mode(module, training=False):
                output = module(*_arguments(case.example))
                _check_classes(case, output)
                loss_of(output, case.train.targets[:2])
        except CaseError:
            raise
        # Any error that the user's module raises.
        except Exception as error:
            raise CaseError(
                f"case {case.name!r}: the model cannot be trained on its data ({type(error).__name__}: {error}); it "
                "returns [N, classes] for integer targets [N], and the targets' shape for others"
            ) from error
        network, _ = new_network(module, case.optimizer, case.example, Insertion.EXACT, operations)
        for group in network.optimizer.param_groups:
            # One call for all parameters: steps of small models take a third less time.
            if group.get("fused", True) is None and group["foreach"] is None:
                group["fused"] = True
        return cls(case, seed, network, 1.0, random=random, base_seconds=modelled(network, case))

    @property
    def budget(self) -> float:
        """The whole budget, in steps of the starting model."""
        return float(self.case.steps)

    def copied(self) -> CaseRun:
        """Return a run that continues from here independently."""
        module, optimizer = copy.deepcopy((self.network.module, self.network.optimizer))
        return replace(self, network=replace(self.network, module=module, optimizer=optimizer))

    def restarted(self) -> CaseRun:
        """Return a copy whose learning rate restarts, if it does for the case."""
        return replace(self.copied(), origin=self._next_origin())

    def _next_origin(self) -> float:
        return self.used if self.case.restarts else self.origin

    def grown(self, action: Action, insertion: Insertion = Insertion.EXACT) -> CaseRun:
        """Return a grown copy, whose learning rate restarts if it does for the case; raise `GrowthError`."""
        if not action.grows:
            return self.restarted()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = self.network.grown(action, self.case.example, insertion, self.seed)
        seconds = modelled(network, self.case)
        return replace(self, network=network, cost=seconds / self.base_seconds, origin=self._next_origin())

    def advance(self, until: float, within: TrialSlice | None = None) -> None:
        """Train until `until`; by the job's schedule, or with the rate falling to 0 within a slice."""
        schedule = BudgetLinear(self.case.optimizer.learning_rate, self.origin)
        if within is None:
            self._train(until, lambda: schedule.rate(Moment(self.used, self.budget)))
        else:
            initial = schedule.rate(Moment(within.begins, self.budget))
            self._train(until, lambda: within.rate(initial, self.used))

    def _train(self, until: float, rate: Callable[[], float]) -> None:
        module, optimizer, case = self.network.module, self.network.optimizer, self.case
        module.train()
        if self.random is not None:
            torch.set_rng_state(self.random)
        batches = len(case.train) // case.batch_size
        epoch, order = -1, torch.empty(0)
        cost = self.cost / self.speed
        while not self.diverged and self.used + cost <= until + _ROUNDING:
            if self.steps // batches != epoch:
                epoch = self.steps // batches
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                order = torch.randperm(len(case.train), generator=generator)
            first = self.steps % batches * case.batch_size
            inputs, targets = case.train.batch(order[first : first + case.batch_size])
            set_learning_rate(optimizer, rate())
            optimizer.zero_grad(set_to_none=True)
            self.network.advance(self.used / self.budget)
            loss = loss_of(self._outputs(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            self.steps += 1
            self.used += cost
            now = loss.item()
            self.recent = 0.9 * self.recent + 0.1 * now if math.isfinite(self.recent) else now
            self.diverged = not math.isfinite(now)
        self.random = torch.get_rng_state()

    def _outputs(self, inputs: Tensor | tuple[Tensor, ...]) -> Tensor:
        given = _arguments(inputs)
        # Any error that the user's module raises.
        try:
            outputs: Tensor = self.network.module(*given)
        except Exception as error:
            raise CaseError(
                f"case {self.case.name!r}: the model fails on {len(given[0])} of its examples ({type(error).__name__}: "
                f"{error}); it must take any number of them"
            ) from error
        return outputs

    def record(self, curve: Sequence[CurvePoint], moments: Sequence[MomentRecord] = (), **more: Any) -> CaseRecord:
        """Return a record of the case with the model as it is now; `more` are other fields of the record."""
        case, architecture = self.case, self.network.architecture
        return CaseRecord(
            case=case.name,
            family=case.family,
            seed=self.seed,
            steps=case.steps,
            batch_size=case.batch_size,
            task=case.task,
            architecture=architecture,
            places={} if architecture is None else known_places(self.network.module, case.example),
            curve=tuple(curve),
            moments=tuple(moments),
            **more,
        )

    def finish(self) -> SplitScore:
        """Train to the end of the budget, and return the score on the test split."""
        self.advance(self.budget)
        return self.score(self.case.test)

    def score(self, split: JudgeSplit) -> SplitScore:
        """Evaluate on a split; a model whose numbers are not finite has an infinite loss."""
        parts = torch.split(torch.arange(len(split)), _EVALUATED)
        with torch.no_grad(), mode(self.network.module, training=False):
            output = torch.cat([self._outputs(split.batch(rows)[0]) for rows in parts])
        loss = float(loss_of(output, split.targets))
        if self.case.task is Task.LANGUAGE_MODEL:
            accuracy = math.exp(-loss / self.case.characters_per_token)
        else:
            accuracy = _accuracy(output, split.targets)
        return SplitScore(accuracy if math.isfinite(accuracy) else 0.0, loss if math.isfinite(loss) else math.inf)


def modelled(network: Network, case: JudgeCase) -> float:
    """Return the modelled seconds of a step of the network; 1 if the model cannot be described."""
    if network.architecture is None:
        return 1.0
    return step_seconds(network.architecture, known_places(network.module, case.example), case.batch_size)


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy for integer targets, the mean squared error for others.

    Classes are the last dimension, or the second, as for `torch.nn.functional.cross_entropy`.
    """
    if targets.is_floating_point():
        return nn.functional.mse_loss(output.reshape(targets.shape), targets)
    return nn.functional.cross_entropy(_classes_last(output, targets).flatten(0, -2), targets.flatten())


def _classes_last(output: Tensor, targets: Tensor) -> Tensor:
    if output.ndim > 2 and output.shape[:-1] != targets.shape:
        return output.movedim(1, -1)
    return output


def _check_classes(case: JudgeCase, output: Tensor) -> None:
    """Raise `CaseError` if a split has a class without an output of the model."""
    for name, split in (("train", case.train), ("validation", case.validation), ("test", case.test)):
        if split.targets.is_floating_point() or not isinstance(output, Tensor) or output.ndim < 2:
            continue  # no classes, or the loss reports the fault
        classes = _classes_last(output, case.train.targets[:2]).shape[-1]
        counted = split.targets[split.targets != _IGNORED]
        wrong = counted[(counted < 0) | (counted >= classes)]
        if len(wrong):
            raise CaseError(
                f"case {case.name!r}: {name!r} has the class {int(wrong[0])}, and the model {classes} outputs; classes "
                f"are numbers from 0 to {classes - 1}, and {_IGNORED} for what does not count"
            )


def _accuracy(output: Tensor, targets: Tensor) -> float:
    if targets.is_floating_point():
        spread = float((targets - targets.mean()).square().mean())
        return max(0.0, 1.0 - float(loss_of(output, targets)) / spread) if spread > 0 else 0.0
    counted = targets != _IGNORED
    return float((_classes_last(output, targets).argmax(-1) == targets)[counted].double().mean())


def _arguments(inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)
