"""The lock of a run's folder, which identifies the process that runs it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LOCK_FILE: Final = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock `folder`; the kernel releases the lock when this process dies.

    Raise `BlockingIOError` if another process has locked it, `OSError` if it cannot be written to.
    """
    with (folder / LOCK_FILE).open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
        file.truncate(0)


def holder(folder: Path) -> int | None:
    """Return the id of the process that has locked `folder`; None if it is not locked."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            pid = int(file.read() or 0)
            if not pid or not runs(pid):  # check this first: an attempt to lock would block a starting run meanwhile
                return None
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return pid
    except (OSError, ValueError):  # no run was ever here, or it was killed
        return None
    return None


def runs(pid: int) -> bool:
    """Return whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        return True
    return True
