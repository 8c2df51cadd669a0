"""The benchmark of placement runs to its end, and judges on episodes that it did not learn or choose by."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.cases import placement
from bench.command import main
from espalier_lab.scheduling.learners.learner import LearnerSettings
from espalier_lab.scheduling.placement.tasks import Family


def test_the_benchmark_prints_a_table_for_each_kind_of_episode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(placement, "FAMILY", Family(jobs=8))
    small = LearnerSettings(teacher="emptiest", imitated=16, kept=1.0, episodes=2, steps=8, minibatch=8)
    monkeypatch.setattr(placement, "SETTINGS", small)
    sizes = ["--train", "2", "--choose", "1", "--judge", "2", "--seeds", "1", "--decisions", "16"]
    main(["placement", *sizes, "--work-dir", str(tmp_path)])
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
        "PPO, fine-tuned",
        "RL2, frozen",
        "SAC, entropy 0.2, frozen",
        "oracle, nodes kept whole",
    ):
        assert printed.count(name) >= 2


def test_a_run_that_was_stopped_goes_on_with_what_it_had_learnt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    family = Family(jobs=8)
    monkeypatch.setattr(
        placement,
        "SETTINGS",
        LearnerSettings(teacher="emptiest", imitated=16, kept=1.0, episodes=2, steps=8, minibatch=8),
    )
    first, again = (placement.actor("RL2", 1, 16, tmp_path, family) for _ in range(2))
    assert capsys.readouterr().out.count("read from") == 1
    for name, weights in first.state_dict().items():
        assert torch.equal(weights, again.state_dict()[name])
    placement.actor("RL2", 1, 32, tmp_path, family)
    placement.actor("RL2", 1, 16, tmp_path, Family(jobs=8, load=0.5))
    placement.actor("SAC, entropy 0.2", 1, 16, tmp_path, family, 0.2)
    assert "read from" not in capsys.readouterr().out


def test_without_seeds_there_are_no_rows_of_learners() -> None:
    with placement.workers(1) as pool:
        assert placement.learnt_actors(pool, placement.LEARNERS, 0, 16, None, Family()) == {}
        assert placement.reinforced(pool, {}, 1, Family(), shift=False) == {}
