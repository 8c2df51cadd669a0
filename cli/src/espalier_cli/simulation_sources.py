"""What `espalier simulate` runs: jobs from a file, a generator or a history, on a cluster, by a driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from espalier_api.job import BasePreemption
from espalier_cli.errors import InputError
from espalier_operator.planning import Policy
from espalier_operator.simulation.cluster import nodes_of
from espalier_operator.simulation.gavel import FORMAT, Throughputs, nodes_by_type, read_gavel
from espalier_operator.simulation.generate import PREFIX, generate, generate_typed
from espalier_operator.simulation.jobs import SimulatedJob
from espalier_operator.simulation.latencies import LATENCIES
from espalier_operator.simulation.outcome import Ended
from espalier_operator.simulation.planned import Planned
from espalier_operator.simulation.profiles import Profiles
from espalier_operator.simulation.rounds import Node, Rounds
from espalier_operator.simulation.traces import READERS
from espalier_operator.simulation.typed import TypedRounds

ROUNDS: Final = "rounds"
PLAN: Final = "plan"
CSV: Final = "csv"
GAVEL: Final = FORMAT
FORMATS: Final = (*READERS, GAVEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One run that is prepared."""

    jobs: Sequence[Ended]
    gpus: int
    run: Callable[[Callable[[int], None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the options say. `prepare` raises `TraceError` for what cannot be simulated."""

    form: str
    profiles: Path | None
    cluster: str
    driver: str = ROUNDS
    latency: str | None = None
    base_preemption: str | None = None
    _known: dict[str, Profiles] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `InputError` for options that contradict each other, `TraceError` for a wrong cluster."""
        if self.driver == PLAN:
            if self.form == GAVEL:
                raise InputError(
                    f"--driver {PLAN}: jobs of --format {GAVEL} choose types of GPUs, which the planner's policies do "
                    f"not know; use --driver {ROUNDS}"
                )
        else:
            for option, value in (("--latency", self.latency), ("--base-preemption", self.base_preemption)):
                if value is not None:
                    raise InputError(
                        f"{option} {value}: nothing takes time or asks for leave with --driver {self.driver}; "
                        f"add --driver {PLAN}, or leave it out"
                    )
        if self.form != GAVEL and self.profiles is not None and not self.profiles.is_dir():
            raise InputError(f"--profiles: {self.profiles} is not a folder")
        nodes_by_type(self.cluster) if self.form == GAVEL else nodes_of(self.cluster)

    def prepare(self, trace: str, policy: Policy, seed: int) -> Simulation:
        """Return the run of a trace under a policy; `seed` is that of a generator."""
        if self.form == GAVEL:
            return self._prepared_by_type(trace, policy, seed)
        nodes = nodes_of(self.cluster)
        jobs = self._jobs(trace, policy, seed, sum(node.gpus for node in nodes))
        return _Prepared(self, nodes).of(jobs, policy)

    def _jobs(self, trace: str, policy: Policy, seed: int, gpus: int) -> list[SimulatedJob]:
        if trace.startswith(PREFIX):
            if self.form != CSV:
                raise InputError(f"{trace}: only --format {CSV} and {GAVEL} have generated jobs")
            return generate(trace, seed, gpus)
        if self.profiles is not None and not self._known:
            self._known["profiles"] = Profiles(self.profiles)
        return READERS[self.form](Path(trace), self._known.get("profiles"), policy.elasticity)

    def _prepared_by_type(self, trace: str, policy: Policy, seed: int) -> Simulation:
        nodes = nodes_by_type(self.cluster)
        types: dict[str, int] = {}
        for node in nodes:
            types[node.gpu_type] = types.get(node.gpu_type, 0) + node.gpus
        if trace.startswith(PREFIX):
            if self.profiles is None:
                raise InputError(f"{trace}: name the measured throughputs with --profiles")
            jobs = generate_typed(trace, seed, types, Throughputs(self.profiles))
        else:
            jobs = read_gavel(Path(trace), Throughputs(self.profiles or Path(trace).parent))
        return Simulation(jobs=jobs, gpus=sum(types.values()), run=TypedRounds(jobs, nodes, policy).run)


@dataclass(frozen=True, slots=True)
class _Prepared:
    source: Source
    nodes: Sequence[Node]

    def of(self, jobs: Sequence[SimulatedJob], policy: Policy) -> Simulation:
        source = self.source
        if source.driver == PLAN:
            latencies = LATENCIES[source.latency or "none"]
            preemptible = source.base_preemption != BasePreemption.NEVER.value
            run = Planned(jobs, self.nodes, policy, latencies, preemptible=preemptible).run
        else:
            run = Rounds(jobs, self.nodes, policy).run
        return Simulation(jobs=jobs, gpus=sum(node.gpus for node in self.nodes), run=run)
