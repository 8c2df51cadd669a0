"""Why a place of a model cannot grow, and where in the user's code that is decided."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a place cannot grow."""

    layer: str
    """Path of the layer, or of a run's first block."""
    reason: str
    file: str
    """Source file of the class whose forward decides; empty where it has none."""
    line: int
    """Line at which that forward begins."""
    remedy: str


def source_of(kind: type[nn.Module]) -> tuple[str, int]:
    """Return file and line of the forward of a class; an empty name and 0 where they are not known."""
    written: Any
    for written in (inspect.unwrap(kind.forward), kind):
        try:
            return inspect.getsourcefile(written) or "", inspect.getsourcelines(written)[1]
        except (OSError, TypeError):
            continue
    return "", 0
