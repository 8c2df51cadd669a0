"""When the operator searches for garbage, in a process of its own: what it frees, and that Python searches after it."""

from __future__ import annotations

import subprocess
import sys

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
