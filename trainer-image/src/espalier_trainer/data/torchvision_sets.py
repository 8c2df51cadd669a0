"""CIFAR-10 and MNIST: from an image folder or archive, from torchvision's own files, or downloaded.

All are standardised. Of the 50,000 or 60,000 training images 5,000 are held out for validation. (Lamelas 6.2 validates
on CIFAR-10's test split; here the test split is used once, at the end.)
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from espalier_core.causes import in_one_line
from espalier_core.types.job import DatasetSpec
from espalier_trainer.data.images import Geometry, ImageArrays, ImageSplit, build, cache_folder, read_images, to_tensors
from espalier_trainer.data.source import Augmentation, Data, flip_batch
from espalier_trainer.errors import DatasetError

CIFAR_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
DIGITS = tuple(str(digit) for digit in range(10))
_OWN = {"cifar10": "cifar-10-batches-py", "mnist": "MNIST"}
"""Folder that identifies torchvision's own copy."""
VALIDATION = 5_000
SIZE = 8
"""Height and width of the images of `cifar8`."""


def cifar10(spec: DatasetSpec) -> Data:
    """Return CIFAR-10; inputs [N, 3, 32, 32]; whole batches are flipped at random unless `options.flip` is false."""
    train, test = map(to_tensors, _splits(spec, "cifar10"))
    return _built("cifar10", train, test, _flip(spec))


def cifar8(spec: DatasetSpec) -> Data:
    """Return `cifar10` average-pooled to 8x8, a data set for one CPU core; inputs [N, 3, 8, 8]."""
    train, test = (_pooled(*to_tensors(split)) for split in _splits(spec, "cifar10"))
    return _built("cifar8", train, test, _flip(spec))


def mnist(spec: DatasetSpec) -> Data:
    """Return MNIST; inputs [N, 1, 28, 28]."""
    train, test = map(to_tensors, _splits(spec, "mnist"))
    return _built("mnist", train, test, None)


def _splits(spec: DatasetSpec, name: Literal["cifar10", "mnist"]) -> tuple[ImageSplit, ImageSplit]:
    splits = load_arrays(spec, name).splits
    return splits["train"], splits["test"]


def _built(
    name: str, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], augmentation: Augmentation | None
) -> Data:
    return build(name, train, test, 10, min(VALIDATION, len(train[1]) // 10), augmentation)


def _flip(spec: DatasetSpec) -> Augmentation | None:
    return flip_batch if spec.options.get("flip", True) else None


def _pooled(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return images [N, 3, H, W] uint8 averaged over blocks to [N, 3, 8, 8] in [0, 1]."""
    height, width = images.shape[-2:]
    if height % SIZE or width % SIZE:
        raise DatasetError(
            f"training.dataset: cifar8 pools images to {SIZE}x{SIZE}; {width}x{height} is not a multiple"
        )
    chunks = [
        torch.nn.functional.avg_pool2d(chunk.to(torch.float32) / 255, (height // SIZE, width // SIZE))
        for chunk in torch.split(images, 5_000)
    ]
    return torch.cat(chunks), labels


def load_arrays(spec: DatasetSpec, name: Literal["cifar10", "mnist"]) -> ImageArrays:
    """Return the train and test arrays of CIFAR-10 [N, 32, 32, 3] or MNIST [N, 28, 28, 1].

    `path` may be an image folder (`train/<class>/...`, `test/<class>/...`), a tar archive of one, or the folder in
    which torchvision keeps its copy. Without it torchvision's copy in the cache folder is used. Missing data is
    downloaded unless `options.download` is false.
    """
    unknown = sorted(set(spec.options) - {"download", "flip"})
    if unknown:
        raise DatasetError(f"training.dataset.options: {unknown[0]!r} is unknown for {name}; allowed: download, flip")
    path = Path(spec.path).expanduser() if spec.path else cache_folder() / "datasets"
    download = bool(spec.options.get("download", True))
    if path.is_file() or (path.is_dir() and not (path / _OWN[name]).is_dir() and (path / "train").is_dir()):
        arrays = read_images(path, Geometry(size=0, channels=3 if name == "cifar10" else 1))
        missing = {"train", "test"} - set(arrays.splits)
        if missing:
            raise DatasetError(f"training.dataset: {path}: holds no {missing.pop()} folder of images; {name} needs it")
        return arrays
    return _from_torchvision(path, name, download)


def _from_torchvision(root: Path, name: Literal["cifar10", "mnist"], download: bool) -> ImageArrays:
    from torchvision.datasets import CIFAR10, MNIST

    kind: Any = CIFAR10 if name == "cifar10" else MNIST
    splits: dict[str, ImageSplit] = {}
    try:
        for split, train in (("train", True), ("test", False)):
            dataset = kind(root=str(root), train=train, download=download)
            images = np.asarray(dataset.data, dtype=np.uint8)
            images = images.reshape(*images.shape[:3], -1)
            splits[split] = ImageSplit(images, np.asarray(dataset.targets, dtype=np.int64))
    except (RuntimeError, OSError, tarfile.TarError) as error:
        said = in_one_line(str(error)) or type(error).__name__
        tried = "downloading it failed" if download else "options.download is false"
        raise DatasetError(
            f"training.dataset: {name} was not found: looked in {root} for an image folder (train/<class>/...), "
            f"for a tar archive of one and for torchvision's copy ({_OWN[name]}), and {tried} "
            f"({said}). Set training.dataset.path to one of these, or fetch it where there is a network: "
            f"python -c \"from torchvision.datasets import {kind.__name__}; {kind.__name__}('{root}', download=True)\""
        ) from error
    return ImageArrays(splits, CIFAR_CLASSES if name == "cifar10" else DIGITS)
