"""Interfaces common to the clients of a cluster and of this machine."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from espalier_core.k8s.errors import ClientError
from espalier_core.k8s.jobs import Event
from espalier_core.registry import Registry
from espalier_core.types.explanation import Explanation, Section
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.result import RunResult
from espalier_core.validation.reading import JobFileError, load_job, parse_jobs

EXPLANATIONS: Final = "espalier.explanations"
"""The group of entry points that explain the job of a handle, selected by its `place`."""


class JobHandle(ABC):
    """A job that was submitted. All methods raise `ClientError`, or `NotFoundError` if the job is gone."""

    place: str
    """`cluster` or `machine`."""
    name: str

    @abstractmethod
    def result(self) -> RunResult:
        """Return the result of the job; before its end, the result so far, with its current phase."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> RunResult:
        """Return the result at its end, `Complete` or `Failed`; raise `TimeoutError` after `timeout` seconds.

        On this machine, a stopped run ends too, as `Stopped`: only `resume` starts it again.
        """

    @abstractmethod
    def events(self, *, follow: bool = False) -> Iterator[Event]:
        """Yield the job's past events, the oldest first; with `follow`, also later ones until it ends."""

    @abstractmethod
    def logs(self, *, follow: bool = False) -> Iterator[bytes]:
        """Yield the lines that its leader has printed; with `follow`, also later ones until it ends."""

    @abstractmethod
    def suspend(self) -> None:
        """Make it save a checkpoint and give all GPUs back."""

    @abstractmethod
    def resume(self) -> None:
        """Make it continue from its checkpoint."""

    @abstractmethod
    def delete(self) -> None:
        """End it, and delete it with its files; on a cluster, volumes stay."""

    def explain(self) -> Explanation:
        """Explain its state; if espalier-cli is installed, also what would change it."""
        explainers = Registry[Callable[[JobHandle], Explanation]]("explanation", EXPLANATIONS, {})
        if self.place in explainers.names():
            return explainers.load(self.place)(self)
        result = self.result()
        line = f"{result.job} is {result.phase}. {result.reason}: {result.message}".rstrip(": ")
        return Explanation(result.job, result.phase, result.reason or None, (Section("Where it stands", (line,)),))


class JobClient(ABC):
    """The jobs of one place; a context manager."""

    @abstractmethod
    def submit(self, job: str | Path | Mapping[str, Any] | AdaptiveTrainingJob) -> JobHandle:
        """Submit a job: a file with one job, the job in plain JSON types, or a model.

        Raise `ClientError` if it is invalid, or if a job of its name exists.
        """

    @abstractmethod
    def job(self, name: str) -> JobHandle:
        """Return the job of this name; raise `NotFoundError` if there is none."""

    @abstractmethod
    def jobs(self) -> list[JobHandle]:
        """Return all jobs, by name."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:  # noqa: B027 - not all have something open
        """Close open connections. Jobs go on."""


def read_job(job: str | Path | Mapping[str, Any] | AdaptiveTrainingJob, resource: str | None) -> AdaptiveTrainingJob:
    """Return the job as a model; raise `ClientError` with every problem. `resource` is as for `load_jobs`."""
    if isinstance(job, AdaptiveTrainingJob):
        return job
    try:
        if isinstance(job, Mapping):
            return parse_jobs(json.dumps(job), "job", resource)[0]
        return load_job(Path(job), resource)
    except JobFileError as error:
        raise ClientError(str(error)) from error
