"""Scripted leaders: what a trainer says and does, as far as the API shows it: `Trainers`.

Runs beside a `FakeKubelet`, in a thread of its own. The leader of a job (`<job>-base-0-*`), once it runs, reports that
it trains, acknowledges each allocation, counts its budget, stops when it is told to, and ends when a test says so.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import httpx
from apiserver import JOBS, ApiServer
from connections import connections_aborted, json_lines

from espalier_core.files.documents import dumps
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase

_AGAIN = 0.1
Raw = dict[str, Any]


class Trainers:
    """A context manager. Attributes may be changed while it runs.

    `silent`: jobs (by name) whose leaders never report. `stubborn`: jobs whose leaders acknowledge nothing.
    `ends_when(job, pods)`: the exit code with which its leader ends now, None: it continues; asked at each change.
    """

    def __init__(self, server: ApiServer) -> None:
        """Not started yet."""
        self._server = server
        self.silent: set[str] = set()
        self.stubborn: set[str] = set()
        self.ends_when: Callable[[Raw, list[Raw]], int | None] = lambda job, pods: None
        self._jobs: dict[str, Raw] = {}
        self._pods: dict[str, Raw] = {}
        self._began: dict[str, float] = {}
        self._said: dict[str, Report] = {}
        self._trouble: BaseException | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainers")

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        if self._trouble is not None and error is None:
            raise self._trouble

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._trouble = error
        finally:
            self._begun.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._begun.set()
        client = self._server.async_client(self._server.admin_token)
        async with connections_aborted(), client as self._api, asyncio.TaskGroup() as group:
            group.create_task(self._follow(f"{JOBS}/adaptivetrainingjobs", self._jobs))
            group.create_task(self._follow("/api/v1/pods", self._pods))

    async def _follow(self, path: str, seen: dict[str, Raw]) -> None:
        while True:
            try:
                async for kind, item in self._changes(path):
                    key = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
                    if kind == "DELETED":
                        seen.pop(key, None)
                    else:
                        seen[key] = item
                        await self._play(key if seen is self._jobs else _job_of(item))
            except httpx.HTTPError:
                await asyncio.sleep(_AGAIN)

    async def _changes(self, path: str) -> AsyncIterator[tuple[str, Raw]]:
        answer = await self._api.get(path)
        answer.raise_for_status()
        listed = answer.json()
        for item in listed["items"]:
            yield "ADDED", item
        if (version := listed["metadata"].get("resourceVersion")) is None:  # the kind is about to go
            await asyncio.sleep(_AGAIN)
            return
        query = {"watch": "1", "resourceVersion": version}
        async with self._api.stream("GET", path, params=query, timeout=httpx.Timeout(10, read=None)) as stream:
            async for event in json_lines(stream):
                if event["type"] == "ERROR":
                    return
                yield event["type"], event["object"]

    async def _play(self, key: str | None) -> None:
        """Do what the leader of a job does now."""
        job = self._jobs.get(key or "")
        if key is None or job is None or job["metadata"]["name"] in self.silent:
            return
        namespace, _, name = key.partition("/")
        own = [pod for pod in self._pods.values() if _job_of(pod) == key]
        leader = next((pod for pod in own if _leads(pod, name)), None)
        if leader is None:
            return
        allocation = job.get("status", {}).get("allocation", {})
        told = int(allocation.get("generation", 0))
        uid = leader["metadata"]["uid"]
        said = self._said.get(key)
        if said is None or said.incarnation != uid:
            said = None
        phase, reason, code = TrainerPhase.TRAINING, None, None
        if job.get("status", {}).get("scheduling", {}).get("stopping"):
            phase, code = TrainerPhase.STOPPED, 143
        elif (code := self.ends_when(job, own)) == 0:
            phase, reason = TrainerPhase.COMPLETED, Reason.BUDGET_EXHAUSTED
        elif code is not None:
            phase = TrainerPhase.FAILED
        acknowledged = 0 if said is None else said.acknowledged_generation
        report = Report(
            job=key,
            incarnation=uid,
            acknowledged_generation=acknowledged if name in self.stubborn else max(told, acknowledged),
            phase=phase,
            reason=reason,
            used_seconds=self._used(job, uid),
            updated_time=datetime.now(UTC),
        )
        if said is None or _news(said, report):
            self._said[key] = report
            await self._report(namespace, name, report)
            if code is not None:
                await self._end(leader, code)

    def _used(self, job: Raw, uid: str) -> float:
        """Return what the job has used by the leader's own count."""
        now = time.monotonic()
        if uid not in self._began:
            self._began[uid] = now - job.get("status", {}).get("timeBudget", {}).get("usedSeconds", 0.0)
        return now - self._began[uid]

    async def _report(self, namespace: str, job: str, report: Report) -> None:
        path = f"/api/v1/namespaces/{namespace}/configmaps/{job}-report"
        await self._patch(path, {"data": {"report.json": dumps(report)}})

    async def _end(self, pod: Raw, code: int) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        running = pod["status"]["containerStatuses"][0]
        terminated = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "finishedAt": now}
        terminated["startedAt"] = running["state"]["running"]["startedAt"]
        statuses = [{**running, "ready": False, "state": {"terminated": terminated}}]
        body = {"status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": statuses}}
        place = pod["metadata"]
        await self._patch(f"/api/v1/namespaces/{place['namespace']}/pods/{place['name']}/status", body)

    async def _patch(self, path: str, body: Raw) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = await self._api.patch(path, json=body, headers=headers)
        if answer.status_code != 404:  # it went meanwhile
            answer.raise_for_status()


def _job_of(pod: Raw) -> str | None:
    name = pod["metadata"].get("labels", {}).get("espalier.dev/job")
    return None if name is None else f"{pod['metadata']['namespace']}/{name}"


def _leads(pod: Raw, job: str) -> bool:
    running = pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    return running and pod["metadata"]["name"].startswith(f"{job}-base-0-")


def _news(before: Report, after: Report) -> bool:
    fields = ("phase", "acknowledged_generation", "reason")
    return any(getattr(before, field) != getattr(after, field) for field in fields)
