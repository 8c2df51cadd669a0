"""A job's batches as one stream, for third-party training loops that iterate by themselves."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from espalier_trainer.user_loop.local_loop import LocalLoop
from espalier_trainer.user_loop.loop import UserLoop


class BatchStream:
    """All batches of all epochs, to the end of the time budget.

    A loop that iterates over it sees one long epoch. Workers join and leave and the model grows between two of its
    batches. Requesting the first batch joins the job.
    """

    def __init__(
        self,
        joining: Callable[[], tuple[UserLoop, Iterable[Any]]],
        epochs: int | None = None,
        accumulate: int = 1,
        ended: Callable[[], None] = lambda: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`joining` calls `join` with `accumulate`; `epochs` is the maximum number of epochs.

        `ended` is called after the last step of each epoch, or the last step that the budget allows. `stopped` is
        called when the stream is closed with batches left: it returns whether that is on purpose, like `leave`.
        """
        self._joining, self._epochs, self._accumulate, self._ended = joining, epochs, accumulate, ended
        self.loop: UserLoop | None = None
        """Loop that `join` returned; None before the first batch."""
        self.should_step = True
        """Whether the current batch is the last of its optimizer step; known before `backward`, also without a job."""
        self.passes = 0
        """Number of finished passes over the data."""
        self._running: Callable[[], Generator[Any, None, None] | None] = lambda: None
        self._leaving, self._stopped = False, stopped

    def leave(self) -> None:
        """End the training on purpose, even if batches are left: the job is then complete, unless the script fails."""
        self._leaving = True
        if (running := self._running()) is not None:
            running.close()

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this worker."""
        running = self._batches()
        self._running = weakref.ref(running)
        return running

    def _batches(self) -> Generator[Any, None, None]:
        self.loop, batches = self._joining()
        for epoch in self.loop.epochs(self._epochs):
            self.passes = epoch
            for number, batch in enumerate(batches, 1):
                self.should_step = (
                    number % self._accumulate == 0 or number == len(batches)  # type: ignore[arg-type]
                    if isinstance(self.loop, LocalLoop)
                    else self.loop.should_step
                )
                try:
                    yield batch
                except GeneratorExit:
                    if self._leaving or self._stopped():
                        self.loop.stop()
                    raise
            self.passes = epoch + 1
            self._ended()
