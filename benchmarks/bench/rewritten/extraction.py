"""Which member of each class is computed? By the cost of the tree, greedily by that of the graph, or by the best graph.

The cost of a tree counts what several read once for each reader. `exact` is the integer program of TENSAT (Yang et al.
2021, section 5.1): a member is taken only with one of each of its classes. Circles are forbidden once they are met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

Members = Mapping[str, Sequence[tuple[float, tuple[str, ...]]]]
"""For each class its members: seconds, and the classes that it reads."""

Choice = dict[str, int]
"""For each class that is computed the number of its member."""

MICROSECOND: Final = 1e-6
_SMALL: Final = 1e-3
"""Microseconds of what costs nothing, so that nothing is taken without need."""


class ExtractionError(Exception):
    """The integer program found nothing in the time that it had."""


def by_tree(classes: Members, roots: Iterable[str]) -> Choice:
    """Choose for each class the member whose term costs least (the extraction of egg and egglog)."""
    return _bottom_up(classes, roots, lambda name, own, below: (own + sum(cost for cost, _ in below), {}))


def by_greedy_graph(classes: Members, roots: Iterable[str]) -> Choice:
    """Choose for each class the member that costs least with all that it needs, each counted once (greedy DAG)."""

    def cost(name: str, own: float, below: Sequence[tuple[float, dict[str, float]]]) -> tuple[float, dict[str, float]]:
        needed = {name: own}
        for _, each in below:
            needed |= each
        return (math.inf if any(name in each for _, each in below) else sum(needed.values())), needed

    return _bottom_up(classes, roots, cost)


def _bottom_up(classes: Members, roots: Iterable[str], cost: Callable[..., tuple[float, dict[str, float]]]) -> Choice:
    """Improve each class by the best of its members until none gets better."""
    best: dict[str, tuple[float, dict[str, float]]] = {}
    choice: Choice = {}
    better = True
    while better:
        better = False
        for name, members in classes.items():
            for number, (own, inputs) in enumerate(members):
                if not all(one in best for one in inputs):
                    continue
                found = cost(name, own / MICROSECOND + _SMALL, [best[one] for one in set(inputs)])
                if name not in best or found[0] < best[name][0] - _SMALL / 2:
                    best[name], choice[name], better = found, number, True
    return _reached(classes, choice, roots)


def exact(classes: Members, roots: Sequence[str], seconds: float) -> Choice:
    """Choose the graph that costs least. Raises `ExtractionError` where `seconds` do not suffice to find one."""
    names = [(name, number) for name, members in classes.items() for number in range(len(members))]
    column = {one: place for place, one in enumerate(names)}
    costs = np.array([classes[name][number][0] / MICROSECOND + _SMALL for name, number in names])
    of = {name: [column[name, number] for number in range(len(members))] for name, members in classes.items()}
    rows: list[tuple[dict[int, float], float]] = [(dict.fromkeys(of[root], 1.0), 1.0) for root in roots]
    rows += [
        (dict.fromkeys(of[one], 1.0) | {column[name, number]: -1.0}, 0.0)
        for name, number in names
        for one in set(classes[name][number][1])
    ]
    while True:
        data = [(value, row, place) for row, (entries, _) in enumerate(rows) for place, value in entries.items()]
        values, at, places = zip(*data, strict=True)
        matrix = csr_array((values, (at, places)), shape=(len(rows), len(names)))
        found: Any = milp(
            costs,
            integrality=np.ones(len(names)),
            bounds=Bounds(0, [float(name not in classes[name][number][1]) for name, number in names]),
            constraints=LinearConstraint(matrix, np.array([least for _, least in rows]), np.inf),
            options={"time_limit": seconds},
        )
        if found.x is None:
            raise ExtractionError(f"no graph found in {seconds:g} s: {found.message}")
        taken = {name: number for (name, number), value in zip(names, found.x, strict=True) if value > 1 / 2}
        circle = _circle(classes, taken, roots)
        if not circle:
            return _reached(classes, taken, roots)
        rows.append(({column[name, taken[name]]: -1.0 for name in circle}, 1.0 - len(circle)))


def _reached(classes: Members, choice: Choice, roots: Iterable[str]) -> Choice:
    found: Choice = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = choice[name]
            waiting += classes[name][choice[name]][1]
    return found


def _circle(classes: Members, choice: Choice, roots: Iterable[str]) -> list[str]:
    """Return classes whose members read one another in a circle, [] if there are none."""
    done: set[str] = set()
    for root in roots:
        path: list[str] = []
        waiting = [(root, False)]
        while waiting:
            name, left = waiting.pop()
            if left:
                done.add(path.pop())
            elif name in path:
                return path[path.index(name) :]
            elif name not in done:
                path.append(name)
                waiting.append((name, True))
                waiting += [(one, False) for one in classes[name][choice[name]][1]]
    return []
