"""The reports: each opens with its answer and a figure, they stay short, and figures are those of their tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.cases import reports
from bench.command import main

ROOT = Path(__file__).parents[3]
REPORTS = sorted((ROOT / "docs" / "reports").rglob("*.md"))


@pytest.mark.parametrize("page", REPORTS, ids=lambda page: page.parent.name + "/" + page.name)
def test_a_report_opens_with_five_lines_and_a_figure(page: Path) -> None:
    opening = page.read_text(encoding="utf-8").partition("\n## ")[0].partition("![")
    assert len(re.findall(r"^- ", opening[0], re.M)) == 5, "the answer"
    figure = re.match(r"[^\]]+\]\(([^)]+)\)", opening[2])
    assert figure is not None
    assert (page.parent / figure[1]).is_file()


def test_all_reports_together_are_short() -> None:
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in REPORTS) <= 22_000


def test_figures_are_drawn_from_the_tables_of_the_reports(tmp_path: Path) -> None:
    main(["reports", "--quick", "--to", str(tmp_path)])
    assert {path.stem for path in tmp_path.glob("*.png")} == set(reports.FIGURES)
    assert all((ROOT / "docs" / "reports" / "images" / path.name).is_file() for path in tmp_path.glob("*.png"))


def test_a_table_is_found_by_its_head(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "| other | b |\n| --- | --- |\n| x | 1 |\n\n| a | b |\n| --- | --- |\n| x | 1,024 |\n|  | 0.5 (0.25, 1e-3) |\n"
    )
    ((first, second),) = reports.tables(page, "a | b")
    assert (first[0], second[0]) == ("x", "x")
    assert reports.numbers(first[1]) == [1024]
    assert reports.numbers(second[1]) == [0.5, 0.25, 0.001]
