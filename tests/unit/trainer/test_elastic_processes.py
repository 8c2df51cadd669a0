"""Real processes that train together: joining, leaving, dying."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from trainer_processes import ASKS, Workplace, ended, meet, until

pytestmark = pytest.mark.slow
PACE = 0.002


def worlds(place: Workplace) -> list[int]:
    """Return how many members each generation has had."""
    return [int(found) for found in re.findall(r"generation \d+: (\d+) members", place.log)]


def warnings(place: Workplace, reason: str) -> list[str]:
    return [event.message for event in place.events() if getattr(event, "reason", "") == reason]


def first_epoch_of_the_second_leader(place: Workplace) -> int:
    """Return how many steps had been taken when an epoch ended first under the leader that was started again."""
    starts = [number for number, event in enumerate(place.events()) if event.type == "TrainerStarted"]
    ends = until(lambda: [event for event in place.events()[starts[1] :] if event.type == "EpochFinished"], place)
    return int(ends[0].step)


def test_workers_join_and_leave_without_a_restart(elastic):
    place = elastic()
    place.allocate(1)
    leader = place.start()
    until(lambda: place.steps > 20, place)
    extra = place.start(0)
    until(lambda: "is ready" in place.logs(0), place)
    place.trains_on()
    assert worlds(place) == []  # nobody joins before the scheduler grants it
    place.allocate(2)
    until(lambda: worlds(place) == [2], place)
    place.trains_on()
    place.allocate(1)
    until(lambda: worlds(place) == [2, 1] and place.report().acknowledged_generation == 3, place)
    place.trains_on()
    assert leader.is_alive()
    assert extra.is_alive()  # it waits: its GPU is taken by who lent it
    os.kill(extra.pid, signal.SIGTERM)
    assert ended(extra, place) == 0
    os.kill(leader.pid, signal.SIGTERM)
    assert ended(leader, place) == 143


def test_a_worker_that_is_killed_in_a_step_costs_a_moment(elastic):
    # However long a leader waits for members whose connection stands, that of a dead process does not.
    place = elastic(prelude="import espalier_trainer.elastic.generations as t; t.GRACE_SECONDS = 600")
    leader, *extras = meet(place, 2)
    place.trains_on()
    os.kill(extras[1].pid, signal.SIGKILL)
    until(lambda: worlds(place)[-1:] == [2], place)
    place.trains_on()
    assert leader.is_alive()
    assert extras[0].is_alive()


def test_a_newcomer_that_dies_while_it_joins_is_done_without(elastic):
    # However long a leader waits for members that hold a state, it does not wait for one that never had any.
    patient = "import espalier_trainer.elastic.generations as t; t.FORM_SECONDS = t.GRACE_SECONDS = 120"
    place = elastic(prelude=patient)
    place.allocate(2)
    leader = place.start()
    until(lambda: place.steps > 20, place)
    place.prelude = "import espalier_trainer.elastic.member as m; m.align = lambda *given: os._exit(9)"
    dying = place.start(0)
    assert ended(dying, place) == 9
    place.trains_on()
    place.prelude = ""
    place.start(0)
    until(lambda: worlds(place)[-1:] == [2], place)
    place.trains_on()
    assert leader.is_alive()


@pytest.mark.parametrize("patience", [1.0, 600.0])
def test_a_frozen_worker_is_waited_for_or_done_without_and_comes_again(elastic, patience):
    """So is one whose network is cut: members that wait for long go on when it answers, others part and meet again."""
    place = elastic(prelude=f"import espalier_trainer.elastic.group as g; g.COLLECTIVE_SECONDS = {patience}")
    leader, extra = meet(place)
    place.trains_on()
    os.kill(extra.pid, signal.SIGSTOP)
    if patience == 1.0:
        until(lambda: worlds(place)[-1:] == [1], place)
        place.trains_on()
    else:
        time.sleep(2.0)
    os.kill(extra.pid, signal.SIGCONT)
    place.trains_on()
    until(lambda: worlds(place)[-1:] == [2], place)
    assert patience == 1.0 or worlds(place) == [2], "nobody has left"
    place.trains_on()
    finished = [event.step for event in place.events() if event.type == "EpochFinished"]
    assert finished == sorted(finished)  # no step was taken back that had been counted
    assert leader.is_alive()


QUICK = """
from espalier_trainer.elastic.step import GradientSum
finish = GradientSum.finish
GradientSum.finish = lambda self, part, seconds, **rest: finish(self, part, 0.01, **rest)
"""
"""However busy the machine is, this worker is not slow."""

SLOW = """
import time
from torch.nn import functional
quick = functional.cross_entropy
def slow(*given, **named):
    time.sleep(0.2)
    return quick(*given, **named)
functional.cross_entropy = slow
"""
"""A step takes so long, and is measured to do so."""


def test_a_straggler_is_reported(elastic):
    place = elastic(prelude=QUICK)
    place.allocate(2)
    place.start()
    until(lambda: place.steps > 0, place)
    place.prelude = SLOW
    place.start(0)
    assert "extra worker 0 computes" in until(lambda: warnings(place, "StragglerDetected"), place)[0]
    place.trains_on()
    assert worlds(place)[-1] == 2


def test_a_straggler_is_left_out_where_the_job_says_so_and_comes_again(elastic):
    brief = "import espalier_trainer.elastic.membership as s; s.PAUSE_SECONDS, s.STEPS = 1.0, 8\n"
    place = elastic(stragglers="Drop", prelude=brief + QUICK)
    place.allocate(3)
    leader = place.start()
    place.start(0)
    until(lambda: worlds(place)[-1:] == [2], place)
    place.prelude = SLOW
    slow = place.start(1)
    said = until(lambda: len(found := warnings(place, "StragglerDetected")) == 3 and found, place)
    assert ["extra worker 1" in each for each in said] == [True] * 3
    assert [each.partition("excluded for ")[2] for each in said] == ["1 s", "2 s", "good, as it was 2 times before"]
    until(lambda: worlds(place) == [2, 3, 2, 3, 2, 3, 2], place)
    place.trains_on()
    assert worlds(place)[-1] == 2
    assert leader.is_alive()
    assert slow.is_alive()


def test_changes_in_quick_succession(elastic):
    place = elastic()
    leader, *_ = meet(place, 2)
    for replicas in (1, 3, 2, 3, 1, 2):
        place.allocate(replicas)
        time.sleep(0.06)
    until(lambda: worlds(place)[-1:] == [2] and place.report().acknowledged_generation == 7, place)
    place.trains_on()
    assert leader.is_alive()


def test_a_worker_asked_to_end_leaves_between_two_steps(elastic):
    place = elastic()
    _, extra = meet(place)
    place.trains_on()
    os.kill(extra.pid, signal.SIGTERM)
    assert ended(extra, place) == 0
    until(lambda: worlds(place)[-1:] == [1], place)
    place.trains_on()
    assert "broke" not in place.log  # nobody had to find out


TELLS_SILENCE = """
from pathlib import Path
from espalier_trainer.elastic.rendezvous import RendezvousServer
look = RendezvousServer.silent
def silent(self):
    found = look(self)
    if found:
        Path({folder!r}, "silent").touch()
    return found
RendezvousServer.silent = silent
"""
"""The leader leaves a mark once it has missed a worker that waits."""


def test_a_newcomer_that_died_while_it_waited_costs_nobody_anything(elastic):
    place = elastic()
    place.prelude = TELLS_SILENCE.format(folder=str(place.folder))
    place.allocate(1)
    leader = place.start()
    until(lambda: place.steps > 0, place)
    place.prelude = ASKS.format(folder=str(place.folder))
    waiting = [place.start(index) for index in range(2)]
    until(lambda: len(list(place.folder.glob("asks-*"))) == 2, place)
    place.trains_on()  # both have arrived, and the leader has seen it
    os.kill(waiting[0].pid, signal.SIGKILL)
    waiting[0].join()
    until((place.folder / "silent").exists, place)
    before = place.report().metrics
    place.allocate(3)
    until(lambda: worlds(place) == [2], place)
    assert "broke" not in place.log, before
    place.trains_on()
    assert leader.is_alive()


def test_a_leader_whose_first_generation_breaks_still_takes_the_newest_state(elastic):
    brief = "group.FORM_SECONDS = member.FORM_SECONDS = generations.FORM_SECONDS = 5.0"
    place = elastic(checkpoint={"intervalSeconds": 3600}, prelude=brief)
    place.allocate(3)
    leader = place.start()
    place.start(0)
    until(lambda: worlds(place)[-1:] == [2], place)
    # It is a member until it meets the next leader: then it dies while the generation forms.
    place.prelude = f"""{brief}
import os
import espalier_trainer.elastic.member as member
from espalier_trainer.elastic.group import Group
def group(*given):
    if os.path.exists({str(place.folder / "die")!r}):
        os._exit(9)
    return Group(*given)
member.Group = group
"""
    dying = place.start(1)
    until(lambda: worlds(place)[-1:] == [3], place)
    place.trains_on()
    before = place.steps
    (place.folder / "die").touch()
    place.prelude = brief
    os.kill(leader.pid, signal.SIGKILL)
    leader.join()
    again = place.start()
    until(lambda: dying.exitcode == 9, place)
    until(lambda: worlds(place)[-1:] == [2], place)
    until(lambda: "broke" in place.log, place)
    place.trains_on()
    assert first_epoch_of_the_second_leader(place) >= before
    assert again.is_alive()
