"""Which folders are a run's: only what lies in these may be deleted or written over."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from espalier_core.base import Record
from espalier_core.files.documents import write_document
from espalier_operator.local import layout
from espalier_operator.local.settings import LocalRunError

MARK_FILE: Final = ".espalier-run"


class RunMark(Record):
    """`.espalier-run`: the folder was empty of a run's files when this run began in it."""

    jobs: tuple[str, ...]


def require_own(directory: Path, folders: Collection[Path]) -> None:
    """Raise `LocalRunError` if one of `folders` of the run in `directory` holds files that no run has written."""
    if _is_older_run(directory):
        return
    for folder in folders:
        if os.path.exists(folder / MARK_FILE):
            continue
        for name in layout.WRITTEN:
            if os.path.lexists(folder / name):
                raise LocalRunError(
                    f"{folder / name}: no run has written it ({folder} has no {MARK_FILE}), so it is neither "
                    "deleted nor written over; choose another --output folder, or move it away"
                )


def mark(folder: Path, jobs: Collection[str]) -> None:
    """Mark a folder, after `require_own`, as that of a run of `jobs`. Raises `OSError`."""
    if not (folder / MARK_FILE).exists():
        write_document(folder / MARK_FILE, RunMark(jobs=tuple(jobs)))


def is_own(directory: Path) -> bool:
    """Return whether `directory` is that of a run."""
    return os.path.exists(directory / MARK_FILE) or _is_older_run(directory)


def _is_older_run(directory: Path) -> bool:
    """Return whether a run of a version without marks has left its state here."""
    if os.path.exists(directory / MARK_FILE):
        return False
    try:
        state = json.loads((directory / layout.STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(state, dict) and state.get("kind") == "RunState"
