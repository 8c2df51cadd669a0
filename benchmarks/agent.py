"""What the agent's learners reach on the paper's tables, on one core.

    .venv/bin/python benchmarks/agent.py [--quick] [--seeds N] [--outcomes SET|DIR] [--json FILE]

1. Speed: episodes a second of REINFORCE in large batches beside the paper's loop, one episode at a time: one state
   encoded, one action drawn, the model grown, an update at the end. Both learn all tables, interleaved.
2. Fit: one agent on all tables (`espalier agent learn`'s default), its rank on each, seconds of each seed.
3. Generalisation: learn two scenarios of each model, judge on the third; learn one model, judge on the other. Regret
   to the best sequence of the table, and rank, as means over a seed's tables, with 95 % intervals over the seeds (t).
   Beside it what needs no network, and the same learner on tables whose accuracies were dealt anew among sequences.

Seconds are processor time, what one core takes that does nothing else, of learning alone: reading tables and importing
torch are left out. Each table is one noisy run for each sequence: a rank among its 64 figures is not skill, which is
why regret in accuracy stands beside it. A seed changes the network's beginning, not the tables, so an interval says
nothing of how another table would come out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from espalier_agent.baselines import best_on_average, heuristic_sequence, none_sequence, random_mean
from espalier_agent.evaluate import evaluate
from espalier_agent.learn_command import gather_tables
from espalier_agent.learners import expected, reinforce
from espalier_agent.network import NetworkConfig, PolicyNetwork, masked_log_probabilities
from espalier_agent.tree import DecisionTree, decision_tree
from espalier_agent.vocabulary import Vocabulary
from espalier_api.outcomes import OutcomeTable, reward

Tables = Sequence[OutcomeTable]
CASES = {"fit": (expected.FIT, False), "smooth": (expected.SMOOTH, False), "fit, shuffled": (expected.FIT, True)}
"""Recipe, and whether the tables learnt are shuffled."""
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 11: 2.201, 19: 2.093}
"""Student's t, two-sided 95 %, by degrees of freedom; beyond, the normal's 1.96 understates a little."""
PAPER_REGRET = 0.0184
"""Mean regret on CNN#1 of the paper's best curriculum agent, which has learnt all three scenarios."""


def one_at_a_time(tables: Tables, episodes: int) -> float:
    """Play and learn the paper's way, Algorithms 3 and 4; return episodes a second."""
    trees = [decision_tree(table) for table in tables]
    vocabulary = Vocabulary.build((state.architecture for tree in trees for state in tree.states), 0)
    points = max(len(tree.actions) - 1 for tree in trees)
    network = PolicyNetwork.seeded(NetworkConfig(growth_points=points), 0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    started = time.process_time()
    for episode in range(episodes):
        tree = trees[episode % len(trees)]
        at, recorded = 0, []
        for _ in range(tree.decisions):
            state = tree.states[at]
            times = [torch.tensor([value], dtype=torch.float64) for value in (state.time_left_s, state.time_budget_s)]
            logits = network.logits(
                network.prepare([state.architecture], vocabulary), torch.tensor([0]), times[0], times[1]
            )
            row = masked_log_probabilities(logits, torch.ones_like(logits, dtype=torch.bool))[0]
            action = int(torch.multinomial(row.detach().exp(), 1, generator=generator).item())
            recorded.append(row[action])
            at = tree.following[at][action]
        loss = -torch.stack(recorded).mean() * reward(tree.accuracies[at])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return episodes / (time.process_time() - started)


def batched(tables: Tables, updates: int, episodes_per_update: int) -> float:
    """Learn by the same estimator in large batches; return episodes a second, set-up included."""
    config = reinforce.BATCHED.model_copy(
        update={"episodes": updates * episodes_per_update * len(tables), "episodes_per_update": episodes_per_update}
    )
    started = time.process_time()
    learnt = reinforce.learn(tables, config=config, encoder="lstm", seed=0)
    return learnt.lineage.episodes / (time.process_time() - started)


def speed(tables: Tables, rounds: int) -> dict[str, Any]:
    """Measure both loops, interleaved."""
    slow, fast = [], []
    one_at_a_time(tables, 2)
    for _ in range(rounds):
        slow.append(one_at_a_time(tables, 60))
        fast.append(batched(tables, 20, 10_000))
    return {"one_at_a_time": slow, "batched": fast, "ratio": statistics.median(fast) / statistics.median(slow)}


def fit(tables: Tables, seeds: int) -> list[dict[str, Any]]:
    """Learn all tables with each seed."""
    rows = []
    for seed in range(seeds):
        started = time.process_time()
        policy = expected.learn(tables, seed=seed)
        seconds = time.process_time() - started
        ranks = {result.table: result.rank for result in evaluate(policy, tables).tables}
        rows.append({"seed": seed, "seconds": seconds, "ranks": ranks})
        told(f"fit, seed {seed}: {seconds:.1f} s, ranks {list(ranks.values())}")
    return rows


@dataclass(frozen=True)
class Split:
    """What is learnt, and what is judged."""

    name: str
    learnt: tuple[OutcomeTable, ...]
    judged: tuple[OutcomeTable, ...]


def splits(tables: Tables) -> dict[str, list[Split]]:
    """Return the experiments: figures of one are means over its splits."""
    models = sorted({table.model for table in tables})
    scenarios = sorted({table.scenario for table in tables})
    found = {}
    for model in models:
        found[f"left-out scenario, {model}"] = [
            Split(
                scenario,
                tuple(table for table in tables if table.scenario != scenario),
                tuple(table for table in tables if table.scenario == scenario and table.model == model),
            )
            for scenario in scenarios
        ]
    for model in models:
        found[f"left-out model, {model}"] = [
            Split(
                model,
                tuple(table for table in tables if table.model != model),
                tuple(table for table in tables if table.model == model),
            )
        ]
    return found


def shuffled(tables: Tables, seed: int) -> tuple[OutcomeTable, ...]:
    """Return the tables with each one's accuracies dealt anew among its sequences."""
    chance = random.Random(seed)
    changed = []
    for table in tables:
        dealt = [outcome.accuracy for outcome in table.sequences]
        chance.shuffle(dealt)
        outcomes = zip(table.sequences, dealt, strict=True)
        sequences = tuple(outcome.model_copy(update={"accuracy": accuracy}) for outcome, accuracy in outcomes)
        changed.append(table.model_copy(update={"sequences": sequences}))
    return tuple(changed)


class Policies:
    """Learnt policies, each once: several experiments share what they learn."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], Any] = {}

    def learn(self, split: Split, config: expected.ExpectedConfig, seed: int, *, shuffle: bool) -> Any:
        """Learn what a split says."""
        names = tuple(table.name for table in split.learnt)
        key = (*names, config.model_dump_json(), str(seed), str(shuffle))
        if key not in self._kept:
            tables = shuffled(split.learnt, seed) if shuffle else split.learnt
            self._kept[key] = expected.learn(tables, config=config, seed=seed)
        return self._kept[key]


def generalisation(tables: Tables, seeds: int) -> dict[str, dict[str, Any]]:
    """Run every experiment with each recipe and the control, and the baselines beside them."""
    policies = Policies()
    report = {}
    for name, experiment in splits(tables).items():
        rows: dict[str, Any] = {case: without_network(experiment, rule) for case, rule in BASELINES.items()}
        for case, (config, shuffle) in CASES.items():
            regrets, ranks = [], []
            for seed in range(seeds):
                results = [
                    result
                    for split in experiment
                    for result in evaluate(policies.learn(split, config, seed, shuffle=shuffle), split.judged).tables
                ]
                regrets.append(statistics.fmean(result.regret for result in results))
                ranks.append(statistics.fmean(result.rank for result in results))
            rows[case] = {"regret": spread(regrets), "rank": spread(ranks)}
            told(f"{name}, {case}: regret {rows[case]['regret']['mean']:.4f}")
        report[name] = rows
    return report


def _average(split: Split, tree: DecisionTree) -> float:
    sequence = best_on_average([decision_tree(table) for table in split.learnt])
    if sequence is None:
        raise SystemExit("error: the tables have different actions, so no sequence is best on their average")
    return _reached(tree, sequence)


def _reached(tree: DecisionTree, sequence: tuple[int, ...]) -> float:
    return tree.accuracies[tree.sequences.index(sequence)]


BASELINES: dict[str, Callable[[Split, DecisionTree], float]] = {
    "best on average": _average,
    "heuristic": lambda _, tree: _reached(tree, heuristic_sequence(tree)),
    "random (mean of all)": lambda _, tree: random_mean(tree),
    "none": lambda _, tree: _reached(tree, none_sequence(tree)),
}


def without_network(
    experiment: Sequence[Split], rule: Callable[[Split, DecisionTree], float]
) -> dict[str, dict[str, float]]:
    """Return regret and rank of a rule, means over the tables judged."""
    regrets, ranks = [], []
    for split in experiment:
        for table in split.judged:
            tree = decision_tree(table)
            accuracy = rule(split, tree)
            regrets.append(max(tree.accuracies) - accuracy)
            ranks.append(tree.rank(accuracy))
    return {"regret": {"mean": statistics.fmean(regrets)}, "rank": {"mean": statistics.fmean(ranks)}}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the mean, half the width of its 95 % interval, and n."""
    half = 0.0
    if len(values) > 1:
        factor = T_95.get(len(values) - 1, 1.96)
        half = factor * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": statistics.fmean(values), "half_width": half, "n": len(values)}


def told(line: str) -> None:
    """Say on stderr how far it is."""
    print(line, file=sys.stderr, flush=True)


def show(report: dict[str, Any]) -> None:
    """Print the tables for people."""
    found = report["speed"]
    print("episodes a second, median of n         (wanted: 82,000)")
    for case in ("one_at_a_time", "batched"):
        print(f"  {case:<22} {statistics.median(found[case]):>14,.0f}   n {len(found[case])}")
    print(f"  {'ratio':<22} {found['ratio']:>14,.0f}\n")
    rows = report["fit"]
    print("one agent on all tables: rank on each                         seconds")
    for row in rows:
        print(f"  seed {row['seed']:<4} {list(row['ranks'].values())!s:<50} {row['seconds']:>6.1f}")
    first = sum(all(rank == 1 for rank in row["ranks"].values()) for row in rows)
    slowest = max(row["seconds"] for row in rows)
    print(f"  rank 1 on every table: {first} of {len(rows)} seeds, the slowest in {slowest:.1f} s\n")
    print(f"{'judged on tables not learnt':<34} {'regret':>7} {'±':>7} {'rank':>6} {'±':>5} {'n':>3}")
    for name, cases in report["generalisation"].items():
        print(name)
        for case, row in cases.items():
            regret, rank = row["regret"], row["rank"]
            interval = f"{regret['half_width']:>7.4f}" if "n" in regret else f"{'':>7}"
            width = f"{rank['half_width']:>5.1f} {rank['n']:>3}" if "n" in rank else ""
            print(f"  {case:<32} {regret['mean']:>7.4f} {interval} {rank['mean']:>6.1f} {width}")
    print(f"\nregret on cnn1 of the paper's best curriculum agent, where it has learnt: {PAPER_REGRET}")
    print(f"{report['machine']}\n{report['command']}")


def main() -> None:
    """Measure, print, write JSON where asked to."""
    parser = argparse.ArgumentParser(description="What the agent's learners reach.")
    parser.add_argument("--quick", action="store_true", help="two seeds, one round: a minute or two")
    parser.add_argument("--seeds", type=int, help="default: 10, or 2")
    parser.add_argument("--outcomes", default="lamelas", help="a carried set or a folder; models × scenarios")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables = gather_tables((options.outcomes,))
    seeds = options.seeds or (2 if options.quick else 10)
    # The first optimizer imports a good part of torch; that is no learning.
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    report = {
        "speed": speed(tables, 1 if options.quick else 5),
        "fit": fit(tables, seeds),
        "generalisation": generalisation(tables, seeds),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores (one used), load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}, torch {torch.__version__}",
        "command": " ".join(["benchmarks/agent.py", *sys.argv[1:]]),
    }
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
