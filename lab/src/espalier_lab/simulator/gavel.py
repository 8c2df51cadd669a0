"""Traces and measured throughputs of Gavel (Narayanan et al., OSDI 2020): jobs on V100, P100 and K80 GPUs.

A trace has one job per line, with ten fields separated by tabs: job type, command, working directory, argument of
steps, whether it needs a data folder, steps, GPUs, weight, service level, arrival in seconds; or as in `_LAYOUTS`. The
throughputs are JSON: by type of GPU, and by job type with its number of GPUs, the steps per second, alone (`null`) and
beside each other job type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.tables import MAX_SECONDS, TableRow, text_of
from espalier_lab.simulator.typed import TypedNode
from espalier_lab.simulator.typed_jobs import Kind, TypedJob

FORMAT: Final = "gavel"
FILE: Final = "simulation_throughputs.json"
SERVERS: Final = {"v100": 4, "p100": 4, "k80": 8}
"""GPUs per server by type, the fastest type first, as in the cluster of the paper (section 7.1)."""
_FIELDS: Final = ("job type", "command", "directory", "argument", "data", "steps", "GPUs", "weight", "SLO", "arrival")
_LAYOUTS: Final = {
    len(_FIELDS): _FIELDS,
    7: ("job type", "command", "argument", "data", "steps", "arrival", "GPUs"),
    12: (*_FIELDS[:7], "mode", *_FIELDS[7:9], "duration", _FIELDS[9]),
}
"""Fields by their number: seven in older traces of Gavel, twelve in those of Shockwave (NSDI 2023)."""
_FASTEST: Final = 1e9
"""Limit on steps per second, and on seconds per step: beyond it, jobs are considered mistakes."""
_STATIC: Final = "static"
_DEFAULTS: Final = {"weight": "1"}


class Throughputs:
    """Measured steps per second. A combination that is not in the file cannot run."""

    def __init__(self, path: Path) -> None:
        """Read `path`, or the file `FILE` in that folder. Raise `TraceError`."""
        self.path = path / FILE if path.is_dir() else path
        try:
            found = json.loads(text_of(self.path))
        except ValueError as error:
            reason = str(error).removeprefix(f"{self.path}: cannot be read: ")
            raise TraceError(
                f"{self.path}: cannot be read: {reason}; name the measured throughputs with --profiles"
            ) from error
        if not isinstance(found, dict) or not any(gpu_type in found for gpu_type in SERVERS):
            raise TraceError(f"{self.path}: holds no throughputs by type of GPU ({', '.join(SERVERS)})")
        self._found: dict[str, Any] = found
        self._known: dict[tuple[str, Kind, Kind | None], float] = {}

    def steps_per_second(self, gpu_type: str, kind: Kind, beside: Kind | None = None) -> float:
        """Return the speed of a job of `kind`, alone or on the same GPUs as another. Raise `TraceError`."""
        place = gpu_type, kind, beside
        if place not in self._known:
            self._known[place] = self._read(gpu_type, str(kind), "null" if beside is None else str(beside))
        return self._known[place]

    def job_types(self) -> list[str]:
        """Return the measured types of jobs, in order."""
        return sorted({job_type for job_type, _ in self._kinds()})

    def sizes(self, job_type: str) -> list[int]:
        """Return the numbers of GPUs with which jobs of that type were measured, ascending."""
        return sorted({size for name, size in self._kinds() if name == job_type})

    def _kinds(self) -> Iterator[Kind]:
        for kinds in self._found.values():
            for kind in kinds if isinstance(kinds, dict) else ():
                name, _, size = kind.removeprefix("('").removesuffix(")").rpartition("', ")
                if size.isdecimal():
                    yield name, int(size)

    def _read(self, gpu_type: str, kind: str, beside: str) -> float:
        value: Any = self._found
        for key in (gpu_type, kind, beside):
            value = value.get(key, 0.0) if isinstance(value, dict) else 0.0
        if isinstance(value, list):
            value = value[0] if value else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (value == 0 or 1 / _FASTEST <= value <= _FASTEST):
            raise TraceError(
                f"{self.path}: {gpu_type}: {kind}: {beside}: is {value!r}; it must be steps per second, 0 or from "
                f"{1 / _FASTEST:g} to {_FASTEST:g}"
            )
        return float(value)


def read_gavel(path: Path, throughputs: Throughputs) -> list[TypedJob]:
    """Read a trace; its lines may have any order. Jobs without steps are left out. Raise `TraceError`."""
    lines = list(_lines(path))
    jobs: list[TypedJob] = []
    for place, row in enumerate(lines):
        if not row.number("steps"):
            continue
        kind, arrival = (row.text("job type"), row.count("GPUs")), row.seconds("arrival")
        steps, fastest = row.count("steps"), max(throughputs.steps_per_second(gpu_type, kind) for gpu_type in SERVERS)
        if not fastest:
            measured = throughputs.sizes(kind[0])
            sizes = f"; it was measured with {', '.join(map(str, measured))}" if measured else ""
            raise row.fault("job type", f"is {kind[0]!r}; with {kind[1]} GPUs it is not in {throughputs.path}{sizes}")
        if steps > MAX_SECONDS * fastest:
            raise row.fault("steps", f"is {steps}; at {fastest:g} steps a second that is more than {MAX_SECONDS:g} s")
        if row.cells.get("mode", _STATIC) != _STATIC:
            raise row.fault(
                "mode",
                f"is {row.text('mode')!r}; jobs that change their batch size are not simulated: only {_STATIC!r}",
            )
        name = f"job-{place:0{len(str(len(lines)))}}"
        # A weight of w is priority w − 1 here (`weight_of`).
        priority = row.count("weight") - 1
        job = TypedJob(name, arrival, kind, steps, throughputs, priority=priority)
        job.origin = row.place("GPUs")
        jobs.append(job)
    if not jobs:
        raise TraceError(f"{path}: has no jobs")
    return jobs


def nodes_by_type(text: str) -> list[TypedNode]:
    """Return the servers of `V100S:P100S:K80S`, which are numbers of GPUs. Raise `TraceError`."""
    if re.fullmatch(r"\d{1,6}:\d{1,6}:\d{1,6}", text) is None or not any(map(int, text.split(":"))):
        raise TraceError(f"cluster {text!r}: must be V100S:P100S:K80S for a trace of Gavel, as 8:16:24 GPUs")
    return [
        TypedNode(gpu_type, min(size, count - first))
        for (gpu_type, size), count in zip(SERVERS.items(), map(int, text.split(":")), strict=True)
        for first in range(0, count, size)
    ]


def _lines(path: Path) -> Iterator[TableRow]:
    """Yield the lines that are not empty."""
    for number, line in enumerate(text_of(path).split("\n"), 1):
        if line.strip():
            fields = line.rstrip("\r").split("\t")
            names = _LAYOUTS.get(len(fields))
            if names is None:
                known = ", or ".join(f"{size} ({', '.join(names)})" for size, names in _LAYOUTS.items())
                raise TraceError(
                    f"{path}:{number}: has {len(fields)} fields; a line of Gavel has {known}, separated by tabs"
                )
            yield TableRow(path, number, _DEFAULTS | dict(zip(names, fields, strict=True)))
