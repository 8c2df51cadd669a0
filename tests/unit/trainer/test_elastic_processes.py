"""Real processes that train together: joining, leaving, dying."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from espalier_core.types.job import AdaptiveTrainingJob
from trainer_processes import Workplace, ended, until

pytestmark = pytest.mark.slow
PACE = 0.002


@pytest.fixture
def elastic(make_job: Callable[..., AdaptiveTrainingJob]) -> Callable[..., AdaptiveTrainingJob]:
    def make(
        budget: float = 3600.0, policy: str = "keepGlobal", stragglers: str = "Report", **spec: Any
    ) -> AdaptiveTrainingJob:
        training = {"elasticBatch": policy, "stragglers": stragglers, "schedule": {"name": "Constant"}}
        merged = {"maxReplicas": 4, "adaptation": {"mode": "Off"}, "training": training, **spec}
        return make_job(timeBudgetSeconds=budget, **merged)

    return make


def worlds(place: Workplace) -> list[int]:
    """Return how many members each generation has had."""
    return [int(found) for found in re.findall(r"generation \d+: (\d+) members", place.log)]


def steps(place: Workplace) -> int:
    return place.report().step if place.has_report() else 0


def warnings(place: Workplace, reason: str) -> list[str]:
    return [event.message for event in place.events() if getattr(event, "reason", "") == reason]


def first_epoch_of_the_second_leader(place: Workplace) -> int:
    """Return how many steps had been taken when an epoch ended first under the leader that was started again."""
    starts = [number for number, event in enumerate(place.events()) if event.type == "TrainerStarted"]
    ends = until(lambda: [event for event in place.events()[starts[1] :] if event.type == "EpochFinished"], place)
    return int(ends[0].step)


def trains_on(place: Workplace) -> None:
    before = steps(place)
    until(lambda: steps(place) > before + 20, place)


def test_workers_join_and_leave_without_a_restart(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob]
) -> None:
    place = workplace(elastic())
    place.allocate(1)
    leader = place.start()
    until(lambda: steps(place) > 20, place)
    extra = place.start(0)
    until(lambda: "is ready" in place.logs(0), place)
    trains_on(place)
    assert worlds(place) == []  # nobody joins before the scheduler grants it
    place.allocate(2)
    until(lambda: worlds(place) == [2], place)
    trains_on(place)
    place.allocate(1)
    until(lambda: worlds(place) == [2, 1] and place.report().acknowledged_generation == 3, place)
    trains_on(place)
    assert leader.is_alive()
    assert extra.is_alive()  # it waits: its GPU is taken by who lent it
    os.kill(extra.pid, signal.SIGTERM)
    assert ended(extra, place) == 0
    os.kill(leader.pid, signal.SIGTERM)
    assert ended(leader, place) == 143


def test_a_worker_that_is_killed_in_a_step_costs_a_moment(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob]
) -> None:
    # However long a leader waits for members whose connection stands, that of a dead process does not.
    place = workplace(elastic(), prelude="import espalier_trainer.elastic.generations as t; t.GRACE_SECONDS = 600")
    place.allocate(3)
    leader = place.start()
    extras = [place.start(index) for index in range(2)]
    until(lambda: worlds(place)[-1:] == [3], place)
    trains_on(place)
    os.kill(extras[1].pid, signal.SIGKILL)
    until(lambda: worlds(place)[-1:] == [2], place)
    trains_on(place)
    assert leader.is_alive()
    assert extras[0].is_alive()


def test_a_leader_that_is_killed_goes_on_from_what_the_others_hold(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob]
) -> None:
    place = workplace(elastic(checkpoint={"intervalSeconds": 3600}))
    place.allocate(2)
    leader = place.start()
    place.start(0)
    until(lambda: worlds(place)[-1:] == [2], place)
    trains_on(place)
    before = steps(place)
    os.kill(leader.pid, signal.SIGKILL)
    leader.join()
    assert not list(place.checkpoints.glob("checkpoint-*"))
    known = len(worlds(place))
    again = place.start()
    until(lambda: worlds(place)[known:][-1:] == [2], place)
    until(lambda: steps(place) > before, place)
    trains_on(place)
    assert again.is_alive()


def test_a_newcomer_that_dies_while_it_joins_is_done_without(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob]
) -> None:
    # However long a leader waits for members that hold a state, it does not wait for one that never had any.
    patient = "import espalier_trainer.elastic.generations as t; t.FORM_SECONDS = t.GRACE_SECONDS = 120"
    place = workplace(elastic(), prelude=patient)
    place.allocate(2)
    leader = place.start()
    until(lambda: steps(place) > 20, place)
    place.prelude = "import espalier_trainer.elastic.member as m; m.align = lambda *given: os._exit(9)"
    dying = place.start(0)
    assert ended(dying, place) == 9
    trains_on(place)
    place.prelude = ""
    place.start(0)
    until(lambda: worlds(place)[-1:] == [2], place)
    trains_on(place)
    assert leader.is_alive()


def test_a_frozen_worker_is_done_without_and_comes_again(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob]
) -> None:
    place = workplace(elastic(), prelude="import espalier_trainer.elastic.group as g; g.COLLECTIVE_SECONDS = 1.0")
    place.allocate(2)
    leader = place.start()
    extra = place.start(0)
    until(lambda: worlds(place)[-1:] == [2], place)
    trains_on(place)
    os.kill(extra.pid, signal.SIGSTOP)
    until(lambda: worlds(place)[-1:] == [1], place)
    trains_on(place)
    os.kill(extra.pid, signal.SIGCONT)
    until(lambda: worlds(place)[-1:] == [2], place)
    trains_on(place)
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


def test_a_straggler_is_reported(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob]
) -> None:
    place = workplace(elastic(), prelude=QUICK)
    place.allocate(2)
    place.start()
    until(lambda: steps(place) > 0, place)
    place.prelude = SLOW
    place.start(0)
    assert "extra worker 0 computes" in until(lambda: warnings(place, "StragglerDetected"), place)[0]
    trains_on(place)
    assert worlds(place)[-1] == 2


def test_a_straggler_is_left_out_where_the_job_says_so_and_comes_again(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob]
) -> None:
    brief = "import espalier_trainer.elastic.membership as s; s.PAUSE_SECONDS, s.STEPS = 1.0, 8\n"
    place = workplace(elastic(stragglers="Drop"), prelude=brief + QUICK)
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
    trains_on(place)
    assert worlds(place)[-1] == 2
    assert leader.is_alive()
    assert slow.is_alive()


def test_changes_in_quick_succession(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob]
) -> None:
    place = workplace(elastic())
    place.allocate(3)
    leader = place.start()
    for index in range(2):
        place.start(index)
    until(lambda: worlds(place)[-1:] == [3], place)
    for replicas in (1, 3, 2, 3, 1, 2):
        place.allocate(replicas)
        time.sleep(0.06)
    until(lambda: worlds(place)[-1:] == [2] and place.report().acknowledged_generation == 7, place)
    trains_on(place)
    assert leader.is_alive()


def test_a_worker_asked_to_end_leaves_between_two_steps(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob]
) -> None:
    place = workplace(elastic())
    place.allocate(2)
    place.start()
    extra = place.start(0)
    until(lambda: worlds(place)[-1:] == [2], place)
    trains_on(place)
    os.kill(extra.pid, signal.SIGTERM)
    assert ended(extra, place) == 0
    until(lambda: worlds(place)[-1:] == [1], place)
    trains_on(place)
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


ASKS = """
import os
from pathlib import Path
from espalier_trainer.elastic.rendezvous import RendezvousClient
at_once = RendezvousClient.plan
def plan(self, *given):
    Path({folder!r}, f"asks-{{os.getpid()}}").touch()
    return at_once(self, *given)
RendezvousClient.plan = plan
"""
"""A worker tells that it has arrived."""


def test_a_newcomer_that_died_while_it_waited_costs_nobody_anything(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob]
) -> None:
    place = workplace(elastic())
    place.prelude = TELLS_SILENCE.format(folder=str(place.folder))
    place.allocate(1)
    leader = place.start()
    until(lambda: steps(place) > 0, place)
    place.prelude = ASKS.format(folder=str(place.folder))
    waiting = [place.start(index) for index in range(2)]
    until(lambda: len(list(place.folder.glob("asks-*"))) == 2, place)
    trains_on(place)  # both have arrived, and the leader has seen it
    os.kill(waiting[0].pid, signal.SIGKILL)
    waiting[0].join()
    until((place.folder / "silent").exists, place)
    before = place.report().metrics
    place.allocate(3)
    until(lambda: worlds(place) == [2], place)
    assert "broke" not in place.log, before
    trains_on(place)
    assert leader.is_alive()


def test_a_leader_whose_first_generation_breaks_still_takes_the_newest_state(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob]
) -> None:
    brief = "group.FORM_SECONDS = member.FORM_SECONDS = generations.FORM_SECONDS = 5.0"
    place = workplace(elastic(checkpoint={"intervalSeconds": 3600}), prelude=brief)
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
    trains_on(place)
    before = steps(place)
    (place.folder / "die").touch()
    place.prelude = brief
    os.kill(leader.pid, signal.SIGKILL)
    leader.join()
    again = place.start()
    until(lambda: dying.exitcode == 9, place)
    until(lambda: worlds(place)[-1:] == [2], place)
    until(lambda: "broke" in place.log, place)
    trains_on(place)
    assert first_epoch_of_the_second_leader(place) >= before
    assert again.is_alive()


def test_processes_get_a_block_more_together(
    workplace: Callable[..., Workplace], elastic: Callable[..., AdaptiveTrainingJob], tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{number} and one are {number + 1}. " for number in range(500)))
    job = elastic(
        adaptation={"actions": ["AddBlock"], "maxAdaptations": 1, "fallback": "Heuristic"},
        training={
            "task": "LanguageModel",
            "model": {"name": "gpt", "options": {"width": 16}},
            "dataset": {"name": "text", "path": str(tmp_path / "text.txt"), "options": {"context": 16, "windows": 80}},
            "batchSize": 8,
            "elasticBatch": "keepGlobal",
            "schedule": {"name": "Constant"},
        },
    )
    place = workplace(job)
    place.allocate(1)
    leader = place.start()
    until(lambda: steps(place) > 5, place)
    place.start(0)
    until(lambda: "is ready" in place.logs(0), place)
    place.allocate(2)
    finished = until(lambda: [one for one in place.events() if one.type == "AdaptationFinished"], place)
    assert [(one.adaptation.action, one.adaptation.result) for one in finished] == [
        ("AddBlock(blocks.0, Unfold)", "Grown")
    ]
    until(lambda: worlds(place) == [2], place)
    trains_on(place)
    assert worlds(place) == [2], "nobody left because its model is another"
    os.kill(leader.pid, signal.SIGTERM)
    assert ended(leader, place) == 143
