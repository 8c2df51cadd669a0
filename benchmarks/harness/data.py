"""Published traces that are carried with the tests."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

ARCHIVES: Final = Path(__file__).parents[2] / "tests" / "data"


def unpacked(name: str, scratch: Path) -> Path:
    """Unpack the archive `name` into `scratch`; return its folder."""
    with tarfile.open(ARCHIVES / f"{name}.tar.gz") as archive:
        archive.extractall(scratch, filter="data")
    return scratch / name
