"""A case from a model and a data set, named as in a job."""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from pydantic import ValidationError
from torch import nn

from espalier_cli.run import TimelineError, parse_moment
from espalier_core.base import Strict
from espalier_core.files.documents import first_fault
from espalier_core.types.job import DatasetSpec, ModelSpec, OptimizerSpec
from espalier_lab.growth.judge.case import CaseError, JudgeCase, JudgeSplit
from espalier_lab.growth.judge.case_run import loss_of
from espalier_trainer.data import Data, load_data
from espalier_trainer.data.source import Source, TokenSource
from espalier_trainer.errors import TrainerError
from espalier_trainer.models.zoo import build_model
from espalier_trainer.optimizers.building import build_optimizer

SpecT = TypeVar("SpecT", bound=Strict)
_TIMED: Final = 20
"""Steps measured to convert seconds into steps."""


@dataclass(frozen=True)
class OwnModel:
    """One model on one data set."""

    model: str
    """A known name, or `package.module:function`."""
    options: str
    """JSON object: the function's arguments."""
    dataset: str
    """A known name, or `package.module:function`."""
    dataset_path: str | None
    steps: int
    batch_size: int
    optimizer: str
    learning_rate: float

    def __call__(self) -> tuple[JudgeCase, ...]:
        """Return the case; raise `CaseError`, or a `TrainerError` that names the fault."""
        sys.path[:0] = [] if str(Path.cwd()) in sys.path else [str(Path.cwd())]
        self._spec()  # report its errors before any training
        data = _data(self.dataset, self.dataset_path)
        case = JudgeCase(
            name=f"{self.model} on {self.dataset}",
            family=self.model,
            module=self._built,
            train=_whole(data.train),
            validation=_whole(data.validation),
            test=_whole(data.test),
            steps=max(1, self.steps),
            batch_size=min(self.batch_size, len(data.train)),
            optimizer=OptimizerSpec.model_validate({"name": self.optimizer, "learningRate": self.learning_rate}),
            task=data.task,
            characters_per_token=data.test.characters_per_token if isinstance(data.test, TokenSource) else 1.0,
        )
        return (case,)

    def _built(self, seed: int) -> nn.Module:
        data = _data(self.dataset, self.dataset_path)
        try:
            return build_model(self._spec(), data.classes, data.example_input(), data.task)
        except TrainerError as error:
            raise CaseError(f"--model: {error}") from error

    def _spec(self) -> ModelSpec:
        named = "entrypoint" if ":" in self.model and not self.model.startswith("torchvision:") else "name"
        return _checked(ModelSpec, "--model", {named: self.model, "options": _object(self.options)})

    def digest(self) -> str:
        """Return a key that distinguishes this case from others with the same name."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


def _object(options: str) -> dict[str, Any]:
    try:
        found = json.loads(options)
    except json.JSONDecodeError as error:
        raise CaseError(f"--options: {options!r} is not JSON ({error.msg})") from error
    if not isinstance(found, dict):
        raise CaseError(f"--options: {options!r} is not a JSON object; give names and values")
    return found


@cache
def _data(dataset: str, path: str | None) -> Data:
    named = "entrypoint" if ":" in dataset else "name"
    return load_data(_checked(DatasetSpec, "--dataset", {named: dataset, **({"path": path} if path else {})}))


def _checked(kind: type[SpecT], option: str, fields: dict[str, Any]) -> SpecT:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise CaseError(f"{option}: {first_fault(error)}") from error


def _whole(source: Source) -> JudgeSplit:
    return JudgeSplit(*source.batch(torch.arange(len(source)), None))


def steps_of(budget: str, case: JudgeCase) -> int:
    """Return the steps of a budget: a number of steps, or a time converted by steps of the starting model on this
    machine.

    Raise `CaseError` for a text that is neither, and for less than a step.
    """
    if budget.isdecimal():
        if not (steps := int(budget)):
            raise CaseError(f"--budget: {budget!r} is less than a step; give more")
        return steps
    try:
        seconds = parse_moment(budget, 0.0)
    except TimelineError as error:
        raise CaseError(f"--budget: {budget!r} is not a budget; write 500 (steps), or 20s or 5m (a time)") from error
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        step = _step_seconds(case)
    finally:
        torch.set_num_threads(threads)
    if seconds < step:
        raise CaseError(f"--budget: {budget!r} is less than a step, which takes {step:.3g} s; give more")
    return round(seconds / step)


def _step_seconds(case: JudgeCase) -> float:
    module = case.built(0)
    optimizer = build_optimizer(case.optimizer, module)
    times = []
    for _ in range(_TIMED):
        inputs, targets = case.train.batch(torch.arange(case.batch_size))
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss_of(module(*inputs) if isinstance(inputs, tuple) else module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
