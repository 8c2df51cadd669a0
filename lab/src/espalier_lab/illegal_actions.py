"""Illegal actions in a Gymnasium environment: it raises, or does what its argument `illegal` names."""

from __future__ import annotations

import operator
from typing import Any, Final

RAISE: Final = "raise"
_SHOWN: Final = 20
"""Number of legal actions that an error names."""


class IllegalActionError(ValueError):
    """An action whose mask is 0, or that is not an action. The message names it, and the legal ones."""


def checked(illegal: str, instead: str) -> str:
    """Return the treatment of illegal actions: `RAISE`, or `instead`. Raise `ValueError` for other values."""
    if illegal not in (RAISE, instead):
        raise ValueError(f"illegal is {illegal!r}; choose {RAISE!r} or {instead!r}")
    return illegal


def integer(action: Any) -> int | None:
    """Return an action that is one integer, of Python or NumPy; None for anything else."""
    try:
        return operator.index(action)
    except TypeError:
        return None


def chosen(action: Any, mask: Any, instead: int | None = None, where: str = "") -> int:
    """Return `action` if its mask (a sequence or an array) is not 0, and `instead` for any other integer.

    Raise `IllegalActionError` without `instead`, and for a value that is not an integer.
    """
    number = integer(action)
    if number is not None and 0 <= number < len(mask) and mask[number]:
        return number
    if number is not None and instead is not None:
        return instead
    legal = [str(each) for each, offered in enumerate(mask) if offered]
    more = f" and {len(legal) - _SHOWN} more" if len(legal) > _SHOWN else ""
    given = repr(action) if number is None else number
    raise IllegalActionError(
        f"{where}action {given} is not legal; legal: {', '.join(legal[:_SHOWN])}{more}; "
        "choose among the actions whose info['action_mask'] is 1"
    )
