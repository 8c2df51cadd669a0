"""Images from a folder or a tar archive in the ImageFolder layout, decoded once into arrays, and divided into splits.

The layout: `<split>/<class>/<image>`, classes numbered in alphabetical order, or `<class>/<image>` alone, which is
then divided 80/10/10. The decoded arrays are kept as npz in the user's cache folder (`$XDG_CACHE_HOME/espalier`),
never next to the source, which may belong to another user.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from espalier_trainer.data.source import Augmentation, Data, TensorSource, channel_statistics
from espalier_trainer.errors import DatasetError

logger = logging.getLogger(__name__)


IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff"})
SPLITS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}
DEFAULT_MEMORY_LIMIT_GIB = 8.0
CACHE_VERSION = 2


@dataclass(frozen=True, slots=True)
class ImageSplit:
    """Images [N, H, W, C] uint8 and labels [N] int64."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ImageArrays:
    """The splits that a folder or archive holds, and its classes by label."""

    splits: dict[str, ImageSplit]
    classes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Geometry:
    """Conversion of images to one shape: `size` x `size` pixels (0 to keep their size), grey or RGB."""

    size: int
    channels: int

    def decode(self, data: bytes, name: str) -> NDArray[np.uint8]:
        """Return the image [H, W, C]; raises `DatasetError` with the name of a file that is not an image of 8 bits."""
        try:
            with Image.open(io.BytesIO(data)) as picture:
                beyond = _beyond_a_byte(picture)
                image = picture.convert("L" if self.channels == 1 else "RGB")
        except Exception as error:  # a damaged file: errors of Pillow's readers have no common class
            raise DatasetError(f"{name}: not an image that can be read ({error}); remove or replace it") from error
        if beyond is not None:
            raise DatasetError(
                f"{name}: a pixel is {beyond:g}; pixels must be whole numbers from 0 to 255: convert it to 8 bits"
            )
        if self.size and image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return np.asarray(image, dtype=np.uint8).reshape(image.height, image.width, self.channels)


def _beyond_a_byte(picture: Image.Image) -> float | None:
    """Return a pixel that a byte cannot hold, None where there is none: Pillow would clip it silently."""
    if not picture.mode.startswith(("I", "F")):
        return None
    pixels = np.asarray(picture)
    wrong = pixels[(pixels < 0) | (pixels > 255) | (pixels != np.rint(pixels))]
    return float(wrong.max()) if wrong.size else None


def read_images(path: Path, geometry: Geometry, memory_limit_gib: float = DEFAULT_MEMORY_LIMIT_GIB) -> ImageArrays:
    """Decode the folder or archive at `path`, or read the cache of an earlier call.

    Raises `DatasetError` for another layout, a damaged image, different sizes, or too little memory.
    """
    cache = _cache_path(path, geometry)
    kept = _read_cache(cache)
    if kept is not None:
        return kept
    logger.info("decoding the images of %s (once; then cached in %s)", path, cache)
    arrays = _decode(path, geometry, memory_limit_gib)
    _write_cache(cache, arrays)
    return arrays


def _decode(path: Path, geometry: Geometry, memory_limit_gib: float) -> ImageArrays:
    images: dict[str, list[NDArray[np.uint8]]] = {}
    names: dict[str, list[str]] = {}
    places: dict[str, str] = {}
    used = 0
    for split, label, name, data in _entries(path):
        places.setdefault(split, name)
        if "" in places and len(places) > 1:
            within = next(place for known, place in places.items() if known)
            raise DatasetError(
                f"{path}: {places['']} is in no split, and {within} is in one; place all images as "
                "<split>/<class>/<image>, without further folders, and remove other files"
            )
        image = geometry.decode(data, f"{path}: {name}")
        first = next((stack[0] for stack in images.values()), image)
        if image.shape != first.shape:
            raise DatasetError(
                f"{path}: {name} is {image.shape[1]}x{image.shape[0]} pixels, others are "
                f"{first.shape[1]}x{first.shape[0]}; set training.dataset.options.imageSize to bring them to one size"
            )
        used += image.nbytes
        if used > memory_limit_gib * 2**30:
            raise DatasetError(
                f"{path}: its images need more than {memory_limit_gib:g} GiB of memory; lower "
                "training.dataset.options.imageSize, raise options.memoryLimitGiB, or use a dataset entrypoint"
            )
        images.setdefault(split, []).append(image)
        names.setdefault(split, []).append(label)
    if not images:
        raise DatasetError(
            f"{path}: holds no images in the layout <split>/<class>/<image> or <class>/<image> "
            f"(splits: {', '.join(SPLITS)}; images: {', '.join(sorted(IMAGE_SUFFIXES))})"
        )
    classes = tuple(sorted({label for labels in names.values() for label in labels}))
    if not any(images) and all(label.lower() in SPLITS for label in classes):  # <class>/<split>/<image>
        raise DatasetError(
            f"{path}: its classes would be {', '.join(classes)}, which are names of splits; place images as "
            "<split>/<class>/<image>"
        )
    number = {label: index for index, label in enumerate(classes)}
    splits = {
        split: ImageSplit(np.stack(stack), np.array([number[label] for label in names[split]], dtype=np.int64))
        for split, stack in images.items()
    }
    return ImageArrays(splits, classes)


def _entries(path: Path) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield (split, class, name, content) of every image, sorted by name."""
    try:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                place = _place(PurePosixPath(file.relative_to(path).as_posix()))
                if place and file.is_file():
                    yield *place, str(file.relative_to(path)), file.read_bytes()
            return
        contents: list[tuple[str, tuple[str, str], bytes]] = []
        with tarfile.open(path) as archive:
            # Read in the order of the archive (a gzip cannot seek), then sorted: compressed images are small.
            for member in archive:
                place = _place(PurePosixPath(member.name))
                file_object = archive.extractfile(member) if place and member.isfile() else None
                if place and file_object:
                    contents.append((member.name, place, file_object.read()))
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DatasetError(
            f"{path}: cannot be read ({error}); it should be a folder or a tar archive of images"
        ) from error
    for name, place, data in sorted(contents):
        yield *place, name, data


def _place(name: PurePosixPath) -> tuple[str, str] | None:
    """Return (split, class) of an image by its path; '' as split if the layout has none; None if it is not an image."""
    parts = [part for part in name.parts if part != "."]
    if len(parts) < 2 or name.suffix.lower() not in IMAGE_SUFFIXES or parts[-1].startswith("."):
        return None
    split = SPLITS.get(parts[-3].lower(), "") if len(parts) >= 3 else ""
    return split, parts[-2]


def cache_folder() -> Path:
    """Return the cache folder: decoded images, downloaded data sets."""
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named) / "espalier"
    try:
        return Path.home() / ".cache" / "espalier"
    except RuntimeError:  # a container's user may have no home
        return Path(tempfile.gettempdir()) / "espalier"


def _cache_path(path: Path, geometry: Geometry) -> Path:
    """Return the path of the decoded arrays; the name changes when the source does."""
    status = path.stat()
    identity = f"{path.resolve()}|{status.st_mtime_ns}|{status.st_size}|{_fingerprint(path)}|{geometry}|{CACHE_VERSION}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return cache_folder() / f"{path.name}-{digest}.npz"


def _fingerprint(path: Path) -> str:
    """Return a digest of the names, sizes and times of a folder's files; no image is read (60,000 files: about 1 s)."""
    if not path.is_dir():
        return ""
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            file = os.path.join(folder, name)
            try:
                status = os.stat(file)
            except OSError:
                continue  # a dangling link; reading it reports the error
            digest.update(f"{file}|{status.st_size}|{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _read_cache(path: Path) -> ImageArrays | None:
    try:
        # Opened here: numpy leaves a damaged file open.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            splits = {
                split: ImageSplit(file[f"{split}.images"], file[f"{split}.labels"]) for split in file["splits"].tolist()
            }
            return ImageArrays(splits, tuple(file["classes"].tolist()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        logger.warning("%s: the cached copy of the decoded images is damaged (%s); decoding again", path, error)
        return None


def _write_cache(path: Path, arrays: ImageArrays) -> None:
    """Cache the arrays if the folder is writable and the disk is not full."""
    contents: dict[str, NDArray[np.generic]] = {
        "splits": np.array(list(arrays.splits)),
        "classes": np.array(arrays.classes),
    }
    for name, split in arrays.splits.items():
        contents[f"{name}.images"], contents[f"{name}.labels"] = split.images, split.labels
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, **contents)  # type: ignore[arg-type]  # numpy's stub takes allow_pickle for a name
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        logger.warning("%s: the decoded images are not cached (%s); the next start decodes again", path, error)


HELD_OUT_SEED = 0
"""The validation examples do not depend on the job's seed, so that accuracies of two seeds are comparable."""


def to_tensors(split: ImageSplit) -> tuple[Tensor, Tensor]:
    """Return (images [N, C, H, W] uint8, labels [N] int64)."""
    images = torch.from_numpy(np.ascontiguousarray(split.images.transpose(0, 3, 1, 2)))
    return images, torch.from_numpy(split.labels)


def held_out(examples: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the (training, validation) indices: validation is the last `count` of `RandomState(0)`'s permutation."""
    order = torch.from_numpy(np.random.RandomState(HELD_OUT_SEED).permutation(examples))
    return order[: examples - count], order[examples - count :]


def build(
    name: str,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    classes: int,
    validation: tuple[Tensor, Tensor] | int,
    augmentation: Augmentation | None = None,
) -> Data:
    """Return the data, standardised by the training split's channel statistics.

    `validation` is a split, or the number of training examples to hold out for it.
    """
    inputs, labels = train
    if isinstance(validation, int):
        keep, hold = held_out(len(labels), validation)
        validation = (inputs[hold], labels[hold])
        inputs, labels = inputs[keep], labels[keep]
    mean, std = channel_statistics(inputs)
    return Data(
        name,
        TensorSource(inputs, labels, mean, std, augmentation),
        TensorSource(*validation, mean, std),
        TensorSource(*test, mean, std),
        classes,
    )


def from_image_splits(name: str, arrays: ImageArrays, augmentation: Augmentation | None) -> Data:
    """Return the data of any image folder; one without splits is divided 80/10/10.

    Without a validation split a tenth of the training split is held out; without a test split the validation split
    is halved.
    """
    splits = {split: to_tensors(part) for split, part in arrays.splits.items()}
    if set(splits) == {""}:
        inputs, labels = splits[""]
        count = len(labels) // 10
        keep, hold = held_out(len(labels), 2 * count)
        splits = {
            "train": (inputs[keep], labels[keep]),
            "validation": (inputs[hold[:count]], labels[hold[:count]]),
            "test": (inputs[hold[count:]], labels[hold[count:]]),
        }
    if "train" not in splits:
        raise DatasetError(f"training.dataset: {name}: has {', '.join(splits)} but no train folder")
    if "test" not in splits:
        if "validation" not in splits:
            raise DatasetError(f"training.dataset: {name}: has a train folder, but neither validation nor test")
        inputs, labels = splits["validation"]
        half, rest = held_out(len(labels), len(labels) // 2)
        splits["validation"], splits["test"] = (inputs[half], labels[half]), (inputs[rest], labels[rest])
    train = splits["train"]
    return build(
        name,
        train,
        splits["test"],
        len(arrays.classes),
        splits.get("validation", max(1, len(train[1]) // 10)),
        augmentation,
    )
