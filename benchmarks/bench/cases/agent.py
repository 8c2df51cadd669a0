"""The speed and the results of the agent's learners, on one core.

1. Speed: episodes a second of REINFORCE in large batches, compared with the paper's loop of single episodes (encode a
   state, draw an action, grow the model, update at the end). Both train on all tables, interleaved.
2. Fit: one agent on the paper's six tables (the default of `espalier agent learn`): its rank on each table, the seconds
   per seed, and the seconds for all seeds at once (`learners/expected.py`), which the other parts use.
3. Noise: how much the ranks vary between seeds, from tables with several seeds (`rank_noise`).
4. Generalisation: train on some tables, evaluate on others; nothing that is judged was learnt. The paper's tables: two
   scenarios of each model against the third; one model against the other. Our tables: all scenarios but one against
   that one; the paper's tables alone, and together with those of our other model. Reported are regret to the best
   sequence of the table and rank, as means over the tables of a seed, with 95 % intervals over the seeds (t). For
   comparison: baselines without a network, and the same learner on tables whose accuracies were shuffled among
   sequences.

Seconds are processor time of learning alone, without reading tables and importing torch. Each value of the paper's
tables is one noisy run, so a rank among its 64 sequences does not measure skill; regret in accuracy is reported with
it. A seed changes the initial weights, not the tables, so an interval does not predict the result on another table. Not
reported: learners other than `expected`, which take minutes per seed. Takes 20 minutes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.command import Option
from bench.printing import Parts, Table, progress, share
from bench.rank_noise import rank_noise
from bench.statistics import spread
from espalier_agent.commands.learn import gather_tables
from espalier_agent.data import table_sets
from espalier_agent.evaluation.evaluate import (
    accuracies_by_seed,
    best_on_average,
    evaluate,
    greedy_sequence,
    heuristic_sequence,
    none_sequence,
    random_mean,
)
from espalier_agent.learners import expected, reinforce
from espalier_agent.learners.expected import FIT
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork, masked_log_probabilities
from espalier_agent.policies.policy import Policy
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.tree import DecisionTree, decision_tree
from espalier_core.types.outcomes import OutcomeTable, reward
from espalier_lab.learners import distilled
from espalier_lab.learners.many_seeds import SeededRun, learn_many

PAPER_REGRET = 0.0184
"""Mean regret on CNN#1 of the paper's best curriculum agent, which has learnt all three scenarios."""
WANTED_SPEED = 82_000
OURS = tuple(name for name in ("digits", "cifar8") if name in table_sets())
OPTIONS = {
    "seeds": Option(10),
    "updates": Option(FIT.updates, "of each learner"),
    "rounds": Option(5, "in which the speed is measured"),
    "ours": Option(list(OURS), "tables of one model each: set or folder"),
    "distilled": Option(False, "evaluate this learner as well (30 more minutes)"),
}
QUICK = {"seeds": 2, "updates": 150, "rounds": 1}


Tables = Sequence[OutcomeTable]

CASES = {"fit": (expected.FIT, False), "smooth": (expected.SMOOTH, False), "fit, shuffled": (expected.FIT, True)}
"""Recipe, and whether the tables learnt are shuffled."""
DISTILLED = "distilled"
"""One more case, on request only: it takes twenty seconds for each policy."""


@dataclass(frozen=True)
class Judged:
    """A table to judge on."""

    table: OutcomeTable
    tree: DecisionTree


@dataclass(frozen=True)
class Split:
    """What is learnt, and what is judged."""

    name: str
    learnt: tuple[OutcomeTable, ...]
    judged: tuple[Judged, ...]


def experiments(paper: Tables, ours: Mapping[str, Tables]) -> dict[str, list[Split]]:
    """Return all experiments: figures of one are means over its splits. `ours` by the name of their model."""
    found = {}
    for model in sorted({table.model for table in paper}):
        found[f"a scenario left out, {model}"] = _scenarios(paper, model)
    for model in sorted({table.model for table in paper}):
        learnt = tuple(table for table in paper if table.model != model)
        found[f"the model left out, {model}"] = [_split(model, learnt, [t for t in paper if t.model == model])]
    for model, tables in ours.items():
        if len({table.scenario for table in tables}) > 1:
            found[f"a scenario left out, {model} alone"] = _scenarios(tables, model)
        found[f"the paper's tables learnt, {model}"] = [_split(model, paper, tables)]
        for other, beside in ours.items():
            if other != model:
                found[f"the paper's and {other} learnt, {model}"] = [_split(model, (*paper, *beside), tables)]
    return found


def shuffled(tables: Tables, seed: int) -> tuple[OutcomeTable, ...]:
    """Return the tables, each with its accuracies shuffled among its sequences."""
    chance = random.Random(seed)
    changed = []
    for table in tables:
        dealt = [outcome.accuracy for outcome in table.sequences]
        chance.shuffle(dealt)
        outcomes = zip(table.sequences, dealt, strict=True)
        sequences = tuple(
            # Of a mean alone: its seeds' figures are another sequence's now.
            outcome.model_copy(update={"accuracy": accuracy, "accuracies": None, "accuracy_std": None})
            for outcome, accuracy in outcomes
        )
        changed.append(table.model_copy(update={"sequences": sequences}))
    return tuple(changed)


def _scenarios(tables: Tables, model: str) -> list[Split]:
    return [
        _split(
            scenario,
            [table for table in tables if table.scenario != scenario],
            [table for table in tables if table.scenario == scenario and table.model == model],
        )
        for scenario in sorted({table.scenario for table in tables})
    ]


def _split(name: str, learnt: Tables, judged: Tables) -> Split:
    return Split(name, tuple(learnt), tuple(Judged(table, decision_tree(table)) for table in judged))


class Policies:
    """Learnt policies, all seeds at once; several experiments share what they learn."""

    def __init__(self, seeds: int, updates: int | None) -> None:
        self._seeds = seeds
        self._updates = updates
        self._kept: dict[tuple[str, ...], tuple[Policy, ...]] = {}

    def learn(self, split: Split, case: str) -> tuple[Policy, ...]:
        """Learn what a split says, with each seed."""
        key = (case, *(table.name for table in split.learnt))
        if key not in self._kept and case == DISTILLED:
            self._kept[key] = self._distilled(split)
        elif key not in self._kept:
            config, shuffle = CASES[case]
            if self._updates is not None:
                config = config.model_copy(update={"updates": self._updates})
            runs = [
                SeededRun(shuffled(split.learnt, seed) if shuffle else split.learnt, seed)
                for seed in range(self._seeds)
            ]
            self._kept[key] = learn_many(runs, config=config)
        return self._kept[key]

    def _distilled(self, split: Split) -> tuple[Policy, ...]:
        config = distilled.DEFAULT
        if self._updates is not None:
            config = config.model_copy(update={"updates": self._updates, "student_updates": self._updates})
        return tuple(distilled.learn(split.learnt, config=config, seed=seed) for seed in range(self._seeds))


def generalisation(
    experiments: Mapping[str, Sequence[Split]],
    seeds: int,
    updates: int | None = None,
    cases: Sequence[str] = tuple(CASES),
) -> dict[str, dict[str, Any]]:
    """Run every experiment with each recipe and the control, and the baselines."""
    policies = Policies(seeds, updates)
    report = {}
    for name, splits in experiments.items():
        rows = {case: found for case, rule in BASELINES.items() if (found := without_network(splits, rule)) is not None}
        for case in cases:
            # By split, then by seed.
            learnt = [policies.learn(split, case) for split in splits]
            reached = [
                [
                    (judged, _accuracy(judged.tree, greedy_sequence(own[seed], judged.tree)))
                    for split, own in zip(splits, learnt, strict=True)
                    for judged in split.judged
                ]
                for seed in range(seeds)
            ]
            rows[case] = {
                "regret": spread([statistics.fmean(_regret(*one) for one in found) for found in reached]),
                "rank": spread([statistics.fmean(one.tree.rank(got) for one, got in found) for found in reached]),
            }
            progress(f"{name}, {case}: regret {rows[case]['regret']['mean']:.4f}")
        report[name] = rows
    return report


def without_network(
    splits: Sequence[Split], rule: Callable[[Split, Judged], float | None]
) -> dict[str, dict[str, float]] | None:
    """Return regret and rank of a rule, means over the tables judged; None where it says nothing of one of them."""
    regrets, ranks = [], []
    for split in splits:
        for judged in split.judged:
            accuracy = rule(split, judged)
            if accuracy is None:
                return None
            regrets.append(_regret(judged, accuracy))
            ranks.append(judged.tree.rank(accuracy))
    return {"regret": {"mean": statistics.fmean(regrets)}, "rank": {"mean": statistics.fmean(ranks)}}


def _best_on_average(split: Split, judged: Judged) -> float | None:
    sequence = best_on_average([decision_tree(table) for table in split.learnt])
    if sequence is None or sequence not in judged.tree.sequences:
        return None
    return _accuracy(judged.tree, sequence)


def _of_one_seed(_: Split, judged: Judged) -> float | None:
    by_seed = accuracies_by_seed(judged.table)
    if by_seed is None:
        return None
    return max(judged.tree.accuracies) - rank_noise(judged.table.name, by_seed).regret_of_one_seed


def _accuracy(tree: DecisionTree, sequence: tuple[int, ...]) -> float:
    return tree.accuracies[tree.sequences.index(sequence)]


def _regret(judged: Judged, accuracy: float) -> float:
    return max(judged.tree.accuracies) - accuracy


BASELINES: dict[str, Callable[[Split, Judged], float | None]] = {
    "best on average": _best_on_average,
    "heuristic": lambda _, judged: _accuracy(judged.tree, heuristic_sequence(judged.tree)),
    "random (mean of all)": lambda _, judged: random_mean(judged.tree),
    "none": lambda _, judged: _accuracy(judged.tree, none_sequence(judged.tree)),
    "noise: best of one seed": _of_one_seed,
}
"""What needs no network. The last is what a rank's noise costs one who knows one seed of the judged table by heart."""


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
            at = tree.next_states[at][action]
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


def fit(tables: Tables, seeds: int, config: expected.ExpectedConfig) -> dict[str, Any]:
    """Learn all tables with each seed, one after the other as the command does, and then all seeds at once."""
    rows = []
    for seed in range(seeds):
        started = time.process_time()
        policy = expected.learn(tables, config=config, seed=seed)
        seconds = time.process_time() - started
        ranks = {result.table: result.rank for result in evaluate(policy, tables).tables}
        rows.append({"seed": seed, "seconds": seconds, "ranks": ranks})
        progress(f"fit, seed {seed}: {seconds:.1f} s, ranks {list(ranks.values())}")
    started = time.process_time()
    learn_many([SeededRun(tuple(tables), seed) for seed in range(seeds)], config=config)
    return {"seeds": rows, "at_once_seconds": time.process_time() - started}


def _with_interval(figure: dict[str, float], form: Callable[[float], str]) -> list[str]:
    return [form(figure["mean"]), form(figure["half_width"]) if "half_width" in figure else ""]


def speed_table(found: dict[str, Any]) -> Table:
    """Return episodes a second of both loops."""
    rows = [
        [name, f"{statistics.median(found[case]):,.0f}", str(len(found[case]))]
        for name, case in (("one at a time", "one_at_a_time"), ("batched", "batched"))
    ]
    return Table(f"Episodes a second (wanted: {WANTED_SPEED:,})", ["", "median", "n"], rows)


def fit_table(found: dict[str, Any]) -> Iterator[Table | str]:
    """Give the ranks of one agent on the paper's tables, and the seconds."""
    seeds = found["seeds"]
    rows = [
        [str(row["seed"]), *(str(rank) for rank in row["ranks"].values()), f"{row['seconds']:.1f}"] for row in seeds
    ]
    yield Table("One agent on the paper's tables: rank on each", ["seed", *seeds[0]["ranks"], "s"], rows)
    first = sum(all(rank == 1 for rank in row["ranks"].values()) for row in seeds)
    seconds = [row["seconds"] for row in seeds]
    yield (
        f"rank 1 on every table: {first} of {len(seconds)} seeds, the slowest in {max(seconds):.1f} s; "
        f"one after the other {sum(seconds):.1f} s, all at once {found['at_once_seconds']:.1f} s\n"
    )


def noise_table(found: Sequence[dict[str, Any]]) -> Table:
    """Return how much of a rank is noise."""
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
        for row in found
    ]
    return Table("How much of a rank is noise", head, rows)


def judged_table(name: str, cases: dict[str, Any]) -> Table:
    """Return regret and rank on what was not learnt."""
    rows = [
        [case, *_with_interval(row["regret"], share), *_with_interval(row["rank"], lambda rank: f"{rank:.1f}")]
        for case, row in cases.items()
    ]
    return Table(f"Judged on what was not learnt: {name}", ["", "regret", "±", "rank", "±"], rows)


def run(options: argparse.Namespace) -> Parts:
    """Measure, and give the tables."""
    paper = gather_tables(("lamelas",))
    ours: dict[str, list[OutcomeTable]] = {}
    for table in gather_tables(tuple(options.ours)):
        ours.setdefault(table.model, []).append(table)
    # The first optimizer imports a good part of torch; that is no learning.
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    found: dict[str, Any] = {"speed": speed(paper, options.rounds)}
    yield speed_table(found["speed"])
    yield f"ratio {found['speed']['ratio']:,.0f}\n"
    found["fit"] = fit(paper, options.seeds, FIT.model_copy(update={"updates": options.updates}))
    yield from fit_table(found["fit"])
    by_seed = [(table.name, accuracies_by_seed(table)) for tables in ours.values() for table in tables]
    found["noise"] = [rank_noise(name, each).model_dump() for name, each in by_seed if each is not None]
    if found["noise"]:
        yield noise_table(found["noise"])
    cases = (*CASES, DISTILLED) if options.distilled else tuple(CASES)
    found["generalisation"] = generalisation(experiments(paper, ours), options.seeds, options.updates, cases)
    for name, judged in found["generalisation"].items():
        yield judged_table(name, judged)
    yield f"regret on cnn1 of the paper's best curriculum agent, where it has learnt: {share(PAPER_REGRET)}"
    yield found
