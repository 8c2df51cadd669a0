"""Linear programmes of Gavel: fractions of time of jobs on types of GPU (Narayanan et al., OSDI 2020, 3 and 4).

X[m, j] is the fraction of its time that job m spends on type j. All X are at least 0; a job's sum up to 1 at most, and
the GPUs of a type suffice: Σ over m of size[m] X[m, j] ≤ GPUs[j]. Such programmes have many optima. The interior-point
method (Clarabel) returns one in the middle of them, which gives each job a little of many types; where it is not
installed, HiGHS returns a corner.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

Rows = list[list[float]]
"""A row a job, a column a type of GPU."""


def require_solver() -> None:
    """Raise `ValueError` where SciPy is not installed: then nothing of this can be used."""
    if importlib.util.find_spec("scipy") is None:
        raise ValueError(
            "needs SciPy, which is not installed: pip install 'espalier-operator[gavel]', or build the operator's "
            "image with --build-arg EXTRAS=gavel"
        )


def largest_smallest(values: Sequence[Sequence[float]], sizes: Sequence[int], gpus: Sequence[int]) -> Rows:
    """Return the X with the largest minimum over jobs m of Σ over j of values[m, j] X[m, j]; no row is all 0."""
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
        # One variable more: the minimum, which no job's value may be below.
        below = sparse.block_diag([-np.asarray([row], float) for row in values])
        matrix = sparse.block_array([[matrix, None], [below, np.ones((jobs, 1))]])
        limits, costs = np.concatenate([limits, np.zeros(jobs)]), np.append(np.zeros(jobs * types), -1.0)
    found = _solved(costs, sparse.csc_matrix(matrix), limits, jobs * types)
    fractions: Rows = np.clip(found, 0.0, 1.0).reshape(jobs, types).tolist()
    return fractions


def _solved(costs: Any, matrix: Any, limits: Any, number: int) -> Any:
    """Return the first `number` of the x with matrix x ≤ limits and the smallest costs · x. They are at least 0."""
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
