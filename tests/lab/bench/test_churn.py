"""The benchmark of policies for spare GPUs that come and go: what jobs read of trained models, and who is lent GPUs."""

from __future__ import annotations

import pytest

from bench.cases.churn import POLICIES, SPARE, others, play, table
from bench.learning_job import ASKED, FINAL, GROWN_AT, MARKS, Advice, Course, LearningJob, Trained, Workload
from espalier_core.types.measurements import GrowthForecast
from espalier_core.types.task import Task
from espalier_trainer.growth.forecasting import NOTHING


def falling(floor: float, cost: float = 1.0) -> Course:
    return Course(errors=tuple(floor + 0.5 / min(mark, MARKS) for mark in range(1, FINAL + 1)), cost=cost)


def workload(gains: float, place: int = 0, task: Task = Task.CLASSIFICATION) -> Workload:
    """Return a job whose model gains this much by growing, as the policy knows; workers hardly gain anything."""
    grows = GrowthForecast(gain=gains, low=gains, high=gains, seconds=0.0) if gains else NOTHING
    model = Trained(
        name=f"{gains}",
        task=task,
        alone=falling(0.3),
        fast=falling(0.29),
        grown={mark: falling(0.3 - gains, cost=1.5) for mark in (0, *GROWN_AT)},
        advice=(Advice(grows=gains > 0, forecast=grows),) * (MARKS // ASKED - 1),
    )
    return Workload(f"job-{place}", model, submitted_at=0.0, seconds=3000.0, step_seconds=lambda workers: 1 / workers)


def test_jobs_read_scores_between_trained_runs_and_are_lent_gpus_for_what_gains() -> None:
    spans = [(job.submitted_at, job.submitted_at + job.seconds_alone()) for job in others(0)]
    assert max(sum(begin <= second < end for begin, end in spans) for second in range(0, 9000, 7)) == SPARE - 1
    grows, still = workload(0.2, 0), workload(0.0, 1)
    assert grows.error(FINAL, 2.5, None) == pytest.approx(grows.model.fast.error(FINAL))
    assert grows.error(FINAL, 1.0, GROWN_AT[0]) == pytest.approx(grows.model.grown[GROWN_AT[0]].error(FINAL))
    late = [grows.error(FINAL, 1.0, mark) for mark in range(GROWN_AT[-1], FINAL + 1)]
    assert late == sorted(late), "growing gains less and less"
    found = {policy: [play(policy, 0, [grows, still])] for policy in POLICIES}
    for policy, [jobs] in found.items():
        assert [job.grew for job in jobs] == [True, False], policy
        assert jobs[0].final < grows.model.alone.error(FINAL), policy
    assert found["growth"][0][1].lent_hours < 0.02 < 0.3 < found["fair"][0][1].lent_hours, "its bid is for nothing"
    assert found["value"][0][0].fixed == pytest.approx(found["value"][0][0].final, rel=0.1)
    assert "value minus it" in table(found).text()


@pytest.mark.parametrize("gains", [0.2, -0.2])
def test_a_race_takes_the_extra_worker_and_ends_with_what_validates_better(gains: float) -> None:
    """The base trains on meanwhile; with only the base worker left, the race is over."""
    job, left = (LearningJob(workload(gains, task=Task.LANGUAGE_MODEL)) for _ in range(2))
    for each, workers in ((job, 2), (left, 1)):
        each.place((2,))
        each.advance(0.0, 1500.0)
        each.place((workers,))
        each.advance(1500.0, 3000.0)
    assert job.completed_at is not None
    assert (job.grew, left.grew) == (gains > 0, False)
    assert left.final == pytest.approx(left.workload.model.alone.error(FINAL), rel=0.05), "its extra worker only raced"
