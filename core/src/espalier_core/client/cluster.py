"""Jobs of a namespace of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from espalier_core.client.jobs import JobClient, JobHandle, read_job
from espalier_core.k8s.access import Cluster
from espalier_core.k8s.errors import ClientError, ClusterError, NotFoundError, cluster_error, for_a_person
from espalier_core.k8s.jobs import Event, Job, event_of, is_about, job_of, phase, result_of, worker_log
from espalier_core.k8s.reflector import Change, Changed, Deleted, Failed, Rhythm, followed
from espalier_core.k8s.resources import EVENTS, JOB_LABEL, JOBS, PODS, Raw
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.result import RunResult


class ClusterClient(JobClient):
    """The jobs of a cluster; names without a namespace refer to `namespace` (default: the context's)."""

    def __init__(self, cluster: Cluster, namespace: str | None = None) -> None:
        self.cluster, self.namespace = cluster, namespace or cluster.namespace

    def submit(self, job: str | Path | Mapping[str, Any] | AdaptiveTrainingJob) -> ClusterHandle:
        found = read_job(job, None)
        body = found.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True, exclude={"status"})
        handle = self.job_at(found.metadata.name, body["metadata"].get("namespace"))
        with for_a_person():
            self.cluster.client.create(JOBS, body, handle.namespace)
        return handle

    def job(self, name: str) -> ClusterHandle:
        handle = self.job_at(name)
        handle.read()
        return handle

    def job_at(self, name: str, namespace: str | None = None) -> ClusterHandle:
        """Return a handle for the job `name` or `namespace/name`, without checking that it exists."""
        given, _, name = name.rpartition("/")
        return ClusterHandle(self.cluster, given or namespace or self.namespace, name)

    def jobs(self) -> list[JobHandle]:
        found = self.cluster.jobs(self.namespace)
        return [ClusterHandle(self.cluster, job.namespace, job.name) for job in found]

    def __exit__(self, *error: object) -> None:
        self.cluster.client.close()


class ClusterHandle(JobHandle):
    """An `AdaptiveTrainingJob`."""

    place = "cluster"

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self.cluster, self.namespace, self.name = cluster, namespace, name

    def read(self) -> Job:
        """Return the current state of the job."""
        return job_of(self._raw())

    def result(self) -> RunResult:
        return result_of(self.read())

    def wait(self, timeout: float | None = None) -> RunResult:
        end = None if timeout is None else time.monotonic() + timeout
        job = self.read()
        for each in self.follow():
            job = each if isinstance(each, Job) else job
            if end is not None and job.outcome is None and time.monotonic() >= end:
                raise TimeoutError(f"{job.key} is {phase(job)} after {timeout:g} s; wait with a longer timeout")
        return result_of(job)

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        heard = (each for each in self.follow() if isinstance(each, Event))
        seen: dict[str, int] = {}
        for event in chain(self._past(), heard, self._past()) if follow else self._past():
            if seen.get(event.uid) != event.times:
                seen[event.uid] = event.times
                yield event

    def _past(self) -> Iterator[Event]:
        uid = self.read().uid
        about = self.cluster.list_all(EVENTS, self.namespace, fields=f"involvedObject.name={self.name}").items
        yield from sorted((event_of(raw) for raw in about if is_about(raw, uid)), key=lambda event: event.at)

    def follow(self, patience: float = 300.0) -> Iterator[Job | Event | Change | None]:
        """Yield the job and its Events whenever they change, until it has ended; None after a moment without changes.

        It survives lost connections of up to `patience` seconds, yields these, and raises `ClusterError` after a
        deletion.
        """
        raw = self._raw()
        job = job_of(raw)
        yield job
        watched = [(JOBS, f"metadata.name={self.name}", [raw]), (EVENTS, f"involvedObject.name={self.name}", [])]
        with closing(followed(self.cluster.client, self.namespace, watched, Rhythm(patience=patience))) as news:
            while job.outcome is None:
                match next(news):
                    case resource, Changed(object=seen) if resource is EVENTS:
                        if is_about(seen, job.uid):
                            yield event_of(seen)
                    case _, Changed(object=seen) if seen["metadata"]["uid"] == job.uid:
                        job = job_of(seen)
                        yield job
                    case resource, Failed(error=error) if resource is JOBS:
                        raise cluster_error(error)
                    case resource, Changed() | Deleted() if resource is JOBS:  # replaced by another of its name
                        raise ClusterError(f"{job.key} was deleted before it ended")
                    case _, change:
                        yield change
                    case None:
                        yield None

    def logs(self, *, follow: bool = False, pod: str | None = None) -> Iterator[bytes]:
        """Yield the log of the leader, or of the worker whose pod is `pod`."""
        pods = self.cluster.list_all(PODS, self.namespace, labels=f"{JOB_LABEL}={self.name}").items
        if not pods:
            raise ClientError(f"{self.read().key} has no pods now", f"espalier explain {self.name} says why")
        if (found := worker_log(pods, pod)) is None:
            known = ", ".join(sorted(each["metadata"]["name"] for each in pods))
            raise ClientError(f"--worker {pod}: is not a pod of {self.namespace}/{self.name}; it has {known}")
        with for_a_person():
            yield from self.cluster.client.log(self.namespace, *found, follow=follow)

    def suspend(self) -> None:
        self._patch({"spec": {"suspend": True}})

    def resume(self) -> None:
        self._patch({"spec": {"suspend": False}})

    def delete(self) -> None:
        with self._named():
            self.cluster.client.delete(JOBS, self.namespace, self.name)

    def not_found(self) -> NotFoundError:
        """Return the error for a missing job, with the most similar existing name."""
        hint = self.cluster.nearest_job(self.namespace, self.name)
        return NotFoundError(f"there is no job {self.name!r} in namespace {self.namespace}", hint)

    def _patch(self, body: Mapping[str, Any]) -> None:
        with self._named():
            self.cluster.client.merge_patch(JOBS, self.namespace, self.name, body)

    def _raw(self) -> Raw:
        with self._named():
            return self.cluster.client.get(JOBS, self.namespace, self.name)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            with for_a_person():
                yield
        except NotFoundError:
            raise self.not_found() from None
