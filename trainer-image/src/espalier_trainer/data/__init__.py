"""Data sets: one module each, found by the name in the job."""

from __future__ import annotations

from collections.abc import Callable

from espalier_api.job import DatasetSpec
from espalier_trainer.data import cifar8, cifar10, custom, digits, imagefolder, mnist
from espalier_trainer.data.source import Data, MapSource, Source, TensorSource

__all__ = ["Data", "MapSource", "Source", "TensorSource", "load_data"]

_LOADERS: dict[str, Callable[[DatasetSpec], Data]] = {
    "digits": digits.load,
    "cifar8": cifar8.load,
    "cifar10": cifar10.load,
    "mnist": mnist.load,
    "imagefolder": imagefolder.load,
}


def load_data(spec: DatasetSpec) -> Data:
    """Return the data of a job; `DatasetError` says what is missing, where was looked and how to get it."""
    return custom.load(spec) if spec.name is None else _LOADERS[spec.name](spec)
