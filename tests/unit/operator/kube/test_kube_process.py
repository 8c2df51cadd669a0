"""The operator's process: its tasks, what answers for its health, its names, and when it searches for garbage."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from typing import Any

import aiohttp
import pytest

from espalier_operator.kube.process.health import ALIVE_SECONDS, Address, Heartbeats, serve_health
from espalier_operator.kube.reading import identities_of
from espalier_operator.kube.watch import handlers
from espalier_operator.kube.watch.handlers import end, recorded_tasks
from espalier_operator.model import Snapshot
from ports import free_port


async def test_everything_that_was_begun_inside_ends_and_nothing_else() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async def beget(depth: int) -> None:
        if depth:
            asyncio.create_task(beget(depth - 1), name=f"child {depth}")  # noqa: RUF006
        await wait()

    async def stubborn() -> None:
        try:
            await wait()
        except asyncio.CancelledError:
            asyncio.create_task(wait(), name="begun at the end")  # noqa: RUF006
            raise

    before = asyncio.create_task(wait())
    with recorded_tasks() as begun:
        tasks = {asyncio.create_task(beget(3)), asyncio.create_task(stubborn())}
        for _ in range(10):  # turns of the loop, not seconds: a slow machine takes as many
            await asyncio.sleep(0)
        assert len(begun) == 5
        await end(begun)
    after = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {before, after, asyncio.current_task()}
    assert all(task.cancelled() for task in tasks)
    before.cancel()
    after.cancel()


async def test_a_task_that_takes_a_cancellation_for_its_own_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "CANCEL_AGAIN_SECONDS", 0.01)

    async def swallow() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(swallow())
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await end([task])
    assert task.cancelled()


async def test_who_ends_others_and_is_cancelled_still_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would be cancelled only once more, as the loop ends: too little, and it would wait for ever."""
    monkeypatch.setattr(handlers, "CANCEL_AGAIN_SECONDS", 0.01)

    async def swallow() -> None:
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await asyncio.Event().wait()

    task = asyncio.create_task(swallow())
    await asyncio.sleep(0)
    ender = asyncio.create_task(end([task]))
    await asyncio.sleep(0)
    ender.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait([ender])
    assert ender.cancelled()
    assert task.cancelled()


STORY = """
import asyncio, gc, weakref
from espalier_operator.kube.process.service import GarbageSearch

class Ring:
    def __init__(self):
        self.own = self

async def gone(ring):
    while ring() is not None:
        await asyncio.sleep(0)

async def story():
    idle, asked, thresholds = False, asyncio.Event(), gc.get_threshold()

    def is_idle():
        asked.set()
        return idle

    search = GarbageSearch(is_idle, every=0.0, patience=1e6, everything_every=EVERYTHING, look=0.0)
    kept = Ring()
    searching = asyncio.create_task(search.run())
    await asked.wait()
    frozen = weakref.ref(kept)
    del kept  # the search at the begin has left it over
    young = weakref.ref(Ring())
    gc.collect(1)  # Python's own searches go on; nothing refers to it
    assert young() is None
    old = Ring()
    gc.collect(1)  # it is old now: only a search of the whole heap finds it
    old = weakref.ref(old)
    asked.clear()
    await asked.wait()
    assert old() is not None, "it searched while something waited"
    idle = True
    await gone(old)
    EXPECTED
    searching.cancel()
    await asyncio.gather(searching, return_exceptions=True)
    assert gc.get_threshold() == thresholds
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert frozen() is None

asyncio.run(asyncio.wait_for(story(), 60))
"""


def play(everything: float, expected: str) -> None:
    story = STORY.replace("EVERYTHING", repr(everything)).replace("EXPECTED", expected)
    ended = subprocess.run([sys.executable, "-c", story], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr


def test_it_searches_when_nothing_waits_and_leaves_out_what_was_there_at_the_last_search() -> None:
    play(1e6, "assert frozen() is not None")


def test_now_and_then_everything_is_searched() -> None:
    play(0.0, "await gone(frozen)")


async def _asked(pulse: Heartbeats, *paths: str) -> list[tuple[int, str]]:
    port = free_port()
    answers = []
    async with serve_health(pulse, Address("127.0.0.1", port), None), aiohttp.ClientSession() as session:
        for path in paths:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                answers.append((answer.status, await answer.text()))
    return answers


@pytest.mark.parametrize(
    ("age", "waits_for", "planned", "healthy", "ready"),
    [
        (None, None, False, 503, 503),
        (1.0, None, False, 200, 503),
        (1.0, None, True, 200, 200),
        (ALIVE_SECONDS + 1, None, True, 503, 503),
        (1.0, "another", False, 200, 200),
        (ALIVE_SECONDS + 1, "another", False, 503, 503),
    ],
)
def test_an_operator_is_ready_when_it_has_planned_or_could_take_over(
    age: float | None, waits_for: str | None, planned: bool, healthy: int, ready: int
) -> None:
    snapshot = Snapshot(taken_at=0.0) if planned else None
    pulse = Heartbeats(age=lambda: age, waits_for=lambda: waits_for, snapshot=lambda: snapshot)
    answers = asyncio.run(_asked(pulse, "/healthz", "/readyz"))
    assert [status for status, _ in answers] == [healthy, ready]
    if (healthy, ready) == (200, 503):
        assert answers[1][1] == "nothing was planned yet\n"


def test_only_what_tells_an_object_from_another_is_kept() -> None:
    known = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"}
    managed = [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]
    item = {"kind": "PartialObjectMetadata", "metadata": {**known, "managedFields": managed, "labels": {"a": "b"}}}
    node = {"metadata": {"name": "n", "uid": "v", "resourceVersion": "8"}, "spec": {"unschedulable": True}}
    about = {"resourceVersion": "9", "continue": "next"}
    page = {"kind": "PartialObjectMetadataList", "metadata": {**about, "remainingItemCount": 3}, "items": [item, node]}
    items = [{"metadata": known}, {"metadata": node["metadata"]}]
    assert identities_of(json.dumps(page).encode()) == {"metadata": about, "items": items}
    assert identities_of(json.dumps({"metadata": about, "items": None}).encode())["items"] is None


@pytest.mark.parametrize("body", ["", "<html>", [], {"metadata": {}}, {"metadata": {"resourceVersion": "1"}}])
def test_what_is_no_list_is_refused(body: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON|valid|required"):
        identities_of(body.encode() if isinstance(body, str) else json.dumps(body).encode())
