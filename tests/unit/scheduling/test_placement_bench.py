"""The benchmark of placement runs to its end, and judges on episodes that it did not learn or choose by."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Benchmarks are no package of the workspace.
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import placement

from espalier_scheduling.learners.learner import Settings
from espalier_scheduling.placement.tasks import Family


def test_the_benchmark_prints_a_table_for_each_kind_of_episode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(placement, "FAMILY", Family(jobs=8))
    small = Settings(teacher="emptiest", imitated=16, kept=1.0, episodes=2, steps=8, minibatch=8)
    monkeypatch.setattr(placement, "SETTINGS", small)
    placement.main(["--train", "2", "--choose", "1", "--judge", "2", "--seeds", "1", "--decisions", "16"])
    printed = capsys.readouterr().out
    for title in ("one cluster", "cluster and workload change in the middle"):
        assert title in printed
    for name in (
        "consolidate",
        "random",
        "frozen",
        "online",
        "learnt prior",
        "PPO, fine-tuned",
        "SAC, entropy 0.2, frozen",
        "oracle",
    ):
        assert printed.count(name) >= 2
