"""Programs that tests need and this project does not contain; scripts of hack/ find or get them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


def tool(script: str, missing: str) -> Path:
    """Return what a script of hack/ prints: where its tool is.

    In CI it is got where it is missing, and the test fails where it cannot be had. Elsewhere nothing is downloaded or
    built behind a person's back: the test is skipped, and `missing` and the script say how to get it.
    """
    command = [str(PROJECT / "hack" / script), *([] if os.environ.get("CI") else ["--there"])]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if result.returncode == 0:
        return Path(result.stdout.strip())
    text = f"{missing}:\n{result.stderr}"
    if os.environ.get("CI"):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)
