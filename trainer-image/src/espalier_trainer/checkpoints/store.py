"""Store of checkpoints: one folder each, complete or absent; the last two are kept. No pickle is read or written.

`checkpoint-<number>/` holds `model.safetensors`, `training.safetensors` (optimizer and random generators),
`state.json` (everything else) and `manifest.json` (sizes and SHA-256 of the other three). It is written under another
name, each file fsynced, then renamed, so that a kill at any moment leaves the checkpoint before it. A checkpoint that
does not match its manifest is set aside with a warning, and the one before it is used.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import safetensors
import safetensors.torch
from pydantic import Field, ValidationError
from torch import Tensor

from espalier_core.base import Record
from espalier_core.files.documents import DocumentError, dumps, loads
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointState, loads_grown
from espalier_trainer.errors import CheckpointMismatchError
from espalier_trainer.process.fencing import Fence

logger = logging.getLogger(__name__)

KEPT: Final = 2
MODEL, TRAINING, STATE, MANIFEST = "model.safetensors", "training.safetensors", "state.json", "manifest.json"
_COMPLETE = re.compile(r"checkpoint-(\d{8})\Z")
_TEMPORARY = "writing-"
_DAMAGED = "damaged-"
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_UNREADABLE: Final = (errno.EIO, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)
"""Errors of a file that will never be readable; others concern permissions, memory, or an unreachable file system."""


class _FileEntry(Record):
    bytes: int = Field(ge=0)
    sha256: str


class Manifest(Record):
    """Sizes and digests of a checkpoint's files."""

    files: dict[str, _FileEntry]


class DamagedCheckpointError(ValueError):
    """A checkpoint does not match its manifest."""


@dataclass
class CheckpointStore:
    """The checkpoints of one job in a folder. One process writes: `fence` ensures it where leaders are replaced."""

    folder: Path
    fence: Fence | None = None
    """Claim of the leader that writes; None if no other process can write."""
    warnings: list[str] = field(default_factory=list)
    """Problems found in this process; a run reports them as it begins, and they stay."""

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint and remove all but the last two; return its folder. On a full disk only one is kept.

        Raises `OSError` (disk full, folder gone) and `SupersededError` with nothing changed: the earlier checkpoints
        are intact and the partial one is removed.
        """
        try:
            return self._save(checkpoint)
        except OSError as error:
            spare = self.complete()[:-1]
            if error.errno not in _FULL or not spare:
                raise
            for _, path in spare:
                shutil.rmtree(path, ignore_errors=True)
            return self._save(checkpoint)

    def newest(self) -> Path | None:
        """Return the folder of the newest complete checkpoint; None where there is none."""
        complete = self.complete()
        return complete[-1][1] if complete else None

    def _save(self, checkpoint: Checkpoint) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._require_claim()
        self._remove_leftovers()
        complete = self.complete()
        number = complete[-1][0] + 1 if complete else 1
        target = self.folder / f"checkpoint-{number:08d}"
        # In containers all leaders may have the same process id.
        temporary = self.folder / f"{_TEMPORARY}{number:08d}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            temporary.mkdir()
            entries = {
                MODEL: _write(temporary / MODEL, checkpoint.model),
                TRAINING: _write(temporary / TRAINING, checkpoint.training),
                STATE: _write(temporary / STATE, dumps(checkpoint.state).encode()),
            }
            _write(temporary / MANIFEST, dumps(Manifest(files=entries)).encode())
            _sync_folder(temporary)
            self._require_claim()
            os.rename(temporary, target)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError):
                self._require_claim()  # a successor that starts removes partial checkpoints
            raise
        _sync_folder(self.folder)
        for _, path in self.complete()[:-KEPT]:
            shutil.rmtree(path, ignore_errors=True)
        return target

    def load_latest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint; None where there is none.

        A damaged one is renamed to `damaged-<number>` with a warning; damaged ones of the last start that found any are
        kept for inspection: the newest may be intact, and written by a newer Espalier. Raises `OSError` where it cannot
        be read now, and `CheckpointMismatchError` where a package is missing for it, with nothing changed: another
        start may be able to read it.
        """
        self._remove_leftovers()
        old = self.damaged()
        for number, path in reversed(self.complete()):
            try:
                return read_checkpoint(path)
            except (DamagedCheckpointError, OSError) as error:
                if isinstance(error, OSError) and error.errno not in _UNREADABLE:
                    raise
                while old:
                    shutil.rmtree(old.pop(), ignore_errors=True)
                self.warnings.append(f"{path}: damaged ({error})")
                logger.warning("%s", self.warnings[-1])
                self._set_aside(number, path)
        return None

    def damaged(self) -> list[Path]:
        """Return the folders of checkpoints that were set aside, oldest first."""
        return sorted(self.folder.glob(f"{_DAMAGED}*"))

    def _require_claim(self) -> None:
        if self.fence is not None:
            self.fence.require()

    def _set_aside(self, number: int, path: Path) -> None:
        try:
            path.rename(self.folder / f"{_DAMAGED}{number:08d}")
        except OSError as error:
            logger.warning("%s: cannot be set aside (%s)", path, error)

    def complete(self) -> list[tuple[int, Path]]:
        """Return (number, folder) of the complete checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        found = ((_COMPLETE.match(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match[1]), path) for match, path in found if match)

    def _remove_leftovers(self) -> None:
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(path, ignore_errors=True)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify one checkpoint folder; `DamagedCheckpointError` names the file that differs from the manifest.

    Raises `CheckpointMismatchError` if the model has grown by an operation whose package is missing or differs.
    """
    try:
        manifest = loads((path / MANIFEST).read_text(encoding="utf-8"), Manifest, MANIFEST)
        contents: dict[str, bytes] = {}
        for name in (MODEL, TRAINING, STATE):
            content = (path / name).read_bytes()
            entry = manifest.files.get(name)
            if entry is None:
                raise DamagedCheckpointError(f"{MANIFEST} does not name {name}")
            if len(content) != entry.bytes:
                raise DamagedCheckpointError(f"{name} has {len(content)} bytes, not {entry.bytes}")
            if hashlib.sha256(content).hexdigest() != entry.sha256:
                raise DamagedCheckpointError(f"{name} has another SHA-256 than when it was written")
            contents[name] = content
        return Checkpoint(
            _state(path, contents[STATE].decode()),
            safetensors.torch.load(contents[MODEL]),
            safetensors.torch.load(contents[TRAINING]),
        )
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"{Path(error.filename).name} is missing") from error
    except (DocumentError, ValidationError, UnicodeDecodeError, safetensors.SafetensorError) as error:
        raise DamagedCheckpointError(str(error)) from error


def _state(path: Path, text: str) -> CheckpointState:
    try:
        return loads_grown(text, CheckpointState, STATE)
    except CheckpointMismatchError as error:
        raise CheckpointMismatchError(
            f"{path}: {error}; the checkpoint is unchanged, and the job then continues from it"
        ) from error


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return them in the form that safetensors writes: tensors that share memory (tied weights) are copied."""
    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        pointer = copy.untyped_storage().data_ptr()
        plain[name] = copy.clone() if pointer in seen else copy
        seen.add(pointer)
    return plain


def _write(path: Path, content: bytes | dict[str, Tensor]) -> _FileEntry:
    """Write bytes, or tensors, which are never in memory a second time."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_tensors(path, _apart(content))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return _FileEntry(bytes=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors, no two of which share memory. Raises `OSError` as for any file, and `SafetensorError`."""
    try:
        safetensors.torch.save_file(tensors, path, metadata=metadata)
    except safetensors.SafetensorError as error:
        # It has the number of a file-system error only in its text (Rust's std::io::Error).
        if number := _OS_ERROR.search(str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise


def _sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
