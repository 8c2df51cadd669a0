"""Data sets: one module each, found by the name in the job (`espalier_core.types.training`)."""

from __future__ import annotations

from espalier_core.registry import RegistryError
from espalier_core.types.job import DatasetSpec
from espalier_core.types.task import Task
from espalier_core.types.training import DATASETS
from espalier_trainer.data import custom
from espalier_trainer.data.source import Data, MapSource, Source, TensorSource
from espalier_trainer.errors import DatasetError

__all__ = ["Data", "MapSource", "Source", "TensorSource", "load_data"]


def load_data(spec: DatasetSpec, task: Task | None = None) -> Data:
    """Return the data of a job; raise `DatasetError` with the missing part, the places searched and the remedy.

    `task` is the task of the job; None for the data set's own.
    """
    data = _loaded(spec, task)
    if task is not None and data.task is not task:
        raise DatasetError(
            f"training.task: is {task}, and the data set {data.name} is for {data.task}; set {data.task}, or name "
            "another data set"
        )
    return data


def _loaded(spec: DatasetSpec, task: Task | None) -> Data:
    if spec.name is None:
        return custom.load(spec, task or Task.CLASSIFICATION)
    try:
        data = DATASETS.load(spec.name)(spec)
    except RegistryError as error:
        raise DatasetError(f"training.dataset.name: {error}") from error
    if not isinstance(data, Data):
        raise DatasetError(
            f"training.dataset.name: {spec.name!r} returned {type(data).__name__}; it must return "
            "espalier_trainer.data.Data"
        )
    return data
