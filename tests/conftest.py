"""What every run of the tests begins with: signals, examples (in CI always the same), the day's part of the sweeps.

Hypothesis explores other examples in every run on a person's machine, and plays the same ones in every run of CI.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

import sweeps

_INTEGRATION = Path(__file__).parent / "integration"

# A shell lets what it starts in the background ignore Ctrl-C, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long drawing or an example takes says more about what else the machine does.
settings.register_profile(
    "busy",
    max_examples=sweeps.DEFAULT_EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# A change lands or not for what it does, not for what a run happened to draw.
settings.register_profile("ci", settings.get_profile("busy"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "busy")


# Modules and tests stay until the end, 700,000 objects. The garbage collector took a quarter of the time of the
# collection of tests, and a tenth of theirs, to find nothing among them.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from now on, and leave out what is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


def pytest_report_header() -> str:
    """Print which part of the sweeps runs."""
    if sweeps.WHOLE:
        return "sweeps: every case"
    return f"sweeps: the sample of ESPALIER_SWEEP_SEED={sweeps.SEED} (every case: ESPALIER_SWEEPS=all)"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of each test marked as a sweep keep the sampled cases; cases that are asked for by name are all kept."""
    groups: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("sweep")
        if mark is not None:
            groups.setdefault((mark.args[0], item.nodeid.partition("[")[0]), []).append(item)
    left: set[pytest.Item] = set()
    for (sweep, test), cases in groups.items():
        left |= set(cases) - set(sweeps.sample(sweep, cases, test))
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    # Files with an API server come first, so that servers need not run all the time. Then come other slow ones: at the
    # end all workers have small ones left, and none waits for another.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (_INTEGRATION not in item.path.parents, item.path not in slow))


_TOGETHER = {
    "/integration/test_chart_": "chart",
    "/net2net/test_growth_zoo": "libraries",
    "/net2net/test_add_block_zoo": "libraries",
    "/trainer/test_integrations": "libraries",
}
"""Files that one worker takes one after the other: they share an API server, or import what takes seconds."""


class _Scheduling(LoadFileScheduling):
    """A file of tests to each worker, but for those of `_TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return next((name for part, name in _TOGETHER.items() if part in file), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduling | None:
    """Distribute files (`--dist loadfile`)."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None
