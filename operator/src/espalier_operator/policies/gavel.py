"""Fractions of time on types of GPU by the speed of each job there: Gavel (Narayanan et al., OSDI 2020).

Its linear programmes (3 and 4): X[m, j] is the fraction of its time that job m spends on type j. All X are at least 0;
a job's fractions sum to at most 1, and the GPUs of a type suffice: Σ over m of size[m] X[m, j] ≤ GPUs[j]. They have
many optima. The interior-point method (Clarabel) returns one in the middle of them, which gives each job a little of
many types; where it is not installed, HiGHS returns a corner.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any, ClassVar, Final, Literal

from espalier_operator.policies.fair import weight_of
from espalier_operator.policies.fifo import oldest_first
from espalier_operator.policies.leases import Table, fastest_first, gpus_of, leased, resumed, state_of
from espalier_operator.policies.view import Candidate, Decision, Elasticity, TypeSpeeds, View, remaining_steps

_ORDER: Final = "order"
"""Key of the state of the generator that orders the types."""
Rows = list[list[float]]
"""One row per job, one column per type of GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GavelPolicy:
    """Jobs get optimal fractions of time on types of GPU, and leases in proportion to them.

    The `objective` decides: `fairness` maximises the smallest throughput of a job, divided by its throughput on an
    average GPU and its weight, times its GPUs (least attained service; 4.1); `makespan` minimises the end of the last
    job (4.2); `fifo` maximises the sum of throughputs, each divided by that on the fastest type and times 1 plus the
    number of later jobs (4.2). Where types are unknown, the oldest go first.
    """

    elasticity: ClassVar[Elasticity] = Elasticity.FIXED
    queue_order: ClassVar[str] = "by their fractions of time on types of GPU"

    objective: Literal["fairness", "makespan", "fifo"] = "fairness"
    heterogeneity: bool = True
    """False: all types count as the fastest and are served in random order."""
    seed: int = 0
    """Seed of that order."""
    name: str = "gavel"

    def __post_init__(self) -> None:
        """Raise `ValueError` where SciPy is not installed."""
        require_solver()

    def draws(self, *, typed: bool, continuous: bool) -> bool:
        """Return whether it uses its seed in such views: only among types of GPU that count as equal."""
        return typed and not self.heterogeneity

    def decide(self, view: View) -> Decision:
        """Return the leases of the next round."""
        speeds, types = view.speeds, fastest_first(view)
        if not types or speeds is None:
            return oldest_first(view)

        known = _speeds_of(view, speeds)

        def allocate(memory: Mapping[str, Any]) -> tuple[Table, Mapping[str, Any]]:
            fractions = self._fractions(view, [[*row.values()] for row in known.values()])
            table = zip(view.jobs, fractions, strict=True)
            return {(job.key,): dict(zip(view.gpu_types, row, strict=True)) for job, row in table}, memory

        if self.heterogeneity:
            return leased(view, allocate, types, speeds=known)
        generator = resumed(self.seed, view.memory.get(_ORDER))
        generator.shuffle(types)
        decision = leased(view, allocate, types, speeds=known)
        return replace(decision, memory={**decision.memory, _ORDER: state_of(generator)})

    def _fractions(self, view: View, known: Rows) -> Rows:
        """Return the fraction of time of each job on each type, by the speeds; 0 for a job that can run nowhere."""
        rows = dict(zip(view.jobs, known, strict=True))
        jobs = [job for job, row in rows.items() if any(row)]
        best = iter(self._best(view, jobs, [rows[job] for job in jobs]) if jobs else ())
        return [next(best) if any(row) else row for row in rows.values()]

    def _best(self, view: View, jobs: Sequence[Candidate], known: Rows) -> Rows:
        """Return the best fractions of jobs with these speeds by type; each job has a speed above 0 somewhere."""
        gpus, sizes = list(view.gpu_types.values()), [gpus_of(job) for job in jobs]
        fastest = [max(row) for row in known]
        if not self.heterogeneity:
            known = [[top if speed else 0.0 for speed in row] for top, row in zip(fastest, known, strict=True)]
        if self.objective == "fairness":
            average = [sum(map(mul, row, gpus)) / sum(gpus) for row in known]
            weights = [float(weight_of(job.priority)) for job in jobs]
            factors = [size / (weight * speed) for size, weight, speed in zip(sizes, weights, average, strict=True)]
        elif self.objective == "makespan":
            # In units of the longest job on its fastest type, so that values are near 1.
            rest = remaining_steps(view, jobs, fastest)
            longest = max(steps / speed for steps, speed in zip(rest, fastest, strict=True))
            factors = [longest / steps for steps in rest]
        else:
            factors = [(len(sizes) - place) / speed for place, speed in enumerate(fastest)]
        values = [[factor * speed for speed in row] for factor, row in zip(factors, known, strict=True)]
        return (largest_sum if self.objective == "fifo" else largest_smallest)(values, sizes, gpus)


def _speeds_of(view: View, speeds: TypeSpeeds) -> dict[str, dict[str, float]]:
    """Return the steps per second of each job on each type; 0 where it does not fit."""

    def row_of(job: Candidate) -> dict[str, float]:
        fits = {each: gpus_of(job) <= most for each, most in view.gpu_types.items()}
        return {each: speeds.steps_per_second(job.key, each) if fits[each] else 0.0 for each in fits}

    return {job.key: row_of(job) for job in view.jobs}


def require_solver() -> None:
    """Raise `ValueError` where SciPy, which all of this needs, is not installed."""
    if importlib.util.find_spec("scipy") is None:
        raise ValueError(
            "needs SciPy, which is not installed: pip install 'espalier-operator[gavel]', or build the operator's "
            "image with --build-arg EXTRAS=gavel"
        )


def largest_smallest(values: Sequence[Sequence[float]], sizes: Sequence[int], gpus: Sequence[int]) -> Rows:
    """Return the X with the largest minimum over jobs m of Σ over j of values[m, j] X[m, j]; no row may be all 0."""
    return _optimum(values, sizes, gpus, smallest=True)


def largest_sum(values: Sequence[Sequence[float]], sizes: Sequence[int], gpus: Sequence[int]) -> Rows:
    """Return the X with the largest sum of values[m, j] X[m, j]."""
    return _optimum(values, sizes, gpus, smallest=False)


def _optimum(values: Sequence[Sequence[float]], sizes: Sequence[int], gpus: Sequence[int], *, smallest: bool) -> Rows:
    import numpy as np
    from scipy import sparse

    jobs, types = len(sizes), len(gpus)
    matrix = sparse.vstack(
        [
            sparse.hstack([sparse.identity(types) * size for size in sizes]),
            sparse.kron(sparse.identity(jobs), np.ones((1, types))),
        ]
    )
    limits = np.concatenate([np.asarray(gpus, float), np.ones(jobs)])
    costs = -np.asarray(values, float).ravel()
    if smallest:
        # One further variable: the minimum, below which no job's value may be.
        below = sparse.block_diag([-np.asarray([row], float) for row in values])
        matrix = sparse.block_array([[matrix, None], [below, np.ones((jobs, 1))]])
        limits, costs = np.concatenate([limits, np.zeros(jobs)]), np.append(np.zeros(jobs * types), -1.0)
    found = _solved(costs, sparse.csc_matrix(matrix), limits, jobs * types)
    fractions: Rows = np.clip(found, 0.0, 1.0).reshape(jobs, types).tolist()
    return fractions


def _solved(costs: Any, matrix: Any, limits: Any, number: int) -> Any:
    """Return the first `number` elements (≥ 0) of the x with matrix x ≤ limits and the smallest costs · x."""
    import numpy as np
    from scipy import sparse
    from scipy.optimize import linprog

    if importlib.util.find_spec("clarabel") is not None:
        import clarabel

        settings = clarabel.DefaultSettings()
        settings.verbose = False
        rows = sparse.csc_matrix(sparse.vstack([matrix, -sparse.eye_array(number, len(costs))]))
        bounds = np.concatenate([limits, np.zeros(number)])
        cones = [clarabel.NonnegativeConeT(len(bounds))]
        quadratic = sparse.csc_matrix((len(costs), len(costs)))
        solution = clarabel.DefaultSolver(quadratic, costs, rows, bounds, cones, settings).solve()
        if solution.status == clarabel.SolverStatus.Solved:
            return np.asarray(solution.x)[:number]
    corner = linprog(costs, A_ub=matrix, b_ub=limits, method="highs")
    if corner.status:
        raise RuntimeError(f"HiGHS finds no fractions of time on types of GPU: {corner.message}")
    return corner.x[:number]
