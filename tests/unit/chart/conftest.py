"""A real helm for the tests of this folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Tests have no package: their shared parts are imported from beside them.
sys.path.insert(0, str(Path(__file__).parent))

from charts import Helm, NoHelmError


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Give helm. In CI it fails where there is none, elsewhere tests are skipped."""
    try:
        return Helm(tmp_path_factory.mktemp("helm"))
    except NoHelmError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
