"""Numbers of things as a person reads them."""

from __future__ import annotations


def number_of(number: int, noun: str) -> str:
    """Return `0 GPUs`, `1 GPU`, `2 GPUs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
