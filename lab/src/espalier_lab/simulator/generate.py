"""Workloads drawn from a seed, with arrivals, durations and numbers of GPUs as on clusters.

`generate:poisson` has exponential times between arrivals; in `generate:diurnal` their rate swings over the day. By
default, sizes come from the Philly trace (Jeon et al., USENIX ATC 2019; as sampled for Pollux), and durations are
lognormal with its median. For one seed, jobs are the same under each policy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.gavel import SERVERS, Throughputs
from espalier_lab.simulator.growth import GrowingJob, GrowthCurve
from espalier_lab.simulator.jobs import FixedJob, SimulatedJob
from espalier_lab.simulator.tables import MAX_SECONDS, MIN_SECONDS
from espalier_lab.simulator.typed_jobs import TypedJob
from espalier_operator.policies.settings import made

PREFIX: Final = "generate:"
_PHILLY: Final = {1: 76_627, 2: 1_818, 4: 1_870, 8: 1_643, 16: 199, 32: 67}
"""Number of jobs of the trace, by GPUs."""
_MOST_JOBS: Final = 1_000_000
_LEAST_ALPHA: Final = 0.1
"""Minimum of alpha: below it, Pareto durations exceed the range of floats."""


class Drawn(NamedTuple):
    """A job: seconds since the first arrival, GPUs, and its run time with them in seconds."""

    submitted_at: float
    gpus: int
    duration: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Jobs that arrive independently of each other."""

    jobs: int = 200
    load: float = 0.8
    """GPU-seconds of all jobs, relative to those of the cluster in `jobs` mean times between arrivals. Between the
    first and the last arrival there is one time less, so with few jobs the load is higher."""
    durations: Literal["lognormal", "pareto"] = "lognormal"
    median: float = 1144.0
    """Median of durations, in seconds."""
    sigma: float = 2.2
    """Standard deviation of the logarithm of lognormal durations; 2.2 makes the mean 11 times the median, as in
    Philly."""
    alpha: float = 1.2
    """Exponent of Pareto durations; a smaller one makes the longest jobs longer."""
    longest: float = 86_400.0
    """Maximum duration in seconds; longer ones are cut."""
    shortest: float = 0.0
    """Minimum duration in seconds; shorter ones are raised to it."""
    sizes: tuple[int, ...] = ()
    """GPUs of a job, each equally likely; empty: as in Philly, as far as they fit."""
    growing: float = 0.0
    """Part of the jobs that grow into lent GPUs, each as one of the models with measured growth."""
    fruitless: float = 0.0
    """Part of these that gains nothing."""
    forecast_error: float = 0.0
    """Standard deviation of the normal error of a job's forecast gain, in accuracy."""

    def __post_init__(self) -> None:
        if not 1 <= self.jobs <= _MOST_JOBS:
            raise ValueError(f"jobs: {self.jobs} is not between 1 and {_MOST_JOBS:,}")
        for name in ("growing", "fruitless"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name}: {value:g} is not between 0 and 1")
        if not 0 <= self.forecast_error < math.inf:
            raise ValueError(f"forecast_error: {self.forecast_error:g} is not 0 or more, and finite")
        for name in ("median", "longest"):
            _check_seconds(name, getattr(self, name))
        if not 0 <= self.shortest <= self.longest:
            raise ValueError(f"shortest: {self.shortest:g} is not between 0 and longest, {self.longest:g}")
        if not 0 < self.load < math.inf:
            raise ValueError(f"load: {self.load:g} is not above 0")
        if not _LEAST_ALPHA <= self.alpha < math.inf:
            raise ValueError(f"alpha: {self.alpha:g} is not at least {_LEAST_ALPHA:g}")
        if not 0 <= self.sigma < 10:
            raise ValueError(f"sigma: {self.sigma:g} is not between 0 and 10")
        if any(size < 1 for size in self.sizes):
            raise ValueError(f"sizes: {'/'.join(map(str, self.sizes))}: each must be 1 GPU or more")

    def draw(self, seed: int, gpus: int, most: int, measured: Collection[int] | None = None) -> list[Drawn]:
        """Return the jobs of a seed for a cluster with `gpus` GPUs, of which one job may have at most `most`.

        Only `measured` numbers of GPUs are drawn; None: all. Raise `TraceError` if no size fits or was measured, or the
        last job arrives too late to be simulated.
        """
        chance = random.Random(seed)
        weights = dict.fromkeys(self.sizes, 1) if self.sizes else _PHILLY
        fitting = [size for size in weights if size <= most and (measured is None or size in measured)]
        if measured is not None and not fitting:
            sizes, known = ("/".join(map(str, each)) for each in (weights, sorted(measured)))
            raise TraceError(f"sizes: jobs of {sizes} GPUs were not measured, or do not fit; name some of {known}")
        if not fitting or (self.sizes and len(fitting) < len(weights)):
            raise TraceError(f"sizes: {max(weights)} GPUs do not fit; a job may have {most} on this cluster")
        drawn = [
            (
                chance.expovariate(1.0),
                chance.choices(fitting, [weights[size] for size in fitting])[0],
                max(self.shortest, min(self.longest, self._duration(chance))),
            )
            for _ in range(self.jobs)
        ]
        gap = sum(size * duration for _, size, duration in drawn) / (gpus * self.load * self.jobs)
        waits = [wait * gap for wait, *_ in drawn]
        if not (last := math.fsum(waits[1:])) <= MAX_SECONDS:
            raise TraceError(
                f"load: {self.load:g}: the last job comes after {last:g} s; at most {MAX_SECONDS:g} s are simulated"
            )
        moments = self._moments(waits)
        return [Drawn(moment, size, duration) for moment, (_, size, duration) in zip(moments, drawn, strict=True)]

    def _duration(self, chance: random.Random) -> float:
        if self.durations == "lognormal":
            return self.median * math.exp(self.sigma * chance.gauss(0.0, 1.0))
        return self.median * 2 ** (-1 / self.alpha) * chance.paretovariate(self.alpha)

    def _moments(self, waits: list[float]) -> Iterator[float]:
        """Yield the arrival times of jobs, the first one at 0."""
        now = 0.0
        for place, wait in enumerate(waits):
            now += wait if place else 0.0
            yield now


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal(Poisson):
    """The same, with the rate 1 + `amplitude` × sin(2π t / `period`) times the mean."""

    amplitude: float = 0.8
    period: float = 86_400.0

    def __post_init__(self) -> None:
        Poisson.__post_init__(self)
        if not 0 <= self.amplitude <= 1:
            raise ValueError(f"amplitude: {self.amplitude:g} is not between 0 and 1")
        _check_seconds("period", self.period)

    def _moments(self, waits: list[float]) -> Iterator[float]:
        """Yield the times at which the integral of the rate reaches the moments of a constant rate, by bisection."""
        width = self.amplitude * self.period / (2 * math.pi)
        for moment in Poisson._moments(self, waits):
            # The integral, t + width × (1 − cos(2π t / period)), is within 2 × width above t.
            low, high = max(0.0, moment - 2 * width), moment
            for _ in range(60):
                middle = (low + high) / 2
                if middle + width * (1 - math.cos(2 * math.pi * middle / self.period)) < moment:
                    low = middle
                else:
                    high = middle
            yield high


GENERATORS: Final[dict[str, type[Poisson]]] = {"poisson": Poisson, "diurnal": Diurnal}


def generator_of(text: str) -> Poisson:
    """Return the generator of `generate:NAME[:key=value,...]`. Raise `TraceError`."""
    name, _, settings = text.removeprefix(PREFIX).partition(":")
    if name not in GENERATORS:
        raise TraceError(f"{text}: {name!r} is not a generator; known: {', '.join(GENERATORS)}")
    try:
        generator: Poisson = made(GENERATORS[name], settings, text, f"generator {name}")
    except ValueError as error:
        raise TraceError(str(error)) from error
    return generator


def generate(
    text: str, seed: int, gpus: int, curves: Callable[[], Mapping[str, GrowthCurve]] = dict
) -> list[SimulatedJob]:
    """Return jobs of a fixed size and duration for `gpus`; some grow, by one of `curves`. Raise `TraceError`."""
    generator = generator_of(text)
    try:
        drawn = generator.draw(seed, gpus, gpus)
    except TraceError as error:
        raise TraceError(f"{text}: {error}") from error
    known, chance = list(curves().values()) if generator.growing else [], random.Random(f"growth {seed}")
    if generator.growing and not known:
        raise TraceError(f"{text}: growing: no model has a measured growth curve")
    jobs: list[SimulatedJob] = []
    for place, job in enumerate(drawn):
        grows, name = chance.random() < generator.growing, _name(place, len(drawn))
        if not grows:
            jobs.append(FixedJob(name, *job))
            continue
        curve = chance.choice(known)
        if generator.fruitless and chance.random() < generator.fruitless:
            curve = curve.fruitless
        off = chance.gauss(0.0, generator.forecast_error) if generator.forecast_error else 0.0
        jobs.append(GrowingJob(name, *job, curve, off))
    return jobs


def generate_typed(text: str, seed: int, gpu_types: dict[str, int], throughputs: Throughputs) -> list[TypedJob]:
    """Return jobs of the measured kinds, equally likely, with their durations on the fastest type.

    Raise `TraceError`.
    """
    generator, chance = generator_of(text), random.Random(f"kinds {seed}")
    if generator.growing:
        raise TraceError(f"{text}: growing: jobs whose speed depends on the type of GPU do not grow; leave it out")
    kinds: dict[int, list[str]] = {}
    for job_type in throughputs.job_types():
        for size in throughputs.sizes(job_type):
            fits = (
                gpus >= size and throughputs.steps_per_second(each, (job_type, size))
                for each, gpus in gpu_types.items()
            )
            if any(fits):
                kinds.setdefault(size, []).append(job_type)
    if not kinds:
        raise TraceError(f"{text}: no kind of job that was measured fits on the cluster")
    wrong = [size for size in generator.sizes if size not in kinds]
    if wrong:
        raise TraceError(f"{text}: sizes: {wrong[0]} GPUs were not measured, or do not fit; {sorted(kinds)} do")
    jobs = []
    drawn = generator.draw(seed, sum(gpu_types.values()), max(kinds), kinds)
    for place, (submitted_at, gpus, duration) in enumerate(drawn):
        kind = chance.choice(kinds[gpus]), gpus
        fastest = max(throughputs.steps_per_second(each, kind) for each in SERVERS)
        steps = max(1, round(duration * fastest))
        jobs.append(TypedJob(_name(place, len(drawn)), submitted_at, kind, steps, throughputs))
    return jobs


def _check_seconds(name: str, value: float) -> None:
    if not MIN_SECONDS <= value <= MAX_SECONDS:
        raise ValueError(f"{name}: {value:g} is not between {MIN_SECONDS:g} and {MAX_SECONDS:g} seconds")


def _name(place: int, count: int) -> str:
    return f"job-{place:0{len(str(count - 1))}}"
