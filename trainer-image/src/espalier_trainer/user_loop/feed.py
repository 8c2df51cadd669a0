"""The batches of a user's `DataLoader`, in an order that all workers know, divided among the workers.

The batches of a stream (an `IterableDataset`) have no such order: they need a job in which one worker trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from espalier_core.types.job import ElasticBatch
from espalier_trainer.data.source import EpochOrder, epoch_order
from espalier_trainer.elastic.membership import LEAST_ROWS, ONE, BatchShare, Portion, shares
from espalier_trainer.elastic.step import parts_of
from espalier_trainer.errors import OwnLoopError

ONCE: Final = (
    "the loader was looped over a second time in one epoch; its batches are trained on once: evaluate by a DataLoader "
    "that was not given to join"
)

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Part:
    """A worker's part of a step."""

    pieces: tuple[int, ...]
    """Number of examples that count in each of its batches; 0 for a batch that only keeps the loop running."""
    examples: int
    """Number of examples of all workers together."""
    portion: Portion
    """Portion of the epoch that all workers together take."""
    load: Callable[[], Any]
    """Returns the next of its batches, in the form of the user's `DataLoader`."""

    @property
    def rows(self) -> int:
        """Number of its examples that count."""
        return sum(self.pieces)


class Feed:
    """Loads a worker's parts, in advance if the user's `DataLoader` has worker processes."""

    def __init__(self, loader: DataLoader[Any], policy: ElasticBatch, seed: int, accumulate: int = 1) -> None:
        """`accumulate` is the number of the loader's batches in a step, which are loaded one after the other.

        Raises `OwnLoopError` for a loader whose order is not the same in all workers.
        """
        self._loader, self._policy, self._seed, self._accumulate = loader, policy, seed, accumulate
        self._shuffled = _is_shuffled(loader)
        self._order: EpochOrder | None = None
        self._ahead: Iterator[Any] = iter(())
        self._key: tuple[int, int, int, int] | None = None
        """Epoch, rank, world and cursor of the next batches of `_ahead`."""
        self._left = 0
        """Number of batches of the current part that are not loaded yet."""
        self._batches = 1
        """Number of batches in a step of `_ahead`, before the epoch ends."""

    @property
    def batch_size(self) -> int:
        """Number of examples in a step."""
        return cast(int, self._loader.batch_size) * self._accumulate

    @property
    def loaded(self) -> int:
        """Number of the loader's batches that an epoch uses."""
        return self.batches(0) * self._accumulate

    @property
    def dataset(self) -> Any:
        """The data set of the loader."""
        return self._loader.dataset

    @property
    def examples(self) -> int:
        """Number of examples in the data set."""
        return len(self.dataset)

    def batches(self, epoch: int, cursor: int = 0) -> int:
        """Return the number of steps in an epoch, without an incomplete last one. `cursor` of them are over."""
        return len(self._of(epoch))

    def part(self, epoch: int, cursor: int, rank: int, world: int, portion: Portion = ONE) -> Part:
        """Return the part of worker `rank` of `world` in the step of `portion` that begins at batch `cursor`."""
        order, batches = self._of(epoch), portion.batches
        expected = min(self._batches, len(order) - cursor)
        if self._key != (epoch, rank, world, cursor) or batches != expected or self._left:
            self._batches = batches
            self._ahead = self._from(order, cursor, rank, world)
        step = shares(self._policy, world, cursor, order.rows, batches)
        self._key = (epoch, rank, world, cursor + batches)
        pieces = tuple(rows.stop - rows.start for rows in _pieces(step, rank, self._accumulate))
        self._left = len(pieces)
        return Part(pieces, sum(each.rows for each in step), portion, self._load)

    def _load(self) -> Any:
        batch = next(self._ahead)
        self._left -= 1
        return batch

    def example_input(self) -> Tensor:
        """Return the inputs of the first two examples; raise `OwnLoopError` if a batch does not begin with a
        tensor.
        """
        batch = self._first()
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        if not isinstance(inputs, Tensor):
            raise OwnLoopError(
                f"grow=True: a batch of the DataLoader is {type(batch).__name__}; it must be a tensor of inputs, or a "
                "tuple that begins with it, to follow the model's layers; or give join(..., example=...)"
            )
        return inputs[:2]

    def _first(self) -> Any:
        """Return a batch of the first two examples, or more."""
        dataset = cast(Any, self._loader.dataset)
        return self._loader.collate_fn([dataset[index] for index in range(min(2, self.examples))])

    def _of(self, epoch: int) -> EpochOrder:
        if self._order is None or self._order.epoch != epoch:
            if self._shuffled:
                self._order = epoch_order(self.examples, self.batch_size, self._seed, epoch, _CPU)
            else:
                self._order = EpochOrder(torch.arange(self.examples), self.batch_size, self._seed, epoch)
        return self._order

    def _from(self, order: EpochOrder, cursor: int, rank: int, world: int) -> Iterator[Any]:
        own = self._loader
        return iter(
            DataLoader(
                own.dataset,
                batch_sampler=_Indices(self._policy, order, cursor, rank, world, self._batches, self._accumulate),
                num_workers=own.num_workers,
                collate_fn=own.collate_fn,
                pin_memory=own.pin_memory,
                timeout=own.timeout,
                worker_init_fn=own.worker_init_fn,
                multiprocessing_context=own.multiprocessing_context,
                prefetch_factor=own.prefetch_factor,
                # A separate generator: the model's random numbers do not depend on the number of changes of members.
                generator=torch.Generator().manual_seed(hash((self._seed, order.epoch, cursor, rank)) % 2**63),
            )
        )


@dataclass(frozen=True, slots=True)
class _Indices:
    """Indices of one worker's examples, step by step, from a cursor to the end of the epoch."""

    policy: ElasticBatch
    order: EpochOrder
    cursor: int
    rank: int
    world: int
    batches: int
    """Number of batches in a step, before the epoch ends."""
    accumulate: int

    def __iter__(self) -> Iterator[list[int]]:
        order, cursor = self.order, self.cursor
        while cursor < len(order):
            batches = min(self.batches, len(order) - cursor)
            step = shares(self.policy, self.world, cursor, order.rows, batches)
            mine = step[self.rank]
            own = order.chosen(mine.batch, batches=batches) if mine.batch < len(order) else order.indices
            for rows in _pieces(step, self.rank, self.accumulate):
                # Without examples, it computes on filler examples, so that its loop stays in step with the others.
                first, last = (
                    (mine.first + rows.start, mine.first + rows.stop) if rows.stop > rows.start else (0, LEAST_ROWS)
                )
                yield own[first:last].tolist()
            cursor += batches


def _pieces(step: Sequence[BatchShare], rank: int, accumulate: int) -> tuple[slice, ...]:
    """Return the rows of worker `rank`'s share in each of its batches: the same number of batches in all workers.

    There are `accumulate` batches, or fewer if these would be too small for batch norms.
    """
    least = sum(each.rows for each in step) // len(step) // LEAST_ROWS
    return parts_of(step[rank].rows, min(accumulate, max(1, least)))


def _is_shuffled(loader: DataLoader[Any]) -> bool:
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        raise OwnLoopError(
            "join: the loader must be a torch DataLoader of a map-style data set: an iterable one has no order that "
            "workers could share; give a map-style one, or leave training.elasticBatch out of the job: then one worker "
            "trains, and a stream will do"
        )
    if len(cast(Any, loader.dataset)) == 0:
        raise OwnLoopError("join: the data set of the DataLoader is empty; it must hold at least one example")
    if loader.batch_size is None:
        raise OwnLoopError(
            "join: the DataLoader has no batch_size (a custom batch_sampler, or none); give it batch_size and "
            "shuffle, as batches are cut among the workers"
        )
    sampler = loader.sampler
    # A sampler of another size would give other examples than an epoch here.
    if isinstance(sampler, RandomSampler | SequentialSampler):
        sizes = {len(cast(Any, loader.dataset)), len(sampler), len(sampler.data_source)}
        if len(sizes) == 1 and not getattr(sampler, "replacement", False):
            return isinstance(sampler, RandomSampler)
    raise OwnLoopError(
        f"join: the DataLoader has a sampler {type(sampler).__name__}; give it shuffle=True or "
        "shuffle=False instead, as the order of the examples must be the same in all workers (a DistributedSampler is "
        "not needed: batches are cut here), and a torch.utils.data.Subset for an epoch of a part of the data set"
    )


def is_stream(loader: object) -> bool:
    """Return whether a loader reads an iterable data set, whose examples have no indices."""
    return isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)


class StreamFeed(Feed):
    """Reads the stream from its beginning in each epoch; a resumed run skips the examples that it has trained on.

    An incomplete last batch is dropped where the loader has a batch size.
    """

    def __init__(self, loader: DataLoader[Any], seed: int, accumulate: int = 1) -> None:
        self._loader, self._seed, self._accumulate = loader, seed, accumulate
        self._open: Iterator[Any] = iter(())
        self._place = (-1, 0)
        """Epoch, and number of its steps returned so far."""
        self._next: list[Any] = []
        """Batches drawn for the next step so far."""

    @property
    def batch_size(self) -> int:
        """Number of examples in a step, or of batches where the stream yields whole ones."""
        return (self._loader.batch_size or 1) * self._accumulate

    @property
    def loaded(self) -> int:
        """Number of the loader's batches in an epoch; raises `TypeError` for a stream without a length."""
        return len(self._loader)

    @property
    def examples(self) -> int:
        """Number of examples; 0 where the stream has no length."""
        try:
            return len(self.dataset)
        except TypeError:
            return 0

    def batches(self, epoch: int, cursor: int = 0) -> int:
        """Return `cursor` + 1 if there is another step in the epoch, otherwise `cursor`."""
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
        """Return the step after the first `cursor` steps of the epoch."""
        self.batches(epoch, cursor)
        self._place = (epoch, cursor + 1)
        size = self._loader.batch_size or 1
        return Part((size,) * self._accumulate, size * self._accumulate, portion, lambda: self._next.pop(0))

    def _seek(self, epoch: int, cursor: int) -> None:
        """Move to the position after `cursor` steps of an epoch."""
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
            # A separate generator: the model's random numbers do not depend on the number of resumptions.
            generator=torch.Generator().manual_seed(hash((self._seed, epoch)) % 2**63),
            **several,
        )


def _full(loader: DataLoader[Any]) -> str:
    return "batch" if loader.batch_size is None else f"full batch of {loader.batch_size}"
