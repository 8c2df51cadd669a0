"""Readers of traces: files of jobs in, simulated jobs out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from espalier_operator.policies.view import Elasticity
from espalier_operator.simulation.adaptive import AdaptiveJob
from espalier_operator.simulation.batches import BestBatches
from espalier_operator.simulation.errors import TraceError
from espalier_operator.simulation.jobs import FixedJob, ProfiledJob, SimulatedJob
from espalier_operator.simulation.profiles import Profiles
from espalier_operator.simulation.tables import Row, rows

Reader = Callable[[Path, Profiles | None, Elasticity], list[SimulatedJob]]


def read_pollux(path: Path, profiles: Profiles | None, elasticity: Elasticity = Elasticity.FIXED) -> list[SimulatedJob]:
    """Read a workload of the Pollux artifact: `name,time,application,num_replicas,batch_size`. Raises `TraceError`.

    Where the policy leaves the batch size to the jobs, they choose it.
    """
    if profiles is None:
        raise TraceError(f"{path}: its applications need profiles; name their folder with --profiles")
    jobs: list[SimulatedJob] = []
    best: dict[str, BestBatches] = {}
    for row in rows(path, ("name", "time", "application", "num_replicas", "batch_size")):
        name = row.text("application")
        application = profiles.application(name)
        if application is None:
            raise row.fault("application", f"is {name!r}; {profiles} has no folder of that name")
        batch, workers = row.count("batch_size"), row.count("num_replicas")
        low, high = max(application.initial_batch, workers * application.min_local), application.max_batch
        if not low <= batch <= high:
            raise row.fault("batch_size", f"is {batch}; on {workers} workers {name} was measured from {low} to {high}")
        if name not in best:
            best[name] = BestBatches(application)
        title, submitted_at = row.text("name"), row.number("time")
        if elasticity is not Elasticity.WORKERS_AND_BATCH:
            jobs.append(ProfiledJob(title, submitted_at, workers, batch, application))
        elif name == "ncf":  # on one worker only, where the largest batch size is the best, as in the artifact
            jobs.append(ProfiledJob(title, submitted_at, 1, application.max_batch, application))
        else:
            jobs.append(AdaptiveJob(title, submitted_at, workers, application, best[name]))
    return _distinct(path, jobs)


def read_csv(
    path: Path, profiles: Profiles | None = None, elasticity: Elasticity = Elasticity.FIXED
) -> list[SimulatedJob]:
    """Read `timestamp,duration,num_gpus`, as the traces of Philly and Helios were published. Raises `TraceError`.

    A timestamp is in seconds, or a date with a time. Time begins with the first job. Jobs without GPUs, or that ended
    at once, are left out.
    """
    found: list[tuple[float, float, int, int]] = []
    for row in rows(path, ("timestamp", "duration", "num_gpus")):
        began, duration, gpus = _timestamp(row), row.number("duration"), row.number("num_gpus")
        if gpus != int(gpus):
            raise row.fault("num_gpus", f"is {row.text('num_gpus')!r}; it must be a whole number")
        if duration and gpus:
            found.append((began, duration, int(gpus), row.line))
    start = min((began for began, *_ in found), default=0.0)
    jobs: list[SimulatedJob] = [
        FixedJob(f"job-{line}", began - start, gpus, duration) for began, duration, gpus, line in found
    ]
    return _distinct(path, jobs)


READERS: Final[dict[str, Reader]] = {"pollux": read_pollux, "csv": read_csv}
"""By name of the format."""


def _timestamp(row: Row) -> float:
    text = row.text("timestamp")
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise row.fault("timestamp", f"is {text!r}; it must be seconds, or a date as 2017-10-01 08:30:00") from None


def _distinct(path: Path, jobs: list[SimulatedJob]) -> list[SimulatedJob]:
    if not jobs:
        raise TraceError(f"{path}: has no jobs")
    names = set()
    for job in jobs:
        if job.name in names:
            raise TraceError(f"{path}: name: two jobs are called {job.name!r}")
        names.add(job.name)
    return jobs
