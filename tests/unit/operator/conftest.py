"""Local runs of scripted trainers."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from espalier_core.types.events import AnyEvent
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_operator.local import LocalOutcome, LocalRun, LocalSettings, RunView
from espalier_operator.local.run import JobView
from waiting import PATIENCE, until

TRAINER = Path(__file__).with_name("scripted_trainer.py")


def make_job(name: str, *options: str, gpus_per_worker: int = 1, **spec: Any) -> AdaptiveTrainingJob:
    """Return a job of 2 budget seconds whose trainer gets `options` (see scripted_trainer.py)."""
    container = {
        "name": "trainer",
        "command": [sys.executable, str(TRAINER), *options],
        "resources": {"limits": {"nvidia.com/gpu": gpus_per_worker}},
    }
    body = {
        "timeBudgetSeconds": 2,
        "preemption": {"noticeSeconds": 1, "cooldownSeconds": 0.2, "minRuntimeSeconds": 0.2},
        "template": {"spec": {"containers": [container]}},
    }
    return AdaptiveTrainingJob.model_validate(
        {
            "apiVersion": "espalier.dev/v1alpha1",
            "kind": "AdaptiveTrainingJob",
            "metadata": {"name": name},
            "spec": body | spec,
        }
    )


@dataclass
class Story:
    """What happened in a run."""

    outcomes: dict[str, LocalOutcome]
    events: list[tuple[str, AnyEvent]] = field(default_factory=list)
    views: list[RunView] = field(default_factory=list)

    def told(self, job: str, kind: type[Any]) -> list[Any]:
        """Return the job's events of one type."""
        return [event for name, event in self.events if name == job and isinstance(event, kind)]

    @property
    def jobs(self) -> tuple[JobView, ...]:
        """Return the jobs as they are now."""
        return self.views[-1].jobs


@dataclass
class LocalRuns:
    """Makes runs in one folder."""

    directory: Path

    def __call__(
        self,
        jobs: Sequence[AdaptiveTrainingJob],
        stop_when: Callable[[Story], bool] = lambda story: False,
        **settings: Any,
    ) -> Story:
        """Run `jobs` to their ends, or until `stop_when` says so; `settings` as `LocalSettings`.

        Processes have long enough to end on a busy machine: a test whose process does not end by itself says how long.
        """
        story = Story(outcomes={})
        quick = {"agent_command": None, "restart_wall_seconds": 0.05, "stop_wall_seconds": 30.0}

        async def run() -> dict[str, LocalOutcome]:
            stop = asyncio.Event()

            def on_tick(view: RunView) -> None:
                story.views.append(view)
                if not stop.is_set() and stop_when(story):
                    stop.set()

            local = LocalRun(
                jobs,
                LocalSettings(directory=self.directory, **(quick | settings)),
                lambda name, event: story.events.append((name, event)),
                on_tick,
            )
            async with asyncio.timeout(PATIENCE):
                return await local.run(stop)

        story.outcomes = asyncio.run(run())
        until(lambda: self.processes() == [], lambda: f"left over: {self.processes()}")
        return story

    def processes(self) -> list[int]:
        """Return the processes that have this folder in their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    environment = (entry / "environ").read_bytes()
                except (FileNotFoundError, PermissionError, ProcessLookupError):
                    continue
                if f"={self.directory}/".encode() in environment:
                    found.append(int(entry.name))
        return found


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Play a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def local_run(tmp_path: Path) -> LocalRuns:
    """Return what makes local runs in this test's folder."""
    return LocalRuns(tmp_path)


@pytest.fixture
def job_of() -> Callable[..., AdaptiveTrainingJob]:
    """Return the maker of jobs with scripted trainers."""
    return make_job
