"""Searches for rewrites and their order, over graphs, by the sum of the cost table."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from espalier_lab.rewriting.engine.costs import OperatorCosts, Sums
from espalier_lab.rewriting.engine.graph import OpGraph
from espalier_lab.rewriting.engine.matching import Match, Matches
from espalier_lab.rewriting.engine.plans import RewritePlan, RewriteStep

HORIZON: Final = 40
"""Maximum number of rewrites in a plan."""

ALPHA: Final = 1.05
"""Factor on the best cost up to which a graph is still explored (Jia et al. 2019, TASO, section 5)."""

EVALUATIONS: Final = 400
"""Maximum number of graphs whose cost a search computes."""

CANDIDATES: Final = 8
"""Number of a search's best graphs worth measuring end to end: the table is off by a few percent."""


@dataclass(frozen=True, eq=False)
class SearchState:
    """A graph with its cost, its matches, and the rewrites that led to it."""

    graph: OpGraph
    sums: Sums
    matches: Matches
    steps: tuple[Match, ...] = ()

    @staticmethod
    def start(graph: OpGraph, costs: OperatorCosts) -> SearchState:
        """Return a graph without rewrites."""
        return SearchState(graph, Sums(graph, costs), Matches(graph))

    def after(self, match: Match) -> SearchState:
        """Return the state after one more rewrite."""
        graph = match.applied(self.graph)
        return SearchState(graph, self.sums.after(graph), self.matches.after(graph), (*self.steps, match))

    def plan(self, fingerprint: str, device: str) -> RewritePlan:
        """Return the rewrites, for the starting graph with this fingerprint and costs of this device."""
        steps = tuple(RewriteStep(rule=one.rule.name, location=one.location) for one in self.steps)
        return RewritePlan(fingerprint=fingerprint, device=device, rules=steps)

    @property
    def cost(self) -> float:
        """Return the seconds by the table."""
        return self.sums.total


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    start: float
    """Seconds of the graph without rewrites, by the table."""
    best: tuple[tuple[float, RewritePlan], ...]
    """The cheapest plans with their seconds by the table, at most `CANDIDATES`, the cheapest first."""
    evaluations: int
    """Number of graphs whose cost was computed."""

    @property
    def plan(self) -> RewritePlan:
        """Return the cheapest plan; it has no rules if nothing is cheaper than the original model."""
        return self.best[0][1]


class _GraphSearch:
    """The states met by a search, each graph once, up to a limit."""

    def __init__(self, graph: OpGraph, costs: OperatorCosts, evaluations: int) -> None:
        self.start = SearchState.start(graph, costs)
        self._device = costs.device
        self._fingerprint = graph.fingerprint()
        self._seen = {graph.key()}
        self._met = [self.start]
        self._most = evaluations
        self._count = 0

    def children(self, state: SearchState) -> Iterator[SearchState]:
        """Yield the new states one rewrite further."""
        if len(state.steps) >= HORIZON:
            return
        for match in state.matches.all():
            if not self.may_go_on:
                return
            child = self.after(state, match)
            if child is not None and self.met(child):
                yield child

    def after(self, state: SearchState, match: Match) -> SearchState | None:
        """Return the state after one more rewrite; None if the rule does not apply to the graph and raises."""
        try:
            return state.after(match)
        except torch.OutOfMemoryError:
            raise
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):  # torch's errors for shapes
            self._count += 1
            return None

    @property
    def may_go_on(self) -> bool:
        """Return whether fewer graphs were met than allowed."""
        return self._count < self._most

    def met(self, state: SearchState) -> bool:
        """Record a state; return whether its graph is new."""
        self._count += 1
        key = state.graph.key()
        if key in self._seen:
            return False
        self._seen.add(key)
        self._met.append(state)
        return True

    def found(self) -> SearchResult:
        """Return the cheapest met states whose nodes all run; among equal ones, the one with the fewest rewrites."""
        run = [state for state in self._met if state.cost < math.inf]
        best = heapq.nsmallest(CANDIDATES, run, key=lambda state: (state.cost, len(state.steps)))
        plans = tuple((state.cost, state.plan(self._fingerprint, self._device)) for state in best)
        return SearchResult(self.start.cost, plans, self._count)


def greedy(graph: OpGraph, costs: OperatorCosts, *, evaluations: int = EVALUATIONS) -> SearchResult:
    """Take the rewrite that gains most, until none gains."""
    search = _GraphSearch(graph, costs, evaluations)
    state = search.start
    while children := list(search.children(state)):
        best = min(children, key=lambda child: child.cost)
        if best.cost >= state.cost:
            break
        state = best
    return search.found()


def best_first(
    graph: OpGraph, costs: OperatorCosts, *, evaluations: int = EVALUATIONS, alpha: float = ALPHA
) -> SearchResult:
    """Explore the cheapest graph first, and none that costs more than `alpha` times the best (TASO)."""
    search = _GraphSearch(graph, costs, evaluations)
    tie = itertools.count()
    waiting = [(search.start.cost, next(tie), search.start)]
    best = search.start.cost
    while waiting:
        cost, _, state = heapq.heappop(waiting)
        if cost > alpha * best:
            break
        for child in search.children(state):
            best = min(best, child.cost)
            if child.cost <= alpha * best:
                heapq.heappush(waiting, (child.cost, next(tie), child))
    return search.found()


def beam(graph: OpGraph, costs: OperatorCosts, *, evaluations: int = EVALUATIONS, width: int = 8) -> SearchResult:
    """Keep the `width` cheapest graphs of each number of rewrites."""
    search = _GraphSearch(graph, costs, evaluations)
    level = [search.start]
    while level:
        children = [child for state in level for child in search.children(state)]
        level = heapq.nsmallest(width, children, key=lambda child: child.cost)
    return search.found()


def at_random(graph: OpGraph, costs: OperatorCosts, *, evaluations: int = EVALUATIONS, seed: int = 0) -> SearchResult:
    """Walk at random, again and again from the start."""
    search = _GraphSearch(graph, costs, evaluations)
    draw = random.Random(seed)
    while search.may_go_on:
        state = search.start
        while (matches := state.matches.all()) and len(state.steps) < HORIZON and search.may_go_on:
            after = search.after(state, draw.choice(matches))
            if after is None:
                break
            state = after
            search.met(state)
        if not search.start.matches.all():
            break
    return search.found()


SEARCHES: Final[Mapping[str, Callable[..., SearchResult]]] = {
    "random": at_random,
    "greedy": greedy,
    "best-first": best_first,
    "beam": beam,
}


def search(
    graph: OpGraph, costs: OperatorCosts, *, method: str = "best-first", evaluations: int = EVALUATIONS
) -> SearchResult:
    """Return the cheapest plans by the cost table. Raise `ValueError` for a method that is not in `SEARCHES`.

    The plan of the table is a proposal: `compare` its execution with the model before using it.
    """
    if method not in SEARCHES:
        raise ValueError(f"method is {method!r}; known are {', '.join(SEARCHES)}")
    return SEARCHES[method](graph, costs, evaluations=evaluations)
