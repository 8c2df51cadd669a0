"""Published recipes for growing a language model by blocks, as arms beside the planned growth of the trainer.

- *Zero or one block at first, new ones drawn*: Bu 2025, "Deep Progressive Training" (arXiv 2511.04981).
- *New blocks between old ones*: interposition, "Orthogonal Growth" (arXiv 2510.08008).
- *Moments reset where blocks are new, and their rate warmed up again*: Yu et al. 2026, SPARKLING (arXiv 2602.02472).
  The trainer does the first anyway: blocks that are new have no moments. The arm adds the warm-up.
- *Where the expressivity bottleneck is greatest*: Verbockhaven et al. 2024, "Growing Tiny Networks" (arXiv 2405.19816).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Tensor, nn

from bench.flagship.results import Results
from bench.flagship.subject import GROWN, LARGE, RECIPES, SMALL, Arm, Cell
from bench.flagship.training import Bench
from bench.statistics import mean_and_deviation
from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion
from espalier_lab.virtual_run import FinishedRun
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.data.objective import objective_of
from espalier_trainer.models.gpt import Block
from espalier_trainer.models.zoo import build_model
from espalier_trainer.training.network import OPTIMIZER_PREFIX

WITHOUT_BLOCKS, UNFOLDED_BY, APART, WARMUP = 0.05, 0.155, 0.05, 0.02
"""Shares of the budget: that a net without blocks trains; after which a run has unfolded; between blocks that are added
one by one; in which steps of new blocks grow to their length. Fixed before the first run."""
CLOSING: Final = ("attention.project", "project")
"""The last layers of a block's branches: a block where they are zero is closed, and changes nothing."""

Order = Sequence[tuple[int, bool] | None]
"""Each new block: an old one with its moments, or (True) a closed copy of it without; None for one drawn anew."""


def arranged(start: Checkpoint, model: nn.Module, order: Order) -> Checkpoint:
    """Return a checkpoint of `model`, whose blocks are those of `order`; all else is that of `start`, with moments."""
    weights = dict(model.state_dict())
    tensors = {name: tensor for name, tensor in start.training.items() if not name.startswith(OPTIMIZER_PREFIX)}
    for new in weights:
        old, copied = new, False
        if new.startswith("blocks."):
            place, _, inside = new.removeprefix("blocks.").partition(".")
            if (origin := order[int(place)]) is None:
                continue
            inside, copied = inside.removeprefix("0."), origin[1]  # it may be in a container of its own
            old = f"blocks.{origin[0]}.{inside}"
        closed = copied and old.endswith("project.weight")
        weights[new] = torch.zeros_like(weights[new]) if closed else start.model[old]
        for key, tensor in {} if copied else start.under(f"{OPTIMIZER_PREFIX}{old}|").items():
            tensors[f"{OPTIMIZER_PREFIX}{new}|{key}"] = tensor
    shapes = {name: parameter.ndim for name, parameter in model.named_parameters()}
    groups = tuple(
        {**group, "params": [name for name, number in shapes.items() if (number > 1) == matrices]}
        for group, matrices in zip(start.state.optimizer_groups, (True, False), strict=True)
    )
    state = {"optimizer_groups": groups, "growth": (), "consultations": 0, "adaptations": ()}
    return Checkpoint(start.state.model_copy(update=state), weights, tensors)


def drawn(bench: Bench, cell: Cell, order: Order, *, without: bool = False) -> FinishedRun:
    """Train the small net, or one `without` blocks, and then four blocks, of which some are drawn."""
    until = WITHOUT_BLOCKS * cell.budget
    empty = bench.train(cell, 0, prepare=_rehoused, stop_at=until).checkpoint if without else None
    start = empty or bench.trunk(cell, cell.moment or 0.0)
    arrange, old = partial(arranged, order=order), "" if without else "blocks.0."
    return bench.train(cell, LARGE, start=start, arrange=arrange, old=old)


def _rehoused(model: nn.Module, blocks: int = 0) -> nn.Module:
    """Return the model with its first blocks, each in a container of its own: then each is a run."""
    kept = list(model.get_submodule("blocks").children())[:blocks]
    model.blocks = nn.ModuleList([nn.Sequential(block) for block in kept])
    return model


def between(bench: Bench, cell: Cell) -> FinishedRun:
    """Unfold; the second time, each block beside itself, so that copies come between old blocks."""
    moment, twice, grow = cell.moment or 0.0, 2 * SMALL, Insertion.UNFOLD
    start, until = bench.trunk(cell, moment), (moment + UNFOLDED_BY) * cell.budget
    first = bench.train(cell, SMALL, insertion=grow, script=bench.additions, start=start, stop_at=until).checkpoint
    script = [Action(kind="AddBlock", target=f"blocks.{place}.0") for place in range(twice)]
    apart, order = partial(_rehoused, blocks=twice), [(place, False) for place in range(twice)]
    arrange, old = partial(arranged, order=order), "blocks.0.0."
    return bench.train(cell, twice, insertion=grow, script=script, start=first, prepare=apart, arrange=arrange, old=old)


def at_the_bottleneck(bench: Bench, cell: Cell) -> FinishedRun:
    """Add three closed blocks, some time apart, each where the bottleneck is greatest."""
    start, blocks, old, moment = bench.trunk(cell, cell.moment or 0.0), SMALL, 0, cell.moment or 0.0
    while True:
        place = int(torch.tensor(bottlenecks(bench, cell, blocks, start)).argmax())
        order: list[tuple[int, bool] | None] = [(number, False) for number in range(blocks)]
        order.insert(place, (max(place - 1, 0), True))
        old, blocks, moment = old + (place <= old), blocks + 1, moment + APART
        until = {} if blocks == LARGE else {"stop_at": moment * cell.budget}
        arrange = partial(arranged, order=order)
        done = bench.train(cell, blocks, start=start, arrange=arrange, old=f"blocks.{old}.", **until)
        if blocks == LARGE or done.checkpoint is None:
            return done
        start = done.checkpoint


def bottlenecks(bench: Bench, cell: Cell, blocks: int, start: Checkpoint) -> list[float]:
    """Return the `bottleneck` before each block and behind the last; the first one's features are token and place."""
    data, spec = bench.subject.data, bench.job(cell, blocks).spec.training
    model = build_model(spec.model, data.classes, data.example_input().cpu(), spec.task)
    model.load_state_dict(start.model)
    tokens, targets = data.train.batch(torch.arange(64), None)
    streams, read = [], []
    for block in (*model.get_submodule("blocks").children(), model.get_submodule("norm")):
        block.register_forward_pre_hook(lambda _, given: streams.append(given[0]))
        for path in CLOSING if isinstance(block, Block) else ():
            block.get_submodule(path).register_forward_pre_hook(lambda _, given: read.append(given[0].detach()))
    loss = objective_of(spec.task).losses(model(tokens), targets)
    wishes = [-one.flatten(0, 1) for one in torch.autograd.grad(loss, streams)]
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    read = [*(nn.functional.one_hot(each).float() for each in (tokens, places)), *read]
    pairs = [torch.cat(read[number : number + 2], -1).flatten(0, 1) for number in range(0, len(read), 2)]
    return [bottleneck(features, wish) for features, wish in zip(pairs, wishes, strict=True)]


def bottleneck(features: Tensor, wish: Tensor) -> float:
    """Return the mean square of a wished change [N, d] that no linear map of the features [N, k] gives."""
    ridge = 1e-6 * features.square().sum(0).mean() * torch.eye(features.shape[1])
    best = torch.linalg.solve(features.T @ features + ridge, features.T @ wish)
    return float((wish - features @ best).square().sum(1).mean())


MADE: Final[Mapping[Arm, Callable[[Bench, Cell], FinishedRun]]] = {
    Arm.FROM_ZERO: partial(drawn, order=[None] * LARGE, without=True),
    Arm.DRAWN: partial(drawn, order=[(0, False), None, None, None]),
    Arm.BETWEEN: between,
    Arm.REWARMED: lambda bench, cell: bench.grown(cell, Insertion.UNFOLD, warmup=WARMUP),
    Arm.BOTTLENECK: at_the_bottleneck,
}


def lines(results: Results, budgets: Sequence[float]) -> Iterator[str]:
    """Give the table in Markdown: how much better each recipe ends than unfolded copies do, and its gradients."""
    yield "| recipe | budget | seeds | figure | gained over unfolded copies | gradient, new by old |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    moment = results.head.moments[0]
    for arm, budget in product((*GROWN, *RECIPES), budgets):
        runs = [run for run in results if (run.cell.budget, run.cell.arm, run.cell.moment) == (budget, arm, moment)]
        if figures := list(results.figures(budget, arm, moment).values()):
            gained = None if arm is Arm.UNFOLDED else results.gained(budget, arm, moment, Arm.UNFOLDED, moment)
            windows = zip(*(run.gradients for run in runs if run.gradients), strict=True)
            found = ", ".join(f"{statistics.geometric_mean(each):.2f}" for each in windows)
            cells = (arm, f"{budget:g} s", len(figures), mean_and_deviation(figures), gained.cell if gained else "")
            yield f"| {' | '.join(map(str, cells))} | {found} |"
