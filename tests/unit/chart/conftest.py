"""A real helm for the tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Tests have no package: their shared parts are imported from beside them.
sys.path.insert(0, str(Path(__file__).parent))

from charts import Helm, helm_or_skip


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Give helm."""
    return helm_or_skip(tmp_path_factory.mktemp("helm"))
