"""The throughput and goodput of a job by nodes, workers and batch size, after Pollux (A. Qiao et al., OSDI 2021). Pure.

The throughput model (section 3.2) gives the seconds of a step, and is fitted to measurements:

    T_grad(m)    = α_c + β_c × m                                     m examples a worker in a pass
    T_sync(n, k) = 0 for k = 1; α_l + β_l × (k − 2) for n = 1; α_n + β_n × (k − 2) for n > 1
    T_step       = s × T_grad + (T_grad^γ + T_sync^γ)^(1/γ)          1 ≤ γ ≤ 10: how much of the exchange is hidden

s passes precede the last one where a worker accumulates the gradients of several. Goodput (section 3) is throughput
times statistical efficiency. With m₀ the batch size that the author chose, φ the noise scale of gradients
(`measurements.GradientNoise`) and m = S × m₀:

efficiency(m) = (φ + m₀) / (φ + m) progress per example, relative to m₀ gain(S) = S × efficiency(m) = (σ²/m₀ + μ²) /
(σ²/m + μ²) progress of a step, relative to a step of m₀ goodput = gain(S) / seconds of a step of m progress a second,
in steps of m₀

`gain` is AdaScale's (Johnson et al. 2020, arXiv:2007.05105): a step of m with the learning rate multiplied by it is
worth this many steps of m₀. Here, a batch size is a multiple of m₀, so all sizes cut an epoch into the same batches.

The operator chooses numbers of workers by it, trainers their batch size. The operator has no scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Self

from espalier_core.types.measurements import GradientNoise, Measurements
from espalier_core.types.training import BatchSizing, TrainingSpec

LEAST_SECONDS: Final = 1e-8
"""Minimum used in place of 0, which has no logarithm."""
_LARGEST_GAMMA: Final = 10.0
_ITERATIONS: Final = 60
_GAMMA_WEIGHT: Final = 1e-3
_SLOPE_WEIGHT: Final = 1e-2
"""Weights of (γ − 1)² and of (β ÷ α)² of the exchange, as in AdaptDL: where measurements do not determine them, γ is 1
and the exchange does not become slower with more workers."""

Vector = tuple[float, ...]
CHOICES: Final = 50
"""Maximum number of sizes that are compared, in about equal ratios from the smallest to the largest, as in Pollux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The duration of the steps of a job's current model in one configuration, as its trainer measured it."""

    nodes: int
    workers: int
    batch_size: int
    """Examples of one worker in a step."""
    step_seconds: float
    sync_seconds: float
    """The part of a step in which gradients are exchanged."""
    passes: int = 1
    """Parts in which a worker computes its examples one after the other."""
    gpu_type: str = ""
    """Type of GPU; empty if unknown."""

    @property
    def pass_size(self) -> int:
        """Examples of one worker in a pass."""
        return -(-self.batch_size // self.passes)


def step_times(measured: Measurements) -> tuple[StepTime, ...]:
    """Return the durations of steps of the job's current model, which is the one measured last."""
    return tuple(
        StepTime(
            nodes=speed.nodes,
            workers=speed.workers,
            batch_size=speed.batch_size,
            step_seconds=speed.step_seconds,
            sync_seconds=min(speed.sync_seconds, speed.step_seconds),
            passes=speed.passes,
            gpu_type=speed.gpu_type,
        )
        for speed in measured.speeds
        if speed.parameters == measured.speeds[-1].parameters
    )


def on_type(speeds: Sequence[StepTime], gpu_type: str) -> tuple[StepTime, ...]:
    """Return the measurements on a type of GPU."""
    return tuple(point for point in speeds if point.gpu_type == gpu_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The parameters of the throughput model, in seconds."""

    alpha_compute: float
    beta_compute: float
    """Increase for each example."""
    alpha_local: float = LEAST_SECONDS
    beta_local: float = LEAST_SECONDS
    """Increase for each worker beyond two, all on one node."""
    alpha_nodes: float = LEAST_SECONDS
    beta_nodes: float = LEAST_SECONDS
    """Increase for each worker beyond two, on several nodes."""
    gamma: float = 1.0

    def compute_seconds(self, batch_size: float, passes: int = 1) -> float:
        """Return the sum of T_grad over the passes of a worker with `batch_size` examples."""
        return passes * self.alpha_compute + self.beta_compute * batch_size

    def sync_seconds(self, nodes: int, workers: int) -> float:
        """Return T_sync."""
        if workers <= 1:
            return 0.0
        local = self.alpha_local + self.beta_local * (workers - 2)
        return local if nodes <= 1 else max(local, self.alpha_nodes + self.beta_nodes * (workers - 2))

    def step_seconds(self, nodes: int, workers: int, batch_size: float, passes: int = 1) -> float:
        """Return T_step of workers with `batch_size` examples each, in `passes` parts."""
        last = self.compute_seconds(batch_size / passes)
        larger, smaller = sorted((last, self.sync_seconds(nodes, workers)), reverse=True)
        if larger <= 0:
            return 0.0
        return float((passes - 1) * last + larger * (1 + (smaller / larger) ** self.gamma) ** (1 / self.gamma))


@lru_cache(maxsize=4096)
def fitted(measured: tuple[StepTime, ...]) -> Throughput | None:
    """Return the model that fits the measurements best; None if there are none.

    Least squares of logarithms, as in Pollux. Parameters that no measurement determines are as AdaptDL assumes: no
    exchange among workers that never trained together, the same for any number of them, half of the time of a step
    independent of the batch where all batches were equal, and an exchange among nodes no faster than within one.
    """
    points = [point for point in measured if point.step_seconds > 0]
    if not points:
        return None
    start, free = _start(points)
    names = [name for name in _BOUNDS if name in free]
    if not names:
        return start

    def model(vector: Vector) -> Throughput:
        return replace(start, **dict(zip(names, map(math.exp, vector), strict=True)))

    def residuals(vector: Vector) -> Vector:
        return _residuals(model(vector), points)

    bounds = tuple(_BOUNDS[name] for name in names)
    first = tuple(math.log(max(LEAST_SECONDS, getattr(start, name))) for name in names)
    return model(least_squares(residuals, first, bounds))


def least_squares(
    residuals: Callable[[Vector], Vector], start: Vector, bounds: Sequence[tuple[float, float]]
) -> Vector:
    """Return a minimum of the sum of squared residuals within bounds (Levenberg and Marquardt, steps cut to bounds)."""
    at, damping = start, 1e-2
    found = residuals(at)
    cost = _squared(found)
    for _ in range(_ITERATIONS):
        slopes = [_slope(residuals, at, found, index, bounds[index]) for index in range(len(at))]
        normal = [[math.fsum(map(float.__mul__, one, other)) for other in slopes] for one in slopes]
        downhill = [-math.fsum(map(float.__mul__, slope, found)) for slope in slopes]
        better = False
        while not better and damping < 1e12:
            damped = [
                [value + (damping * (value + 1e-12) if row == column else 0.0) for column, value in enumerate(values)]
                for row, values in enumerate(normal)
            ]
            step = solved(damped, downhill)
            candidate = tuple(
                min(max(value + move, low), high) for value, move, (low, high) in zip(at, step, bounds, strict=True)
            )
            there = residuals(candidate)
            better = _squared(there) < cost
            damping = damping / 10 if better else damping * 10
        if not better:
            break
        gained, at, found, cost = cost - _squared(there), candidate, there, _squared(there)
        if gained <= 1e-12 * (cost + 1e-12):
            break
    return at


def solved(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return x of `matrix` x = `right` by elimination with pivots; 0 for an undetermined entry."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        rows[column], rows[pivot] = rows[pivot], rows[column]
        if abs(rows[column][column]) < 1e-300:
            continue
        for row in range(column + 1, size):
            factor = rows[row][column] / rows[column][column]
            rows[row] = [value - factor * above for value, above in zip(rows[row], rows[column], strict=True)]
    found = [0.0] * size
    for row in reversed(range(size)):
        rest = rows[row][size] - math.fsum(rows[row][column] * found[column] for column in range(row + 1, size))
        found[row] = rest / rows[row][row] if abs(rows[row][row]) >= 1e-300 else 0.0
    return found


_BOUNDS: Final = {
    name: (math.log(LEAST_SECONDS), math.log(1e9))
    for name in ("alpha_compute", "beta_compute", "alpha_local", "beta_local", "alpha_nodes", "beta_nodes")
} | {"gamma": (0.0, math.log(_LARGEST_GAMMA))}
"""Bounds on the logarithms of the parameters."""


def _start(points: Sequence[StepTime]) -> tuple[Throughput, frozenset[str]]:
    """Return initial parameters, and the names of those that the measurements determine."""
    alone = [_compute(point) for point in points]
    mean, batch = sum(alone) / len(alone), sum(point.batch_size for point in points) / len(points)
    local = [point for point in points if point.workers > 1 and point.nodes == 1]
    apart = [point for point in points if point.workers > 1 and point.nodes > 1]
    free = {"beta_compute"}
    start = Throughput(alpha_compute=mean / 2, beta_compute=mean / 2 / batch)
    if len({(point.batch_size, point.passes) for point in points}) > 1:
        free.add("alpha_compute")
    if local:
        start = replace(start, alpha_local=max(LEAST_SECONDS, _mean_sync(local)))
        free |= {"alpha_local", "gamma"} | ({"beta_local"} if max(point.workers for point in local) > 2 else set())
    if apart:
        start = replace(start, alpha_nodes=max(LEAST_SECONDS, _mean_sync(apart)))
        free |= {"alpha_nodes", "gamma"} | ({"beta_nodes"} if max(point.workers for point in apart) > 2 else set())
    for kind in ("local", "nodes"):
        if f"beta_{kind}" in free:
            start = replace(start, **{f"beta_{kind}": max(LEAST_SECONDS, getattr(start, f"alpha_{kind}") / 10)})
    return start, frozenset(free)


def _compute(point: StepTime) -> float:
    """Return the measured T_grad of all passes."""
    return max(LEAST_SECONDS, point.step_seconds - point.sync_seconds)


def _mean_sync(points: Sequence[StepTime]) -> float:
    return sum(point.sync_seconds for point in points) / len(points)


def _residuals(model: Throughput, points: Sequence[StepTime]) -> Vector:
    count = math.sqrt(len(points))
    found = []
    for point in points:
        step = model.step_seconds(point.nodes, point.workers, point.batch_size, point.passes)
        compute = model.compute_seconds(point.batch_size, point.passes)
        found.append(math.log(max(LEAST_SECONDS, compute) / _compute(point)) / count)
        found.append(math.log(max(LEAST_SECONDS, step) / max(LEAST_SECONDS, point.step_seconds)) / count)
    found.append(math.sqrt(_GAMMA_WEIGHT) * (model.gamma - 1))
    found.append(math.sqrt(_SLOPE_WEIGHT) * model.beta_local / max(LEAST_SECONDS, model.alpha_local))
    found.append(math.sqrt(_SLOPE_WEIGHT) * model.beta_nodes / max(LEAST_SECONDS, model.alpha_nodes))
    return tuple(found)


def _slope(
    residuals: Callable[[Vector], Vector], at: Vector, found: Vector, index: int, bounds: tuple[float, float]
) -> list[float]:
    """Return the derivative of the residuals with respect to one parameter, by a difference within its bounds."""
    move = 1e-6 if at[index] + 1e-6 <= bounds[1] else -1e-6
    there = residuals((*at[:index], at[index] + move, *at[index + 1 :]))
    return [(new - old) / move for new, old in zip(there, found, strict=True)]


def _squared(values: Vector) -> float:
    return math.fsum(value * value for value in values)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits on the batch size that the author of a job sets."""

    batch_size: int
    """m₀: examples in a step of all workers together. No smaller batch is chosen."""
    max_batch_size: int
    """Maximum number of examples in a step of all workers together; m₀ where it is less."""
    max_pass_size: int | None = None
    """Maximum number of examples that a worker computes in one pass, for its memory; None: no limit."""

    @classmethod
    def of(cls, training: TrainingSpec, batch_size: int | None = None) -> Self | None:
        """Return the limits of a job, by its loop's `batch_size` if that is another; None: the size is fixed."""
        size = batch_size or training.batch_size
        if training.batch is BatchSizing.FIXED:
            return None
        most = training.max_batch_size or size
        return cls(batch_size=size, max_batch_size=most, max_pass_size=training.max_batch_size_per_worker)

    @property
    def most(self) -> int:
        """The largest multiple of m₀."""
        return max(1, self.max_batch_size // self.batch_size)

    def share(self, batches: int, workers: int) -> int:
        """Return the examples of one worker in a step."""
        return -(-batches * self.batch_size // workers)

    def passes(self, batches: int, workers: int) -> int:
        """Return the number of parts in which each of `workers` computes its share of `batches` × m₀ examples."""
        return 1 if self.max_pass_size is None else -(-self.share(batches, workers) // self.max_pass_size)


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """A batch size and its expected goodput."""

    goodput: float
    """Progress in a second, in steps of m₀."""
    batches: int
    """The batch size divided by m₀."""
    passes: int
    """Number of parts in which each worker computes its share."""


def adascale_gain(squared_norm: float, variance: float, scale: float) -> float:
    """Return the value of a step of `scale` × m₀ examples in steps of m₀: from 1 to `scale`, which is at least 1.

    `squared_norm` belongs to the true gradient; `variance` is the trace of the gradient's covariance with m₀ examples.
    """
    noisy = variance / scale + squared_norm
    return (variance + squared_norm) / noisy if noisy > 0 else 1.0


def gain(noise: GradientNoise, batch_size: int, scale: float) -> float:
    """Return AdaScale's gain for `scale` × `batch_size` examples from the measured noise."""
    found = adascale_gain(noise.squared_norm, noise.variance / batch_size, scale)
    return min(max(1.0, found), scale)  # against rounding and overflow


def candidates(most: int) -> tuple[int, ...]:
    """Return the multiples of m₀ to compare, from 1 to `most`."""
    steps = range(CHOICES)
    return tuple(sorted({round(most ** (step / (CHOICES - 1))) for step in steps})) if most > 1 else (1,)


def choice(
    model: Throughput, noise: GradientNoise, limits: BatchLimits, nodes: int, workers: int, batches: int
) -> Choice:
    """Return the choice of `batches` × m₀ examples in a step, with its expected goodput."""
    passes = limits.passes(batches, workers)
    seconds = model.step_seconds(nodes, workers, batches * limits.batch_size / workers, passes)
    return Choice(gain(noise, limits.batch_size, batches) / max(LEAST_SECONDS, seconds), batches, passes)


@lru_cache(maxsize=4096)
def best(
    model: Throughput, noise: GradientNoise, limits: BatchLimits, nodes: int, workers: int, most: int | None = None
) -> Choice:
    """Return the batch size with the largest goodput, the smallest one among equals.

    `most` limits the multiples of m₀ further.
    """
    largest = limits.most if most is None else max(1, min(limits.most, most))
    return _best(choice(model, noise, limits, nodes, workers, batches) for batches in candidates(largest))


def _best(choices: Iterable[Choice]) -> Choice:
    return max(choices, key=lambda each: (each.goodput, -each.batches))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSpeed:
    """The speed of a job with any number of workers, by the throughput model fitted to its measurements.

    The prior, as in Pollux (OSDI 2021, 4.1): an unmeasured job scales perfectly, so it is tried and measured.
    """

    speeds: tuple[StepTime, ...]
    base: int
    """Number of its base workers."""
    scales_batch: bool = False
    """Each worker has as many examples in a step as a base worker; otherwise all share those of the base workers."""
    limits: BatchLimits | None = None
    """Limits of a job whose trainer chooses the batch size; None: its batch size is fixed."""
    noise_scale: float | None = None

    def seconds(self, nodes: int, workers: int) -> float:
        """Return the seconds in which `workers` workers do the work of one step of the base workers."""
        model = fitted(self.speeds)
        if model is None:
            return self.base / max(1, workers)  # in seconds of one step of the base workers: the unit cancels out
        limits = self.limits
        if limits is not None and self.noise_scale is not None:
            noise = GradientNoise(squared_norm=1.0, variance=self.noise_scale, samples=1)  # only the ratio counts
            found = best(model, noise, limits, nodes, workers)
            size = found.batches * limits.batch_size / max(1, workers)
            # Seconds of a step, divided by the author's steps with the same progress.
            return self._corrected(model, nodes, workers, size, found.passes) / gain(
                noise, limits.batch_size, found.batches
            )
        if self.scales_batch:
            batch = self._examples() / self.base
            return self._corrected(model, nodes, workers, batch) * self.base / max(1, workers)
        return self._corrected(model, nodes, workers, self._examples() / max(1, workers))

    def _corrected(self, model: Throughput, nodes: int, workers: int, batch_size: float, passes: int = 1) -> float:
        """Return the model's seconds, times its error at the measurement with the most similar workers, then batch.

        So measurements hold where the model does not fit: workers that share cores, for example, compute more slowly.
        """

        def distance(point: StepTime) -> tuple[float, int, float]:
            other = abs(math.log(point.batch_size / max(1.0, batch_size)))
            return abs(math.log(point.workers / max(1, workers))), abs(point.nodes - nodes), other

        near = min(self.speeds, key=distance)
        known = max(LEAST_SECONDS, model.step_seconds(near.nodes, near.workers, near.batch_size, near.passes))
        seconds = model.step_seconds(nodes, workers, batch_size, passes)
        return max(LEAST_SECONDS, near.step_seconds / known * seconds)

    def _examples(self) -> float:
        """Return the examples of one step of the base workers."""
        last = self.speeds[-1]
        return float(last.batch_size * (self.base if self.scales_batch else last.workers))
