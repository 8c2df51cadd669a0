"""Whole lives of jobs under the local backend's own code: simulated processes, real files, a clock that is moved.

GPUs come and go, leaders crash, are ended by others, keep silent and do not obey, the scheduler is killed and its run
taken up. After each step nobody holds what does not exist, no budget falls, no generation falls, and no job has two
leaders; left in peace every job ends, and holds nothing.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sweeps
from espalier_core.files.documents import read_document, write_document
from espalier_core.types import environment as names
from espalier_core.types.allocation import AllocationDocument
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_operator.local import LocalRun, LocalSettings

pytestmark = pytest.mark.slow

STEP = 0.5
START_UP = 2.0
BUDGETS = {"a": 30.0, "b": 20.0, "c": 40.0}


@dataclass
class Process:
    """A leader; `World` moves it."""

    files: dict[str, str]
    silent: bool
    deaf: bool
    age: float = 0.0
    used: float = 0.0
    acknowledged: int = 0
    code: int | None = None
    ends_at: float | None = None
    pid: int = 0
    is_ending: bool = field(default=False)

    def poll(self) -> int | None:
        return self.code

    def terminate(self, grace_wall_seconds: float) -> None:
        if not self.is_ending:
            self.is_ending, self.ends_at = True, self.age + (grace_wall_seconds if self.deaf else STEP)

    def kill(self) -> None:
        self.is_ending = True
        self.code = -9 if self.code is None else self.code

    def advance(self) -> None:
        if self.code is not None:
            return
        self.age += STEP
        document = read_document(Path(self.files[names.ALLOCATION_FILE]), AllocationDocument)
        if self.age == STEP:
            self.used = document.time_budget.used_seconds
        if document.stop is not None and not self.deaf:
            self.terminate(STEP)
        if self.ends_at is not None and self.age >= self.ends_at:
            self.report(TrainerPhase.STOPPED, document, Reason.INTERRUPTED)
            self.code = -9 if self.deaf else 143
        elif self.age > START_UP:
            self.used += STEP
            if self.used >= document.time_budget.budget_seconds and not self.silent:
                self.report(TrainerPhase.COMPLETED, document, Reason.BUDGET_EXHAUSTED)
                self.code = 0
            else:
                self.acknowledged = self.acknowledged if self.deaf else document.allocation.generation
                self.report(TrainerPhase.TRAINING, document)

    def report(self, phase: TrainerPhase, document: AllocationDocument, reason: Reason | None = None) -> None:
        if not self.silent:
            said = Report(
                job=document.job,
                incarnation=str(id(self)),
                acknowledged_generation=self.acknowledged,
                phase=phase,
                reason=reason,
                used_seconds=self.used,
                updated_time=datetime.now(UTC),
            )
            write_document(Path(self.files[names.REPORT_FILE]), said)


def job_of(name: str, gpus: int, extra: int, priority: int) -> AdaptiveTrainingJob:
    container = {"name": "trainer", "command": ["trainer"], "resources": {"limits": {"nvidia.com/gpu": 1}}}
    spec = {
        "timeBudgetSeconds": BUDGETS[name],
        "minReplicas": gpus,
        "maxReplicas": gpus + extra,
        "priority": priority,
        "backoffLimit": 100,
        "preemption": {"base": "Checkpoint", "noticeSeconds": 3, "cooldownSeconds": 2, "minRuntimeSeconds": 2},
        "template": {"spec": {"containers": [container]}},
    }
    body = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob", "metadata": {"name": name}}
    return AdaptiveTrainingJob.model_validate({**body, "spec": spec})


class LocalLife(RuleBasedStateMachine):
    """A machine, a local run on it, and what may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.now = 0.0
        self.processes: list[Process] = []
        self.silent = self.deaf = False
        self.used: dict[str, float] = defaultdict(float)
        self.generations: dict[str, int] = defaultdict(int)

    @initialize(
        gpus=st.integers(1, 4),
        sizes=st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=3),
        policy=st.sampled_from(("fair", "las:thresholds=6/15,promote=2")),
    )
    def begin(self, gpus: int, sizes: list[tuple[int, int, int]], policy: str) -> None:
        self.policy = policy
        self.jobs = [job_of(name, *size) for name, size in zip(BUDGETS, sizes, strict=False)]
        self.gpus = gpus
        self.open()

    def open(self) -> None:
        """Begin the run, or take it up."""
        given: dict[str, Any] = {"restart_wall_seconds": 1.0, "start_up_allowance_wall_seconds": 8.0}
        local = LocalSettings(
            directory=Path(self.folder.name), gpus=self.gpus, policy=self.policy, agent_command=None, **given
        )
        self.run = LocalRun(self.jobs, local, lambda *_: None, start=self.start, monotonic=lambda: self.now)

    def start(self, argv: Any, environment: dict[str, str], log: Path, pid_file: Path) -> Process:
        process = Process(environment, self.silent, self.deaf)
        self.processes.append(process)
        return process

    def live(self) -> list[Process]:
        return [process for process in self.processes if process.code is None]

    @rule(seconds=st.sampled_from((0.5, 3.0, 12.0)))
    def time_passes(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP)):
            self.now += STEP
            for process in self.processes:
                process.advance()
            self.runner.run(self.run.step())

    @rule(change=st.sampled_from((1, 2, -1, -1, -2)))
    def gpus_change(self, change: int) -> None:
        before, self.gpus = self.gpus, max(0, self.gpus + change)
        self.run.change_gpus(self.gpus - before)
        self.time_passes(STEP)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), code=st.sampled_from((1, 137, -9, 143)))
    def a_leader_ends(self, data: st.DataObject, code: int) -> None:
        live = self.live()
        live[data.draw(st.integers(0, len(live) - 1))].code = code

    @rule(silent=st.sampled_from((False, False, True)), deaf=st.booleans())
    def the_next_leaders_are_such(self, silent: bool, deaf: bool) -> None:
        self.silent, self.deaf = silent, deaf

    @rule()
    def the_scheduler_is_killed(self) -> None:
        """Its leaders die with it; the same command takes the run up."""
        for process in self.live():
            process.kill()
        remembered = self.run.policy_memory.memory
        self.open()
        assert self.run.policy_memory.memory == remembered

    @invariant()
    def all_is_well(self) -> None:
        if not hasattr(self, "run"):
            return
        folders = [process.files[names.JOB_FILE] for process in self.live()]
        assert len(folders) == len(set(folders)), "a job has two leaders"
        view = self.run.view()
        assert sum(job.gpus for job in view.jobs) <= self.gpus
        for job in view.jobs:
            assert job.used_seconds >= self.used[job.name] - 2 * STEP, "a budget fell by more than a kill loses"
            assert job.allocation.generation >= self.generations[job.name] - 1
            self.used[job.name], self.generations[job.name] = job.used_seconds, job.allocation.generation

    def teardown(self) -> None:
        try:
            if hasattr(self, "run"):
                self.all_end()
        finally:
            self.runner.close()
            self.folder.cleanup()

    def all_end(self) -> None:
        """Left in peace every job ends, and holds nothing."""
        self.silent = self.deaf = False
        self.gpus_change(4)
        for _ in range(60):
            self.time_passes(12.0)
            if all(job.phase in ("Complete", "Failed") for job in self.run.view().jobs):
                break
        self.time_passes(12.0)
        view = self.run.view()
        assert [job.phase for job in view.jobs if job.phase not in ("Complete", "Failed")] == []
        assert {job.gpus for job in view.jobs} == {0}
        assert self.live() == []


LocalLife.TestCase.settings = settings(
    max_examples=sweeps.size("lives of jobs on one machine", 100),
    stateful_step_count=15,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestLocalLife = LocalLife.TestCase


def test_jobs_take_turns_under_a_policy_that_preempts() -> None:
    """Each goes on from where it was when it yielded; at 6 and at 15 GPU-seconds the other is served before."""
    life = LocalLife()
    turns: list[tuple[str, float]] = []
    try:
        life.begin(1, [(1, 0, 0), (1, 0, 0)], "las:thresholds=6/15")
        for _ in range(160):
            life.time_passes(STEP)
            life.all_is_well()
            turns += [
                (job.name, job.used_seconds)
                for job in life.run.view().jobs
                if job.gpus and (not turns or turns[-1][0] != job.name)
            ]
        assert [name for name, _ in turns] == ["a", "b", "a", "b", "a", "b"]
        assert [round(used) // 6 * 6 for _, used in turns] == [0, 0, 6, 6, 12, 12]
    finally:
        life.teardown()
