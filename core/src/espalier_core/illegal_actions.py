"""Actions that a Gymnasium environment does not offer: it raises, or does what its argument `illegal` names."""

from __future__ import annotations

import operator
from typing import Any, Final

RAISE: Final = "raise"
_SHOWN: Final = 20
"""Legal actions that an error names."""


class IllegalActionError(ValueError):
    """An action that cannot be chosen now: its mask is 0, or it is none. The message names it, and which can."""


def checked(illegal: str, instead: str) -> str:
    """Return what an environment does with illegal actions: `RAISE`, or `instead`. Raises `ValueError` for others."""
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
    """Return `action` where the mask, a sequence or an array, is not 0 for it, and `instead` of another integer.

    Raises `IllegalActionError` without `instead`, and for what is no integer.
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
