"""The benchmarks of answers and of joint placement run to their ends."""

from __future__ import annotations

import pytest

from bench.cases import joint
from bench.command import main
from espalier_lab.scheduling.placement.tasks import Family


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
