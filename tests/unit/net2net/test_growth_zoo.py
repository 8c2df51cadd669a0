"""Models of other people: what `make bench-growth-zoo` measures of all, asserted of the day's sample.

Whatever is offered is exact in eval and in train mode, and no output comes to depend on what it did not depend on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases.growth_zoo import page
from bench.zoo.measured import Row, measured
from bench.zoo.models import cases

PROJECT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow

CASES = cases()
_PACKAGE = {"torch.nn": "torch"}


@pytest.mark.sweep("models of the zoo")
@pytest.mark.parametrize("key", CASES)
def test_growth_of_a_model_is_exact_and_keeps_causality(key: str) -> None:
    case = CASES[key]
    pytest.importorskip(_PACKAGE.get(case.library, case.library))
    row = measured(case)
    tolerance = 1e-7 if row.dtype == "float64" else 1e-5
    assert (row.evaluation or 0.0) <= tolerance
    assert (row.training or 0.0) <= tolerance
    assert row.kept is not False
    assert row.refused or row.layers or row.blocks or row.scaled or row.groups


def test_the_page_has_a_line_for_each_model() -> None:
    text = (PROJECT / "docs" / "reports" / "zoo.md").read_text()
    for case in CASES.values():
        assert f"| {case.name} |" in text, f"docs/reports/zoo.md is stale: {case.key}; run make bench-growth-zoo"
    assert "**lost**" not in text


def test_the_page_tells_what_is_lost_and_what_has_no_place() -> None:
    fine = Row("timm", "one", 1, 2, 0, 3, "", 1e-16, None, "float64", True, 1.0)
    lost = replace(fine, model="two", kept=False, evaluation=0.5)
    none = replace(
        fine, model="three", layers=0, blocks=0, groups=0, refused="no activation", evaluation=None, kept=None
    )
    text = page([fine, lost, none])
    assert "| one | 1 | 2 | 3 | 1e-16 |" in text
    assert "two (**lost**)" in text
    assert "- three (timm): no activation" in text
    assert "1 have none." in text
    assert "is 5e-01" in text
