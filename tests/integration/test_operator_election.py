"""Operators as processes: one acts, the others wait; the Lease goes from hand to hand."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path

from operator_process import OperatorProcess
from operators import World

from espalier_operator.facts import Snapshot

HOLDS = "holding the lease"


def test_one_operator_acts_and_hands_over(world: World, tmp_path: Path) -> None:
    """Asked to end it hands over at once; killed it is missed when its lease runs out; cut off it stops by itself."""
    world.kubelet.add_node("node", 3)

    def started(name: str) -> OperatorProcess:  # importing takes seconds where others are at work
        process = OperatorProcess(
            world.server, tmp_path, name, "--lease-seconds=6", "--log-format=json", namespace=world.namespace
        )
        return stack.enter_context(process)

    with ExitStack() as stack:
        first = started("first")
        world.until("the first holds the lease", lambda: first.says(HOLDS))
        second = started("second")
        world.jobs.make("job-1")
        world.until_condition("job-1", "Running", "True", "Running")
        world.until("the second waits", lambda: (answer := second.ask("/healthz")) and answer.status_code == 200)
        answer = second.ask("/healthz")
        assert answer is not None
        assert "waiting for first_" in answer.text
        assert HOLDS not in second.log.read_text()
        assert (waiting := second.ask("/snapshot", private=True)) is not None
        assert (waiting.status_code, "first_" in waiting.text) == (503, True)
        assert (seen := first.ask("/snapshot", private=True)) is not None
        assert [job.key for job in Snapshot.from_json(seen.text).jobs] == [f"{world.namespace}/job-1"]
        assert (first.ask("/snapshot")) is not None
        assert first.ask("/snapshot").status_code == 404, "the public address does not give it"  # type: ignore[union-attr]

        began = time.monotonic()
        assert first.end(signal.SIGTERM) == 0
        world.until("the second holds the lease", lambda: second.says(HOLDS))
        assert time.monotonic() - began < 5.0, "it was handed over"
        world.jobs.make("job-2")
        world.until_condition("job-2", "Running", "True", "Running")

        third, idle = started("third"), started("idle")
        for each in (third, idle):
            world.until("it waits", lambda process=each: (a := process.ask("/healthz")) and a.status_code == 200)
        assert idle.end(signal.SIGTERM) == 0, "one that waits ends as it is asked to"
        began = time.monotonic()
        assert second.end(signal.SIGKILL) == -signal.SIGKILL
        world.until("the third holds the lease", lambda: third.says(HOLDS))
        assert 3 < time.monotonic() - began < 15, "it waited until the lease of the second had run out"
        world.jobs.make("job-3")
        world.until_condition("job-3", "Running", "True", "Running")
        for name in ("job-1", "job-2"):
            assert world.jobs.status(name)["restarts"] == 0

        world.server.stop()
        began = time.monotonic()
        assert third.process.wait(40) == 3
        assert time.monotonic() - began < 10, "it gave up before another could have begun"
        assert "the lease could not be renewed in time" in third.log.read_text()
        world.server.start()


def test_what_cannot_be_is_refused_at_the_start(world: World, tmp_path: Path) -> None:
    """Exit codes and words of the command."""
    refused = {
        ("--persist-seconds=-1",): (2, "'--persist-seconds': -1 seconds cannot be; give 0 or more"),
        ("--agent-url=agent:80",): (2, "is no URL; write http://HOST:PORT"),
        ("--snapshot-http=0.0.0.0:81",): (2, "give 127.0.0.1:PORT"),
        ("--http=256.0.0.1:1",): (4, "give another address to --http"),
    }
    for number, (options, (code, words)) in enumerate(refused.items()):
        with OperatorProcess(world.server, tmp_path, f"refused-{number}", *options) as process:
            assert process.process.wait(30) == code, process.log.read_text()
            assert words in process.log.read_text()
