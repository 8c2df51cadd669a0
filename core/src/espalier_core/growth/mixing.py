"""Which layers let places of an example (pixels, samples, tokens) see each other."""

from __future__ import annotations

from typing import Final

from espalier_core.growth.architecture import WEIGHT_OPERATORS, Layer
from espalier_core.growth.step_cost import RECURRENT

ATTENTION: Final = ("attention", "Attention", "Softmax")
"""Parts of the names of operators that mix tokens."""


def mixes(layer: Layer) -> bool:
    """Return whether a layer mixes places: by a kernel above 1, recurrence, or attention."""
    kernel = layer.attributes.get("kernel_size")
    if layer.operator in WEIGHT_OPERATORS and kernel is not None:
        return max(kernel) > 1 if isinstance(kernel, tuple) else isinstance(kernel, int) and kernel > 1
    return layer.operator in RECURRENT or any(part in layer.operator for part in ATTENTION)
