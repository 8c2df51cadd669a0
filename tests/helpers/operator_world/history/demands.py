"""How a clause says that it does not hold."""

from __future__ import annotations


class ClauseError(AssertionError):
    """A clause is broken; the message begins with its number."""


def demand(holds: bool, number: int, message: str) -> None:
    """`ClauseError` with the number of the clause where it does not hold."""
    if not holds:
        raise ClauseError(f"clause {number}: {message}")
