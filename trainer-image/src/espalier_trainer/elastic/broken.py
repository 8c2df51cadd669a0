"""How it shows that a generation is over: an exchange that ends with an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from espalier_core.causes import in_one_line


class GroupBrokenError(Exception):
    """A member is gone, or cannot be reached: this generation is over."""


class Sending:
    """An exchange that has begun; nobody may touch its tensor until `wait` returns."""

    def __init__(self, work: Any, seconds: float | None = None) -> None:
        """`seconds` is how long to wait; None: as long as for any collective."""
        self._work, self._seconds = work, seconds

    def wait(self) -> None:
        """Wait until it is done. Raises `GroupBrokenError`."""
        with broken():
            if self._seconds is None:
                self._work.wait()
            else:
                self._work.wait(timedelta(seconds=self._seconds))


@contextmanager
def broken() -> Iterator[None]:
    """Raise `GroupBrokenError` for the errors of a process group in the block."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, OSError, AttributeError) as error:  # AttributeError: closed already
        raise GroupBrokenError(in_one_line(str(error))) from error
