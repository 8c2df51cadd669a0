"""The history of a real cluster, from the operator's audit log: its recorded course, and the jobs for a replay.

A job needs the GPUs of its base workers for the run time of its leader: the used part of its time budget, or the whole
budget if the log ends first. Lent spare GPUs do not shorten that, so they are not replayed. The cluster has all nodes
of the snapshots, each with its maximum number of GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from espalier_core.files.documents import json_lines
from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.holdings import hold
from espalier_lab.simulator.jobs import FixedJob, SimulatedJob
from espalier_lab.simulator.measured import MeasuredJob
from espalier_lab.simulator.rounds import SimulatedNode
from espalier_lab.simulator.tables import LAST_SECOND, MAX_SECONDS, MIN_SECONDS, UNIT, text_of
from espalier_operator.model import JobFacts, Snapshot, SnapshotError
from espalier_operator.model.actions import DECISIONS, EARLIER

FORMAT: Final = "audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditHistory:
    """The contents of an audit log, in seconds from the first submission."""

    happened: list[FixedJob]
    """The ended jobs, as they ran."""
    nodes: list[SimulatedNode]
    left_out: int
    """Number of jobs that never ran, that need no GPU, or more than the cluster has."""
    _past: list[_Past]

    def jobs(self) -> list[FixedJob]:
        """Return all jobs for simulation."""
        return [past.job() for past in self._past]

    def elastic_job(self, index: int) -> SimulatedJob:
        """Return the job of this index in `jobs`, with the speed at more workers that its trainer measured.

        Only jobs whose workers train together and have one GPU each are elastic; others are returned as in `jobs`.
        """
        return self._past[index].elastic_job(max(node.gpus for node in self.nodes))


@dataclass(slots=True)
class _Past:
    """The observations of a job."""

    facts: JobFacts
    name: str
    start: float = 0.0
    """The first submission of all."""
    gpus: int = 0
    since: float = 0.0
    seen_at: float = 0.0
    """The operator's first plan with it."""
    ended_at: float | None = None
    is_gone: bool = False
    """Whether it was deleted before it ended."""
    admissions: int = 0
    evictions: int = 0
    preemptions: int = 0
    held: list[tuple[float, float, int]] = field(default_factory=list)

    @property
    def base(self) -> int:
        """Number of GPUs of its base workers."""
        return self.facts.terms.min_replicas * self.facts.terms.gpus_per_worker

    @property
    def duration(self) -> float:
        """Seconds that its leader ran, or would have run."""
        used, budget = self.facts.used_seconds, self.facts.terms.time_budget_seconds
        return used if self.ended_at is not None or self.is_gone or budget > MAX_SECONDS else max(used, budget)

    def give(self, gpus: int, at: float) -> None:
        """Record that it holds this number of GPUs from now on."""
        if self.gpus and at > self.since:
            self.held.append((self.since, at, self.gpus))
        self.gpus, self.since = gpus, at

    def job(self) -> FixedJob:
        """Return the job as it was submitted."""
        job = FixedJob(self.name, self.facts.submitted_at - self.start, self.base, self.duration)
        job.priority, job.preemptible = self.facts.terms.priority, self.facts.terms.base_preemptible
        job.least_workers = job.requested  # base workers are granted all at once or not at all
        return job

    def elastic_job(self, node_gpus: int) -> SimulatedJob:
        """Return the job as it was submitted, with the speed at more workers that its trainer measured."""
        job, terms = self.job(), self.facts.terms
        if not (terms.trains_together and self.facts.speeds and terms.gpus_per_worker == 1):
            return job
        measured = MeasuredJob(self.name, job.submitted_at, self.facts, self.duration, node_gpus)
        measured.priority, measured.preemptible = job.priority, job.preemptible
        return measured

    def ended(self) -> FixedJob:
        """Return the job as it ran."""
        job = self.job()
        job.completed_at = (self.ended_at or 0.0) - self.start
        job.restarts, job.evictions, job.preemptions = self.admissions - 1, self.evictions, self.preemptions
        job.service = sum(hold(job.held, start - self.start, end - self.start, gpus) for start, end, gpus in self.held)
        # Mean cost of a start: the job held GPUs while its leader did not run.
        idle = sum(end - start for start, end, _ in self.held) - self.duration
        job.start_seconds = self.seen_at - self.facts.submitted_at + max(0.0, idle) / max(1, self.admissions)
        return job


def read_history(folder: Path) -> AuditHistory:
    """Read the audit log in `folder`. Raise `TraceError`."""
    past: dict[tuple[str, float], _Past] = {}
    current: dict[str, _Past] = {}
    gpus: dict[str, int] = {}
    for at, snapshot, actions in recorded(folder):
        if snapshot is not None:
            for node in snapshot.nodes:
                gpus[node.name] = max(gpus.get(node.name, 0), node.allocatable)
            _see(snapshot, at, past, current)
        for action in actions:
            if (job := current.get(action["job"])) is not None and job.ended_at is None:
                _apply(action, at, job)
    nodes = [SimulatedNode(name, count) for name, count in sorted(gpus.items()) if count]
    total = sum(node.gpus for node in nodes)
    found = [job for job in past.values() if job.duration >= MIN_SECONDS and 0 < job.base <= total]
    if not found:
        raise TraceError(f"{folder}: no job of the audit log ran on a GPU; is it that of another operator?")
    start = min(job.facts.submitted_at for job in found)
    for job in found:
        job.start = start
        if job.facts.submitted_at > LAST_SECOND:
            raise TraceError(
                f"{folder}: job {job.name}: submitted_at: is {job.facts.submitted_at:g}, not a time in seconds "
                f"since 1970; {UNIT}"
            )
        if max(job.duration, job.facts.submitted_at - start) > MAX_SECONDS:
            raise TraceError(
                f"{folder}: job {job.name}: its times span more than {MAX_SECONDS:g} s: the log is damaged"
            )
    return AuditHistory(
        happened=[job.ended() for job in found if job.ended_at is not None],
        nodes=nodes,
        left_out=len(past) - len(found),
        _past=found,
    )


def _see(snapshot: Snapshot, at: float, past: dict[tuple[str, float], _Past], current: dict[str, _Past]) -> None:
    """Record the jobs of a snapshot."""
    seen = set()
    for facts in (facts.counted(snapshot.taken_at) for facts in snapshot.jobs):
        identity = facts.key, facts.submitted_at
        seen.add(facts.key)
        if identity not in past:
            if facts.finished:
                continue
            again = sum(key == facts.key for key, _ in past)
            job = past[identity] = _Past(facts, facts.key if not again else f"{facts.key} ({again + 1})", seen_at=at)
            if facts.admitted_at is not None:  # the log begins after its start
                job.seen_at = facts.submitted_at
                job.admissions, job.gpus, job.since = 1, facts.gpus_held, facts.admitted_at
        job = current[facts.key] = past[identity]
        if job.ended_at is None:
            job.facts = facts
    for key in current.keys() - seen:
        job = current.pop(key)
        if job.ended_at is None:
            job.is_gone = True
            job.give(0, at)


def _apply(action: Mapping[str, Any], at: float, job: _Past) -> None:
    kind = action["action"]
    if kind == "Admit":
        job.admissions += 1
        job.give(job.base, at)
    elif kind in ("GrantExtra", "ReleaseExtra"):
        job.preemptions += kind == "ReleaseExtra"
        job.give(job.base + action.get("extra", 0) * job.facts.terms.gpus_per_worker, at)
    elif kind == "Requeue":
        job.evictions += 1
        job.preemptions += 1
        job.give(0, at)
    elif kind in ("Finish", "Fail"):
        job.ended_at = at
        job.give(0, at)


def recorded(folder: Path) -> Iterator[tuple[float, Snapshot | None, list[Mapping[str, Any]]]]:
    """Yield time, snapshot and actions of each plan, the oldest first; None for a snapshot that was removed since.

    Raise `TraceError`.
    """
    if not folder.is_dir():
        raise TraceError(f"{folder}: is not a folder; name that of --audit-dir")
    files = [folder / name for name in (EARLIER, DECISIONS) if (folder / name).exists()]
    if not files:
        raise TraceError(f"{folder}: has no {DECISIONS}; name the folder of --audit-dir")
    for file in files:
        for number, line in enumerate(json_lines(text_of(file)), 1):
            if line.strip():
                yield _line(folder, f"{file}:{number}", line)


def _line(folder: Path, place: str, line: str) -> tuple[float, Snapshot | None, list[Mapping[str, Any]]]:
    try:
        found = json.loads(line)
        at, name, actions = float(found["at"]), str(found["snapshot"]), list(found["actions"])
        if not abs(at) <= LAST_SECOND:
            raise ValueError(f"at: {at:g} is not a time in seconds since 1970")
        for action in actions:
            if not (isinstance(action["job"], str) and isinstance(action["action"], str)):
                raise ValueError("actions: each must name a job and an action")
            if not isinstance(action.get("extra", 0), int):
                raise ValueError(f"actions: extra: {action['extra']!r} is not a number of workers")
    except KeyError as error:
        raise TraceError(f"{place}: {error.args[0]}: is missing; it is not a line of an audit log") from error
    except (ValueError, TypeError) as error:
        raise TraceError(f"{place}: is not a line of an audit log: {error}; remove it if it was cut off") from error
    file = folder / Path(name).name
    if not file.exists():
        return at, None, actions
    try:
        return at, Snapshot.from_json(text_of(file)), actions
    except SnapshotError as error:
        raise TraceError(f"{file}: {error}") from error
