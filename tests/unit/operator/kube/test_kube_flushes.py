"""Who is written about when: many jobs at once, each alone, the urgent first; and what a status says."""

from __future__ import annotations

import asyncio
import logging

import pytest

from espalier_operator.clock import Backoff
from espalier_operator.kube.apply import workqueue
from espalier_operator.kube.apply.workqueue import PARALLEL, PATIENT, WorkQueue


class Desk:
    """Flushes that end when they are let."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.fails: set[str] = set()

    async def flush(self, key: str) -> None:
        self.begun.append(key)
        await self.gates.setdefault(key, asyncio.Event()).wait()
        self.gates.pop(key)
        if key in self.fails:
            raise ValueError("a fault")

    async def let(self, key: str) -> None:
        """Let a flush end, and what follows from that begin."""
        self.gates[key].set()
        for _ in range(5):
            await asyncio.sleep(0)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_job_is_never_flushed_twice_at_once_and_never_forgotten() -> None:
    desk = Desk()
    queue = WorkQueue(desk.flush, parallel=4)
    queue.add("a", urgent=False)
    await settle()
    queue.add("a", urgent=False)
    queue.add("a", urgent=True)
    await settle()
    assert desk.begun == ["a"]
    assert queue.is_busy("a")
    await desk.let("a")
    assert desk.begun == ["a", "a"]
    await desk.let("a")
    assert queue.is_idle()


async def test_the_urgent_go_first_and_no_more_than_so_many_at_once() -> None:
    desk = Desk()
    queue = WorkQueue(desk.flush, parallel=2)
    for key in "abcd":
        queue.add(key, urgent=False)
    queue.add("e", urgent=True)
    queue.add("d", urgent=True)
    await settle()
    assert desk.begun == ["a", "b"]
    for key in "abedc":
        await desk.let(key)
    assert desk.begun == ["a", "b", "e", "d", "c"]
    assert queue.is_idle()


async def test_those_that_have_time_leave_places_to_the_urgent() -> None:
    desk = Desk()
    queue = WorkQueue(desk.flush)
    patient = [f"figures-{number:02}" for number in range(2 * PATIENT)]
    for key in patient:
        queue.add(key, urgent=False)
    await settle()
    assert desk.begun == patient[:PATIENT]
    urgent = [f"news-{number:02}" for number in range(PARALLEL)]
    for key in urgent:
        queue.add(key, urgent=True)
    await settle()
    assert desk.begun[PATIENT:] == urgent[: PARALLEL - PATIENT]
    await desk.let(patient[0])
    assert desk.begun[PARALLEL:] == urgent[PARALLEL - PATIENT :][:1], "what is urgent goes first"
    await queue.close(0)


async def test_those_that_have_time_begin_when_nothing_urgent_is_flushed() -> None:
    desk = Desk()
    queue = WorkQueue(desk.flush)
    queue.add("news", urgent=True)
    queue.add("figures", urgent=False)
    await settle()
    assert desk.begun == ["news"]
    await desk.let("news")
    assert desk.begun == ["news", "figures"]
    await queue.close(0)


async def test_those_that_have_time_yield_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    queue = WorkQueue(desk.flush)
    queue.add("news", urgent=True)
    queue.add("figures", urgent=False)
    monkeypatch.setattr(workqueue, "YIELD_SECONDS", 0.0)
    queue.add("more", urgent=True)
    await settle()
    assert desk.begun == ["news", "more", "figures"]
    await queue.close(0)


def test_a_fault_in_one_flush_is_logged_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        desk = Desk()
        desk.fails.add("a")
        queue = WorkQueue(desk.flush, parallel=1)
        queue.add("a", urgent=True)
        queue.add("b", urgent=True)
        await settle()
        await desk.let("a")
        assert desk.begun == ["a", "b"]
        await desk.let("b")

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "flushing a failed with an unexpected error" in caplog.text


async def test_closing_waits_for_what_was_asked_for_but_not_for_ever() -> None:
    desk = Desk()
    queue = WorkQueue(desk.flush, parallel=1)
    queue.add("quick", urgent=True)
    queue.add("next", urgent=True)
    queue.add("stuck", urgent=False)
    await settle()
    closing = asyncio.create_task(queue.close(0.5))
    await settle()
    await desk.let("quick")
    await asyncio.sleep(0.01)
    await desk.let("next")
    await closing
    assert desk.begun == ["quick", "next", "stuck"]
    assert queue.is_idle()


def test_failures_are_put_off_twice_as_long_each_time() -> None:
    backoff = Backoff(first=1.0, longest=5.0)
    waits = []
    for _ in range(5):
        backoff.failed(100.0)
        waits.append(backoff.until - 100.0)
    assert waits == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.holds(104.0)
    assert not backoff.holds(105.0)
    backoff.succeeded()
    assert not backoff.holds(100.0)
