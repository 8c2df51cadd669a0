"""Readers of traces: files of jobs in, simulated jobs out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from espalier_lab.simulator.adaptive import AdaptiveJob
from espalier_lab.simulator.batches import BestBatches
from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.growth import GrowingJob, GrowthCurve
from espalier_lab.simulator.jobs import FixedJob, ProfiledJob, SimulatedJob
from espalier_lab.simulator.profiles import Profiles
from espalier_lab.simulator.tables import LAST_SECOND, MAX_SECONDS, MIN_SECONDS, UNIT, TableRow, rows
from espalier_operator.policies.view import Elasticity

_DATE: Final = "a date as 2017-10-01 08:30:00"
Reader = Callable[[Path, Profiles | None, Elasticity], list[SimulatedJob]]
_ALIASES: Final = {
    "timestamp": ("submit_time", "submitted_time", "submission_time", "arrival_time"),
    "num_gpus": ("gpu_num", "num_gpu", "gpus"),
}
"""What the columns are called elsewhere: `submit_time` and `gpu_num` in Helios."""


def read_pollux(path: Path, profiles: Profiles | None, elasticity: Elasticity = Elasticity.FIXED) -> list[SimulatedJob]:
    """Read a workload of the Pollux artifact: `name,time,application,num_replicas,batch_size`. Raises `TraceError`.

    Where the policy leaves the batch size to the jobs, they choose it.
    """
    if profiles is None:
        raise TraceError(f"{path}: its applications need profiles; name their folder with --profiles")
    jobs: list[tuple[TableRow, SimulatedJob]] = []
    best: dict[str, BestBatches] = {}
    for row in rows(path, ("name", "time", "application", "num_replicas", "batch_size")):
        name = row.text("application")
        application = profiles.application(name)
        if application is None:
            raise row.fault("application", f"is {name!r}; {profiles} has no folder of that name")
        batch, workers = row.count("batch_size"), row.count("num_replicas")
        low, high = max(application.initial_batch, workers * application.min_local), application.max_batch
        if low > high:
            most = high // application.min_local
            raise row.fault("num_replicas", f"is {workers}; {name} was measured on {most} workers at most")
        if not low <= batch <= high:
            raise row.fault("batch_size", f"is {batch}; on {workers} workers {name} was measured from {low} to {high}")
        if name not in best:
            best[name] = BestBatches(application)
        title, submitted_at = row.text("name"), row.seconds("time")
        asked = ProfiledJob(title, submitted_at, workers, batch, application)
        job: SimulatedJob = asked
        if elasticity is not Elasticity.WORKERS_AND_BATCH:
            pass
        elif name == "ncf":  # on one worker only, where the largest batch size is the best, as in the artifact
            job = ProfiledJob(title, submitted_at, 1, application.max_batch, application)
        else:
            job = AdaptiveJob(title, submitted_at, workers, application, best[name], asked)
        job.origin = row.place("num_replicas")
        jobs.append((row, job))
    return _distinct(path, jobs)


def read_csv(
    path: Path,
    profiles: Profiles | None = None,
    elasticity: Elasticity = Elasticity.FIXED,
    curves: Callable[[], Mapping[str, GrowthCurve]] = dict,
    tell: Callable[[str], object] = lambda note: None,
) -> list[SimulatedJob]:
    """Read `timestamp,duration,num_gpus`, as the traces of Philly and Helios were published. Raises `TraceError`.

    A timestamp is in seconds, at most `LAST_SECOND`, or a date with a time, in UTC where it names no time zone. Time
    begins with the first job. Jobs without GPUs, or that ended at once, are left out: `tell` gets a line. Lines may
    have any order. A column `growth` may name the model by whose growth curve, one of `curves`, a job grows; without
    one the job does not.
    """
    found: list[tuple[float, float, int, TableRow]] = []
    lines = 0
    for row in rows(path, ("timestamp", "duration", "num_gpus"), _ALIASES, ("growth",)):
        began, duration, gpus = _timestamp(row), row.seconds("duration"), row.number("num_gpus")
        if gpus != int(gpus):
            raise row.fault("num_gpus", f"is {row.text('num_gpus')!r}; it must be a whole number")
        lines += 1
        if duration >= MIN_SECONDS and gpus:
            found.append((began, duration, int(gpus), row))
    if found and lines > len(found):
        tell(f"{path}: {lines - len(found)} of {lines} jobs have no GPUs, or ended at once: they are left out")
    start = min((began for began, *_ in found), default=0.0)
    jobs: list[tuple[TableRow, SimulatedJob]] = []
    for began, duration, gpus, row in found:
        if began - start > MAX_SECONDS:
            raise row.fault(
                "timestamp",
                f"is {row.text('timestamp')!r}, {began - start:g} s after the first job; at most {MAX_SECONDS:g} s are "
                "simulated: write all of them in one unit, seconds or dates",
            )
        model = row.cells.get("growth", "").strip()
        shape = f"job-{row.line}", began - start, gpus, duration
        if model and model not in curves():
            raise row.fault("growth", f"is {model!r}; growth was measured of {', '.join(curves()) or 'no model'}")
        job = GrowingJob(*shape, curves()[model]) if model else FixedJob(*shape)
        job.origin = row.place("num_gpus")
        jobs.append((row, job))
    if lines and not jobs:
        raise TraceError(
            f"{path}: none of its {lines} jobs has GPUs and takes {MIN_SECONDS:g} s or more: nothing can be simulated"
        )
    return _distinct(path, jobs)


READERS: Final[dict[str, Reader]] = {"pollux": read_pollux, "csv": read_csv}
"""By name of the format."""


def _timestamp(row: TableRow) -> float:
    text = row.text("timestamp")
    try:
        value = float(text)
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
            value = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            value = math.nan
    else:
        if LAST_SECOND < abs(value) < math.inf:
            raise row.fault(
                "timestamp", f"is {text!r}; as seconds since 1970 that is after the year 5000; {UNIT}, or {_DATE}"
            )
    if not math.isfinite(value):
        raise row.fault("timestamp", f"is {text!r}; it must be seconds, or {_DATE}")
    return value


def _distinct(path: Path, found: list[tuple[TableRow, SimulatedJob]]) -> list[SimulatedJob]:
    if not found:
        raise TraceError(f"{path}: has no jobs")
    names = set()
    for row, job in found:
        if job.name in names:
            raise row.fault("name", f"two jobs are called {job.name!r}; rename one")
        names.add(job.name)
    return [job for _, job in found]
