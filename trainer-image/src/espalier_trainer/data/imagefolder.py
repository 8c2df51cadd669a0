"""`imagefolder`: any folder or tar archive of images with one folder for each class, with or without split folders.

Options: `imageSize` (pixels; 0 keeps the images' own size, which must then be the same for all), `channels` (1 or 3),
`flip` (each batch, with probability 1/2), `memoryLimitGiB`.
"""

from __future__ import annotations

from pathlib import Path

from espalier_core.types.job import DatasetSpec
from espalier_trainer.data.images import DEFAULT_MEMORY_LIMIT_GIB, Geometry, from_image_splits, read_images
from espalier_trainer.data.source import Data, flip_batch
from espalier_trainer.errors import DatasetError

_FIELD = "training.dataset.options"
_ALLOWED = ("imageSize", "channels", "flip", "memoryLimitGiB")


def load(spec: DatasetSpec) -> Data:
    """Return the data; inputs [N, channels, imageSize, imageSize]."""
    unknown = sorted(set(spec.options) - set(_ALLOWED))
    if unknown:
        raise DatasetError(f"{_FIELD}: {unknown[0]!r} is unknown; allowed: {', '.join(_ALLOWED)}")
    size = spec.options.get("imageSize", 0)
    channels = spec.options.get("channels", 3)
    limit = spec.options.get("memoryLimitGiB", DEFAULT_MEMORY_LIMIT_GIB)
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= 4096:
        raise DatasetError(f"{_FIELD}.imageSize: {size!r}; allowed: 0 (as they are) to 4096 pixels")
    if channels not in (1, 3):
        raise DatasetError(f"{_FIELD}.channels: {channels!r}; allowed: 1 (grey) or 3 (RGB)")
    if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
        raise DatasetError(f"{_FIELD}.memoryLimitGiB: {limit!r}; it must be a number above 0")
    path = Path(spec.path or "").expanduser()
    if not path.exists():
        raise DatasetError(
            f"training.dataset.path: {path.absolute()}: no such folder or archive; it should contain "
            "<split>/<class>/<image> or <class>/<image>"
        )
    arrays = read_images(path, Geometry(size, channels), float(limit))
    return from_image_splits(str(path), arrays, flip_batch if spec.options.get("flip", False) else None)
