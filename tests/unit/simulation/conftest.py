"""The workloads and profiles of the Pollux artifact (tests/data)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def pollux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    with tarfile.open(Path(__file__).parents[2] / "data" / "pollux.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "pollux"
