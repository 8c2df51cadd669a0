"""The loop of a script that was not started as a job: a plain loop."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from espalier_trainer.errors import OwnLoopError
from espalier_trainer.signals.metrics import Write, writer_of
from espalier_trainer.user_loop.state import UserState


class LocalLoop:
    """Loop over the script's own epochs and batches. Only their number ends it."""

    leads = True
    workers = 1

    def __init__(self, state: UserState, loader: DataLoader[Any], accumulate: int = 1) -> None:
        self._state, self._loader, self._accumulate = state, loader, accumulate
        self._count: int | None = None
        self._epoch = 0
        self._seen = 0
        """Number of calls of `backward` in this epoch."""
        self._total = 0
        """Number of calls of `backward` in total."""
        self._stopped = False
        self._writers: list[Write] = []
        self._sums: dict[torch.nn.Parameter, Tensor] = {}

    @property
    def should_step(self) -> bool:
        """Whether the current batch is the last of its optimizer step."""
        return self._accumulate == 1 or self._seen % self._accumulate == 0 or self._seen == self._batches()

    @property
    def fraction(self) -> float:
        """Share of all epochs that is done, 0 to 1."""
        if not self._count:
            return 0.0
        batches = self._batches()
        within = min(1.0, self._seen / batches) if batches else 0.0
        return min(1.0, (self._epoch + within) / self._count)

    def time_left(self) -> float:
        """Return infinity: there is no time budget."""
        return math.inf

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the numbers of `count` epochs."""
        if count is None:
            raise OwnLoopError("epochs() without a job has no time budget that ends it; call epochs(count)")
        self._count = count
        return self._epochs(count)

    def _epochs(self, count: int) -> Iterator[int]:
        for self._epoch in range(count):
            if self._stopped:
                break
            self._seen, self._sums = 0, {}  # the script may have left a step
            yield self._epoch
        self._epoch, self._seen = count, 0

    def stop(self) -> None:
        """End the loop after the current epoch."""
        self._stopped = True

    def backward(self, loss: Tensor) -> float:
        """Call `loss.backward()`; return the loss."""
        self._state.check_schedulers()
        self._state.check_groups()
        self._seen, self._total = self._seen + 1, self._total + 1
        if self._accumulate == 1:
            torch.autograd.backward(loss)
            return float(loss.detach())
        torch.autograd.backward(loss * self._share())
        for parameter in self._state.model.parameters():
            if parameter.grad is not None:
                before = self._sums.pop(parameter, None)
                self._sums[parameter] = parameter.grad if before is None else before.add_(parameter.grad)
                parameter.grad = None
        if self.should_step:
            for parameter, total in self._sums.items():
                parameter.grad = total
            self._sums = {}
        return float(loss.detach())

    def report(self, **figures: float) -> None:
        """Write the figures to the targets of `log_to`."""
        for write in self._writers:
            write(figures, self._total)

    def log_to(self, target: Any) -> None:
        """Write reported figures to `target`."""
        self._writers.append(writer_of(target))

    def _share(self) -> float:
        """Return the current batch's share of the examples of its step, or of its batches if they have no size."""
        batches, size = self._batches(), getattr(self._loader, "batch_size", None)
        first = (self._seen - 1) // self._accumulate * self._accumulate
        count = self._accumulate if batches is None else max(1, min(self._accumulate, batches - first))
        missing = 0
        if batches is not None and size is not None and first + count == batches:
            missing = max(0, batches * size - self._examples(batches * size))
        if missing == 0 or size is None:
            return 1 / count
        own = size - missing if self._seen == batches else size
        return float(own / (count * size - missing))

    def _examples(self, default: int) -> int:
        """Return the number of examples that an epoch draws; `default` where the loader does not know it."""
        try:
            return len(cast(Any, self._loader.sampler))
        except (AttributeError, TypeError):
            return default

    def _batches(self) -> int | None:
        try:
            return len(self._loader)
        except TypeError:
            return None
