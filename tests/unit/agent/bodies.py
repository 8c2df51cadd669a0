"""Requests to the service: their bodies, and as it reads them."""

from __future__ import annotations

from typing import Any

from espalier_agent.data import named_architecture
from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import AdviceRequest

QUESTION: dict[str, Any] = {
    "job": "cifar10",
    "architecture": named_architecture("cnn1").to_json(),
    "timeLeftSeconds": 330.0,
    "timeBudgetSeconds": 400.0,
    "allocation": {"generation": 2, "replicas": 2, "gpus": 2, "direction": "up"},
    "progress": {"epoch": 3, "step": 300, "metrics": [{"name": "accuracy", "value": 0.5}]},
}
OUTCOME: dict[str, Any] = {"job": "cifar10", "decisionIds": ["a", "b"], "finalAccuracy": 0.9, "timeBudgetSeconds": 20}


def ask(architecture: Architecture, left: float = 60.0, **changes: Any) -> AdviceRequest:
    """Return what a trainer asks about a model with so many seconds left of 100."""
    fields = {"job": "job", "architecture": architecture, "time_left_seconds": left, "time_budget_seconds": 100.0}
    return AdviceRequest.model_validate({**fields, **changes})
