"""What do rewrites of the computation gain? Searches by a table of costs, and measured, over nine nets.

One thread, CPU time of the process; with `--device cuda`, seconds until the device has computed. A gain is the median
over interleaved pairs of the model as it is and its execution: *forward* in train mode without gradients, *step* with
loss, backward pass and Adam, with its quartiles. *table* is the gain that the table of costs predicts. `functional` is
the execution without a rule: what calling operators instead of layers gains. `best of 8` measures the 8 best graphs of
best-first in short pairs, and the winner again. *rank* is Spearman's correlation of the table's sum with measured
steps, over different graphs from random walks; there are fewer than asked for where the rules reach fewer. `--compile`
adds torch.compile, and the seconds of its first step. `saturated` is equality saturation by egglog, if it is installed
(`uv sync --group saturation`): its evaluations are members of the e-graph. *search s* is CPU time, with the costs of
operators known. `--pairs 0` measures no steps.

Takes 7 minutes of a core, on a busy machine an hour.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import nn

from bench.command import Option
from bench.printing import Parts, Table, progress
from bench.rewritten.nets import Case, Sizes, case_of, rank_of
from espalier_lab.rewriting.engine import SEARCHES, Errors, RewritePlan, apply, search
from espalier_lab.rewriting.engine.costs import Sums
from espalier_lab.rewriting.engine.emitting import emitted
from espalier_lab.rewriting.engine.matching import Matches
from espalier_lab.rewriting.engine.rules import BY_NAME
from espalier_lab.rewriting.learned.nets import NETS

OPTIONS = {
    "nets": Option(list(NETS)),
    "pairs": Option(15, "of steps; 0: nothing but the table"),
    "graphs": Option(50, "graphs of a net for the rank of the table"),
    "evaluations": Option(1500, "graphs that a search may cost"),
    "device": Option("cpu", "cpu, or cuda: then name a --batch that fills it"),
    "batch": Option(None, "examples of a batch; absent: a few, for a CPU", type=int),
    "compile": Option(False, "compare with torch.compile"),
}
QUICK = {"nets": ["handwritten", "repvgg-like"], "pairs": 5, "graphs": 10, "evaluations": 100}
SHORT_PAIRS = 3


def run(options: argparse.Namespace) -> Parts:
    """Measure, and give the tables."""
    sizes = Sizes(options.pairs, options.graphs, options.evaluations, options.batch)
    gains, ranks = [], []
    for name in options.nets:
        case = case_of(name, sizes, device=options.device)
        began = time.process_time()
        gains += gains_of(case, with_compile=options.compile)
        ranks += [rank_of(case)] if sizes.pairs else []
        rows = [*(one for one in gains if one[0].startswith(name)), *ranks[-1:]]
        progress("\n".join(" | ".join(row) for row in rows))
        progress(f"{name}: {time.process_time() - began:.0f} s of CPU")
    head = ["net, how", "evaluations", "rules", "table", "search s", "forward", "step", "quartiles", "error"]
    if options.device != "cpu":
        device = torch.cuda.get_device_name(options.device)
        yield f"on {device}, batches of {options.batch or 'their own size'}"
    yield Table("Factor by which the execution is faster than the model", head, gains)
    if ranks:
        head = ["net", "operators", "different graphs", "rank", "table ms", "measured ms", "environment steps/s"]
        yield Table("The table of costs, and the environment", head, ranks)


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
    from bench.rewritten.saturating import EXTRACTIONS, saturated  # egglog need not be installed

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
