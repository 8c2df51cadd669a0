"""The benchmarks of answers and of joint placement run to their ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Benchmarks are no package of the workspace.
sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import answers
import joint

from espalier_lab.scheduling.placement.tasks import Family


def test_the_benchmark_of_answers_prints_a_row_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    answers.main(["--repeats", "1", "--sizes", "6:16", "8:8"])
    printed = capsys.readouterr().out
    assert "6 jobs, 16 GPUs" in printed
    assert "8 jobs, 8 GPUs" in printed


def test_the_benchmark_of_joint_placement_compares_both_ways(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(joint, "FAMILY", Family(nodes=6, jobs=6))
    monkeypatch.setattr(joint, "GANGS", 4)
    joint.main(["--episodes", "2", "--bursts", "3", "--repeats", "2"])
    printed = capsys.readouterr().out
    for name in ("A burst of 4 jobs", "Bursts of 3 jobs, 2 episodes", "one by one", "together", "online", "oracle"):
        assert name in printed
