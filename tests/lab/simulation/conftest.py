"""Traces and profiles of the Pollux artifact and of Gavel (tests/data)."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from espalier_lab.simulator.profiles import Profiles


@pytest.fixture(scope="session")
def pollux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("pollux", tmp_path_factory)


@pytest.fixture(scope="session")
def gavel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("gavel", tmp_path_factory)


@pytest.fixture(scope="session")
def profiles(pollux: Path) -> Profiles:
    return Profiles(pollux / "traces")


def unpacked(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    with tarfile.open(Path(__file__).parents[2] / "data" / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name
