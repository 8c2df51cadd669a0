"""The lock of a run's folder, which says which process runs it."""

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

    Raises `BlockingIOError` where another process has locked it, `OSError` where it cannot be written to.
    """
    with (folder / LOCK_FILE).open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
        file.truncate(0)


def holder(folder: Path) -> int | None:
    """Return the id of the process that has locked `folder`; None where none has."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            pid = int(file.read() or 0)
            if not pid or not runs(pid):  # first: who tries to lock keeps a run from starting for that moment
                return None
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return pid
    except (OSError, ValueError):  # no run has been here, or one that was killed
        return None
    return None


def runs(pid: int) -> bool:
    """Return whether there is a process of this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return True
