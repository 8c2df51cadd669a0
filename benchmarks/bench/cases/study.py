"""Repeats the paper's experiments: agents trained from scratch, by transfers and by curricula of three scenarios.

Writes a page that compares the paper's tables with ours, and counterparts of its Figures 7 to 12
(docs/reports/paper), into --work-dir. The stages run in sequence, because a transfer begins where training from scratch
ended. The runs of a stage are independent and are trained together, in one process a core. 52 runs of 10,000 episodes
take about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bench.command import Option
from bench.paper import Learnt, Run, greedy, learn_many
from bench.paper_figures import FIGURE_8A, FIGURE_10, FIGURE_12, SCENARIOS, draw
from bench.printing import Parts, progress
from espalier_agent.data import lamelas_tables
from espalier_agent.evaluation.evaluate import (
    SequenceResult,
    none_sequence,
    random_mean,
    random_mean_of_ten,
    sequence_result,
)
from espalier_agent.tables.tree import DecisionTree, decision_tree

TEMPERATURES = (1.0, 10.0, 100.0, 1000.0)
"""Of transfers; 1: no softmax action selection (Lamelas 6.5)."""
CURRICULA = (
    ("early", "middle", "late"),
    ("late", "early", "middle"),
    ("early", "late", "middle"),
    ("late", "middle", "early"),
)
KEEPS = True
OPTIONS = {
    "seeds": Option(2, "for training from scratch"),
    "episodes": Option(10_000, "of each stage; the default is the paper's number"),
    "processes": Option(os.cpu_count() or 1),
}
QUICK = {"seeds": 1, "episodes": 20}
Learn = Callable[[str, Sequence[Run]], list[Learnt]]
"""Runs a stage, which has a name for the progress."""


@dataclass(frozen=True, slots=True)
class Agent(Learnt):
    """An agent after its last run, and its greedy sequence on every table."""

    reached: Mapping[str, SequenceResult]


@dataclass(frozen=True, slots=True)
class Study:
    """All results. Transfers and curricula are of CNN#1 and begin with the first seed's agents."""

    baselines: Mapping[str, tuple[float, float, float, float]]
    """Accuracies by table: no adaptation, mean of all sequences, mean of ten random ones, best."""
    scratch: Mapping[tuple[str, int], Agent]
    """By table and seed."""
    transfers: Mapping[tuple[str, str, float], Agent]
    """By first scenario, second scenario and temperature."""
    curricula: Mapping[tuple[str, ...], Agent]
    """The best of the temperatures for the last scenario."""

    def from_scratch(self, table: str) -> list[Agent]:
        """Return the agents of a table, one a seed."""
        return [agent for (name, _), agent in self.scratch.items() if name == table]

    def transferred(self, prior: str, scenario: str) -> list[Agent]:
        """Return the agents of a transfer, one a temperature."""
        return [self.transfers[prior, scenario, temperature] for temperature in TEMPERATURES]


def run_study(trees: Sequence[DecisionTree], seeds: int, learn: Learn) -> Study:
    """Run all experiments on these tables, which are the paper's six."""
    by_name = {tree.name: tree for tree in trees}

    def agents(stage: str, runs: Sequence[Run]) -> list[Agent]:
        found = []
        for each in learn(stage, runs):
            sequences = greedy([each.weights] * len(trees), trees)
            reached = {tree.name: sequence_result(tree, taken) for tree, taken in zip(trees, sequences, strict=True)}
            found.append(Agent(each.weights, each.objectives, each.accuracies, reached))
        return found

    def onward(prior: Agent, scenario: str, temperature: float) -> Run:
        # Not the seed of the prior, whose random draws the agent has already seen.
        return Run(tree=by_name[f"cnn1-{scenario}"], seed=1_000_003, start=prior.weights, temperature=temperature)

    def best(found: Iterable[Agent], scenario: str) -> Agent:
        return min(found, key=lambda agent: agent.reached[f"cnn1-{scenario}"].rank)

    fresh = [(name, seed) for seed in range(seeds) for name in by_name]
    runs = [Run(tree=by_name[name], seed=seed) for name, seed in fresh]
    scratch = dict(zip(fresh, agents("from scratch", runs), strict=True))
    moves = [(prior, scenario, heat) for prior, scenario in FIGURE_8A for heat in TEMPERATURES]
    runs = [onward(scratch[f"cnn1-{prior}", 0], scenario, heat) for prior, scenario, heat in moves]
    transfers = dict(zip(moves, agents("transfers", runs), strict=True))
    priors = [best([transfers[one, two, heat] for heat in TEMPERATURES], two) for one, two, _ in CURRICULA]
    runs = [
        onward(prior, path[2], heat) for prior, path in zip(priors, CURRICULA, strict=True) for heat in TEMPERATURES
    ]
    ended, count = agents("curricula", runs), len(TEMPERATURES)
    return Study(
        baselines={
            tree.name: (
                tree.accuracies[tree.sequences.index(none_sequence(tree))],
                random_mean(tree),
                random_mean_of_ten(tree, 0),
                max(tree.accuracies),
            )
            for tree in trees
        },
        scratch=scratch,
        transfers=transfers,
        curricula={path: best(ended[at * count : (at + 1) * count], path[2]) for at, path in enumerate(CURRICULA)},
    )


def report(study: Study, seeds: int, episodes: int) -> str:
    """Return the page that links the figures."""
    base = [(name, *map(figure, found)) for name, found in study.baselines.items()]
    rows = [
        (name, figure(accuracy), str(rank), *_of_seeds(study.from_scratch(name), name))
        for name, (accuracy, rank) in FIGURE_12.items()
    ]
    moved = []
    for (prior, scenario), (accuracy, rank) in FIGURE_8A.items():
        tried = [agent.reached[f"cnn1-{scenario}"] for agent in study.transferred(prior, scenario)]
        first, ranks = min(tried, key=lambda each: each.rank), ", ".join(str(each.rank) for each in tried)
        moved.append((prior, scenario, figure(accuracy), str(rank), figure(first.accuracy), str(first.rank), ranks))
    head = "curriculum, on CNN#1 | judged on | paper's ranks E, M, L | ours | mean regret | above the mean of all"
    ended = [_curriculum(study, path, model) for path in CURRICULA for model in ("cnn1", "cnn2")]
    heats = ", ".join(f"{heat:g}" for heat in TEMPERATURES)
    numbers = ", ".join(map(str, range(seeds)))
    opening = "\n".join(f"- {line}" for line in _answer(study))
    return f"""\
# The paper's experiments, repeated

**Do the agents come out as published?** C. Lamelas, *Applying Reinforcement Learning to Neural Network Adaptation in
the Context of DNN Cluster Scheduling*.

{opening}

![ranks](figure-12-ranks.png)

`make bench-study` writes this page and draws the paper's Figures 7 to 12 (52 runs, ten minutes on two cores):
Algorithms 3 and 4, implemented exactly, on the six tables published with the paper; {episodes:,} episodes per
stage, seeds {numbers}. Each accuracy is the table's value for the agent's greedy sequence of actions; its rank is the
position of this sequence among all. Each value in a table is a single noisy run, so small differences in rank mean
little; with the same seed but another rounding of sums, a rank once moved by 13. No table was published for two of the
five scenarios (early middle, middle late).

{table("table | no adaptation | mean of all | mean of 10 random | best", base)}

## From scratch (Figures 7 and 12)

![objective from scratch](figure-07-objective.png)

{table("table | paper | its rank | ours, median | our ranks | objective at the end", rows)}

## From one scenario to another (Figures 8 and 9)

![transfer](figure-08-transfer.png)

![temperature](figure-09-temperature.png)

As in the paper, the best agent over all temperatures is shown, which the evaluated scenario selects. The last
column has the rank at each temperature.

{table(f"prior | scenario | paper | its rank | ours | our rank | by temperature {heats}", moved)}

## Curricula, and another model (Figures 10 and 11)

![curricula](figure-10-curricula.png)

![another model](figure-11-other-model.png)

{table(head, ended)}

## Our own learner

It fits all six tables. On a model or a time that it has not learned, it generalizes to some degree if it learned from
tables of several seeds, and not if it only had the paper's single runs. A fixed sequence or a simple rule is as good
nearly everywhere. `make bench-agent` reproduces the figures; `agent-image/README.md` contains them.
"""


def _answer(study: Study) -> list[str]:
    """Return what came out, in five lines."""
    scratch = {name: study.from_scratch(name) for name in FIGURE_12}
    medians = {name: statistics.median(each.reached[name].accuracy for each in scratch[name]) for name in scratch}
    below = statistics.fmean(FIGURE_12[name][0] - median for name, median in medians.items())
    ranks = [[each.reached[name].rank for each in found] for name, found in scratch.items()]
    apart = max(max(each) - min(each) for each in ranks)
    transferred = {
        key: min(each.reached[f"cnn1-{key[1]}"].rank for each in study.transferred(*key)) for key in FIGURE_8A
    }
    as_good = sum(rank <= FIGURE_8A[key][1] for key, rank in transferred.items())
    curricula = {path: _curriculum(study, path, "cnn1") for path in CURRICULA}
    name, _, _, _, regret, _ = min(curricula.values(), key=lambda row: float(row[4]))
    others = [_curriculum(study, path, "cnn2")[5] for path in CURRICULA]
    return [
        f"From scratch, median accuracies are {below:.4f} below the paper's, in the mean over the six tables.",
        f"Two seeds of one table end up to {apart} ranks of 64 apart.",
        f"Of {len(transferred)} transfers, {as_good} reach the paper's rank or a better one.",
        f"The best of our curricula on cnn1 ({name}) has a mean regret of {regret}; the paper's best has 0.0184.",
        f"On cnn2, which they have not met, at best {max(others)} scenarios are above the mean of all sequences.",
    ]


def _of_seeds(agents: Sequence[Agent], name: str) -> tuple[str, str, str]:
    """Return median accuracy and ranks, and the mean objective of the last tenth of the episodes."""
    reached = [agent.reached[name] for agent in agents]
    last = statistics.fmean(float(agent.objectives[-max(1, len(agent.objectives) // 10) :].mean()) for agent in agents)
    median = statistics.median(each.accuracy for each in reached)
    return figure(median), ", ".join(str(each.rank) for each in reached), f"{last:.1f}"


def _curriculum(study: Study, path: tuple[str, ...], model: str) -> Sequence[str]:
    name, tables = "-".join(path), [f"{model}-{scenario}" for scenario in SCENARIOS]
    papers = FIGURE_10.get(name) if model == "cnn1" else None
    found = [study.curricula[path].reached[table] for table in tables]
    regret = statistics.fmean(study.baselines[each][3] - one.accuracy for each, one in zip(tables, found, strict=True))
    above = sum(one.accuracy > study.baselines[each][1] for each, one in zip(tables, found, strict=True))
    return (
        name,
        model,
        ", ".join(str(papers[scenario][1]) for scenario in SCENARIOS) if papers else "–",
        ", ".join(str(one.rank) for one in found),
        figure(regret),
        f"{above} of {len(found)}",
    )


def figure(value: float) -> str:
    """Return an accuracy as it is printed."""
    return f"{value:.4f}"


def table(head: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, " | ".join(["---"] * (head.count("|") + 1)), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def run(options: argparse.Namespace) -> Parts:
    """Learn, draw and write."""
    trees = [decision_tree(each) for each in lamelas_tables()]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:

        def learn(stage: str, runs: Sequence[Run]) -> list[Learnt]:
            progress(f"{stage}: {len(runs)} runs of {options.episodes:,} episodes")
            shares = [runs[first :: options.processes] for first in range(min(options.processes, len(runs)))]
            learnt = pool.map(partial(learn_many, episodes=options.episodes), shares)
            return [learnt[place % len(shares)][place // len(shares)] for place in range(len(runs))]

        study = run_study(trees, options.seeds, learn)
    draw(study, options.work_dir)
    page = options.work_dir / "index.md"
    page.write_text(report(study, options.seeds, options.episodes), encoding="utf-8")
    yield f"{page}"
