"""Where a trainer's allocation documents come from: the file that a scheduler rewrites.

The other source, the job as its API server knows it, is `espalier_trainer.kube.watch`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from espalier_core.files.documents import DocumentError, read_document
from espalier_core.types.allocation import Allocation, AllocationDocument
from espalier_core.types.job import AdaptiveTrainingJob

POLL_WALL_SECONDS = 0.05
"""How often the allocation file is looked at, at most: a look is a `stat`, about 2 µs, so this costs nothing."""


class AllocationSource(Protocol):
    """A source of the scheduler's allocations. Only `settle` blocks, and nothing raises."""

    def latest(self) -> AllocationDocument | None:
        """Return the last good document, None before there was one."""

    def settle(self) -> None:
        """Wait, for seconds at most, until the source has either answered or failed to."""

    def take_warnings(self) -> tuple[str, ...]:
        """Return what went wrong since this was last asked."""


@dataclass
class AllocationFile:
    """A file in which a scheduler leaves an `AllocationDocument`; on Kubernetes an annotation of the pod.

    The last good document is kept while the file is half-written, damaged, of another version, of another job, or
    missing; each new state of such a file is warned about once.
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
        """Return the last good document; the file is looked at no more often than the poll interval."""
        now = self.clock()
        if now - self._looked >= POLL_WALL_SECONDS:
            self._looked = now
            self._look()
        return self._document

    def settle(self) -> None:
        """Nothing: a file answers at once."""

    def take_warnings(self) -> tuple[str, ...]:
        """Return the complaints about the file since this was last asked."""
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
            self._complain(f"{self.path}: there is no such file; a scheduler should have written it")
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
