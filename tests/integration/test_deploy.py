"""The manifests of `deploy/` on a real API server: they apply, and their pods pass restricted security."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from apiserver import ApiServer

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Give an API server of its own on which crds/ and deploy/ are applied: nothing would empty the namespace."""
    with ApiServer(kubernetes_binaries, tmp_path_factory.mktemp("deploy")) as server:
        server.install(PROJECT / "crds")
        said = server.kubectl("apply", "--filename", str(PROJECT / "deploy"), check=False)
        assert "rror" not in said
        assert "Warning" not in said, "pod security warns of what it would refuse"
        server.namespace("ns")
        yield server


def test_applying_twice_changes_nothing(installed: ApiServer) -> None:
    said = installed.kubectl("apply", "--filename", str(PROJECT / "deploy"))
    assert all(line.endswith("unchanged") for line in said.splitlines()), said
