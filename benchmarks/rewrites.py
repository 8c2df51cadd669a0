"""What do rewrites of the computation gain? Searches by a table of costs, and measured, over nine nets.

    .venv/bin/python benchmarks/rewrites.py [--quick] [--nets resnet18,gpt] [--pairs 15] [--compile] [--markdown]
                                            [--device cuda --batch 256]

One thread, CPU time of the process; with `--device cuda`, seconds until the device has computed. A gain is the median
over interleaved pairs of the model as it is and its execution: *forward* in train mode without gradients, *step* with
loss, backward pass and Adam, with its quartiles. *table* is the gain that the table of costs predicts. `functional` is
the execution without a rule: what calling operators instead of layers gains. `best of 8` measures the 8 best graphs of
best-first in short pairs, and the winner again. *rank* is Spearman's correlation of the table's sum with measured
steps, over different graphs from random walks; there are fewer than asked for where the rules reach fewer. `--compile`
adds torch.compile, and the seconds of its first step. `saturated` is equality saturation by egglog, if it is installed
(`uv sync --group saturation`): its evaluations are members of the e-graph. *search s* is CPU time, with the costs of
operators known. `--pairs 0` measures no steps.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from harness.printed import environment, progress, rendered
from rewritten.cases import Case, Sizes, case_of
from rewritten.ranks import rank_of
from torch import nn

from espalier_lab.rewriting.engine import SEARCHES, Errors, RewritePlan, apply, search
from espalier_lab.rewriting.engine.costs import Sums
from espalier_lab.rewriting.engine.emitting import emitted
from espalier_lab.rewriting.engine.matching import Matches
from espalier_lab.rewriting.engine.rules import BY_NAME
from espalier_lab.rewriting.learned.nets import NETS

QUICK = ("handwritten", "repvgg-like")
SHORT_PAIRS = 3


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
        ranks += [rank_of(case)] if sizes.pairs else []
        rows = [*(one for one in gains if one[0].startswith(name)), *ranks[-1:]]
        progress("\n".join(" | ".join(row) for row in rows))
        progress(f"{name}: {time.process_time() - began:.0f} s of CPU")
    head = ["net, how", "evaluations", "rules", "table", "search s", "forward", "step", "quartiles", "error"]
    print(environment("torch", "torchvision"))
    if options.device != "cpu":
        print(f"on {torch.cuda.get_device_name(options.device)}, batches of {options.batch or 'their own size'}")
    print(rendered("Factor by which the execution is faster than the model", head, gains, markdown=options.markdown))
    if not ranks:
        return
    head = ["net", "operators", "different graphs", "rank", "table ms", "measured ms", "environment steps/s"]
    print(rendered("The table of costs, and the environment", head, ranks, markdown=options.markdown))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two nets, in less than a minute")
    parser.add_argument("--nets", help=f"of {', '.join(NETS)}")
    parser.add_argument("--pairs", type=int, default=15, help="of steps; 0: nothing but the table")
    parser.add_argument("--graphs", type=int, default=50, help="graphs of a net for the rank of the table")
    parser.add_argument("--evaluations", type=int, default=1500, help="graphs that a search may cost")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: then name a --batch that fills it")
    parser.add_argument("--batch", type=int, help="examples of a batch; absent: a few, for a CPU")
    parser.add_argument("--compile", action="store_true", help="compare with torch.compile")
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args(arguments)


def gains_of(case: Case, *, with_compile: bool) -> list[list[str]]:
    """Return a row for each way to compute the net."""
    rows = []
    measured: dict[RewritePlan, list[str]] = {}
    empty = RewritePlan(fingerprint=case.graph.fingerprint(), device=case.costs.device)
    rows.append([f"{case.name}, functional", "0", "-", "1.00", "-", *figures(case, empty)])
    measured[empty] = rows[0][5:]
    for method in SEARCHES:
        search(case.graph, case.costs, method=method, evaluations=case.sizes.evaluations)  # measures operators
        began = time.process_time()
        found = search(case.graph, case.costs, method=method, evaluations=case.sizes.evaluations)
        seconds = time.process_time() - began
        cost, plan = found.best[0]
        cells = measured.setdefault(plan, []) or figures(case, plan)
        measured[plan] = cells
        rows.append(
            [f"{case.name}, {method}", f"{found.evaluations}", named(plan), f"{found.start / cost:.3f}",
             f"{seconds:.2f}", *cells]
        )  # fmt: skip
        if method == "best-first" and case.sizes.pairs:
            winner = best_of(case, [one for _, one in found.best])
            predicted = {one: found.start / seconds for seconds, one in found.best}
            rows.append(
                [f"{case.name}, best of {len(found.best)}", f"{found.evaluations}", named(winner),
                 f"{predicted[winner]:.3f}", "-", *(measured.get(winner) or figures(case, winner))]
            )  # fmt: skip
    if find_spec("egglog"):
        rows += saturated_rows(case)
    else:
        progress("egglog is not installed, so nothing is saturated; `uv sync --group saturation` installs it")
    if with_compile:
        rows.append(compiled(case))
    return rows


def best_of(case: Case, plans: Sequence[RewritePlan]) -> RewritePlan:
    """Return the plan whose steps are the fastest in short pairs."""
    step = case.trained()
    gains = {plan: case.compared(apply(case.module, plan, case.inputs), step, SHORT_PAIRS).gain for plan in plans}
    return max(gains, key=lambda plan: gains[plan])


def figures(case: Case, plan: RewritePlan) -> list[str]:
    """Return the measured gains of a plan, and its largest error."""
    return measured_cells(case, *case.executed(plan), named(plan))


def measured_cells(case: Case, execution: nn.Module, errors: Errors, what: str) -> list[str]:
    """Return the measured gains of an execution, and its largest error."""
    if not case.sizes.pairs:
        return ["-", "-", "-", f"{errors.largest:.0e}"]
    forward = case.compared(execution, case.forward, case.sizes.pairs)
    step = case.compared(execution, case.trained(), case.sizes.pairs)
    low, high = step.quartiles
    progress(f"  {what}: step {1e3 * step.seconds[0]:.1f} -> {1e3 * step.seconds[1]:.1f} ms")
    return [f"{forward.gain:.2f}", f"{step.gain:.2f}", f"{low:.2f}–{high:.2f}", f"{errors.largest:.0e}"]


def saturated_rows(case: Case) -> list[list[str]]:
    """Return a row for the cheapest graph of the saturated e-graphs by each extraction; how they are laid is tried."""
    from rewritten.saturating import EXTRACTIONS, saturated  # egglog need not be installed

    laid = [match.applied(case.graph) for match in Matches(case.graph, [BY_NAME["ChannelsLast"]]).all()]
    start = Sums(case.graph, case.costs).total
    for graph in (case.graph, *laid):
        saturated(graph, case.costs)  # measures operators
    began = time.process_time()
    egraphs = [saturated(graph, case.costs) for graph in (case.graph, *laid)]
    saturation = time.process_time() - began
    whole = "" if all(each.whole for each in egraphs) else ", cut off"
    rows = []
    for kind in EXTRACTIONS:
        began = time.process_time()
        graphs = [each.extracted(kind) for each in egraphs]
        seconds = saturation + time.process_time() - began
        best = min(graphs, key=lambda graph: Sums(graph, case.costs).total)
        what = f"saturated, {kind}{whole}"
        cells = measured_cells(case, *case.verified(emitted(best, case.module), what), what)
        layout = "channels last" if best in graphs[1:] else "-"
        rows.append(
            [f"{case.name}, {what}", f"{sum(each.members() for each in egraphs)}", layout,
             f"{start / Sums(best, case.costs).total:.3f}", f"{seconds:.2f}", *cells]
        )  # fmt: skip
    return rows


def compiled(case: Case) -> list[str]:
    execution = torch.compile(case.module)
    began = time.perf_counter()
    step = case.trained()
    step(execution)
    seconds = time.perf_counter() - began
    forward = case.compared(execution, case.forward, case.sizes.pairs)
    trained = case.compared(execution, step, case.sizes.pairs)
    low, high = trained.quartiles
    return [f"{case.name}, torch.compile ({seconds:.0f} s first)", "-", "-", "-", "-", f"{forward.gain:.2f}",
            f"{trained.gain:.2f}", f"{low:.2f}–{high:.2f}", "-"]  # fmt: skip


def named(plan: RewritePlan) -> str:
    """Return how often a plan has which rule."""
    return ", ".join(f"{count} {rule}" for rule, count in Counter(step.rule for step in plan.rules).items()) or "none"


if __name__ == "__main__":
    main()
