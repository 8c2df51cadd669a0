"""Measurements as a leader reports them: what an operator refuses."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from espalier_core.files.documents import DocumentError, dumps, loads
from espalier_core.types.measurements import MAX_CONFIGURATIONS, MAX_LOSS_POINTS, GradientNoise
from espalier_core.types.report import Report

SPEED = {
    "nodes": 1,
    "workers": 2,
    "batchSize": 32,
    "parameters": 10,
    "steps": 5,
    "stepSeconds": 0.5,
    "syncSeconds": 0.1,
}


def read(measurements: dict[str, Any]) -> Report:
    body = json.loads(dumps(Report(job="a/b", incarnation="x", updated_time=datetime(2027, 1, 1, tzinfo=UTC))))
    body.pop("measurements")
    return loads(json.dumps(body | measurements), Report, "a report")


def test_a_report_of_an_older_trainer_has_none() -> None:
    assert read({}).measurements.is_empty
    assert read({"measurements": {"speeds": [SPEED]}}).measurements.speeds[0].workers == 2


@pytest.mark.parametrize(
    "measurements",
    [
        {"speeds": [SPEED | {"stepSeconds": 0}]},
        {"speeds": [SPEED | {"stepSeconds": float("inf")}]},
        {"speeds": [SPEED | {"syncSeconds": -1}]},
        {"speeds": [SPEED | {"workers": 0}]},
        {"speeds": [SPEED | {"steps": 10**40}]},
        {"speeds": [SPEED] * (MAX_CONFIGURATIONS + 1)},
        {"gradient": {"squaredNorm": float("nan"), "variance": 1, "samples": 1}},
        {"gradient": {"squaredNorm": 1, "variance": -1, "samples": 1}},
        {"losses": [{"epoch": 0, "step": 0, "loss": float("nan")}]},
        {"losses": [{"epoch": 0, "step": 0, "loss": 1}] * (MAX_LOSS_POINTS + 1)},
    ],
)
def test_what_cannot_have_been_measured_is_refused(measurements: dict[str, Any]) -> None:
    with pytest.raises(DocumentError, match="measurements"):
        read({"measurements": measurements})


def test_the_noise_scale_is_unknown_where_the_noise_hides_the_gradient() -> None:
    assert GradientNoise(squared_norm=2, variance=8, samples=1).noise_scale == 4
    assert GradientNoise(squared_norm=0, variance=8, samples=1).noise_scale is None
    assert GradientNoise(squared_norm=5e-324, variance=1e308, samples=1).noise_scale is None
