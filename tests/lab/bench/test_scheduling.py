"""Benchmarks of scheduling run to their ends, and judge on what they did not learn or choose by."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.cases import joint, learned_workers, placement, wishes
from bench.cases.learned_workers import Trace, Workloads
from bench.command import main
from espalier_lab.scheduling.learned.files import read_policy
from espalier_lab.scheduling.learners.learner import LearnerSettings
from espalier_lab.scheduling.placement.beliefs import wide_prior
from espalier_lab.scheduling.placement.cluster import PlacementCluster
from espalier_lab.scheduling.placement.tasks import Family, PlacementEpisode, episode
from espalier_lab.scheduling.seed_split import SeedSplit
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_operator.policies.view import Elasticity

SMALL = LearnerSettings(teacher="emptiest", imitated=16, kept=1.0, episodes=2, steps=8, minibatch=8)


def test_the_benchmark_of_answers_prints_a_row_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    main(["answers", "--quick"])
    printed = capsys.readouterr().out
    assert "6 jobs, 16 GPUs" in printed
    assert "8 jobs, 8 GPUs" in printed


def test_the_benchmark_of_joint_placement_compares_both_ways(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(joint, "FAMILY", Family(nodes=6, jobs=6))
    monkeypatch.setattr(joint, "GANGS", 4)
    main(["joint", "--quick", "--bursts", "3", "--repeats", "2"])
    printed = capsys.readouterr().out
    for name in ("A burst of 4 jobs", "Bursts of 3 jobs, 2 episodes", "one by one", "together", "online", "oracle"):
        assert name in printed


def test_the_benchmark_of_wishes_prints_a_table_for_each_load(
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


def test_the_benchmark_of_placement_prints_a_table_for_each_kind_of_episode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(placement, "FAMILY", Family(jobs=8))
    monkeypatch.setattr(placement, "SETTINGS", SMALL)
    sizes = ["--train", "2", "--choose", "1", "--judge", "2", "--seeds", "1", "--decisions", "16"]
    main(["placement", *sizes, "--picture", str(tmp_path / "placement.png")])
    assert (tmp_path / "placement.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    for title in ("one cluster", "cluster and workload change in the middle"):
        assert title in printed
    for name in (
        "consolidate",
        "random",
        "frozen",
        "online",
        "learnt prior",
        "learnt prior, nodes kept whole",
        "true prior",
        "slow nodes known",
        "RL2, frozen",
        "oracle, nodes kept whole",
    ):
        assert printed.count(name) >= 2


def test_a_run_that_was_stopped_goes_on_with_what_it_had_learnt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    family = Family(jobs=8)
    monkeypatch.setattr(placement, "SETTINGS", SMALL)
    first, again = (placement.actor(1, 16, tmp_path, family) for _ in range(2))
    assert capsys.readouterr().out.count("read from") == 1
    for name, weights in first.state_dict().items():
        assert torch.equal(weights, again.state_dict()[name])
    placement.actor(1, 32, tmp_path, family)
    placement.actor(1, 16, tmp_path, Family(jobs=8, load=0.5))
    assert "read from" not in capsys.readouterr().out


def test_without_seeds_there_are_no_rows_of_learners() -> None:
    with placement.workers(1) as pool:
        assert placement.reinforced(pool, [], 1, Family(), shift=False) == {}


def test_the_benchmark_of_learned_workers_prints_a_table_for_each_load_and_one_for_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    read, asked = Workloads.jobs, list[Trace]()

    def few(self: Workloads, trace: Trace, elasticity: Elasticity = Elasticity.WORKERS) -> list[SimulatedJob]:
        asked.append(trace)
        # Without the applications whose step times take long to interpolate.
        return [job for job in read(self, trace, elasticity) if job.name.startswith("ncf")][:4]

    small = LearnerSettings(teacher="soonest", kept=1.0, imitation_epochs=1, episodes=2, steps=8)
    monkeypatch.setattr(Workloads, "jobs", few)
    monkeypatch.setattr(learned_workers, "SETTINGS", small)
    monkeypatch.setattr(learned_workers, "RULES", ("optimus", "soonest"))
    sizes = ["--seeds", "1", "--imitated", "40", "--decisions", "16", "--loads", "0.5"]
    main(["learned-workers", *sizes, "--work-dir", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "load 0.5: 4 traces" in printed
    for name in ("optimus", "soonest", "imitation", "learned", "published Pollux"):
        assert f"  {name} " in printed
    kept = read_policy(tmp_path / "learned-3-6-0.safetensors").lineage
    assert kept.learnt_from == "Pollux' workloads 3 and 6 at three loads, mixed"
    assert {workload for _, workload in asked} == {"1", "2", "3", "6"}
