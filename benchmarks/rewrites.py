"""What do rewrites of the computation gain? Searches by a table of costs, and measured, over nine nets.

    .venv/bin/python benchmarks/rewrites.py [--quick] [--nets resnet18,gpt] [--pairs 15] [--compile] [--markdown]
                                            [--device cuda --batch 256]

One thread, CPU time of the process; with `--device cuda`, seconds until the device has computed. A gain is the median
over interleaved pairs of the model as it is and its execution: *forward* in train mode without gradients, *step* with
loss, backward pass and Adam, with its quartiles. *table* is the gain that the table of costs predicts. `functional` is
the execution without a rule: what calling operators instead of layers gains. `best of 8` measures the 8 best graphs of
best-first in short pairs, and the winner anew. *rank* is Spearman's correlation of the table's sum with measured steps,
over different graphs from random walks; there are fewer than asked for where the rules reach fewer. `--compile` adds
torch.compile, and the seconds of its first step.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from harness.printed import environment, progress, rendered
from scipy import stats
from torch import Tensor, nn

from espalier_rewriting.environment import RewritesEnvironment
from espalier_rewriting.nets import NETS
from espalier_trainer.rewriting import (
    SEARCHES,
    Comparison,
    Costs,
    Errors,
    Graph,
    Plan,
    apply,
    capture,
    compare,
    search,
    verify,
)
from espalier_trainer.rewriting.comparing import seconds_of
from espalier_trainer.rewriting.emitting import emitted
from espalier_trainer.rewriting.search import State

QUICK = ("handwritten", "repvgg-like")
LEAST_RANKED = 5
SHORT_PAIRS = 3


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
    graph: Graph
    costs: Costs
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

    def executed(self, plan: Plan) -> tuple[nn.Module, Errors]:
        """Return the execution of a plan, and its errors. Raises `AssertionError` where they are too large."""
        execution = apply(self.module, plan, self.inputs)
        errors = verify(self.module, execution, self.inputs, loss)
        if not errors.right:
            raise AssertionError(f"{self.name}: {plan} computes something else: {errors}")
        return execution, errors


def loss(outputs: Tensor) -> Tensor:
    """Return a loss that every output matters to."""
    return outputs.float().logsumexp(-1).mean() if outputs.dtype != torch.float64 else outputs.logsumexp(-1).mean()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    options = parsed(arguments)
    torch.set_num_threads(1)
    quick = options.quick
    sizes = Sizes(
        5 if quick else options.pairs,
        10 if quick else options.graphs,
        100 if quick else options.evaluations,
        options.batch,
    )
    names = options.nets.split(",") if options.nets else list(QUICK if quick else NETS)
    gains, ranks = [], []
    for name in names:
        case = case_of(name, sizes, device=options.device)
        began = time.process_time()
        gains += gains_of(case, with_compile=options.compile)
        ranks.append(rank_of(case))
        progress("\n".join(" | ".join(row) for row in (*(one for one in gains if one[0].startswith(name)), ranks[-1])))
        progress(f"{name}: {time.process_time() - began:.0f} s of CPU")
    head = ["net, how", "evaluations", "rules", "table", "forward", "step", "quartiles", "error"]
    print(environment("torch", "torchvision"))
    if options.device != "cpu":
        print(f"on {torch.cuda.get_device_name(options.device)}, batches of {options.batch or 'their own size'}")
    print(rendered("Factor by which the execution is faster than the model", head, gains, markdown=options.markdown))
    head = ["net", "operators", "different graphs", "rank", "table ms", "measured ms", "environment steps/s"]
    print(rendered("The table of costs, and the environment", head, ranks, markdown=options.markdown))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two nets, in less than a minute")
    parser.add_argument("--nets", help=f"of {', '.join(NETS)}")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--graphs", type=int, default=50, help="graphs of a net for the rank of the table")
    parser.add_argument("--evaluations", type=int, default=1500, help="graphs that a search may cost")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: then name a --batch that fills it")
    parser.add_argument("--batch", type=int, help="examples of a batch; absent: a few, for a CPU")
    parser.add_argument("--compile", action="store_true", help="beside torch.compile")
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args(arguments)


def case_of(name: str, sizes: Sizes, table: Path | None = None, device: str = "cpu") -> Case:
    """Return a net to be measured; its costs come from the folder `table`, if there is one."""
    torch.manual_seed(0)
    module, inputs = NETS[name]()
    if sizes.batch is not None:
        inputs = inputs[torch.arange(sizes.batch) % len(inputs)]
    module, inputs = module.to(device), inputs.to(device)
    costs = Costs(module, table, clock=clock_of(inputs))
    return Case(name, module, inputs, capture(module, inputs), costs, sizes)


def clock_of(inputs: Tensor) -> Callable[[], float]:
    """Return seconds of this process where it computes itself, seconds where it waits for a device."""
    return time.perf_counter if inputs.is_cuda else time.process_time


def gains_of(case: Case, *, with_compile: bool) -> list[list[str]]:
    """Return a row for each way to compute the net."""
    rows = []
    measured: dict[Plan, list[str]] = {}
    empty = Plan(fingerprint=case.graph.fingerprint(), device=case.costs.device)
    rows.append([f"{case.name}, functional", "0", "-", "1.00", *figures(case, empty)])
    measured[empty] = rows[0][4:]
    for method in SEARCHES:
        found = search(case.graph, case.costs, method=method, evaluations=case.sizes.evaluations)
        cost, plan = found.best[0]
        cells = measured.setdefault(plan, []) or figures(case, plan)
        measured[plan] = cells
        rows.append(
            [f"{case.name}, {method}", f"{found.evaluations}", named(plan), f"{found.start / cost:.2f}", *cells]
        )
        if method == "best-first":
            winner = best_of(case, [one for _, one in found.best])
            predicted = {one: found.start / seconds for seconds, one in found.best}
            rows.append(
                [f"{case.name}, best of {len(found.best)}", f"{found.evaluations}", named(winner),
                 f"{predicted[winner]:.2f}", *(measured.get(winner) or figures(case, winner))]
            )  # fmt: skip
    if with_compile:
        rows.append(compiled(case))
    return rows


def best_of(case: Case, plans: Sequence[Plan]) -> Plan:
    """Return the plan whose steps are the fastest in short pairs."""
    step = case.trained()
    gains = {plan: case.compared(apply(case.module, plan, case.inputs), step, SHORT_PAIRS).gain for plan in plans}
    return max(gains, key=lambda plan: gains[plan])


def figures(case: Case, plan: Plan) -> list[str]:
    """Return the measured gains of a plan, and its largest error."""
    execution, errors = case.executed(plan)
    forward = case.compared(execution, case.forward, case.sizes.pairs)
    step = case.compared(execution, case.trained(), case.sizes.pairs)
    low, high = step.quartiles
    progress(f"  {named(plan)}: step {1e3 * step.seconds[0]:.1f} -> {1e3 * step.seconds[1]:.1f} ms")
    return [f"{forward.gain:.2f}", f"{step.gain:.2f}", f"{low:.2f}–{high:.2f}", f"{errors.largest:.0e}"]


def compiled(case: Case) -> list[str]:
    execution = torch.compile(case.module)
    began = time.perf_counter()
    step = case.trained()
    step(execution)
    seconds = time.perf_counter() - began
    forward = case.compared(execution, case.forward, case.sizes.pairs)
    trained = case.compared(execution, step, case.sizes.pairs)
    low, high = trained.quartiles
    return [f"{case.name}, torch.compile ({seconds:.0f} s first)", "-", "-", "-", f"{forward.gain:.2f}",
            f"{trained.gain:.2f}", f"{low:.2f}–{high:.2f}", "-"]  # fmt: skip


def named(plan: Plan) -> str:
    """Return how often a plan has which rule."""
    return ", ".join(f"{count} {rule}" for rule, count in Counter(step.rule for step in plan.rules).items()) or "none"


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


def walked(case: Case) -> list[State]:
    """Return different graphs, that of the model first, from random walks."""
    draw = random.Random(0)
    start = State.start(case.graph, case.costs)
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


if __name__ == "__main__":
    main()
