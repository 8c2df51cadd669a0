"""Splits of episodes by seed: for training, for choosing settings, for reporting."""

from __future__ import annotations

from enum import IntEnum


class SeedSplit(IntEnum):
    """A part of the episodes. Two parts never share a seed."""

    TRAIN = 0
    """To learn from."""
    CHOOSE = 1
    """To choose settings by."""
    JUDGE = 2
    """To report."""

    @classmethod
    def of(cls, purpose: SeedSplit | str) -> SeedSplit:
        """Return a purpose, which may be given by its name in small letters. Raises `ValueError`."""
        if not isinstance(purpose, str):
            return cls(purpose)
        try:
            return cls[purpose.upper()]
        except KeyError:
            names = ", ".join(each.name.lower() for each in cls)
            raise ValueError(f"purpose: {purpose!r} is none; choose one of {names}") from None
