"""Feedback of environments to learners after a step. Without torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Chosen = NDArray[np.int64]
"""(episodes): column of the window × options + option, or width × options for "stop"."""


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """The cost of passed time; arrays of shape (episodes in which it passed, jobs), in slots."""

    spent: Floats
    """Time for which each job was present: all of it, or until completion."""
    lost: Floats
    """The same minus the job's time at its best speed."""
    ended: NDArray[np.bool_]
    slots: Floats | float = 1.0
    """Length of the passed time; (episodes) if it differs."""
