"""The batches of a stream (an `IterableDataset`), for a job in which one worker trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from espalier_trainer.elastic.batches import ONE, Portion
from espalier_trainer.errors import OwnLoopError
from espalier_trainer.own.feed import Feed, Part


def is_stream(loader: object) -> bool:
    """Return whether a loader reads an iterable data set, whose examples have no numbers."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


class Stream(Feed):
    """Reads the stream from its beginning in each epoch; a run that resumes draws what it has trained on, and drops it.

    A last batch that is not full is left out where the loader has a batch size.
    """

    def __init__(self, loader: DataLoader[Any], seed: int, accumulate: int = 1) -> None:
        self._loader, self._seed, self._accumulate = loader, seed, accumulate
        self._open: Iterator[Any] = iter(())
        self._place = (-1, 0)
        """Epoch, and steps of it that were given."""
        self._next: list[Any] = []
        """Batches of the next step, as far as they were drawn."""

    @property
    def batch_size(self) -> int:
        """Number of examples in a step; of batches, where the stream gives whole ones."""
        return (self._loader.batch_size or 1) * self._accumulate

    @property
    def loaded(self) -> int:
        """Number of the loader's batches in an epoch; raises `TypeError` for a stream without a length."""
        return len(self._loader)

    @property
    def examples(self) -> int:
        """Number of examples, 0 where the stream does not say."""
        try:
            return len(self.dataset)
        except TypeError:
            return 0

    def batches(self, epoch: int, cursor: int = 0) -> int:
        """Return more than `cursor` if there is a step after it in the epoch."""
        self._seek(epoch, cursor)
        while len(self._next) < self._accumulate:
            try:
                self._next.append(next(self._open))
            except StopIteration:
                if cursor == 0:
                    raise OwnLoopError(
                        f"join: the stream {type(self.dataset).__name__} gave no {_full(self._loader)} in epoch "
                        f"{epoch}; let its __iter__ begin again each time"
                    ) from None
                return cursor
        return cursor + 1

    def part(self, epoch: int, cursor: int, rank: int, world: int, portion: Portion = ONE) -> Part:
        """Return the step after `cursor` others of the epoch."""
        self.batches(epoch, cursor)
        self._place = (epoch, cursor + 1)
        size = self._loader.batch_size or 1
        return Part((size,) * self._accumulate, size * self._accumulate, portion, lambda: self._next.pop(0))

    def _seek(self, epoch: int, cursor: int) -> None:
        """Stand after `cursor` steps of an epoch."""
        if self._place == (epoch, cursor):
            return
        self._open, self._place, self._next = iter(self._again(epoch)), (epoch, cursor), []
        for _ in range(cursor * self._accumulate):
            next(self._open, None)

    def _first(self) -> Any:
        return next(iter(self._again(0, workers=0)), None)

    def _again(self, epoch: int, workers: int | None = None) -> DataLoader[Any]:
        own = self._loader
        count = own.num_workers if workers is None else workers
        several: dict[str, Any] = {"prefetch_factor": own.prefetch_factor} if count else {}
        return DataLoader(
            own.dataset,
            batch_size=own.batch_size,
            drop_last=own.batch_size is not None,
            num_workers=count,
            collate_fn=own.collate_fn,
            pin_memory=own.pin_memory,
            timeout=own.timeout if count else 0,
            worker_init_fn=own.worker_init_fn,
            multiprocessing_context=own.multiprocessing_context if count else None,
            # A separate generator: random numbers of the model do not depend on how often a run resumes.
            generator=torch.Generator().manual_seed(hash((self._seed, epoch)) % 2**63),
            **several,
        )


def _full(loader: DataLoader[Any]) -> str:
    return "batch" if loader.batch_size is None else f"full batch of {loader.batch_size}"
