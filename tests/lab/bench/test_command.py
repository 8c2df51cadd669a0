"""The command of the benchmarks: its list, options that all have, tables as text, Markdown and JSON; statistics."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench import command
from bench.command import PICTURE, BenchError, Option, cases, main, parsed
from bench.printing import PROJECT, Table, share
from bench.statistics import interval, paired, saved, spread
from espalier_lab.run_store import RunStoreError


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put a benchmark in the place of all; returns what its `run` was given last."""
    given: dict[str, Any] = {}
    made = ModuleType("case", "What is it? This.\n\nMore.")

    def run(options: argparse.Namespace) -> Iterator[Table | str | dict[str, int]]:
        given.update(vars(options))
        yield Table.of("T", [("name", "name", ""), ("s", "seconds", ".1f")], [{"name": "a", "seconds": 0.25}])
        yield {"more": 1}
        yield "the end"
        if options.loads == [9.0]:
            raise BenchError("too much")
        if options.loads == [8.0]:
            raise RunStoreError("file: holds other runs; name another file")

    vars(made).update(
        OPTIONS={"seeds": Option(5), "loads": Option([0.5, 1.0]), "files": Option([], type=str), "picture": PICTURE},
        QUICK={"seeds": 1},
        run=run,
    )
    monkeypatch.setattr(command, "import_module", lambda _: made)
    return given


def test_all_benchmarks_are_listed_with_their_question(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == cases()
    assert all(line[20:].strip() for line in lines)


@pytest.mark.parametrize("name", cases())
def test_every_benchmark_has_the_options_of_all(name: str) -> None:
    options = parsed(name, ["--quick", "--markdown", "--json", "file", "--work-dir", "folder"])
    assert (options.quick, options.markdown, options.json, options.work_dir) == (
        True,
        True,
        Path("file"),
        Path("folder"),
    )


def test_each_target_of_make_that_pages_name_is_a_benchmark() -> None:
    assert {known[0] for known in command.ALIASES.values()} <= set(cases())


def test_quick_changes_defaults_alone_and_leaves_nothing(case: dict[str, Any]) -> None:
    main(["joint", "--quick"])
    assert (case["seeds"], case["loads"], case["picture"]) == (1, [0.5, 1.0], None)
    assert not case["work_dir"].exists()
    main(["joint", "--quick", "--seeds", "3", "--files", "a", "b", "--files", "c"])
    assert (case["seeds"], case["files"]) == (3, ["a", "b", "c"])


def test_nothing_is_kept_but_the_picture_where_no_folder_is_named(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["joint"])
    assert case["picture"] == Path("runs/joint.png")
    assert not case["work_dir"].exists()
    main(["joint", "--work-dir", "kept"])
    assert Path("kept").is_dir()


def test_runs_are_gone_on_with_where_it_is_checked_that_they_are_of_the_same_options() -> None:
    assert parsed("gpt", []).work_dir == Path("runs/gpt")
    assert parsed("gpt", ["--quick"]).work_dir is None
    assert parsed("joint", []).work_dir is None


def test_figures_are_printed_and_written(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    main(["joint", "--quick", "--markdown", "--json", str(file)])
    printed = capsys.readouterr().out
    assert printed.startswith("command     python -m bench joint --quick --markdown --json")
    assert "| a | 0.2 |\n\nthe end\n" in printed
    document = json.loads(file.read_text())
    assert document["tables"] == [{"title": "T", "rows": [{"name": "a", "seconds": 0.25}]}]
    assert document["more"] == 1
    assert {"command", "machine", "versions", "commit", "minutes"} < set(document)


def test_errors_are_one_line(case: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="error: too much"):
        main(["joint", "--quick", "--loads", "9"])
    with pytest.raises(SystemExit, match="error: file: holds other runs; name another file"):
        main(["joint", "--quick", "--loads", "8"])
    with pytest.raises(SystemExit, match="error: 'none' is no benchmark; `python -m bench` lists them"):
        main(["none"])


def test_tables_for_people_and_as_markdown() -> None:
    rows = [["a", share(0.0312)], ["longer", share(1.0)], ["less", share(-0.5, 2)]]
    table = Table("T", ["", "regret"], rows)
    assert table.text(markdown=True) == (
        "**T**\n\n|  | regret |\n| --- | ---: |\n| a | .0312 |\n| longer | 1.0000 |\n| less | -.50 |\n"
    )
    assert table.text().splitlines()[2:] == ["  a        .0312", "  longer  1.0000", "  less      -.50"]


def test_intervals_are_students() -> None:
    """Five differences of which scipy's own interval is known: mean 3, standard error sqrt(2.5 / 5), t = 2.776."""
    found = paired([1, 2, 3, 4, 5])
    assert (found.mean, found.wins, found.count) == (3, 5, 5)
    assert found.high - 3 == pytest.approx(2.7764 * 0.5**0.5, rel=1e-4)
    assert 3 - found.low == pytest.approx(found.high - 3)
    assert found.cell.startswith("**+3.000")
    # n = 2, deviation √2 about 2: 12.706·√2/√2.
    assert spread([1.0, 3.0]) == {"mean": 2.0, "half_width": pytest.approx(12.7062, rel=1e-5), "n": 2}
    assert (interval([1.0, 3.0], 1), interval([1.0])) == ("2.0 ± 12.7", "1.000")


def test_what_is_saved_is_a_part_of_theirs() -> None:
    assert saved([50, 75], [100, 100]).mean == 37.5


def test_the_project_is_found() -> None:
    assert (PROJECT / "examples" / "digits.yaml").is_file()
