"""The runs of `espalier simulate`: jobs from a file, a generator or a history, on a cluster, by a driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from espalier_cli.errors import InputError
from espalier_core.types.job import BasePreemption
from espalier_lab.simulator.cluster import nodes_of
from espalier_lab.simulator.columns import Selection
from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.gavel import FORMAT, Throughputs, nodes_by_type, read_gavel
from espalier_lab.simulator.generate import PREFIX, generate, generate_typed
from espalier_lab.simulator.growth import GrowthCurve, growth_curves
from espalier_lab.simulator.history import FORMAT as HISTORY
from espalier_lab.simulator.history import AuditHistory, read_history
from espalier_lab.simulator.jobs import SimulatedJob
from espalier_lab.simulator.latencies import LATENCIES, Latencies
from espalier_lab.simulator.outcome import EndedJob
from espalier_lab.simulator.planned import Planned
from espalier_lab.simulator.planned_types import planned_types
from espalier_lab.simulator.profiles import Profiles
from espalier_lab.simulator.rounds import Rounds, SimulatedNode
from espalier_lab.simulator.traces import TABLES, TraceReading, read_pollux
from espalier_lab.simulator.typed import TypedRounds, fits_a_type
from espalier_operator.policies import Policy

ROUNDS: Final = "rounds"
PLAN: Final = "plan"
CSV: Final = "csv"
GAVEL: Final = FORMAT
AUDIT: Final = HISTORY
POLLUX: Final = "pollux"
FORMATS: Final = (POLLUX, *TABLES, GAVEL, AUDIT)
BAD: Final = "bad"
LARGER: Final = "larger"
HAPPENED: Final = "happened"
"""The recorded course of a history, in the place of a policy."""

J = TypeVar("J")


@cache
def carried_curves() -> dict[str, GrowthCurve]:
    """Return the gains of models by growing, from the outcome tables included with the agent."""
    from espalier_agent.data import carried_tables, table_sets  # only where a trace has jobs that grow

    return growth_curves(table for name in table_sets() for table in carried_tables(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One prepared run."""

    jobs: Sequence[EndedJob]
    """Jobs that count: for a history, the jobs that ended in it."""
    gpus: int
    run: Callable[[Callable[[int], None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """The values of the options. `prepare` raises `TraceError` for a trace that cannot be simulated."""

    form: str
    profiles: Path | None
    cluster: str | None
    driver: str = ROUNDS
    latency: str | None = None
    base_preemption: str | None = None
    selection: Selection = field(default_factory=Selection)
    skip: Sequence[str] = ()
    """Kinds that are left out, and counted: `BAD` lines, jobs `LARGER` than the cluster."""
    notes: list[str] = field(default_factory=list)
    """Remarks about the traces for readers of the results."""
    _known: dict[str, Profiles] = field(default_factory=dict)
    _histories: dict[str, AuditHistory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `InputError` for contradictory options, `TraceError` for a wrong cluster."""
        if self.driver != PLAN:
            for option, value in (("--latency", self.latency), ("--base-preemption", self.base_preemption)):
                if value is not None:
                    raise InputError(
                        f"{option} {value}: nothing takes time or asks for leave with --driver {self.driver}; "
                        f"add --driver {PLAN}, or leave it out"
                    )
        for option, used, known in (
            ("--columns", self.selection.columns, (CSV,)),
            ("--keep", self.selection.keep, tuple(TABLES)),
            (f"--skip {BAD}", BAD in self.skip, tuple(TABLES)),
        ):
            if used and self.form not in known:
                raise InputError(f"{option}: does not go with --format {self.form}, only with {' and '.join(known)}")
        if self.form != GAVEL and self.profiles is not None and not self.profiles.is_dir():
            raise InputError(f"--profiles: {self.profiles} is not a folder")
        if self.cluster is not None:
            nodes_by_type(self.cluster) if self.form == GAVEL else nodes_of(self.cluster)
        elif self.form != AUDIT:
            raise InputError(f"--cluster: is missing; only --format {AUDIT} knows its cluster")

    def prepare(self, trace: str, policy: Policy, seed: int) -> Simulation:
        """Return the run of a trace under a policy; `seed` is for a generator."""
        if self.form == GAVEL:
            return self._prepared_by_type(trace, policy, seed)
        if self.form == AUDIT:
            return self._replayed(trace, policy)
        nodes = nodes_of(self.cluster or "")
        gpus = sum(node.gpus for node in nodes)
        jobs = self._fitting(trace, self._jobs(trace, policy, seed, gpus), lambda job: job.requested <= gpus)
        return self._prepared(jobs, nodes, self.latencies, policy)

    def happened(self, trace: str) -> Simulation:
        """Return the recorded course of a history."""
        history = self._history(trace)
        if not history.happened:
            raise TraceError(f"{trace}: no job ended while the audit log was written: nothing can be compared")
        return Simulation(
            jobs=history.happened, gpus=sum(node.gpus for node in history.nodes), run=lambda progress: None
        )

    def left_out(self, trace: str) -> int:
        """Return the number of jobs of a history that are not replayed."""
        return self._history(trace).left_out

    def _history(self, trace: str) -> AuditHistory:
        if trace not in self._histories:
            self._histories[trace] = read_history(Path(trace))
        return self._histories[trace]

    def _replayed(self, trace: str, policy: Policy) -> Simulation:
        history = self._history(trace)
        nodes = nodes_of(self.cluster) if self.cluster else history.nodes
        gpus = sum(node.gpus for node in nodes)
        jobs = self._fitting(trace, history.jobs(), lambda job: job.requested <= gpus)
        ended = {job.name for job in history.happened}
        prepared = self._prepared(jobs, nodes, self.latencies, policy)
        return replace(prepared, jobs=[job for job in jobs if job.name in ended])

    def _jobs(self, trace: str, policy: Policy, seed: int, gpus: int) -> list[SimulatedJob]:
        if trace.startswith(PREFIX):
            if self.form != CSV:
                raise InputError(f"{trace}: only --format {CSV} and {GAVEL} have generated jobs")
            return generate(trace, seed, gpus, carried_curves)
        if self.form in TABLES:
            reading = TraceReading(
                selection=self.selection, skip=BAD in self.skip, curves=carried_curves, tell=self._tell
            )
            return TABLES[self.form](Path(trace), reading)
        if self.profiles is not None and not self._known:
            self._known["profiles"] = Profiles(self.profiles)
        return read_pollux(Path(trace), self._known.get("profiles"), policy.elasticity)

    def _fitting(self, trace: str, jobs: Sequence[J], fits: Callable[[J], bool]) -> list[J]:
        """Return the jobs, if skipped without those that never fit. Raise `TraceError`."""
        fitting = [job for job in jobs if LARGER not in self.skip or fits(job)]
        if not fitting:
            raise TraceError(f"{trace}: all of its {len(jobs)} jobs need more GPUs than the cluster has")
        if larger := len(jobs) - len(fitting):
            self._tell(f"{trace}: {larger} of {len(jobs)} jobs need more GPUs than the cluster has: they are left out")
        return fitting

    def _tell(self, note: str) -> None:
        if note not in self.notes:  # each run reads its trace again
            self.notes.append(note)

    def _prepared_by_type(self, trace: str, policy: Policy, seed: int) -> Simulation:
        nodes = nodes_by_type(self.cluster or "")
        types: dict[str, int] = {}
        for node in nodes:
            types[node.gpu_type] = types.get(node.gpu_type, 0) + node.gpus
        if trace.startswith(PREFIX):
            if self.profiles is None:
                raise InputError(f"{trace}: name the measured throughputs with --profiles")
            jobs = generate_typed(trace, seed, types, Throughputs(self.profiles))
        else:
            jobs = read_gavel(Path(trace), Throughputs(self.profiles or Path(trace).parent))
        jobs = self._fitting(trace, jobs, lambda job: fits_a_type(job, types))
        if self.driver == PLAN:
            return self._prepared(*planned_types(jobs, nodes, self.latencies), policy)
        return Simulation(jobs=jobs, gpus=sum(types.values()), run=TypedRounds(jobs, nodes, policy).run)

    @property
    def latencies(self) -> Latencies:
        """The latencies of `--latency`."""
        return LATENCIES[self.latency or "none"]

    def _prepared(
        self, jobs: Sequence[SimulatedJob], nodes: Sequence[SimulatedNode], latencies: Latencies, policy: Policy
    ) -> Simulation:
        if self.driver == PLAN:
            preemptible = self.base_preemption != BasePreemption.NEVER.value
            run = Planned(jobs, nodes, policy, latencies, preemptible=preemptible).run
        else:
            run = Rounds(jobs, nodes, policy).run
        return Simulation(jobs=jobs, gpus=sum(node.gpus for node in nodes), run=run)
