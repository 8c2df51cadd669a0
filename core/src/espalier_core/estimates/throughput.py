"""Seconds of a step by nodes and workers: the throughput model of Pollux (OSDI 2021, 3.2), fitted to measurements.

    T_grad(m)    = α_c + β_c × m                                     m examples a worker in a pass
    T_sync(n, k) = 0 for k = 1; α_l + β_l × (k − 2) for n = 1; α_n + β_n × (k − 2) for n > 1
    T_step       = s × T_grad + (T_grad^γ + T_sync^γ)^(1/γ)          1 ≤ γ ≤ 10: how much of the exchange is hidden

s passes precede the last one where a worker accumulates the gradients of several. Pure, and only the standard library:
the operator has no scipy. The operator decides by it on workers, trainers on their batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from espalier_core.types.measurements import Measurements

LEAST_SECONDS: Final = 1e-8
"""Seconds in place of 0, whose logarithm is needed."""
_LARGEST_GAMMA: Final = 10.0
_ITERATIONS: Final = 60
_GAMMA_WEIGHT: Final = 1e-3
_SLOPE_WEIGHT: Final = 1e-2
"""Weights of (γ − 1)² and of (β ÷ α)² of the exchange, as in AdaptDL: where measurements do not tell, γ is 1 and the
exchange does not become slower with more workers."""

Vector = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The duration of the steps of a job's current model in one configuration, as its trainer measured it."""

    nodes: int
    workers: int
    batch_size: int
    """Examples of one worker in a step."""
    step_seconds: float
    sync_seconds: float
    """The part in which gradients are exchanged."""
    passes: int = 1
    """Parts of its examples that a worker computes one after the other."""
    gpu_type: str = ""
    """Empty where nobody says."""

    @property
    def pass_size(self) -> int:
        """Examples of one worker in a pass."""
        return -(-self.batch_size // self.passes)


def step_times(measured: Measurements) -> tuple[StepTime, ...]:
    """Return the durations of steps of the job's current model: the one that was measured last."""
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
    """Return what was measured on a type of GPU."""
    return tuple(point for point in speeds if point.gpu_type == gpu_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """The parameters, in seconds."""

    alpha_compute: float
    beta_compute: float
    """For each example."""
    alpha_local: float = LEAST_SECONDS
    beta_local: float = LEAST_SECONDS
    """For each worker beyond two, all on one node."""
    alpha_nodes: float = LEAST_SECONDS
    beta_nodes: float = LEAST_SECONDS
    """The same on several nodes."""
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
    """Return the model that comes closest to what was measured; None where nothing was.

    Least squares of logarithms, as in Pollux. What no measurement tells of is what AdaptDL assumes: no exchange among
    workers that never trained together, the same for any number of them, half of the time of a step independent of the
    batch where all batches were equal, and an exchange among nodes no faster than within one.
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
    """Return x of `matrix` x = `right` by elimination with pivots; 0 for what the matrix leaves open."""
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
"""Of the logarithms."""


def _start(points: Sequence[StepTime]) -> tuple[Throughput, frozenset[str]]:
    """Return parameters to begin with, and the names of those that the measurements tell of."""
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
    """Return T_grad of all passes as it was measured."""
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
