"""Bodies of requests to the service."""

from __future__ import annotations

from typing import Any

from espalier_agent.data import named_architecture

QUESTION: dict[str, Any] = {
    "job": "cifar10",
    "architecture": named_architecture("cnn1").to_json(),
    "timeLeftSeconds": 330.0,
    "timeBudgetSeconds": 400.0,
    "allocation": {"generation": 2, "replicas": 2, "gpus": 2, "direction": "up"},
    "progress": {"epoch": 3, "step": 300, "metrics": [{"name": "accuracy", "value": 0.5}]},
}
OUTCOME: dict[str, Any] = {"job": "cifar10", "decisionIds": ["a", "b"], "finalAccuracy": 0.9, "timeBudgetSeconds": 20}
