"""How well does the table of costs order graphs, and how fast is the environment?"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from scipy import stats
from torch import nn

from espalier_lab.rewriting.engine.emitting import emitted
from espalier_lab.rewriting.engine.search import SearchState
from espalier_lab.rewriting.learned.environment import RewritesEnvironment
from espalier_trainer.training.execution import seconds_of
from rewritten.cases import Case, clock_of

LEAST_RANKED = 5


def rank_of(case: Case) -> list[str]:
    """Return how well the table orders graphs, and how fast the environment is on the net."""
    states = walked(case)
    sums = [state.cost for state in states]
    step = case.trained()
    steps = [fastest(case, step, emitted(state.graph, case.module)) for state in states]
    rank = f"{stats.spearmanr(sums, steps).statistic:.2f}" if len(states) >= LEAST_RANKED else "too few"
    return [case.name, f"{case.graph.operators()}", f"{len(states)}", rank, f"{1e3 * sums[0]:.1f}",
            f"{1e3 * steps[0]:.1f}", f"{speed_of(case):,.0f}"]  # fmt: skip


def fastest(case: Case, step: Callable[[nn.Module], None], execution: nn.Module) -> float:
    """Return the seconds of the fastest of four steps, the first not counted."""
    seconds = [seconds_of(execution, step, case.inputs.device, clock_of(case.inputs)) for _ in range(4)]
    return min(seconds[1:])


def walked(case: Case) -> list[SearchState]:
    """Return different graphs, that of the model first, from random walks."""
    draw = random.Random(0)
    start = SearchState.start(case.graph, case.costs)
    found = {case.graph.key(): start}
    for _ in range(20 * case.sizes.graphs):
        state = start
        for _ in range(draw.randint(1, 12)):
            if not (matches := state.matches.all()):
                break
            state = state.after(draw.choice(matches))
        found.setdefault(state.graph.key(), state)
        if len(found) >= case.sizes.graphs:
            break
    return list(found.values())


def speed_of(case: Case) -> float:
    """Return masked random steps of the environment a second of CPU, resets counted, once the table is filled."""
    world = RewritesEnvironment((case.module, case.inputs), case.costs)
    draw = random.Random(0)
    episode(world, draw)
    steps, began = 0, time.process_time()
    while time.process_time() - began < 1:
        steps += episode(world, draw)
    return steps / (time.process_time() - began)


def episode(world: RewritesEnvironment, draw: random.Random) -> int:
    _, info = world.reset()
    steps, over = 0, False
    while not over:
        rules = info["rule_mask"].nonzero()[0]
        rule = draw.choice(rules[:-1] if len(rules) > 1 else rules)
        place = draw.choice(info["location_mask"][rule].nonzero()[0])
        _, _, terminated, truncated, info = world.step((rule, place))
        steps, over = steps + 1, terminated or truncated
    return steps
