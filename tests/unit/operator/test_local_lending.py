"""Local runs with real processes: GPUs come, are lent, asked back, and go."""

from __future__ import annotations

import itertools
import json

import pytest

from espalier_core.types.allocation import Direction
from espalier_core.types.events import AllocationAcknowledged, AllocationChanged, GPUsChanged, JobChanged
from espalier_core.types.reasons import Reason
from espalier_core.types.result import read_history
from espalier_core.types.status import JobPhase
from espalier_operator.local import GpuChange
from espalier_operator.local.files import HISTORY_FILE

pytestmark = pytest.mark.slow


GRANTED = (1, Direction.UP, Reason.GPUS_GRANTED)
LENT = (2, Direction.UP, Reason.EXTRA_GPUS_GRANTED)
LOST = (1, Direction.DOWN, Reason.GPU_LOST)


def changes(story, job):
    """Return (replicas, direction, reason) of each allocation."""
    return [
        (event.allocation.replicas, event.allocation.direction, event.allocation.reason)
        for event in story.told(job, AllocationChanged)
    ]


def acknowledged(story, job, generation):
    """Return whether the job's leader has answered that allocation."""
    return generation in [event.generation for event in story.told(job, AllocationAcknowledged)]


def has_ended(story, name):
    return any(job.name == name and job.phase is JobPhase.COMPLETE for job in story.jobs)


def test_a_run_whose_jobs_have_ended_waits_for_no_gpu(local_run, job_of):
    story = local_run([job_of("one", timeBudgetSeconds=0.3)], changes=(GpuChange(at_seconds=10_000, change=1),))
    assert story.outcomes["one"].reason is Reason.BUDGET_EXHAUSTED


def test_a_gpu_that_arrives_is_lent_and_acknowledged(local_run, job_of):
    story = local_run(
        [job_of("one", maxReplicas=2, timeBudgetSeconds=600)],
        lambda story: acknowledged(story, "one", 2),
        changes=(GpuChange(at_seconds=0.5, change=1),),
    )
    assert changes(story, "one") == [GRANTED, LENT]
    arrival, lent = story.told("one", GPUsChanged)[0], story.told("one", AllocationChanged)[1]
    assert arrival.used_seconds >= 0.4, "start-up must not eat the timeline"
    assert lent.used_seconds >= arrival.used_seconds
    assert [event.generation for event in story.told("one", AllocationAcknowledged)] == [1, 2]
    outcome = story.outcomes["one"]
    assert outcome.used_seconds < outcome.gpu_seconds_used < 2 * outcome.used_seconds
    kept = read_history(local_run.directory / HISTORY_FILE)
    assert story.told("one", AllocationChanged) == [event for event in kept if isinstance(event, AllocationChanged)]


def test_a_second_job_gets_the_lent_gpu_after_notice_and_acknowledgement(local_run, job_of):
    # Time enough to acknowledge on a busy machine.
    preemption = {"noticeSeconds": 60, "cooldownSeconds": 0.2, "minRuntimeSeconds": 0.2}
    first = job_of("first", maxReplicas=2, preemption=preemption, timeBudgetSeconds=600)
    story = local_run(
        [first, job_of("second", timeBudgetSeconds=0.5)],
        lambda story: has_ended(story, "second"),
        gpus=2,
        submit_at={"second": 0.7},
    )
    assert changes(story, "first")[:3] == [GRANTED, LENT, (1, Direction.DOWN, Reason.NEEDED_BY_OTHER_JOB)]
    notice = story.told("first", AllocationChanged)[2]
    answers = {event.generation: event for event in story.told("first", AllocationAcknowledged)}
    answer = answers[notice.allocation.generation]
    granted = story.told("second", AllocationChanged)[0]
    assert answer.time <= granted.time < notice.allocation.deadline
    assert story.outcomes["first"].preemptions == 0
    assert all(sum(job.gpus for job in view.jobs) <= 2 for view in story.views)


def test_an_announced_departure_is_a_reclaim_with_the_departure_as_deadline(local_run, job_of):
    story = local_run(
        [job_of("one", maxReplicas=2, timeBudgetSeconds=600)],
        lambda story: story.told("one", GPUsChanged),
        gpus=2,
        changes=(GpuChange(at_seconds=5, change=-1, notice_seconds=4),),
    )
    assert changes(story, "one")[2] == LOST
    notice, gone = story.told("one", AllocationChanged)[2], story.told("one", GPUsChanged)[0]
    assert notice.allocation.deadline is not None
    assert notice.time < min(gone.time, notice.allocation.deadline)
    assert story.outcomes["one"].preemptions == 0


def test_a_job_whose_base_gpu_is_gone_waits_again_with_its_budget_kept(local_run, job_of):
    """Two of three GPUs vanish: what was lent goes first, then the base of the lower priority."""
    story = local_run(
        [job_of("high", maxReplicas=2, priority=1, timeBudgetSeconds=5), job_of("low", timeBudgetSeconds=3.5)],
        gpus=3,
        changes=(GpuChange(at_seconds=3, change=-2),),  # when both have begun, also where processes start slowly
    )
    assert changes(story, "high")[1:] == [LENT, LOST]
    assert changes(story, "low")[1:] == [(0, Direction.DOWN, Reason.GPU_LOST), GRANTED]
    assert {o.reason for o in story.outcomes.values()} == {Reason.BUDGET_EXHAUSTED}
    assert story.outcomes["low"].used_seconds >= 3.3
    assert (story.outcomes["high"].restarts, story.outcomes["low"].failures) == (0, 0)
    phases = [phase for phase, _ in itertools.groupby(event.phase for event in story.told("low", JobChanged))]
    assert phases == ["Starting", "Running", "Pending", "Starting", "Running", "Complete"]


def test_a_job_that_can_never_fit_ends_the_run_with_its_reason(local_run, job_of):
    story = local_run([job_of("huge", minReplicas=3, maxReplicas=3)], gpus=2)
    assert (story.outcomes["huge"].phase, story.outcomes["huge"].reason) == (JobPhase.PENDING, Reason.TOO_LARGE)


def test_a_job_too_large_for_now_waits_for_gpus_to_come(local_run, job_of):
    story = local_run(
        [job_of("wide", minReplicas=2, maxReplicas=2, timeBudgetSeconds=0.5)],
        changes=(GpuChange(at_seconds=0.5, change=1),),
    )
    assert story.outcomes["wide"].reason is Reason.BUDGET_EXHAUSTED
    wide = story.outcomes["wide"]
    assert wide.gpu_seconds_used > 1.5 * wide.used_seconds


def test_time_scale_makes_budgets_and_arrivals_pass_faster(local_run, job_of):
    story = local_run(
        [job_of("fast", maxReplicas=2, timeBudgetSeconds=4000)],
        time_scale=1000.0,
        changes=(GpuChange(at_seconds=1000, change=1),),
    )
    assert story.told("fast", GPUsChanged)[0].used_seconds >= 1000
    assert story.outcomes["fast"].used_seconds >= 4000
    # In wall time the run would have been cut off after two minutes.


def test_real_devices_are_named_to_the_leader(local_run, job_of):
    local_run([job_of("one", minReplicas=2, maxReplicas=2, timeBudgetSeconds=0.3)], gpus=2, devices=("3", "5"), seed=7)
    environment = json.loads((local_run.directory / "checkpoints" / "environment.json").read_text())
    assert environment["CUDA_VISIBLE_DEVICES"] == "3,5"
    assert environment["ESPALIER_SEED"] == "7"


def test_simulated_gpus_hide_the_real_ones_from_all_workers(local_run, job_of, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    local_run([job_of("one", timeBudgetSeconds=0.3)], gpus=1, hide_devices=True)
    environment = json.loads((local_run.directory / "checkpoints" / "environment.json").read_text())
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
