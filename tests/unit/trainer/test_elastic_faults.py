"""Faults at bad moments, with real processes: reclaim while it grows, growth while it saves, frozen leaders."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from trainer_processes import ASKS, Workplace, ended, meet, members, until

pytestmark = pytest.mark.slow


def epochs_of(place: Workplace, incarnation: int) -> list[Any]:
    """Return the epochs that ended under the leader's process of this number."""
    events = place.events()
    starts = [*(number for number, event in enumerate(events) if event.type == "TrainerStarted"), len(events)]
    if len(starts) < incarnation + 2:
        return []
    return [event for event in events[starts[incarnation] : starts[incarnation + 1]] if event.type == "EpochFinished"]


GROWS_WHEN_TAKEN_BACK = """
import time
from pathlib import Path
from espalier_trainer.training.network import Network
from espalier_trainer.signals.scheduler import DocumentScheduler
schedulers = []
begin = DocumentScheduler.__post_init__
def post_init(self):
    begin(self)
    schedulers.append(self)
DocumentScheduler.__post_init__ = post_init
at_once = Network.grown
def grown(self, *given):
    Path({folder!r}, "growing").touch()
    while max(source.latest().allocation.generation for source in schedulers[-1].sources) < 3:
        time.sleep(0.01)
    return at_once(self, *given)
Network.grown = grown
"""
"""The leader grows its model no sooner than it has got the allocation of generation 3."""


def test_gpus_that_are_taken_back_while_the_model_grows(elastic):
    place = elastic(grows=True)
    place.prelude = GROWS_WHEN_TAKEN_BACK.format(folder=str(place.folder))
    place.allocate(1)
    leader = place.start()
    place.start(0)
    until(lambda: place.steps > 0, place)
    place.allocate(2)
    until((place.folder / "growing").exists, place)
    place.allocate(1)
    until(lambda: place.report().acknowledged_generation == 3, place)
    place.trains_on()
    assert members(place)[-1:] in ([], [1])
    # The growth was not lost, and the next worker gets the grown model.
    grown = place.report()
    assert [each.result for each in grown.adaptations] == ["Grown"]
    place.allocate(2)
    until(lambda: members(place)[-1:] == [2], place)
    place.trains_on()
    assert place.report().depth >= grown.depth > grown.adaptations[0].depth_before
    assert "MembersDiffer" not in place.log
    assert leader.is_alive()


def test_a_model_that_grows_while_its_checkpoints_are_written(elastic):
    """A checkpoint at every boundary, slow ones, and a leader that dies among them: what is there is whole."""
    slow = """
import time
from espalier_trainer.checkpoints.store import CheckpointStore
quick = CheckpointStore.save
def save(self, checkpoint):
    time.sleep(0.05)
    return quick(self, checkpoint)
CheckpointStore.save = save
"""
    place = elastic(grows=True, prelude=slow, checkpoint={"intervalSeconds": 0.05})
    place.allocate(1)
    leader = place.start()
    extra = place.start(0)
    until(lambda: place.steps > 0, place)
    place.allocate(2)
    report = until(lambda: found if len((found := place.report()).adaptations) == 2 else None, place)
    assert [each.result for each in report.adaptations] == ["Grown", "Grown"]
    until(lambda: members(place)[-1:] == [2], place)
    until(lambda: [one for one in place.events() if one.type == "CheckpointSaved" and one.step > report.step], place)
    # All are gone: the last checkpoint, of the grown model.
    for process in (leader, extra):
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    before = place.steps
    place.start()
    first = until(lambda: epochs_of(place, 1), place)[0]
    assert first.depth == report.depth
    assert first.step > 20
    assert "CheckpointDamaged" not in place.log
    until(lambda: place.steps > before, place)


def test_a_worker_that_waits_hears_its_end_while_the_leader_is_frozen(elastic):
    place = elastic()
    place.allocate(1)
    leader = place.start()
    place.prelude = ASKS.format(folder=str(place.folder))
    extra = place.start(0)
    until(lambda: list(place.folder.glob("asks-*")), place)
    os.kill(leader.pid, signal.SIGSTOP)
    os.kill(extra.pid, signal.SIGTERM)
    assert ended(extra, place) == 0


def test_a_worker_finds_the_successor_of_a_leader_that_is_frozen(elastic):
    hasty = "import espalier_trainer.elastic.group as g; g.COLLECTIVE_SECONDS = 1.0"
    place = elastic(prelude=hasty, checkpoint={"intervalSeconds": 3600})
    leader, extra = meet(place)
    place.trains_on()
    before = place.steps
    os.kill(leader.pid, signal.SIGSTOP)
    until(lambda: "the leader is away" in place.logs(0), place)
    place.start()
    first = until(lambda: epochs_of(place, 1), place)[0]
    assert first.step >= before  # nothing was saved: it is the worker that held it, perhaps at the end of an epoch
    until(lambda: members(place)[-1:] == [2], place)
    assert extra.is_alive()


def test_a_worker_whose_leader_was_away_for_long_comes_as_a_newcomer(elastic):
    hasty = "import espalier_trainer.elastic.member as m; m.PATIENCE_SECONDS = 1.0"
    place = elastic(prelude=hasty, checkpoint={"intervalSeconds": 3600})
    leader, extra = meet(place)
    place.trains_on()
    os.kill(leader.pid, signal.SIGKILL)
    leader.join()
    until(lambda: "this worker drops its state" in place.logs(0), place)
    known = len(members(place))
    place.start()
    until(lambda: members(place)[known:][-1:] == [2], place)
    place.trains_on()
    started = [event for event in place.events() if event.type == "TrainerStarted"]
    assert [(event.step, event.resumed) for event in started] == [(0, False)] * 2
    assert extra.is_alive()
