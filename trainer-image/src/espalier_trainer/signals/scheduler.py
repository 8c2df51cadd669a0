"""The trainer's view of the scheduler: the paper's three questions (Lamelas 4.1, figure 2), and a clock to start.

Allocation documents come from the file that a scheduler rewrites. The other source, the job in its API server, is
`espalier_trainer.kube.watch`.

Times are budget seconds unless the name contains `wall`. Budget time is the trainer's own monotonic clock times the
time scale; it starts with training, not with the process.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from espalier_core.files.documents import DocumentError, read_document
from espalier_core.growth.architecture import Architecture
from espalier_core.types.allocation import Allocation, AllocationDocument, Direction, TimeBudget
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason

POLL_WALL_SECONDS = 0.05
"""Minimum interval of checks of the allocation file; a check is a `stat`, about 2 µs."""


class AllocationSource(Protocol):
    """A source of the scheduler's allocations. Only `settle` blocks, and no method raises."""

    def latest(self) -> AllocationDocument | None:
        """Return the last valid document; None before there was one."""

    def settle(self) -> None:
        """Wait, a few seconds at most, until the source has answered or failed to."""

    def take_warnings(self) -> tuple[str, ...]:
        """Return the problems since the last call."""


@dataclass
class AllocationFileSource:
    """A file in which a scheduler writes an `AllocationDocument`; on Kubernetes an annotation of the pod.

    The last valid document is kept while the file is half-written, damaged, of another version or job, or missing; each
    new state of such a file causes one warning.
    """

    path: Path
    job: AdaptiveTrainingJob
    clock: Callable[[], float] = time.monotonic
    heard: Callable[[Allocation], None] = lambda allocation: None
    """Called with the allocation of each document that is read."""
    _document: AllocationDocument | None = field(init=False, default=None)
    _looked: float = field(init=False, default=-math.inf)
    _seen: tuple[int, int, int] | None = field(init=False, default=None)
    _complaint: str = field(init=False, default="")
    _warnings: list[str] = field(init=False, default_factory=list)

    def latest(self) -> AllocationDocument | None:
        """Return the last valid document; the file is checked no more often than the poll interval."""
        now = self.clock()
        if now - self._looked >= POLL_WALL_SECONDS:
            self._looked = now
            self._look()
        return self._document

    def settle(self) -> None:
        """Do nothing: a file answers at once."""

    def take_warnings(self) -> tuple[str, ...]:
        """Return the problems with the file since the last call."""
        taken = tuple(self._warnings)
        self._warnings.clear()
        return taken

    def _look(self) -> None:
        try:
            status = os.stat(self.path)
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return
            document = read_document(self.path, AllocationDocument)
            self._seen = seen
        except FileNotFoundError:
            self._complain(f"{self.path}: no such file; a scheduler must write it")
            return
        except DocumentError as error:
            self._seen = seen
            self._complain(str(error))
            return
        except OSError as error:
            self._complain(f"{self.path}: cannot be read ({error})")
            return
        if document.job not in (self.job.key, self.job.metadata.name):
            self._complain(f"{self.path}: belongs to job {document.job!r}, not to {self.job.key!r}")
            return
        self._complaint = ""
        self._document = document
        self.heard(document.allocation)

    def _complain(self, message: str) -> None:
        if message == self._complaint:
            return
        self._complaint = message
        generation = 0 if self._document is None else self._document.allocation.generation
        self._warnings.append(f"{message}; continuing with allocation generation {generation}")


class Scheduler(Protocol):
    """The trainer's questions; the first three are the paper's. By default there is no request to stop or warning."""

    def time_left(self) -> float:
        """Return the remaining seconds of the budget, never below zero."""
        return max(0.0, self.time_budget() - self.used_seconds())

    def time_budget(self) -> float:
        """Return the whole budget in seconds."""

    def allocation(self) -> Allocation:
        """Return the allocation; `direction` is the change of its replicas since the last call."""

    def base_replicas(self) -> int:
        """Return the number of guaranteed workers: replicas above it are extra."""

    def stop_reason(self) -> Reason | None:
        """Return the reason why the job must end before its budget is used up; None while it may continue."""
        return None

    def waits_for_workers(self) -> bool:
        """Return whether training must not begin yet, because base workers are held back."""
        return False

    def start(self, used_seconds: float) -> None:
        """Start the clock. `used_seconds` is the part of the budget already used, from the trainer's checkpoint."""

    def used_seconds(self) -> float:
        """Return the used seconds of the budget, earlier incarnations included; not capped by the budget."""

    def wall_time_left(self) -> float:
        """Return `time_left` in wall seconds: the limit of any wait."""

    def step_finished(self, architecture: Architecture | None) -> None:
        """Record a training step. Virtual time advances by it; real clocks ignore it."""
        return

    def take_warnings(self) -> tuple[str, ...]:
        """Return the problems with the scheduler since the last call."""
        return ()


@dataclass
class AllocationDirections:
    """Converts allocations into the paper's up, down or none since the last call."""

    replicas: int

    def direct(self, allocation: Allocation) -> Allocation:
        change = allocation.replicas - self.replicas
        self.replicas = allocation.replicas
        direction = Direction.UP if change > 0 else Direction.DOWN if change < 0 else Direction.NONE
        if direction is allocation.direction:
            return allocation
        return allocation.model_copy(update={"direction": direction})


@dataclass
class DocumentScheduler(Scheduler):
    """Adapter to a scheduler that publishes its grants as `AllocationDocument`s.

    Several sources may carry the documents of one scheduler (its API server, a file). The document of the newest
    generation applies; of equal generations, the first source's. A request to stop applies from any source. Without a
    document, the job's own budget and base replicas apply.
    """

    sources: Sequence[AllocationSource]
    job: AdaptiveTrainingJob
    time_scale: float = 1.0
    clock: Callable[[], float] = time.monotonic
    _document: AllocationDocument = field(init=False)
    _stop: Reason | None = field(init=False, default=None)
    _asked: AllocationDirections = field(init=False)
    _started: float | None = field(init=False, default=None)
    _used_before: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time_scale) and self.time_scale > 0):
            raise ValueError(f"time scale {self.time_scale} is not a positive number")
        spec = self.job.spec
        self._document = AllocationDocument(
            job=self.job.key,
            allocation=Allocation(replicas=spec.min_replicas),
            time_budget=TimeBudget(budget_seconds=spec.time_budget_seconds),
            base_replicas=spec.min_replicas,
        )
        # To a restarted trainer, extra replicas are an `up`.
        self._asked = AllocationDirections(spec.min_replicas)
        self._listen()

    def time_budget(self) -> float:
        """Return the budget of the newest document."""
        return self._document.time_budget.budget_seconds

    def allocation(self) -> Allocation:
        """Return the allocation of the newest document, with the direction of change since the last call."""
        self._listen()
        return self._asked.direct(self._document.allocation)

    def base_replicas(self) -> int:
        """Return the number of guaranteed workers."""
        return self._document.base_replicas

    def stop_reason(self) -> Reason | None:
        """Return the `stop` of the newest document, or of any that has one."""
        self._listen()
        return self._stop

    def waits_for_workers(self) -> bool:
        """Return the newest document's answer; wait for sources that connect."""
        for source in self.sources:
            source.settle()
        self._listen()
        return self._document.waits_for_workers

    def start(self, used_seconds: float) -> None:
        """Start the clock at the larger of `used_seconds` and the documents' figure; wait for sources that connect.

        The wait does not count against the budget, and the sources limit it.
        """
        for source in self.sources:
            source.settle()
        known = [document.time_budget.used_seconds for document in self._listen()]
        self._used_before = max(used_seconds, *known, self._document.time_budget.used_seconds)
        self._started = self.clock()

    def used_seconds(self) -> float:
        """Return the used seconds of the budget."""
        if self._started is None:
            return self._document.time_budget.used_seconds
        return self._used_before + (self.clock() - self._started) * self.time_scale

    def wall_time_left(self) -> float:
        """Return the remaining wall seconds."""
        return self.time_left() / self.time_scale

    def take_warnings(self) -> tuple[str, ...]:
        """Return the problems of the sources since the last call."""
        return tuple(warning for source in self.sources for warning in source.take_warnings())

    def _listen(self) -> list[AllocationDocument]:
        """Read the newest documents of the sources and return them. Takes a few µs, at every step boundary."""
        heard = [document for source in self.sources if (document := source.latest()) is not None]
        if heard:
            self._document = max(heard, key=lambda document: document.allocation.generation)
            self._stop = self._document.stop or next((one.stop for one in heard if one.stop), None)
        return heard
