"""`espalier run` of a loop of a user's own that grows: its extra workers try a growth first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from espalier_api.documents import read_document
from espalier_api.report import Report

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_script" / "growing.yaml"


def test_the_example_races_and_goes_on_with_the_best_copy(espalier: Any, events_of: Any, tmp_path: Path) -> None:
    output = tmp_path / "out"
    code, _, err = espalier("run", EXAMPLE, "--gpus", "3", "--time-budget", "40", "--output", output).finish()
    assert code == 0, err
    (began,) = events_of(output, "TrialsStarted")
    assert began["workers"] == 2
    report = read_document(output / "report.json", Report)
    (decided,) = report.adaptations
    tried = {arm.action: arm.loss for arm in decided.arms}
    assert len(tried) == 2
    assert all(loss is not None and 0 < loss < 3 for loss in tried.values())
    assert decided.result in ("Grown", "Declined")
    assert {metric.name: metric.value for metric in report.metrics}["test_accuracy"] > 0.3
    assert (output / "training.png").exists()
