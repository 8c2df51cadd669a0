"""Prometheus' own tools for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Return promtool. In CI it is got where it is missing; elsewhere the tests are skipped, and it is said how."""
    command = [str(PROJECT / "hack" / "prometheus"), *([] if os.environ.get("CI") else ["--there"])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        text = f"no promtool to test with; hack/prometheus gets it:\n{result.stderr}"
        if os.environ.get("CI"):
            pytest.fail(text, pytrace=False)
        pytest.skip(text)
    return Path(result.stdout.strip()) / "promtool"
