"""Measures the speed and the results of the agent's learners, on one core.

    .venv/bin/python benchmarks/agent.py [--quick] [--seeds N] [--ours SET|DIR ...] [--distilled] [--markdown]
        [--json FILE]

1. Speed: episodes a second of REINFORCE in large batches, compared with the paper's loop of single episodes (encode a
   state, draw an action, grow the model, update at the end). Both train on all tables, interleaved.
2. Fit: one agent on the paper's six tables (the default of `espalier agent learn`): its rank on each table, the seconds
   per seed, and the seconds for all seeds at once (`learners/expected.py`), which the other parts use.
3. Noise: how much the ranks vary between seeds, from tables with several seeds (`rank_noise`).
4. Generalisation: train on some tables, evaluate on others. The paper's tables: two scenarios of each model against the
   third; one model against the other. Our tables: all scenarios but one against that one; the paper's tables alone, and
   together with those of our other model. Reported are regret to the best sequence of the table and rank, as means over
   the tables of a seed, with 95 % intervals over the seeds (t). For comparison: baselines without a network, and the
   same learner on tables whose accuracies were shuffled among sequences.

Seconds are processor time of learning alone, without reading tables and importing torch. Each value of the paper's
tables is one noisy run, so a rank among its 64 sequences does not measure skill; regret in accuracy is reported with
it. A seed changes the initial weights, not the tables, so an interval does not predict the result on another table. Not
reported: learners other than `expected`, which take minutes per seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from harness.printed import command, environment, rendered, share
from learning.generalisation import CASES, DISTILLED, experiments, generalisation
from learning.speed import fit, speed

from espalier_agent.commands.learn import gather_tables
from espalier_agent.data import table_sets
from espalier_agent.evaluation.evaluate import accuracies_by_seed, rank_noise
from espalier_agent.learners.expected import FIT
from espalier_core.types.outcomes import OutcomeTable

PAPER_REGRET = 0.0184
"""Mean regret on CNN#1 of the paper's best curriculum agent, which has learnt all three scenarios."""
WANTED_SPEED = 82_000
OURS = tuple(name for name in ("digits", "cifar8") if name in table_sets())
QUICK_UPDATES = 150


def shown(report: dict[str, Any], *, markdown: bool) -> str:
    """Return the tables for people."""
    parts = []

    def add(title: str, head: list[str], rows: list[list[str]]) -> None:
        parts.append(rendered(title, head, rows, markdown=markdown))

    found = report["speed"]
    rows = [
        [name, f"{statistics.median(found[case]):,.0f}", str(len(found[case]))]
        for name, case in (("one at a time", "one_at_a_time"), ("batched", "batched"))
    ]
    add(f"Episodes a second (wanted: {WANTED_SPEED:,})", ["", "median", "n"], rows)
    parts.append(f"ratio {found['ratio']:,.0f}\n")
    tables = list(report["fit"]["seeds"][0]["ranks"])
    rows = [
        [str(row["seed"]), *(str(rank) for rank in row["ranks"].values()), f"{row['seconds']:.1f}"]
        for row in report["fit"]["seeds"]
    ]
    add("One agent on the paper's tables: rank on each", ["seed", *tables, "s"], rows)
    first = sum(all(rank == 1 for rank in row["ranks"].values()) for row in report["fit"]["seeds"])
    seconds = [row["seconds"] for row in report["fit"]["seeds"]]
    parts.append(
        f"rank 1 on every table: {first} of {len(seconds)} seeds, the slowest in {max(seconds):.1f} s; "
        f"one after the other {sum(seconds):.1f} s, all at once {report['fit']['at_once_seconds']:.1f} s\n"
    )
    if report["noise"]:
        head = ["table", "seeds", "σ", "s.e.", "90 % of a rank", "Spearman", "Kendall", "first in 5", "regret of one"]
        rows = [
            [
                row["table"],
                str(row["seeds"]),
                share(row["deviation"]),
                share(row["standard_error"]),
                f"{row['rank_width']:.0f} of {row['sequences']}",
                share(row["spearman"], 2),
                share(row["kendall"], 2),
                share(row["first_among_first_five"], 2),
                share(row["regret_of_one_seed"]),
            ]
            for row in report["noise"]
        ]
        add("How much of a rank is noise", head, rows)
    for name, cases in report["generalisation"].items():
        rows = [
            [case, *_with_interval(row["regret"], share), *_with_interval(row["rank"], lambda rank: f"{rank:.1f}")]
            for case, row in cases.items()
        ]
        add(f"Judged on what was not learnt: {name}", ["", "regret", "±", "rank", "±"], rows)
    parts.append(
        f"regret on cnn1 of the paper's best curriculum agent, where it has learnt: {share(PAPER_REGRET)}; "
        f"n = {len(seconds)} seeds\n\n{report['machine']}\n{report['command']}: {report['minutes']:.1f} minutes"
    )
    return "\n".join(parts)


def _with_interval(figure: dict[str, float], form: Any) -> list[str]:
    return [form(figure["mean"]), form(figure["half_width"]) if "half_width" in figure else ""]


def main() -> None:
    """Measure, print, write JSON where asked to."""
    parser = argparse.ArgumentParser(description="What the agent's learners reach.")
    parser.add_argument(
        "--quick", action="store_true", help="two seeds and a quarter of the updates, to check that it runs"
    )
    parser.add_argument("--seeds", type=int, help="default: 10, or 2")
    parser.add_argument(
        "--ours", action="append", help=f"tables of one model: set or folder; default {', '.join(OURS)}"
    )
    parser.add_argument("--distilled", action="store_true", help="evaluate this learner as well (30 more minutes)")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    started = time.monotonic()
    torch.set_num_threads(1)
    paper = gather_tables(("lamelas",))
    ours: dict[str, list[OutcomeTable]] = {}
    for table in gather_tables(tuple(options.ours or OURS)):
        ours.setdefault(table.model, []).append(table)
    seeds = options.seeds or (2 if options.quick else 10)
    updates = QUICK_UPDATES if options.quick else FIT.updates
    # The first optimizer imports a good part of torch; that is no learning.
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    cases = (*CASES, DISTILLED) if options.distilled else tuple(CASES)
    by_seed = [(table.name, accuracies_by_seed(table)) for tables in ours.values() for table in tables]
    report = {
        "speed": speed(paper, 1 if options.quick else 5),
        "fit": fit(paper, seeds, FIT.model_copy(update={"updates": updates})),
        "noise": [rank_noise(name, found).model_dump() for name, found in by_seed if found is not None],
        "generalisation": generalisation(experiments(paper, ours), seeds, updates, cases),
        "machine": f"one core of {environment('torch')}",
        "command": command(),
        "minutes": (time.monotonic() - started) / 60,
    }
    print(shown(report, markdown=options.markdown))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
