"""Splits of episodes by seed: for training, for choosing settings, for reporting."""

from __future__ import annotations

from enum import IntEnum


class SeedSplit(IntEnum):
    """A part of the episodes. Two parts never share a seed."""

    TRAIN = 0
    """Episodes for learning."""
    CHOOSE = 1
    """Episodes for choosing settings."""
    JUDGE = 2
    """Episodes for reporting."""

    @classmethod
    def of(cls, purpose: SeedSplit | str) -> SeedSplit:
        """Return a purpose from its name in small letters. Raise `ValueError`."""
        if not isinstance(purpose, str):
            return cls(purpose)
        try:
            return cls[purpose.upper()]
        except KeyError:
            names = ", ".join(each.name.lower() for each in cls)
            raise ValueError(f"purpose: unknown {purpose!r}; choose from {names}") from None
