"""Readers of traces: files of jobs in, simulated jobs out."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_low
from typing import Any, Final

from espalier_lab.simulator.adaptive import AdaptiveJob
from espalier_lab.simulator.batches import BestBatches
from espalier_lab.simulator.columns import Selection
from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.growth import GrowingJob, GrowthCurve
from espalier_lab.simulator.jobs import FixedJob, ProfiledJob, SimulatedJob
from espalier_lab.simulator.profiles import Profiles
from espalier_lab.simulator.tables import LAST_SECOND, MAX_SECONDS, MIN_SECONDS, UNIT, Fields, TableRow, rows, text_of
from espalier_operator.policies.view import Elasticity

FIELDS: Final = Fields(
    required=("timestamp", "duration", "num_gpus"),
    optional=("growth", "job"),
    aliases={
        "timestamp": (
            *("submit_time", "submitted_time", "submission_time", "arrival_time", "creation_time", "submit"),
        ),
        "duration": ("elapsedraw", "elapsed"),
        "start": ("start_time", "scheduled_time"),
        "end": ("end_time", "deletion_time"),
        "num_gpus": ("gpu_num", "num_gpu", "gpus", "alloctres"),
        "job": ("job_id", "jobid"),
    },
    instead={"duration": ("start", "end")},
    moments=("timestamp", "start", "end"),
)
"""The columns of a table, with their names in public traces."""
_PHILLY: Final = {"timestamp": "submitted_time", "start": "start_time", "end": "end_time", "num_gpus": "gpus"}
_DATE: Final = "a date as 2017-10-01 08:30:00"
_ABSENT: Final = ("", "-", "n/a", "nan", "nat", "none", "null", "unknown")
_CLOCK: Final = re.compile(r"(?:(\d+)(?:-| days? ))?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_LISTS: Final = re.compile("gres|tres", re.IGNORECASE)
"""Names of Slurm's columns that list resources, such as `cpu=8,gres/gpu=2` or `gpu:v100:2`."""
_LISTED: Final = re.compile(r"(?:^|,)(?:gres/)?gpu(:[a-z][^,=:(]*)?[=:](\d+)", re.IGNORECASE)
_ROUNDING: Final = 1e-9
_NOTHING: Final = "have no GPUs, or ended at once"
_NEVER: Final = "did not start, or did not end"
_STEPS: Final = "are steps of another"
_UNKEPT: Final = "are not among those to --keep"


def read_pollux(path: Path, profiles: Profiles | None, elasticity: Elasticity = Elasticity.FIXED) -> list[SimulatedJob]:
    """Read a workload of the Pollux artifact: `name,time,application,num_replicas,batch_size`. Raise `TraceError`.

    If the policy leaves the batch size to the jobs, they choose it.
    """
    if profiles is None:
        raise TraceError(f"{path}: its applications need profiles; name their folder with --profiles")
    jobs: list[tuple[TableRow, SimulatedJob]] = []
    best: dict[str, BestBatches] = {}
    for row in rows(path, Fields(required=("name", "time", "application", "num_replicas", "batch_size"))):
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
        elif name == "ncf":  # only one worker, for which the largest batch size is the best, as in the artifact
            job = ProfiledJob(title, submitted_at, 1, application.max_batch, application)
        else:
            job = AdaptiveJob(title, submitted_at, workers, application, best[name], asked)
        job.origin = row.place("num_replicas")
        jobs.append((row, job))
    return _distinct(path, jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReading:
    """Options of reading tables of jobs, and the receiver of messages about skipped ones."""

    selection: Selection = field(default_factory=Selection)
    skip: bool = False
    """Whether to leave out unusable lines."""
    curves: Callable[[], Mapping[str, GrowthCurve]] = dict
    """Returns the models with growth curves for jobs."""
    tell: Callable[[str], object] = print
    """Receives one line per reason for which jobs were left out."""


def read_csv(path: Path, reading: TraceReading) -> list[SimulatedJob]:
    """Read a table of `timestamp`, `num_gpus`, and `duration` or `start` and `end`. Raise `TraceError`.

    A time is in seconds, at most `LAST_SECOND`, or a date, in UTC unless it names a time zone. Lines may have any
    order. A column `growth` may name the model whose growth curve a job follows; without one the job does not grow.
    Jobs are left out if they have no GPUs, ended at once, or did not start or end; so are steps of jobs (`12.batch` of
    Slurm's job `12`, in a column `job`).
    """
    return _fixed_jobs(path, rows(path, FIELDS, reading.selection), reading)


def read_philly(path: Path, reading: TraceReading) -> list[SimulatedJob]:
    """Read `cluster_job_log` of Philly, a list in JSON (Jeon et al., ATC 2019). Raise `TraceError`.

    A job needs the GPUs of its last attempt that ended, for the total duration of its attempts. Jobs without such an
    attempt, or without a submission, are left out.
    """
    text = text_of(path)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{path}: is not JSON, as cluster_job_log of Philly is: {error}") from error
    if not isinstance(found, list):
        raise TraceError(f"{path}: is not a list of jobs, as cluster_job_log of Philly is")
    return _fixed_jobs(path, enumerate(found, 1), reading, lambda job: _philly_row(path, *job))


TABLES: Final[Mapping[str, Callable[[Path, TraceReading], list[SimulatedJob]]]] = {
    "csv": read_csv,
    "philly": read_philly,
}
"""Readers by name of the format."""


def _philly_row(path: Path, number: int, job: Any) -> TableRow:
    """Return a job of Philly as a line of a table."""
    row = TableRow(path, f"job {number}", {})
    try:
        others = {name: value for name, value in job.items() if isinstance(value, str)}
        row = TableRow(path, others.get("jobid", row.line), {}, _PHILLY, others)
        cells, seconds = {"timestamp": job["submitted_time"] or "", "num_gpus": "1", "start": "", "end": ""}, 0.0
        for attempt in job["attempts"]:
            ran = replace(row, cells={"start": attempt["start_time"] or "", "end": attempt["end_time"] or ""})
            if not (_absent(ran, "start") or _absent(ran, "end")):
                seconds += _between(ran)
                gpus = sum(len(server["gpus"]) for server in attempt["detail"])
                cells |= {"duration": str(seconds), "num_gpus": str(gpus)}
        if _absent(replace(row, cells=cells), "timestamp"):
            cells.pop("duration", None)
    except (AttributeError, KeyError, TypeError) as error:
        raise row.fault("attempts", f"is not as in cluster_job_log of Philly ({error!r})") from error
    return replace(row, cells=cells)


def _fixed_jobs(
    path: Path,
    entries: Iterable[Any],
    reading: TraceReading,
    row_of: Callable[[Any], TableRow] = lambda row: row,
) -> list[SimulatedJob]:
    """Return the jobs of a table; time begins with the first one."""
    found: list[_Line] = []
    left, seen, ids, faults, lines = Counter[str](), dict[str, set[str]](), set[str](), list[TraceError](), 0
    for entry in entries:
        lines += 1
        try:
            row = row_of(entry)
            line = _line(row, ids, reading.curves) if reading.selection.keeps(row.others) else _UNKEPT
        except TraceError as error:
            faults.append(error)
            if not reading.skip:
                break
            continue
        if isinstance(line, _Line):
            found.append(line)
            continue
        left[line] += 1
        if line is _UNKEPT:
            for name in reading.selection.keep:
                seen.setdefault(name, set()).add(row.others.get(name, ""))
    middle = median_low([line.began for line in found] or [0.0])
    faults += [_distant(line, middle) for line in found if abs(line.began - middle) > MAX_SECONDS]
    if faults and not reading.skip:
        raise TraceError(f"{faults[0]}; --skip bad leaves out unusable lines") from faults[0]
    found = [line for line in found if abs(line.began - middle) <= MAX_SECONDS]
    if lines and left[_UNKEPT] == lines:
        raise reading.selection.nothing_kept(path, seen)
    reasons = [f"{count} of {lines} jobs {reason}" for reason, count in left.items()]
    reasons += [f"{len(faults)} of {lines} jobs cannot be used, the first: {faults[0]}"] if faults else []
    if not found:
        none = f"none of its {lines} jobs has GPUs and takes {MIN_SECONDS:g} s or more" if lines else "has no jobs"
        raise TraceError(f"{path}: {'; '.join([none, *reasons])}")
    for reason in reasons:
        reading.tell(f"{path}: {reason}: they are left out")
    if parts := sum(line.gpus % 1 > 0 for line in found):
        reading.tell(f"{path}: {parts} of {lines} jobs ask for a part of a GPU: they get whole ones")
    start = min(line.began for line in found)
    return [_job(line, start, reading.curves) for line in found]


@dataclass(frozen=True, slots=True)
class _Line:
    """A job of a table; `gpus` may be a fraction of one."""

    row: TableRow
    began: float
    duration: float
    gpus: float
    growth: str


def _line(row: TableRow, ids: set[str], curves: Callable[[], Mapping[str, GrowthCurve]]) -> _Line | str:
    """Return the job of a line, or the reason to leave it out; `ids` has the jobs so far. Raise `TraceError`."""
    name = row.cells.get("job", "").strip()
    if name.partition(".")[0] in ids and "." in name:
        return _STEPS
    ids.add(name)
    gpus = _gpus(row)
    if not gpus:
        return _NOTHING
    if "duration" not in row.cells and (_absent(row, "start") or _absent(row, "end")):
        return _NEVER
    duration = _duration(row) if "duration" in row.cells else _between(row)
    began, model = _time(row, "timestamp"), row.cells.get("growth", "").strip()
    if model and model not in curves():
        raise row.fault("growth", f"is {model!r}; growth was measured of {', '.join(curves()) or 'no model'}")
    return _Line(row, began, duration, gpus, model) if duration >= MIN_SECONDS else _NOTHING


def _distant(line: _Line, middle: float) -> TraceError:
    return line.row.fault(
        "timestamp",
        f"is {line.row.text('timestamp')!r}, {abs(line.began - middle):g} s from the median; at most {MAX_SECONDS:g} s "
        "are simulated: write all of them in one unit, seconds or dates",
    )


def _job(line: _Line, start: float, curves: Callable[[], Mapping[str, GrowthCurve]]) -> SimulatedJob:
    shape = f"job-{line.row.line}", line.began - start, math.ceil(line.gpus - _ROUNDING), line.duration
    job = GrowingJob(*shape, curves()[line.growth]) if line.growth else FixedJob(*shape)
    job.origin = line.row.place("num_gpus")
    return job


def _gpus(row: TableRow) -> float:
    """Return the GPUs of a line, 0 if it names none; in Slurm's lists of resources, the sum over types."""
    if _absent(row, "num_gpus"):
        return 0.0
    if _LISTS.search(row.columns.get("num_gpus", "")):
        counted = _LISTED.findall(row.cells["num_gpus"])
        return sum(int(count) for kind, count in counted if not kind) or sum(int(count) for _, count in counted)
    return row.number("num_gpus")


def _absent(row: TableRow, field: str) -> bool:
    return row.cells.get(field, "").strip().casefold() in _ABSENT


def _duration(row: TableRow) -> float:
    """Return seconds, also from the form `1-02:03:04`."""
    written = _CLOCK.fullmatch(row.text("duration"))
    if written is None:
        return row.seconds("duration")
    days, hours, minutes, seconds = (float(part or 0) for part in written.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _between(row: TableRow) -> float:
    """Return the seconds from start to end."""
    seconds = _time(row, "end") - _time(row, "start")
    if not 0 <= seconds <= MAX_SECONDS:
        raise row.fault(
            "end", f"is {row.text('end')!r}, {seconds:g} s after the start; at most {MAX_SECONDS:g} s, {UNIT}"
        )
    return seconds


def _time(row: TableRow, field: str) -> float:
    """Return a time in seconds: a number, or a date."""
    text = row.text(field)
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
                field, f"is {text!r}; as seconds since 1970 that is after the year 5000; {UNIT}, or {_DATE}"
            )
    if not math.isfinite(value):
        raise row.fault(field, f"is {text!r}; it must be seconds, or {_DATE}")
    return value


def _distinct(path: Path, found: list[tuple[TableRow, SimulatedJob]]) -> list[SimulatedJob]:
    if not found:
        raise TraceError(f"{path}: has no jobs")
    names = set()
    for row, job in found:
        if job.name in names:
            raise row.fault("name", f"two jobs have the name {job.name!r}; rename one")
        names.add(job.name)
    return [job for _, job in found]
