"""Prometheus' own tools for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import tool


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Return promtool."""
    return tool("prometheus", "no promtool to test with; hack/prometheus gets it") / "promtool"
