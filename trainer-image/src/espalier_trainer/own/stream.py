"""A job's batches as one stream, for training loops of others that want to iterate by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from espalier_trainer.own.loop import Loop


class Stream:
    """All batches of all epochs, to the end of the time budget.

    A loop that iterates over it sees one long epoch. Workers join and leave and the model grows between two of its
    batches. The first batch is what joins the job.
    """

    def __init__(self, joining: Callable[[], tuple[Loop, Iterable[Any]]], epochs: int | None = None) -> None:
        """`joining` calls `join`; `epochs` is the most of them."""
        self._joining, self._epochs = joining, epochs
        self.loop: Loop | None = None
        """None before the first batch."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this worker."""
        self.loop, batches = self._joining()
        for _ in self.loop.epochs(self._epochs):
            yield from batches
