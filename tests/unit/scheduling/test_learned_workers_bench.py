"""The benchmark of learned allocation with all-reduce runs to its end, and judges what is held out."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases import learned_workers
from bench.cases.learned_workers import Trace, Workloads
from bench.command import main
from espalier_lab.scheduling.learned.files import read_policy
from espalier_lab.scheduling.learners.learner import LearnerSettings
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_operator.policies.view import Elasticity


def test_the_benchmark_prints_a_table_for_each_load_and_one_for_all(
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
