"""The data sets that a job can name. One more is a function of the trainer that loads it, and a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import AfterValidator, WithJsonSchema

from espalier_core.registry import Registry

_BUILT_IN: Final = {
    "digits": "espalier_trainer.data.digits:load",
    "cifar8": "espalier_trainer.data.torchvision_sets:cifar8",
    "cifar10": "espalier_trainer.data.torchvision_sets:cifar10",
    "mnist": "espalier_trainer.data.torchvision_sets:mnist",
    "imagefolder": "espalier_trainer.data.imagefolder:load",
    "text": "espalier_trainer.data.text:load",
    "python-library": "espalier_trainer.data.text:python_library",
    "diabetes": "espalier_trainer.data.diabetes:load",
}
DATASETS: Final[Registry[Callable[..., Any]]] = Registry("data set", "espalier.datasets", _BUILT_IN)
"""Functions that take a `DatasetSpec` and return the trainer's `Data`."""

DatasetName = Annotated[
    str,
    AfterValidator(DATASETS.check),
    WithJsonSchema({"type": "string", "enum": list(_BUILT_IN)}),
]
"""The name of a data set. Schemas name the built-in ones: they cannot know what is installed."""
