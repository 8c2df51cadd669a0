"""What a benchmark of this family trains: a model, its data, and what its steps cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from espalier_core.types.job import AdaptiveTrainingJob, DatasetSpec
from espalier_core.types.task import Task
from espalier_core.validation.reading import with_spec
from espalier_trainer.data import load_data
from espalier_trainer.data.source import Data
from flagship.arms import Arm, StepCost


@dataclass(frozen=True)
class Subject:
    """A job, and what its runs have in common. Its model has an option `blocks`: the number in each of its runs."""

    name: str
    job: AdaptiveTrainingJob
    """Of the small net."""
    runs: tuple[str, ...]
    """The runs of blocks that grow, all at the same moment."""
    cost: StepCost
    measure: str
    """What figures are; lower is better."""
    short: str
    """The same in a word."""
    kept: Mapping[Arm, tuple[str, ...]]
    """The controls, each with what the names of the parameters begin with that it keeps of the small net."""
    first_rate: float
    """The first learning rate that is tried."""
    epoch: Mapping[str, Any] = field(default_factory=dict)
    """Options of the data set in the runs: growth comes at the ends of epochs, so these are short."""
    figure: Callable[[float], float] = lambda score: score
    """Returns the figure of a score."""
    load: Callable[[DatasetSpec, Task], Data] = load_data
    device: str = "cpu"
    """Where nets are trained."""

    @property
    def task(self) -> Task:
        """What the model is trained for."""
        return self.job.spec.training.task

    @cached_property
    def shortened(self) -> AdaptiveTrainingJob:
        """The job, with epochs as its runs have them."""
        return with_spec(self.job, training={"dataset": {"options": dict(self.epoch)}})

    @cached_property
    def data(self) -> Data:
        """Its data, read once, on the device."""
        return self.load(self.shortened.spec.training.dataset, self.task).to(torch.device(self.device))
