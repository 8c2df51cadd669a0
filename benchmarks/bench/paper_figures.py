"""Counterparts of the paper's Figures 7 to 12."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from bench.cases.study import Study

mpl.use("Agg")
RAW, MEAN, OTHER, PAPER, MUTED = "#9bb7d4", "#c76b29", "#3b6fa0", "#8a8a8a", "#d9d9d9"
SCENARIOS = ("early", "middle", "late")
FIGURE_12 = {
    "cnn1-early": (0.7391, 1),
    "cnn1-middle": (0.7135, 5),
    "cnn1-late": (0.6827, 1),
    "cnn2-early": (0.4074, 6),
    "cnn2-middle": (0.4092, 1),
    "cnn2-late": (0.3707, 1),
}
"""The paper's agents learnt from scratch, by table: accuracy, and rank of 64."""
FIGURE_8A = {
    ("early", "late"): (0.6827, 1),
    ("early", "middle"): (0.6928, 17),
    ("middle", "early"): (0.7194, 11),
    ("middle", "late"): (0.6209, 33),
    ("late", "early"): (0.7383, 2),
    ("late", "middle"): (0.7135, 5),
}
"""Learnt on one scenario of CNN#1, then on another: best accuracy and rank over temperatures."""
FIGURE_10 = {
    "early-late-middle": {"early": (0.7260, 8), "middle": (0.6928, 17), "late": (0.6827, 1)},
    "late-middle-early": {"early": (0.7391, 1), "middle": (0.7135, 5), "late": (0.6323, 22)},
}
"""Accuracy and rank of a curriculum's agent on each scenario of CNN#1. The paper draws bars without figures; these were
read off the agents that were published with it."""


def draw(study: Study, folder: Path) -> None:
    """Write all figures into a folder, as PNG."""

    def save(name: str, columns: int, size: tuple[float, float], drawn: Callable[..., None]) -> None:
        figure = Figure(figsize=size, layout="constrained")
        found = [figure.add_subplot(1, columns, place + 1) for place in range(columns)]
        for axes in found:
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", alpha=0.3)
            axes.set_axisbelow(True)
        drawn(study, *found)
        figure.savefig(folder / name, dpi=110)

    save("figure-07-objective.png", 3, (13, 3.6), _objective)
    save("figure-08-transfer.png", 2, (13, 4), _transfer)
    save("figure-09-temperature.png", 2, (13, 3.8), _temperature)
    save("figure-10-curricula.png", 1, (11, 4), lambda given, axes: _curricula(given, axes, "cnn1"))
    save("figure-11-other-model.png", 1, (11, 4), lambda given, axes: _curricula(given, axes, "cnn2"))
    save("figure-12-ranks.png", 1, (9, 3.8), _ranks)


def _objective(study: Study, *row: Axes) -> None:
    for axes, scenario in zip(row, SCENARIOS, strict=True):
        values = study.scratch[f"cnn1-{scenario}", 0].objectives
        axes.plot(*_thinned(values), ".", markersize=2, color=RAW, label="episodes")
        _mean(axes, values, 75, MEAN, "mean of 75")
        axes.set(title=f"CNN#1, {scenario}", xlabel="episode")
    row[0].set_ylabel("objective (lower is better)")
    row[0].legend(frameon=False)


def _transfer(study: Study, bars: Axes, lines: Axes) -> None:
    ours = [min(agent.reached[f"cnn1-{pair[1]}"].rank for agent in study.transferred(*pair)) for pair in FIGURE_8A]
    places = np.arange(len(ours))
    bars.bar(places - 0.2, [rank for _, rank in FIGURE_8A.values()], 0.4, color=PAPER, label="paper")
    bars.bar(places + 0.2, ours, 0.4, color=OTHER, label="ours")
    bars.set_xticks(places, [f"{prior} →\n{scenario}" for prior, scenario in FIGURE_8A], fontsize=8)
    bars.set_ylabel("best rank of 64 over temperatures")
    _mean(lines, study.scratch["cnn1-late", 0].objectives, 50, MEAN, "from scratch")
    _mean(lines, study.transfers["early", "late", 10.0].objectives, 50, OTHER, "after early, T = 10")
    lines.set(title="CNN#1, late", xlabel="episode", ylabel="objective, rolling mean")
    for axes in (bars, lines):
        axes.legend(frameon=False)


def _temperature(study: Study, objective: Axes, accuracy: Axes) -> None:
    for heat, color in ((1.0, MEAN), (10.0, OTHER)):
        agent = study.transfers["early", "late", heat]
        _mean(objective, agent.objectives, 50, color, f"T = {heat:g}")
        accuracy.plot(*_thinned(agent.accuracies), ".", markersize=2, color=color, label=f"T = {heat:g}")
    objective.set_ylabel("objective, rolling mean")
    accuracy.set_ylabel("final accuracy of the episode")
    for axes in (objective, accuracy):
        axes.set_xlabel("episode")
        axes.legend(frameon=False)


def _curricula(study: Study, axes: Axes, model: str) -> None:
    tables = [f"{model}-{scenario}" for scenario in SCENARIOS]
    series = [
        ("no adaptation", [study.baselines[name][0] for name in tables], MUTED),
        ("mean of 10 random", [study.baselines[name][2] for name in tables], PAPER),
    ]
    for name, color, papers in (("early-late-middle", OTHER, MEAN), ("late-middle-early", RAW, "#e3b48f")):
        agent = study.curricula[tuple(name.split("-"))]
        series.append((f"ours, {name}", [agent.reached[table].accuracy for table in tables], color))
        if model == "cnn1":
            series.append((f"paper's, {name}", [FIGURE_10[name][each][0] for each in SCENARIOS], papers))
    series.append(("best sequence", [study.baselines[name][3] for name in tables], "#2f2f2f"))
    width = 0.8 / len(series)
    places = np.arange(len(tables)) - 0.4 + width / 2
    for place, (label, values, color) in enumerate(series):
        axes.bar(places + place * width, values, width, label=label, color=color)
    axes.set_xticks(np.arange(len(tables)), SCENARIOS)
    shown = [value for _, values, _ in series for value in values]
    axes.set_ylim(min(shown) - 0.03, max(shown) + 0.01)
    axes.set_ylabel(f"final accuracy, {'CNN#1' if model == 'cnn1' else 'CNN#2, never learnt'}")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _ranks(study: Study, axes: Axes) -> None:
    for place, (name, (_, rank)) in enumerate(FIGURE_12.items()):
        ours = [agent.reached[name].rank for agent in study.from_scratch(name)]
        spread = np.linspace(-0.15, 0.15, len(ours)) if len(ours) > 1 else np.zeros(1)
        axes.plot(spread + place, ours, "o", color=OTHER, label=None if place else "ours, a seed each")
        axes.plot(place, rank, "x", color=MEAN, markersize=10, label=None if place else "paper")
    axes.set_xticks(range(len(FIGURE_12)), [name.replace("-", "\n") for name in FIGURE_12])
    axes.set_ylabel("rank of 64")
    axes.invert_yaxis()
    axes.legend(frameon=False)


def _thinned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most 2,000 points of a run; more would be one blot."""
    at = np.unique(np.linspace(0, len(values) - 1, min(2000, len(values))).astype(int))
    return at, values[at]


def _mean(axes: Axes, values: np.ndarray, window: int, color: str, label: str) -> None:
    """Draw the rolling mean; the length of its window is the paper's."""
    length = min(window, len(values))
    means = np.convolve(values, np.full(length, 1 / length), mode="valid")
    axes.plot(np.arange(len(means)) + length - 1, means, color=color, linewidth=1.2, label=label)
