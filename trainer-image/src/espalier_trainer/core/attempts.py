"""Which attempts at faster steps a run has made, and what they have cost: read from its adaptations. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from espalier_api.report import Adaptation, AdaptationResult, AdaptationSource

CHANNELS_LAST: Final = "ChannelsLast"
REWRITE: Final = "Rewrite"

_OTHER_MODEL: Final = (AdaptationResult.GROWN, AdaptationResult.SHRUNK)
"""After these, the model is another one, whose graph was not searched yet."""


def cost_of(adaptations: Sequence[Adaptation]) -> float:
    """Return the seconds that all attempts so far have taken."""
    return sum(one.seconds for one in adaptations if one.source is AdaptationSource.MEASUREMENT)


def is_tried(kind: str, adaptations: Sequence[Adaptation]) -> bool:
    """Return whether there was an attempt of this kind: channels-last once a run, rewrites once for each model."""
    for one in reversed(adaptations):
        if kind == REWRITE and one.result in _OTHER_MODEL:
            return False
        if one.source is AdaptationSource.MEASUREMENT and one.action.partition("(")[0] == kind:
            return True
    return False
