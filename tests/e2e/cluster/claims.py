"""What a test claims of the cluster while others run in other processes: locked files, one for each thing.

Each worker node is claimed by one test at a time. The agent and the operator are shared by all tests that only use
them, and claimed alone by a test that ends, replaces or reconfigures them. All claim in the order operator, agent,
nodes, so that no two wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SERVICES = ("operator", "agent")
MARKERS = (
    "nodes(count): worker nodes that the test has for itself, instead of one",
    "disturbs(operator=True, agent=True): nobody else uses it meanwhile",
    "without(*services): these may be away or others meanwhile",
)


class Claims:
    """The locks of one run, for one of its processes."""

    def __init__(self, folder: Path) -> None:
        """Keep the locks in `folder`, which all processes of the run share."""
        self.folder = folder

    @contextlib.contextmanager
    def run(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
        """Call `begin` in the first process of the run that comes here, and `end` in the last one that leaves."""
        begun = self.folder / "begun"
        with self._locked("run.door", fcntl.LOCK_EX):
            if not begun.exists():
                begin()
                begun.touch()
            file = (self.folder / "run.lock").open("w")
            fcntl.flock(file, fcntl.LOCK_SH)
        with file:
            yield
            with self._locked("run.door", fcntl.LOCK_EX), contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end()
                begun.unlink()

    @contextlib.contextmanager
    def service(self, name: str, *, alone: bool) -> Iterator[None]:
        """Hold the operator or the agent, alone or with others."""
        # Whoever waits to be alone keeps the door, so that others who share do not come first again and again.
        with self._locked(f"{name}.door", fcntl.LOCK_EX), contextlib.ExitStack() as stack:
            stack.enter_context(self._locked(name, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
            held = stack.pop_all()
        with held:
            yield

    @contextlib.contextmanager
    def nodes(self, names: Sequence[str], count: int) -> Iterator[list[str]]:
        """Hold `count` of these nodes alone. Those that need several wait for the first of them."""
        with contextlib.ExitStack() as held:
            if count > 1:
                for name in names[:count]:
                    held.enter_context(self._locked(name, fcntl.LOCK_EX))
                yield list(names[:count])
                return
            while True:
                for name in reversed(names):
                    with contextlib.suppress(BlockingIOError):
                        held.enter_context(self._locked(name, fcntl.LOCK_EX | fcntl.LOCK_NB))
                        yield [name]
                        return
                time.sleep(0.2)

    @contextlib.contextmanager
    def _locked(self, name: str, how: int) -> Iterator[None]:
        with (self.folder / f"{name}.lock").open("w") as file:
            fcntl.flock(file, how)
            yield


def disturbed(item: pytest.Item | pytest.Function) -> set[str]:
    """Return the services that a test needs to be alone with."""
    return {name for marker in item.iter_markers("disturbs") for name in marker.kwargs}


def used(item: pytest.Item) -> list[str]:
    """Return the services that a test uses, in the order in which they are claimed."""
    without = {name for marker in item.iter_markers("without") for name in marker.args}
    return [name for name in SERVICES if name not in without - disturbed(item)]


def wanted_nodes(item: pytest.Item) -> int:
    """Return how many nodes a test needs."""
    marker = item.get_closest_marker("nodes")
    return int(marker.args[0]) if marker else 1


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return tests in an order in which few wait for each other: those that can run side by side are neighbours.

    A test that disturbs the agent runs next to tests that do without it, and a test on several nodes next to tests on
    one. Those that disturb the operator come last, next to those that do without it.
    """

    def phase(item: pytest.Item) -> int:
        if not used(item) or "operator" in disturbed(item):
            return 3
        several = wanted_nodes(item) > 1
        if disturbed(item):
            return 1 if several else 2
        if "agent" not in used(item):
            return 2 if several else 1
        return 0

    ordered: list[pytest.Item] = []
    for number in range(4):
        some = [item for item in items if phase(item) == number]
        several = [item for item in some if wanted_nodes(item) > 1 and "agent" in used(item)]
        first = [item for item in some if disturbed(item) or item in several]
        rest = [item for item in some if item not in first]
        pairs = itertools.zip_longest(first, rest)
        ordered += [item for pair in pairs for item in pair if item is not None]
    return ordered
