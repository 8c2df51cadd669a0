"""Models of users' own whose steps pause: training that tests only want to be there leaves the cores to Kubernetes.

A trainer takes all of a core that it gets, and four tests at a time may share two cores with their cluster: pods that
start, which tests wait for, would contend with training that nobody looks at.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from paced import paced_digits

PACED_DIGITS: Final = {"entrypoint": "paced:digits"}
MOUNT: Final = "/models-of-tests"
MODELS: Final = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "models"},
    "data": {"paced.py": paced_digits(0.04)},
}


def with_models(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a template whose container can import these models, where `MODELS` is in the namespace."""
    found: dict[str, Any] = copy.deepcopy(dict(template))
    container = found["spec"]["containers"][0]
    container.setdefault("env", []).append({"name": "PYTHONPATH", "value": MOUNT})
    container.setdefault("volumeMounts", []).append({"name": "models", "mountPath": MOUNT})
    found["spec"].setdefault("volumes", []).append({"name": "models", "configMap": {"name": "models"}})
    return found
