"""Random events of GPUs, leaders and the run itself on one machine: simulated processes, real files, a moved clock."""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import sweeps
from espalier_core.files.documents import read_document, write_document
from espalier_core.types import environment as names
from espalier_core.types.allocation import AllocationDocument
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_operator.local import LocalRun, LocalSettings

pytestmark = pytest.mark.slow
STEP = 0.5
ENDED = ("Complete", "Failed")
EVENTS = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from((1, 6, 24))),
    st.tuples(st.just("gpus"), st.sampled_from((1, 2, -1, -1, -2))),
    st.tuples(st.just("end"), st.sampled_from((1, 137, -9, 143))),
    st.tuples(st.just("deaf"), st.booleans()),
    st.tuples(st.just("resume"), st.none()),
)


@dataclass
class Leader:
    """A process that trains from its third second, acknowledges and stops as it is told to unless it is `deaf`."""

    files: dict[str, str]
    deaf: bool
    job: str = ""
    age: float = 0.0
    used: float = 0.0
    code: int | None = None
    ends_at: float | None = None
    pid: int = 0

    def poll(self) -> int | None:
        return self.code

    def terminate(self, grace: float) -> None:
        self.ends_at = self.ends_at or self.age + (grace if self.deaf else STEP)

    def kill(self) -> None:
        self.code = -9 if self.code is None else self.code

    def advance(self) -> None:
        if self.code is not None:
            return
        document = read_document(Path(self.files[names.ALLOCATION_FILE]), AllocationDocument)
        self.job = document.job.rpartition("/")[2]
        self.used = self.used if self.age else document.time_budget.used_seconds
        self.age += STEP
        if document.stop is not None and not self.deaf:
            self.terminate(STEP)
        if self.ends_at is not None and self.age >= self.ends_at:
            self.code = -9 if self.deaf else 143
            self.report(TrainerPhase.STOPPED, document, Reason.INTERRUPTED)
        elif self.age > 2.0:
            self.used += STEP
            over = self.used >= document.time_budget.budget_seconds
            self.code = 0 if over else None
            phase = TrainerPhase.COMPLETED if over else TrainerPhase.TRAINING
            self.report(phase, document, Reason.BUDGET_EXHAUSTED if over else None)

    def report(self, phase: TrainerPhase, document: AllocationDocument, reason: Reason | None) -> None:
        said = Report(
            job=document.job,
            incarnation=str(id(self)),
            acknowledged_generation=0 if self.deaf else document.allocation.generation,
            phase=phase,
            reason=reason,
            used_seconds=self.used,
            updated_time=datetime.now(UTC),
        )
        write_document(Path(self.files[names.REPORT_FILE]), said)


@settings(
    max_examples=sweeps.examples(24),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],  # `job_of` only makes jobs
)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=3),
    st.sampled_from(("fair", "las:thresholds=6/15,promote=2")),
    st.lists(EVENTS, max_size=12),
)
def test_whatever_happens_no_gpu_is_held_twice_no_budget_falls_and_every_job_ends(job_of, gpus, sizes, policy, events):
    preemption = {"base": "Checkpoint", "noticeSeconds": 3, "cooldownSeconds": 2, "minRuntimeSeconds": 2}
    jobs = [
        job_of(
            f"job{place}",
            minReplicas=base,
            maxReplicas=base + extra,
            priority=priority,
            timeBudgetSeconds=20 + 10 * place,
            backoffLimit=100,
            preemption=preemption,
        )
        for place, (base, extra, priority) in enumerate(sizes)
    ]
    bases = {job.metadata.name: job.spec.min_replicas for job in jobs}
    leaders = list[Leader]()
    used, generations = defaultdict[str, float](float), defaultdict[str, int](int)
    now, deaf = 0.0, False

    def start(argv: Any, environment: dict[str, str], *_: Path) -> Leader:
        leaders.append(Leader(environment, deaf))
        return leaders[-1]

    def live() -> list[Leader]:
        return [leader for leader in leaders if leader.code is None]

    def opened(directory: str) -> LocalRun:
        waits = {"restart_wall_seconds": 1.0, "start_up_allowance_wall_seconds": 8.0}
        given = LocalSettings(directory=Path(directory), gpus=gpus, policy=policy, agent_command=None, **waits)
        return LocalRun(jobs, given, lambda *_: None, start=start, monotonic=lambda: now)

    def passes(run: LocalRun, steps: int) -> None:
        nonlocal now
        for _ in range(steps):
            now += STEP
            for leader in leaders:
                leader.advance()
            runner.run(run.step())
            view, folders = run.view(), [leader.files[names.JOB_FILE] for leader in live()]
            assert len(folders) == len(set(folders)), "a job has two leaders"
            assert sum(job.gpus for job in view.jobs) <= gpus
            going_on = {leader.job for leader in live() if leader.ends_at is None}
            lacks = [job.name for job in view.jobs if job.name in going_on and job.gpus < bases[job.name]]
            assert lacks == [], "a leader goes on without its job's base GPUs"
            for job in view.jobs:
                assert job.used_seconds >= used[job.name] - 2 * STEP, "a budget fell by more than a kill loses"
                assert job.allocation.generation >= generations[job.name] - 1
                used[job.name], generations[job.name] = job.used_seconds, job.allocation.generation

    def change(run: LocalRun, by: int) -> None:
        nonlocal gpus
        before, gpus = gpus, max(0, gpus + by)
        run.change_gpus(gpus - before)
        passes(run, 1)

    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner:
        run = opened(directory)
        for what, how in events:
            if what == "pass":
                passes(run, how)
            elif what == "gpus":
                change(run, how)
            elif what == "end" and live():
                live()[0].code = how
            elif what == "deaf":
                deaf = how
            elif what == "resume":  # the run was killed, and its leaders with it
                for leader in live():
                    leader.kill()
                run = opened(directory)
        deaf = False
        change(run, 4)
        for _ in range(60):
            passes(run, 24)
            if all(job.phase in ENDED for job in run.view().jobs):
                break
        passes(run, 24)
        assert [(job.phase in ENDED, job.gpus) for job in run.view().jobs] == [(True, 0)] * len(jobs)
        assert live() == []
