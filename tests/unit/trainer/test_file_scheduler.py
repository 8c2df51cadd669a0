"""The allocation file as a trainer reads it, under a clock of the test's."""

from __future__ import annotations

import json
import os

import pytest

from espalier_core.files.documents import dumps, write_document
from espalier_core.types.allocation import Allocation, AllocationDocument, Direction, TimeBudget
from espalier_core.types.reasons import Reason
from espalier_trainer.signals.scheduler import POLL_WALL_SECONDS, AllocationFileSource, DocumentScheduler


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def _document(generation=1, replicas=1, budget=20.0, used=0.0, job="default/t", stop=None):
    return AllocationDocument(
        job=job,
        allocation=Allocation(generation=generation, replicas=replicas, gpus=replicas, reason="ExtraGPUsGranted"),
        time_budget=TimeBudget(budget_seconds=budget, used_seconds=used),
        stop=stop,
    )


def _scheduler(path, job, clock, **options):
    sources = () if path is None else (AllocationFileSource(path, job, clock),)
    return DocumentScheduler(sources, job, clock=clock, **options)


def _asked(scheduler, clock):
    clock.now += 2 * POLL_WALL_SECONDS
    allocation = scheduler.allocation()
    return allocation.generation, allocation.replicas, allocation.direction


def test_whether_to_wait_for_workers_is_as_the_newest_document_has_it(tmp_path, make_job, clock):
    path = tmp_path / "allocation.json"
    scheduler = _scheduler(path, make_job(), clock)
    assert scheduler.waits_for_workers() is False, "there is none"
    for waits in (True, False):
        write_document(path, _document().model_copy(update={"waits_for_workers": waits}))
        clock.now += 2 * POLL_WALL_SECONDS
        assert scheduler.waits_for_workers() is waits


def test_direction_is_what_changed_since_last_asked(tmp_path, make_job, clock):
    path = tmp_path / "allocation.json"
    write_document(path, _document(1, 1))
    scheduler = _scheduler(path, make_job(), clock)
    assert _asked(scheduler, clock) == (1, 1, Direction.NONE)
    write_document(path, _document(2, 3))
    assert _asked(scheduler, clock) == (2, 3, Direction.UP)
    assert _asked(scheduler, clock) == (2, 3, Direction.NONE)
    write_document(path, _document(3, 2))
    write_document(path, _document(4, 1))
    assert _asked(scheduler, clock) == (4, 1, Direction.DOWN)


def test_extra_replicas_found_at_the_start_are_an_up(tmp_path, make_job, clock):
    path = tmp_path / "allocation.json"
    write_document(path, _document(5, 2))
    scheduler = _scheduler(path, make_job(), clock)
    assert _asked(scheduler, clock) == (5, 2, Direction.UP)
    assert scheduler.base_replicas() == 1


def test_file_is_looked_at_no_more_often_than_the_poll_interval(tmp_path, make_job, clock, monkeypatch):
    path = tmp_path / "allocation.json"
    write_document(path, _document())
    scheduler = _scheduler(path, make_job(), clock)
    looks = []
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda *args, **options: (looks.append(args), real(*args, **options))[1])
    for _ in range(1000):
        clock.now += 0.001
        scheduler.allocation()
        scheduler.stop_reason()
    assert 18 <= len([look for look in looks if look[0] == path]) <= 20


def test_budget_is_counted_by_the_trainers_clock_from_its_start(tmp_path, make_job, clock):
    path = tmp_path / "allocation.json"
    write_document(path, _document(budget=20.0, used=3.0))
    scheduler = _scheduler(path, make_job(), clock, time_scale=10.0)
    clock.now += 100
    assert scheduler.time_left() == 17.0  # importing and building are free
    scheduler.start(2.0)
    assert scheduler.used_seconds() == 3.0  # the larger of the two
    clock.now += 0.5
    assert scheduler.time_left() == pytest.approx(12.0)
    assert scheduler.wall_time_left() == pytest.approx(1.2)
    write_document(path, _document(2, budget=20.0, used=19.0))
    clock.now += 0.5
    scheduler.allocation()
    assert scheduler.time_left() == pytest.approx(7.0)  # the document's count is read once
    clock.now += 60
    assert scheduler.time_left() == 0.0
    assert scheduler.used_seconds() > 20


def test_checkpoint_that_knows_more_wins(tmp_path, make_job, clock):
    path = tmp_path / "allocation.json"
    write_document(path, _document(used=3.0))
    scheduler = _scheduler(path, make_job(), clock)
    scheduler.start(5.0)
    assert scheduler.used_seconds() == 5.0


def _older(text: str) -> str:
    return text.replace('"version": 1', '"version": 0')


def _future(text: str) -> str:
    return text.replace('"version": 1', '"version": 2')


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda text: text[: len(text) // 2], "half-written"),
        (lambda text: "", "half-written"),
        (_older, "older"),
        (_future, "newer"),
        (lambda text: json.dumps([1, 2]), "holds list"),
        (lambda text: text.replace("AllocationDocument", "Report"), "is a 'Report'"),
        (lambda text: text.replace('"generation": 2', '"generation": -2'), "allocation.generation"),
        (lambda text: text.replace("default/t", "default/else"), "belongs to job"),
        (lambda text: "\udcff", "not UTF-8"),
    ],
    ids=["half", "empty", "older", "future", "list", "kind", "value", "job", "bytes"],
)
def test_unusable_file_is_warned_about_once_and_the_last_good_one_holds(tmp_path, make_job, clock, spoil, said):
    path = tmp_path / "allocation.json"
    write_document(path, _document(1, 2))
    scheduler = _scheduler(path, make_job(), clock)
    assert _asked(scheduler, clock)[:2] == (1, 2)
    path.write_bytes(spoil(dumps(_document(2, 1))).encode("utf-8", "surrogateescape"))
    for _ in range(3):
        assert _asked(scheduler, clock) == (1, 2, Direction.NONE)
    (warning,) = scheduler.take_warnings()
    assert said in warning
    assert "continuing with allocation generation 1" in warning
    assert scheduler.take_warnings() == ()
    write_document(path, _document(3, 1))
    assert _asked(scheduler, clock) == (3, 1, Direction.DOWN)
    path.write_bytes(b"{")
    _asked(scheduler, clock)
    assert len(scheduler.take_warnings()) == 1  # a new fault is a new warning


def test_missing_file_means_the_jobs_own_budget_and_base(tmp_path, make_job, clock):
    scheduler = _scheduler(tmp_path / "none.json", make_job(timeBudgetSeconds=9, minReplicas=2), clock)
    assert _asked(scheduler, clock) == (0, 2, Direction.NONE)
    assert scheduler.time_budget() == 9
    assert len(scheduler.take_warnings()) == 1
    write_document(tmp_path / "none.json", _document(1, 2, budget=5))
    assert _asked(scheduler, clock) == (1, 2, Direction.NONE)
    assert scheduler.time_budget() == 5


def test_without_a_file_nothing_is_warned_about(make_job, clock):
    scheduler = _scheduler(None, make_job(), clock)
    assert _asked(scheduler, clock) == (0, 1, Direction.NONE)
    assert scheduler.take_warnings() == ()


def test_demand_to_stop(tmp_path, make_job, clock):
    path = tmp_path / "allocation.json"
    write_document(path, _document())
    scheduler = _scheduler(path, make_job(), clock)
    assert not scheduler.stop_reason()
    write_document(path, _document(stop=Reason.SUSPENDED))
    clock.now += 2 * POLL_WALL_SECONDS
    assert scheduler.stop_reason() is Reason.SUSPENDED


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_time_scale_must_be_a_positive_number(make_job, scale):
    with pytest.raises(ValueError, match="time scale"):
        DocumentScheduler((), make_job(), time_scale=scale)
