"""The benchmark's view of the cluster: jobs and pods, from two separate watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bench.command import BenchError
from bench.load.api import Api
from bench.load.objects import JOBS_API, gpus_of, key
from espalier_operator.kube.objects.names import ROLE_LABEL
from espalier_operator.model import WorkerRole

Raw = dict[str, Any]

_LOOK_SECONDS: Final = 0.05
"""How often a condition is looked at, at most: the resolution of what is timed with it."""


class StuckError(BenchError):
    """What is waited for does not come."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A pod that holds or wants GPUs."""

    job: str | None
    """Key of its job, None for other people's."""
    gpus: int
    node: str | None
    runs: bool
    raw: Raw | None
    """The object, of workers only."""


@dataclass
class Stages:
    """When a pod was first seen in each of its stages; monotonic seconds, 0 for one that it was not seen in."""

    job: str
    made: float
    bound: float = 0.0
    runs: float = 0.0


class World:
    """Jobs by key, pods by key; those that have ended are left out."""

    def __init__(self, api: Api, check: Callable[[], None]) -> None:
        """`check` raises where the cluster is no longer whole."""
        self._api, self._check = api, check
        self.jobs: dict[str, Raw] = {}
        self.pods: dict[str, Seen] = {}
        self.stages: dict[str, Stages] = {}
        """By key: of each extra worker's pod."""
        self.changed_at = 0.0
        """Monotonic seconds of the last news."""
        self._listed = {"jobs": asyncio.Event(), "pods": asyncio.Event()}

    async def start(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Begin to follow, return when all that is there is known."""
        tasks = [
            group.create_task(self._follow("jobs", f"{JOBS_API}/adaptivetrainingjobs", self._take_job)),
            group.create_task(self._follow("pods", "/api/v1/pods", self._take_pod)),
        ]
        for listed in self._listed.values():
            await listed.wait()
        return tasks

    async def wait_for(self, what: str, holds: Callable[[], bool], seconds: float) -> float:
        """Return when (monotonic seconds) the last change came that made `holds` true; `StuckError` after `seconds`."""
        deadline = time.monotonic() + seconds
        while not holds():
            self._check()
            if time.monotonic() > deadline:
                raise StuckError(f"not true after {seconds:g} s: {what}")
            await asyncio.sleep(_LOOK_SECONDS)
        return self.changed_at

    def bound_gpus(self) -> int:
        """Return the GPUs of all pods that are bound."""
        return sum(pod.gpus for pod in self.pods.values() if pod.node is not None)

    def workers(self) -> dict[str, list[Raw]]:
        """Return by job its pods that are bound."""
        found: dict[str, list[Raw]] = {}
        for pod in self.pods.values():
            if pod.job is not None and pod.node is not None and pod.raw is not None:
                found.setdefault(pod.job, []).append(pod.raw)
        return found

    async def _follow(self, what: str, path: str, take: Callable[[str, Raw, float], None]) -> None:
        async for at, kind, item in self._api.follow(path):
            if kind == "LISTED":
                self._listed[what].set()
                continue
            take(kind, item, at)
            self.changed_at = at

    def _take_job(self, kind: str, job: Raw, at: float) -> None:
        if kind == "DELETED":
            self.jobs.pop(key(job), None)
        else:
            self.jobs[key(job)] = job

    def _take_pod(self, kind: str, pod: Raw, at: float) -> None:
        phase = pod["status"].get("phase")
        if kind == "DELETED" or phase in ("Succeeded", "Failed"):
            self.pods.pop(key(pod), None)
            return
        name = pod["metadata"].get("labels", {}).get("espalier.dev/job")
        job = f"{pod['metadata']['namespace']}/{name}" if name else None
        node = pod["spec"].get("nodeName")
        runs = phase == "Running"
        self.pods[key(pod)] = Seen(job, gpus_of(pod), node, runs, pod if job else None)
        if job is not None and pod["metadata"]["labels"].get(ROLE_LABEL) == WorkerRole.EXTRA:
            stages = self.stages.setdefault(key(pod), Stages(job, at))
            stages.bound = stages.bound or (at if node else 0.0)
            stages.runs = stages.runs or (at if runs else 0.0)


def condition(job: Raw, kind: str) -> str:
    """Return the status of a condition, an empty text where there is none."""
    conditions = job.get("status", {}).get("conditions", ())
    return next((str(each["status"]) for each in conditions if each["type"] == kind), "")


def rank(job: Raw) -> tuple[str, str]:
    """Return what the default policy orders jobs of the same priority by."""
    return job["metadata"]["creationTimestamp"], key(job)
