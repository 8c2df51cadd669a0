"""Versioned JSON files, written atomically, by which parts communicate without an API server.

A document is written to a temporary file, fsynced and renamed, so a reader never sees half of it unless something else
damaged the file. A reader rejects versions that it does not know.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from espalier_core.base import repeated

JOB_FILE: Final = "job.yaml"
CHECKPOINT_FOLDER: Final = "checkpoints"
RESULT_FILE: Final = "result.json"
HISTORY_FILE: Final = "history.jsonl"
REPORT_FILE: Final = "report.json"
TRAINER_LOG: Final = "trainer.log"
VERSION: Final = 1
"""The version of all documents that this Espalier writes. Raise it if older readers would misread newer documents."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a text file that is read. The files that Espalier writes are thousands of times smaller."""
LONGEST_LINE: Final = 1 << 20
"""Maximum length of an appended line, in bytes; an event has some hundreds."""
_POLL_SECONDS: Final = 0.1

ModelT = TypeVar("ModelT", bound=BaseModel)


class DocumentError(ValueError):
    """A contract file cannot be used. The message names the file, the fault and the remedy."""


class DoubledKeyError(ValueError):
    """A JSON object has a key twice. The message names the key."""


def without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object as a dictionary; reject duplicate keys, whose meaning is ambiguous."""
    whole = dict(pairs)
    if len(whole) != len(pairs):
        key = next(iter(repeated(key for key, _ in pairs)))
        raise DoubledKeyError(f"key {key!r} appears twice in one object")
    return whole


def read_bounded(path: Path, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a file; raise `DocumentError` if it has more than `limit` bytes, without reading more."""
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise DocumentError(f"{path}: is larger than {limit / 2**20:g} MiB, the maximum")
    return content


def dumps(model: BaseModel, *, compact: bool = False) -> str:
    """Return the document text of `model`: its JSON with `version` and `kind` in front.

    `compact` writes one line, five times as fast, for texts that only programs read.
    """
    body = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    text = json.dumps({"version": VERSION, "kind": type(model).__name__, **body}, indent=None if compact else 1)
    return f"{text}\n"


def loads(text: str, model: type[ModelT], source: str) -> ModelT:
    """Parse a document written by `dumps`; `source` names it in errors.

    Raise `DocumentError` if the text is half-written or damaged, of another kind, or of another version.
    """
    try:
        body = json.loads(text, object_pairs_hook=without_doubles)
    except DoubledKeyError as error:
        raise DocumentError(f"{source}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{source}: not complete JSON ({error}); it is damaged or half-written") from error
    if not isinstance(body, dict):
        raise DocumentError(f"{source}: holds {type(body).__name__} where a {model.__name__} is expected")
    version = body.pop("version", None)
    if not isinstance(version, int) or isinstance(version, bool):
        raise DocumentError(f"{source}: has no version; it was not written by Espalier")
    if version > VERSION:
        raise DocumentError(
            f"{source}: version {version} comes from a newer Espalier (this one reads {VERSION}); upgrade this one"
        )
    if version < VERSION:
        raise DocumentError(
            f"{source}: version {version} is older than any that this Espalier reads ({VERSION}); "
            "remove the file, or use the Espalier that wrote it"
        )
    kind = body.pop("kind", None)
    if kind != model.__name__:
        raise DocumentError(f"{source}: is a {kind!r}, where a {model.__name__!r} is expected")
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise DocumentError(f"{source}: {first_fault(error)}") from error


def first_fault(error: ValidationError) -> str:
    """Return the position and the reason of the most telling error of a model.

    pydantic tries every type of a union, and the first complaint is not always the relevant one: a figure that is not
    finite is named before all else.
    """
    faults = error.errors()
    fault = next((each for each in faults if each["type"] == "finite_number"), faults[0])
    place = ".".join(str(part) for part in fault["loc"])
    reason = fault["msg"].removeprefix("Value error, ")
    return f"{place}: {reason}" if place else reason


def read_document(path: Path, model: type[ModelT]) -> ModelT:
    """Read the document at `path`; raise `DocumentError` as `loads` does, and `FileNotFoundError` if it is missing."""
    try:
        text = read_bounded(path).decode()
    except UnicodeDecodeError as error:
        raise DocumentError(f"{path}: not UTF-8 text; it is damaged") from error
    return loads(text, model, str(path))


def write_document(path: Path, model: BaseModel) -> None:
    """Write `model` to `path` so that a reader sees either the old document or the new one."""
    write_text_atomically(path, dumps(model))


def write_text_atomically(path: Path, text: str, *, private: bool = False) -> None:
    """Write `text` (UTF-8) to `path` as `write_bytes_atomically` does."""
    write_bytes_atomically(path, text.encode(), private=private)


def print_or_write(text: str, arguments: Sequence[str]) -> None:
    """Print a generated page, or write it to the path in the first of a command's `arguments`."""
    if arguments:
        write_text_atomically(Path(arguments[0]), text)
    else:
        print(text, end="")


def write_bytes_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write `content` to `path` through a temporary file in its folder, fsync and rename.

    If it is `private`, only its owner may read it.

    A device or a pipe (`/dev/stdout`, `/dev/full`) is written directly: a rename would replace it by a file.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    # A link remains a link, such as /dev/stdout where a shell redirects it to a file.
    path = Path(os.path.realpath(path))
    # Not tempfile: its files are readable by their owner only, and the reader may be another user.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        mode = 0o600 if private else 0o666
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def append_line(path: Path, line: bytes) -> None:
    """Append a whole line or nothing; cut off a torn last line (after a kill or a full disk) first. Raise `OSError`."""
    # Unbuffered: closing would try again to write a buffer that could not be written.
    with path.open("a+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        if end:
            file.seek(end - 1)
            if file.read(1) != b"\n":
                file.seek(max(0, end - LONGEST_LINE))
                tail = file.read()
                end -= len(tail) - (tail.rfind(b"\n") + 1)
                file.truncate(end)
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            with contextlib.suppress(OSError):  # report the first error
                file.truncate(end)
            raise


def json_lines(text: str) -> list[str]:
    r"""Return the lines of a file of JSON lines, without their ends.

    Only `\n` ends a line. `str.splitlines` also splits at U+2028, for example, which JSON text may contain unescaped.
    """
    *lines, rest = text.split("\n")
    return [*lines, rest] if rest else lines


def grown_lines(path: Path, grows: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the lines of a file, with their ends, and lines that are added as long as it `grows`.

    The last one may have no end. A missing file is waited for.
    """
    rest, position, more = b"", 0, True
    while more:
        more = grows()  # checked before the last read, so that nothing is missed
        if path.is_file():
            with path.open("rb") as file:
                file.seek(position)
                *lines, rest = (rest + file.read()).split(b"\n")
                position = file.tell()
            yield from (line + b"\n" for line in lines)
        if more:
            time.sleep(_POLL_SECONDS)
    if rest:
        yield rest
