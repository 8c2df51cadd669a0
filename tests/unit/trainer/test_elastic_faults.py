"""Faults at bad moments, with real processes: reclaim while it grows, growth while it saves, several deaths at once."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from trainer_processes import Workplace, ended, until

pytestmark = pytest.mark.slow

CUT_SECONDS = 4.0
"""How long a network is cut."""


def worlds(place: Workplace) -> list[int]:
    return [int(event.workers) for event in place.events() if event.type == "WorkersChanged"]


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


def test_gpus_that_are_taken_back_while_the_model_grows(elastic: Callable[..., Workplace]) -> None:
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
    assert worlds(place)[-1:] in ([], [1])
    # The growth was not lost, and the next worker gets the grown model.
    grown = place.report()
    assert [each.result for each in grown.adaptations] == ["Grown"]
    place.allocate(2)
    until(lambda: worlds(place)[-1:] == [2], place)
    place.trains_on()
    assert place.report().depth >= grown.depth > grown.adaptations[0].depth_before
    assert "MembersDiffer" not in place.log
    assert leader.is_alive()


def test_a_model_that_grows_while_its_checkpoints_are_written(elastic: Callable[..., Workplace]) -> None:
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
    until(lambda: worlds(place)[-1:] == [2], place)
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


def test_all_members_gone_is_the_last_checkpoint(elastic: Callable[..., Workplace]) -> None:
    place = elastic(checkpoint={"intervalSeconds": 1})
    place.allocate(2)
    everyone = [place.start(), place.start(0)]
    until(lambda: worlds(place) == [2], place)
    saved = until(lambda: [event.step for event in place.events() if event.type == "CheckpointSaved"][2:], place)
    for process in everyone:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    last = max(event.step for event in place.events() if event.type == "CheckpointSaved")
    place.start()
    place.start(0)
    started = until(lambda: [event for event in place.events() if event.type == "TrainerStarted"][1:], place)[0]
    assert started.resumed
    assert started.step >= last >= saved[0]
    until(lambda: worlds(place)[-1:] == [2], place)
    place.trains_on()


def test_a_leader_and_a_worker_die_together_while_a_third_lives(elastic: Callable[..., Workplace]) -> None:
    place = elastic(checkpoint={"intervalSeconds": 3600})
    place.allocate(3)
    leader = place.start()
    extras = [place.start(index) for index in range(2)]
    until(lambda: worlds(place)[-1:] == [3], place)
    place.trains_on()
    before = place.steps
    for process in (leader, extras[0]):
        os.kill(process.pid, signal.SIGKILL)
    leader.join()
    place.start()
    first = until(lambda: epochs_of(place, 1), place)[0]
    assert first.step >= before  # nothing was saved: the third one held it
    until(lambda: worlds(place)[-1:] == [2], place)
    place.trains_on()
    assert extras[1].is_alive()


ASKS = """
from pathlib import Path
from espalier_trainer.elastic.rendezvous import RendezvousClient
at_once = RendezvousClient.plan
def plan(self, *given):
    Path({folder!r}, "asks").touch()
    return at_once(self, *given)
RendezvousClient.plan = plan
"""
"""The worker tells when it has arrived."""


def test_a_worker_that_waits_hears_its_end_while_the_leader_is_frozen(elastic: Callable[..., Workplace]) -> None:
    place = elastic()
    place.allocate(1)
    leader = place.start()
    place.prelude = ASKS.format(folder=str(place.folder))
    extra = place.start(0)
    until((place.folder / "asks").exists, place)
    os.kill(leader.pid, signal.SIGSTOP)
    os.kill(extra.pid, signal.SIGTERM)
    assert ended(extra, place) == 0


def test_a_worker_finds_the_successor_of_a_leader_that_is_frozen(elastic: Callable[..., Workplace]) -> None:
    hasty = "import espalier_trainer.elastic.group as g; g.COLLECTIVE_SECONDS = 1.0"
    place = elastic(prelude=hasty, checkpoint={"intervalSeconds": 3600})
    place.allocate(2)
    leader = place.start()
    extra = place.start(0)
    until(lambda: worlds(place)[-1:] == [2], place)
    place.trains_on()
    before = place.steps
    os.kill(leader.pid, signal.SIGSTOP)
    until(lambda: "the leader is away" in place.logs(0), place)
    place.start()
    first = until(lambda: epochs_of(place, 1), place)[0]
    assert first.step >= before  # nothing was saved: it is the worker that held it, perhaps at the end of an epoch
    until(lambda: worlds(place)[-1:] == [2], place)
    assert extra.is_alive()


def test_a_worker_whose_leader_was_away_for_long_comes_as_a_newcomer(elastic: Callable[..., Workplace]) -> None:
    hasty = "import espalier_trainer.elastic.member as m; m.PATIENCE_SECONDS = 1.0"
    place = elastic(prelude=hasty, checkpoint={"intervalSeconds": 3600})
    place.allocate(2)
    leader = place.start()
    extra = place.start(0)
    until(lambda: worlds(place)[-1:] == [2], place)
    place.trains_on()
    os.kill(leader.pid, signal.SIGKILL)
    leader.join()
    until(lambda: "this worker drops its state" in place.logs(0), place)
    known = len(worlds(place))
    place.start()
    until(lambda: worlds(place)[known:][-1:] == [2], place)
    place.trains_on()
    started = [event for event in place.events() if event.type == "TrainerStarted"]
    assert [(event.step, event.resumed) for event in started] == [(0, False)] * 2
    assert extra.is_alive()


# ---- a network that is cut


class Wire:
    """Two network namespaces with a wire between them; needs root."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ends = (f"{name}-a", f"{name}-b")
        self.addresses = ("10.213.77.1", "10.213.77.2")
        self._made: list[str] = []

    def lay(self) -> None:
        """Make it, or raise `subprocess.CalledProcessError` where that is not allowed."""
        for end in self.ends:
            _ip("netns", "add", end)
            self._made.append(end)
        first, second = self.ends
        _ip("link", "add", "wire", "netns", first, "type", "veth", "peer", "name", "wire", "netns", second)
        for end, address in zip(self.ends, self.addresses, strict=True):
            _ip("-n", end, "address", "add", f"{address}/24", "dev", "wire")
            _ip("-n", end, "link", "set", "lo", "up")
            _ip("-n", end, "link", "set", "wire", "up")

    def cut(self) -> None:
        """Let nothing through; connections stay as they are."""
        _ip("-n", self.ends[1], "link", "set", "wire", "down")

    def mend(self) -> None:
        """Let all through again."""
        _ip("-n", self.ends[1], "link", "set", "wire", "up")

    def inside(self, end: int) -> str:
        """Return what a process does to move into the namespace at this end."""
        return f"""
import ctypes, os
handle = os.open("/run/netns/{self.ends[end]}", os.O_RDONLY)
if ctypes.CDLL(None, use_errno=True).setns(handle, 0x40000000):
    raise OSError(ctypes.get_errno(), "setns")
"""

    def take_away(self) -> None:
        """Remove what was made, by its own name."""
        for end in self._made:
            _ip("netns", "delete", end)  # its end of the wire goes with it, and so the other


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


_COUNT = itertools.count()


@pytest.fixture
def wire() -> Iterator[Wire]:
    laid = Wire(f"esp-{os.getpid()}-{next(_COUNT)}")
    try:
        laid.lay()
    except (OSError, subprocess.CalledProcessError) as error:
        laid.take_away()
        said = getattr(error, "stderr", None) or error
        pytest.skip(f"network namespaces cannot be made here, which takes root and `ip`: {said}")
    yield laid
    laid.take_away()


@pytest.mark.parametrize("patience", [600.0, 1.5])
def test_a_network_that_is_cut_for_seconds(elastic: Callable[..., Workplace], wire: Wire, patience: float) -> None:
    """Members wait for long: they continue when the wire is mended. With less patience they part, and meet again."""
    place = elastic()
    parts = patience < CUT_SECONDS
    hasty = f"import espalier_trainer.elastic.group as g; g.COLLECTIVE_SECONDS = {patience}"
    place.rendezvous = f"{wire.addresses[0]}:29400"
    place.key_file.write_bytes(bytes(range(32)))
    place.allocate(2)
    place.prelude = wire.inside(0) + hasty
    leader = place.start()
    place.prelude = wire.inside(1) + hasty
    extra = place.start(0)
    until(lambda: worlds(place) == [2], place)
    place.trains_on()
    before = place.steps
    wire.cut()
    cut = time.monotonic()
    if parts:
        until(lambda: worlds(place)[-1:] == [1], place)
        place.trains_on()
    time.sleep(max(0.0, cut + CUT_SECONDS - time.monotonic()))
    wire.mend()
    until(lambda: place.steps > before + 100, place)
    until(lambda: worlds(place)[-1:] == [2], place)
    assert parts or worlds(place) == [2], "nobody has left"
    place.trains_on()
    finished = [event.step for event in place.events() if event.type == "EpochFinished"]
    assert finished == sorted(finished)  # no step was taken back that had been counted
    assert leader.is_alive()
    assert extra.is_alive()
