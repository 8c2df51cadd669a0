"""The benchmark of a policy file's wishes runs to its end, and judges on episodes that it did not choose by."""

from __future__ import annotations

import pytest

from bench.cases import wishes
from bench.command import main
from espalier_lab.scheduling.placement.beliefs import wide_prior
from espalier_lab.scheduling.placement.cluster import PlacementCluster
from espalier_lab.scheduling.placement.tasks import Family, PlacementEpisode, episode
from espalier_lab.scheduling.seed_split import SeedSplit


def test_the_benchmark_prints_a_table_for_each_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[SeedSplit, list[float]] = {purpose: [] for purpose in SeedSplit}

    def drawn(family: Family, purpose: SeedSplit, index: int) -> PlacementEpisode:
        seen[purpose].append(family.load)
        return episode(family, purpose, index)

    monkeypatch.setattr(wishes, "Family", lambda load=0.35: Family(load=load, jobs=8))
    monkeypatch.setattr(wishes, "episode", drawn)
    main(["wishes", "--quick"])
    printed = capsys.readouterr().out
    for title in ("Load 0.35, 2 episodes", "Load 0.5, 2 episodes", "Load 0.7, 2 episodes"):
        assert title in printed
    for name in ("consolidate", "first-fit", "emptiest", "wishes", "wishes, nodes kept whole"):
        assert f"  {name} " in printed
    assert set(seen[SeedSplit.CHOOSE]) == {0.35, 0.5}
    assert set(seen[SeedSplit.JUDGE]) == {0.35, 0.5, 0.7}


def test_jobs_run_where_the_file_wishes() -> None:
    cluster = PlacementCluster(episode(Family(jobs=20), SeedSplit.TRAIN, 1))
    assert wishes.by_wishes(cluster, wide_prior(), 1.0) == pytest.approx(cluster.job_seconds / 20)
