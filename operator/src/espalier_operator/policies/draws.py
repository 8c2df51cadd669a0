"""What a policy draws at random: reproducible, and resumed from its memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any


def resumed(seed: int, state: Sequence[Any] | None) -> random.Random:
    """Return a generator in a state that `state_of` returned; None: at the beginning of its seed."""
    generator = random.Random(seed)
    if state is not None:
        version, numbers, gauss = state
        generator.setstate((version, tuple(numbers), gauss))
    return generator


def state_of(generator: random.Random) -> list[Any]:
    """Return the state of a generator as plain JSON."""
    version, numbers, gauss = generator.getstate()
    return [version, list(numbers), gauss]
