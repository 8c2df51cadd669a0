"""A user's package as an installer leaves it: modules and a dist-info folder with entry points, on the path."""

from __future__ import annotations

from pathlib import Path

import pytest

SITE = Path(__file__).parent / "site"


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SITE))
    monkeypatch.setenv("PYTHONPATH", str(SITE))
