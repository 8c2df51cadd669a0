"""A net whose rewrites are measured; how well the table of costs orders its graphs, and how fast the environment is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy import stats
from torch import Tensor, nn

from espalier_lab.rewriting.engine import (
    Comparison,
    Errors,
    OperatorCosts,
    OpGraph,
    RewritePlan,
    apply,
    capture,
    compare,
    verify,
)
from espalier_lab.rewriting.engine.emitting import emitted
from espalier_lab.rewriting.engine.search import SearchState
from espalier_lab.rewriting.learned.environment import RewritesEnvironment
from espalier_lab.rewriting.learned.nets import NETS
from espalier_trainer.training.execution import seconds_of


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    pairs: int
    graphs: int
    evaluations: int
    batch: int | None = None
    """Examples of a batch; None: as many as the net comes with."""


@dataclass
class Case:
    """One net while it is measured."""

    name: str
    module: nn.Module
    inputs: Tensor
    graph: OpGraph
    costs: OperatorCosts
    sizes: Sizes

    def forward(self, model: nn.Module) -> None:
        with torch.no_grad():
            model(self.inputs)

    def trained(self) -> Callable[[nn.Module], None]:
        """Return a training step; both sides train the same parameters."""
        optimizer = torch.optim.Adam(self.module.parameters(), 1e-5)

        def step(model: nn.Module) -> None:
            optimizer.zero_grad()
            loss(model(self.inputs)).backward()
            optimizer.step()

        return step

    def compared(
        self, execution: nn.Module, step: Callable[[nn.Module], None], pairs: int, than: nn.Module | None = None
    ) -> Comparison:
        return compare(than or self.module, execution, step, pairs=pairs, clock=clock_of(self.inputs))

    def executed(self, plan: RewritePlan) -> tuple[nn.Module, Errors]:
        """Return the execution of a plan, and its errors. Raises `AssertionError` where they are too large."""
        return self.verified(apply(self.module, plan, self.inputs), str(plan))

    def verified(self, execution: nn.Module, what: str) -> tuple[nn.Module, Errors]:
        """Return an execution with its errors. Raises `AssertionError` where they are too large."""
        errors = verify(self.module, execution, self.inputs, loss)
        if not errors.right:
            raise AssertionError(f"{self.name}: {what} computes something else: {errors}")
        return execution, errors


def loss(outputs: Tensor) -> Tensor:
    """Return a loss that every output matters to."""
    return outputs.float().logsumexp(-1).mean() if outputs.dtype != torch.float64 else outputs.logsumexp(-1).mean()


def case_of(name: str, sizes: Sizes, table: Path | None = None, device: str = "cpu") -> Case:
    """Return a net to be measured; its costs come from the folder `table`, if there is one."""
    torch.manual_seed(0)
    module, inputs = NETS[name]()
    if sizes.batch is not None:
        inputs = inputs[torch.arange(sizes.batch) % len(inputs)]
    module, inputs = module.to(device), inputs.to(device)
    costs = OperatorCosts(module, table, clock=clock_of(inputs))
    return Case(name, module, inputs, capture(module, inputs), costs, sizes)


def clock_of(inputs: Tensor) -> Callable[[], float]:
    """Return seconds of this process where it computes itself, seconds where it waits for a device."""
    return time.perf_counter if inputs.is_cuda else time.process_time


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
