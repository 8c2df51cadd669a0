"""Contract files: atomic, versioned, and refused with a reason when they cannot be used."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from espalier_core.files.documents import VERSION, DocumentError, dumps, loads, read_document, write_document
from espalier_core.types.allocation import Allocation, AllocationDocument, Direction, TimeBudget
from espalier_core.types.report import Report

DOCUMENT = AllocationDocument(
    job="default/a",
    allocation=Allocation(generation=3, replicas=2, gpus=2, direction=Direction.UP, reason="ExtraGPUsGranted"),
    time_budget=TimeBudget(budget_seconds=10, used_seconds=2.5),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "allocation.json"
    write_document(path, DOCUMENT)
    assert read_document(path, AllocationDocument) == DOCUMENT
    assert [entry.name for entry in tmp_path.iterdir()] == ["allocation.json"]


def test_another_user_can_read_what_is_written(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_document(tmp_path / "allocation.json", DOCUMENT)
    finally:
        os.umask(before)
    assert (tmp_path / "allocation.json").stat().st_mode & 0o777 == 0o644


def test_time_left_is_never_negative() -> None:
    assert TimeBudget(budget_seconds=1, used_seconds=5).remaining_seconds == 0


def test_a_compact_document_is_one_line_that_says_the_same() -> None:
    text = dumps(DOCUMENT, compact=True)
    assert text.count("\n") == 1
    assert loads(text, AllocationDocument, "x") == DOCUMENT


@pytest.mark.parametrize("compact", [False, True])
def test_every_half_of_a_document_is_refused(compact: bool) -> None:
    text = dumps(DOCUMENT, compact=compact)
    for length in range(len(text.rstrip())):
        with pytest.raises(DocumentError):
            loads(text[:length], AllocationDocument, "allocation.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": VERSION + 1}, "comes from a newer Espalier"),
        ({"version": VERSION - 1}, "is older than any that this Espalier reads"),
        ({"version": None}, "has no version"),
        ({"version": True}, "has no version"),
        ({"kind": "Report"}, "is a 'Report', where a 'AllocationDocument' is expected"),
        ({"timeBudget": {"budgetSeconds": -1}}, "timeBudget.budgetSeconds: Input should be greater than 0"),
    ],
)
def test_other_versions_kinds_and_values_are_refused(change: dict[str, object], message: str) -> None:
    body = json.loads(dumps(DOCUMENT)) | change
    with pytest.raises(DocumentError, match=f"allocation.json: .*{message}"):
        loads(json.dumps(body), AllocationDocument, "allocation.json")


def test_fields_of_a_newer_writer_of_the_same_version_are_left_aside() -> None:
    body = json.loads(dumps(DOCUMENT)) | {"somethingNew": 1}
    assert loads(json.dumps(body), AllocationDocument, "x") == DOCUMENT


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DocumentError, match="not UTF-8"):
        read_document(path, Report)


def test_a_key_that_is_there_twice_is_refused() -> None:
    text = dumps(DOCUMENT)
    with pytest.raises(DocumentError, match="x: key 'generation' appears twice in one object"):
        loads(text.replace('"generation":', '"generation": 1, "generation":'), AllocationDocument, "x")


def test_text_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(DocumentError, match="x: not complete JSON"):
        loads("[" * 200_000, AllocationDocument, "x")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with path.open("wb") as file:
        file.truncate(2**40)  # of holes: it takes no room on the disk
    with pytest.raises(DocumentError, match="report.json: is larger than 64 MiB"):
        read_document(path, Report)


def test_a_reader_beside_a_writer_never_sees_half(tmp_path: Path) -> None:
    path = tmp_path / "allocation.json"
    write_document(path, DOCUMENT)

    def write() -> None:
        for generation in range(100):
            write_document(
                path, DOCUMENT.model_copy(update={"allocation": Allocation(generation=generation, reason="x" * 5000)})
            )

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        read_document(path, AllocationDocument)
    writer.join()
    assert read_document(path, AllocationDocument).allocation.generation == 99


def test_a_device_a_pipe_and_a_link_are_written_to_and_stay_what_they_are(tmp_path: Path) -> None:
    """As root, a rename would put a file in the place of /dev/stdout for every other program, too."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    for name in ("pipe", "link"):
        write_document(tmp_path / name, DOCUMENT)
    reader.join()
    assert read == [dumps(DOCUMENT)]
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert read_document(tmp_path / "file", AllocationDocument) == DOCUMENT
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "link", "pipe"]


def test_a_failed_write_leaves_the_old_document_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "allocation.json"
    write_document(path, DOCUMENT)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_document(path, DOCUMENT.model_copy(update={"job": "default/b"}))
    assert read_document(path, AllocationDocument) == DOCUMENT
    assert [entry.name for entry in tmp_path.iterdir()] == ["allocation.json"]
