"""Several sources of one scheduler's word, and the document that a job's status makes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from espalier_core.types.allocation import Allocation, AllocationDocument, Direction, TimeBudget
from espalier_core.types.reasons import Reason
from espalier_trainer.kube.watch import document_of
from espalier_trainer.signals.scheduler import DocumentScheduler


@dataclass
class Said:
    """A source that says what the test says."""

    document: AllocationDocument | None = None
    warnings: list[str] = field(default_factory=list)
    settled: int = 0

    def latest(self) -> AllocationDocument | None:
        return self.document

    def settle(self) -> None:
        self.settled += 1

    def take_warnings(self) -> tuple[str, ...]:
        taken, self.warnings = tuple(self.warnings), []
        return taken

    def says(self, generation, replicas=1, used=0.0, budget=20.0, stop=None):
        self.document = AllocationDocument(
            job="default/t",
            allocation=Allocation(generation=generation, replicas=replicas),
            time_budget=TimeBudget(budget_seconds=budget, used_seconds=used),
            stop=stop,
        )


@pytest.fixture
def sources():
    return Said(), Said()


def _asked(scheduler):
    allocation = scheduler.allocation()
    return allocation.generation, allocation.replicas, allocation.direction


def test_newest_generation_holds_whoever_says_it(sources, make_job):
    watch, file = sources
    scheduler = DocumentScheduler(sources, make_job())
    assert _asked(scheduler) == (0, 1, Direction.NONE)
    file.says(1, 2)
    assert _asked(scheduler) == (1, 2, Direction.UP)
    watch.says(3, 1)
    assert _asked(scheduler) == (3, 1, Direction.DOWN)
    file.says(2, 5)
    assert _asked(scheduler) == (3, 1, Direction.NONE)
    file.says(4, 2)
    assert _asked(scheduler) == (4, 2, Direction.UP)


def test_of_equal_generations_the_first_source_holds(sources, make_job):
    watch, file = sources
    scheduler = DocumentScheduler(sources, make_job())
    file.says(1, budget=20)
    watch.says(1, budget=25)  # the budget was raised; the annotation does not know it yet
    scheduler.allocation()
    assert scheduler.time_budget() == 25


def test_stop_is_heard_from_either(sources, make_job):
    watch, file = sources
    scheduler = DocumentScheduler(sources, make_job())
    watch.says(5)
    file.says(4, stop=Reason.SUSPENDED)
    assert scheduler.stop_reason() is Reason.SUSPENDED
    watch.says(5, stop=Reason.GPU_BUDGET_EXHAUSTED)
    assert scheduler.stop_reason() is Reason.GPU_BUDGET_EXHAUSTED


def test_start_waits_for_all_and_counts_from_the_largest(sources, make_job):
    watch, file = sources
    watch.says(3, used=4.0)
    file.says(2, used=6.0)
    scheduler = DocumentScheduler(sources, make_job(), clock=lambda: 0.0)
    scheduler.start(5.0)
    assert (watch.settled, file.settled) == (1, 1)
    assert scheduler.used_seconds() == 6.0
    again = DocumentScheduler(sources, make_job(), clock=lambda: 0.0)
    again.start(7.0)
    assert again.used_seconds() == 7.0


def test_warnings_of_all_sources_are_taken_once(sources, make_job):
    watch, file = sources
    scheduler = DocumentScheduler(sources, make_job())
    watch.warnings.append("w")
    file.warnings.append("f")
    assert scheduler.take_warnings() == ("w", "f")
    assert scheduler.take_warnings() == ()


STATUS = {
    "allocation": {"generation": 3, "replicas": 2, "gpus": 2, "direction": "up", "later": 1},
    "timeBudget": {"usedSeconds": 1.5, "remainingSeconds": 9, "gpuSecondsUsed": 3},
    "conditions": [{"type": "FromTheFuture"}],
    "scheduling": {"stopping": None, "attempts": "changed its type"},
    "phase": "Unheard-of",
}


def test_status_of_a_newer_operator_is_read_as_far_as_it_is_needed(make_job):
    document = document_of(make_job(), {"spec": {"timeBudgetSeconds": 30, "minReplicas": 2}, "status": STATUS})
    assert document.allocation.generation == 3
    assert document.time_budget.used_seconds == 1.5
    assert document.time_budget.budget_seconds == 30
    assert document.base_replicas == 2
    assert document.stop is None


def test_demand_to_stop_is_part_of_the_status(make_job):
    stopping = {"reason": "Suspended", "deadline": "2030-01-01T00:00:00Z"}
    document = document_of(make_job(), {"status": {**STATUS, "scheduling": {"stopping": stopping}}})
    assert document.stop is Reason.SUSPENDED


@pytest.mark.parametrize(
    ("scheduling", "waits"),
    [({"gated": 1}, True), ({"gated": 1, "trained": True}, False), ({"gated": 0}, False), ({}, False), (None, False)],
)
def test_a_job_waits_for_workers_that_others_hold_until_it_has_trained(make_job, scheduling, waits):
    document = document_of(make_job(), {"status": {**STATUS, "scheduling": scheduling}})
    assert document.waits_for_workers is waits


@pytest.mark.parametrize("manifest", [{}, {"status": None}, {"status": {"phase": "Pending"}}])
def test_job_without_an_allocation_says_nothing(make_job, manifest):
    assert document_of(make_job(), manifest) is None


@pytest.mark.parametrize(
    "status",
    [
        {"allocation": {"generation": -1}},
        {"allocation": "none"},
        {**STATUS, "scheduling": {"stopping": {"reason": "FromTheFuture", "deadline": "2030-01-01T00:00:00Z"}}},
    ],
)
def test_status_that_cannot_be_understood_is_a_value_error(make_job, status):
    with pytest.raises(ValueError, match="validation error"):
        document_of(make_job(), {"status": status})
