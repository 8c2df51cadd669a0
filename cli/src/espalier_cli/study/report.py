"""The study as Markdown: the paper's numbers beside ours."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from espalier_agent.study.experiments import Reached, Study
from espalier_agent.study.paper import CURRICULA, FIGURE_8A, FIGURE_10, FIGURE_12, TEMPERATURES
from espalier_cli.study.figures import SCENARIOS, last_objective


def report(study: Study) -> str:
    """Return the page that stands beside the pictures."""
    return "\n".join((_head(study), _scratch(study), _transfers(study), _curricula(study))) + "\n"


def _head(study: Study) -> str:
    seeds = ", ".join(str(seed) for seed in study.seeds)
    rows = [
        (name, *(_figure(value) for value in (base.none, base.random_mean, base.random_ten, base.best)))
        for name, base in study.baselines.items()
    ]
    return f"""\
# The paper's agent, learnt again

Algorithms 3 and 4 of Lamelas to the letter on the six tables published with the paper, {study.episodes:,} episodes a
stage, seeds {seeds}. An accuracy is the table's for the agent's greedy sequence, a rank its place among all sequences.
The tables are single noisy runs, so neighbouring ranks mean little. Two of the paper's five scenarios (early middle,
middle late) are in no published table.

{_table(("table", "no adaptation", "mean of all", "mean of 10 random", "best"), rows)}
"""


def _scratch(study: Study) -> str:
    rows = []
    for (model, scenario), (accuracy, rank) in FIGURE_12.items():
        name = f"{model}-{scenario}"
        ours = [study.scratch[name, seed].reached[name] for seed in study.seeds]
        last = statistics.fmean(last_objective(study.scratch[name, seed]) for seed in study.seeds)
        rows.append((name, _figure(accuracy), str(rank), *_of_seeds(ours), f"{last:.1f}"))
    head = ("table", "paper", "its rank", "ours, median", "our ranks", "objective at the end")
    return f"""\
## From scratch (Figures 7 and 12)

![objective from scratch](figure-07-objective.png)

![ranks](figure-12-ranks.png)

{_table(head, rows)}
"""


def _transfers(study: Study) -> str:
    rows = []
    for (prior, scenario), (accuracy, rank) in FIGURE_8A.items():
        name = f"cnn1-{scenario}"
        tried = [study.transfers[prior, scenario, heat].reached[name] for heat in TEMPERATURES]
        best = min(tried, key=lambda reached: reached.rank)
        ranks = ", ".join(str(reached.rank) for reached in tried)
        rows.append((prior, scenario, _figure(accuracy), str(rank), _figure(best.accuracy), str(best.rank), ranks))
    heats = ", ".join(f"{heat:g}" for heat in TEMPERATURES)
    head = ("prior", "scenario", "paper", "its rank", "ours", "our rank", f"by temperature {heats}")
    return f"""\
## From one scenario to another (Figures 8 and 9)

![transfer](figure-08-transfer.png)

![temperature](figure-09-temperature.png)

The best over temperatures is chosen by what is judged, as in the paper; the last column shows all of them.

{_table(head, rows)}
"""


def _curricula(study: Study) -> str:
    rows = []
    for curriculum in CURRICULA:
        name = "-".join(curriculum)
        said = FIGURE_10.get(name)
        for model in ("cnn1", "cnn2"):
            found = [study.curricula[curriculum].reached[f"{model}-{scenario}"] for scenario in SCENARIOS]
            paper = ", ".join(str(said[scenario][1]) for scenario in SCENARIOS) if said and model == "cnn1" else "–"
            random = [study.baselines[f"{model}-{scenario}"].random_mean for scenario in SCENARIOS]
            beaten = sum(reached.accuracy > mean for reached, mean in zip(found, random, strict=True))
            regret = _figure(statistics.fmean(reached.regret for reached in found))
            ranks = ", ".join(str(reached.rank) for reached in found)
            rows.append((name, model, paper, ranks, regret, f"{beaten} of {len(found)}"))
    head = (
        "curriculum, on CNN#1",
        "judged on",
        "paper's ranks E, M, L",
        "ours",
        "mean regret",
        "above the mean of all",
    )
    return f"""\
## Curricula, and another model (Figures 10 and 11)

![curricula](figure-10-curricula.png)

![another model](figure-11-other-model.png)

{_table(head, rows)}
"""


def _of_seeds(found: Sequence[Reached]) -> tuple[str, str]:
    return _figure(statistics.median(each.accuracy for each in found)), ", ".join(str(each.rank) for each in found)


def _figure(value: float) -> str:
    return f"{value:.4f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
