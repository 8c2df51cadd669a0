"""What environments tell learners of a step. Without torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Chosen = NDArray[np.int64]
"""(episodes): column of the window × options + option, or width × options for "stop"."""


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """What time that passed has cost; arrays of shape (episodes in which it passed, jobs), in slots."""

    spent: Floats
    """For how long each job was there: all the time, or until it was complete."""
    lost: Floats
    """That, less what the job would have needed at its best speed."""
    ended: NDArray[np.bool_]
    slots: Floats | float = 1.0
    """How much time that was; (episodes) where it differs."""
