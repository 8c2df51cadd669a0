"""The data sets that a job can name. One more is a module of the trainer with a `load`, and a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from espalier_api.registry import Registry

DATASETS: Final[Registry[Callable[..., Any]]] = Registry(
    "data set",
    "espalier.datasets",
    {
        "digits": "espalier_trainer.data.digits:load",
        "cifar8": "espalier_trainer.data.cifar8:load",
        "cifar10": "espalier_trainer.data.cifar10:load",
        "mnist": "espalier_trainer.data.mnist:load",
        "imagefolder": "espalier_trainer.data.imagefolder:load",
    },
)
"""Functions that take a `DatasetSpec` and return the trainer's `Data`."""
