"""Finished runs of studies on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from espalier_core.base import Record
from espalier_core.files.documents import DocumentError
from espalier_lab.run_store import InUseError, RunFile, RunFolder, RunStoreError, head_of


class Head(Record):
    job: str
    budget: float


class Run(Record):
    seed: int
    accuracy: float


HEAD = Head(job="digits", budget=20)


def opened(path: Path | None, head: Head | None = HEAD) -> RunFile[int, Run]:
    return RunFile(path, Run, lambda run: run.seed, head)


def test_a_study_continues_from_the_runs_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "runs.jsonl"
    assert head_of(path, Head) is None
    runs = opened(path)
    runs.add(Run(seed=1, accuracy=0.5))
    again = opened(path)
    assert list(again) == [Run(seed=1, accuracy=0.5)]
    assert head_of(path, Head) == HEAD
    assert (1 in again, again.missing([0, 1, 2]), again[1].accuracy) == (True, [0, 2], 0.5)


def test_a_line_that_was_cut_off_is_dropped_and_its_run_made_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    runs = opened(path)
    runs.add(Run(seed=0, accuracy=0.5))
    with path.open("a") as file:
        file.write('{"seed": 1, "acc')
    again = opened(path)
    assert again.missing([0, 1]) == [1]
    again.add(Run(seed=1, accuracy=0.6))
    assert [run.seed for run in opened(path)] == [0, 1]


def test_a_head_that_was_cut_off_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"job": "dig')
    assert list(opened(path)) == []
    assert head_of(path, Head) == HEAD


def test_runs_of_another_study_are_refused_with_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    opened(path)
    with pytest.raises(RunStoreError, match=r"runs\.jsonl: holds other runs; name another file \(budget: 20\.0 there"):
        opened(path, HEAD.model_copy(update={"budget": 10.0}))


def test_a_file_may_have_no_head_and_runs_no_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    opened(path, None).add(Run(seed=0, accuracy=0.5))
    assert list(opened(path, None)) == [Run(seed=0, accuracy=0.5)]
    runs = opened(None)
    runs.add(Run(seed=3, accuracy=0.5))
    assert runs.missing([3, 4]) == [4]


def test_a_folder_has_a_file_for_each_run_and_one_process(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs")
    assert folder.read("0.json", Run) is None
    folder.write("of/0.json", Run(seed=0, accuracy=0.5))
    assert folder.read("of/0.json", Run) == folder.whole("of/0.json", Run) == Run(seed=0, accuracy=0.5)
    (folder.path / "1.json").write_text("{")
    assert folder.whole("1.json", Run) is None
    with pytest.raises(DocumentError):
        folder.read("1.json", Run)
    with folder.held("study"), pytest.raises(InUseError, match="another study works in it"), folder.held("study"):
        pytest.fail("two hold it")
