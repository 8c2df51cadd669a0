"""Counterparts of the paper's Figures 7 to 12, as PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from espalier_agent.study.experiments import Agent, Study
from espalier_agent.study.paper import FIGURE_8A, FIGURE_10, FIGURE_12

Floats = npt.NDArray[np.float64]
RAW, MEAN, OTHER, PAPER, MUTED = "#9bb7d4", "#c76b29", "#3b6fa0", "#8a8a8a", "#d9d9d9"
SCENARIOS: Final = ("early", "middle", "late")
_POINTS: Final = 2000
"""Raw points that are drawn of a run; more would be one blot."""
_WINDOWS: Final = {7: 75, 8: 50, 9: 50}
"""Length of the rolling mean in each figure, as in the paper."""


def figures(study: Study) -> Mapping[str, bytes]:
    """Return the pictures by the name of their file."""
    made: Mapping[str, Callable[[Study], Figure]] = {
        "figure-07-objective.png": objective_from_scratch,
        "figure-08-transfer.png": transfer,
        "figure-09-temperature.png": temperature,
        "figure-10-curricula.png": lambda given: curricula(given, "cnn1"),
        "figure-11-other-model.png": lambda given: curricula(given, "cnn2"),
        "figure-12-ranks.png": ranks,
    }
    return {name: _png(draw(study)) for name, draw in made.items()}


def rolling(values: Floats, length: int) -> Floats:
    """Return the means of `length` values in a row: as many fewer as a window is long, less one."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    means: Floats = (sums[length:] - sums[:-length]) / length
    return means


def objective_from_scratch(study: Study) -> Figure:
    """Draw Figure 7: the objective while learning CNN#1's scenarios from scratch."""
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    for axes, scenario in zip(_row(figure, 3), SCENARIOS, strict=True):
        agent = study.scratch[f"cnn1-{scenario}", study.seeds[0]]
        _raw_and_mean(axes, agent.objectives, _WINDOWS[7])
        axes.set_title(f"CNN#1, {scenario}")
        axes.set_xlabel("episode")
    figure.axes[0].set_ylabel("objective (lower is better)")
    figure.axes[0].legend(frameon=False)
    return figure


def transfer(study: Study) -> Figure:
    """Draw Figure 8: ranks after transfers, and how fast the late scenario is learnt with and without a prior."""
    figure = Figure(figsize=(13, 4), layout="constrained")
    bars, lines = _row(figure, 2)
    pairs = list(FIGURE_8A)
    ours = [
        min(agent.reached[f"cnn1-{pair[1]}"].rank for key, agent in study.transfers.items() if key[:2] == pair)
        for pair in pairs
    ]
    places = np.arange(len(pairs))
    bars.bar(places - 0.2, [rank for _, rank in FIGURE_8A.values()], 0.4, color=PAPER, label="paper")
    bars.bar(places + 0.2, ours, 0.4, color=OTHER, label="ours")
    bars.set_xticks(places, [f"{prior} →\n{scenario}" for prior, scenario in pairs], fontsize=8)
    bars.set_ylabel("best rank of 64 over temperatures")
    bars.legend(frameon=False)
    scratch = study.scratch["cnn1-late", study.seeds[0]]
    for agent, color, label in (
        (scratch, MEAN, "from scratch"),
        (study.transfers["early", "late", 10.0], OTHER, "after early, T = 10"),
    ):
        _mean(lines, agent.objectives, _WINDOWS[8], color, label)
    lines.set_title("CNN#1, late")
    lines.set_xlabel("episode")
    lines.set_ylabel("objective, rolling mean")
    lines.legend(frameon=False)
    return figure


def temperature(study: Study) -> Figure:
    """Draw Figure 9: early → late with and without softmax action selection."""
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    objective, accuracy = _row(figure, 2)
    for heat, color in ((1.0, MEAN), (10.0, OTHER)):
        agent = study.transfers["early", "late", heat]
        _mean(objective, agent.objectives, _WINDOWS[9], color, f"T = {heat:g}")
        at = _thinned(agent.accuracies)
        accuracy.plot(at, agent.accuracies[at], ".", markersize=2, color=color, label=f"T = {heat:g}")
    objective.set_ylabel("objective, rolling mean")
    accuracy.set_ylabel("final accuracy of the episode")
    for axes in (objective, accuracy):
        axes.set_xlabel("episode")
        axes.legend(frameon=False)
    return figure


def curricula(study: Study, model: str) -> Figure:
    """Draw Figures 10 and 11: agents of two curricula of CNN#1 on a model's scenarios, beside baselines."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    (axes,) = _row(figure, 1)
    names = [f"{model}-{scenario}" for scenario in SCENARIOS]
    series: list[tuple[str, list[float], str]] = [
        ("no adaptation", [study.baselines[name].none for name in names], MUTED),
        ("mean of 10 random", [study.baselines[name].random_ten for name in names], PAPER),
    ]
    for name, color in (("early-late-middle", OTHER), ("late-middle-early", RAW)):
        agent = study.curricula[tuple(name.split("-"))]
        series.append((f"ours, {name}", [agent.reached[table].accuracy for table in names], color))
        if model == "cnn1":
            said = [FIGURE_10[name][scenario][0] for scenario in SCENARIOS]
            series.append((f"paper's, {name}", said, MEAN if name == "early-late-middle" else "#e3b48f"))
    series.append(("best sequence", [study.baselines[name].best for name in names], "#2f2f2f"))
    width = 0.8 / len(series)
    for place, (label, values, color) in enumerate(series):
        axes.bar(
            np.arange(len(names)) + (place - len(series) / 2 + 0.5) * width, values, width, label=label, color=color
        )
    axes.set_xticks(np.arange(len(names)), SCENARIOS)
    shown = [value for _, values, _ in series for value in values]
    axes.set_ylim(min(shown) - 0.03, max(shown) + 0.01)
    axes.set_ylabel(f"final accuracy, {'CNN#1' if model == 'cnn1' else 'CNN#2, never learnt'}")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def ranks(study: Study) -> Figure:
    """Draw Figure 12: ranks learnt from scratch, each seed a point, the paper's one agent a cross."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    (axes,) = _row(figure, 1)
    for place, ((model, scenario), (_, rank)) in enumerate(FIGURE_12.items()):
        name = f"{model}-{scenario}"
        ours = [study.scratch[name, seed].reached[name].rank for seed in study.seeds]
        spread = np.linspace(-0.15, 0.15, len(ours)) if len(ours) > 1 else [0.0]
        axes.plot(np.asarray(spread) + place, ours, "o", color=OTHER, label="ours, a seed each" if place == 0 else None)
        axes.plot(place, rank, "x", color=MEAN, markersize=10, label="paper" if place == 0 else None)
    axes.set_xticks(range(len(FIGURE_12)), [f"{model}\n{scenario}" for model, scenario in FIGURE_12])
    axes.set_ylabel("rank of 64")
    axes.invert_yaxis()
    axes.legend(frameon=False)
    return figure


def last_objective(agent: Agent) -> float:
    """Return the mean objective of the last tenth of the episodes."""
    return float(agent.objectives[-max(1, len(agent.objectives) // 10) :].mean())


def _row(figure: Figure, columns: int) -> Sequence[Axes]:
    found = [figure.add_subplot(1, columns, place + 1) for place in range(columns)]
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    return found


def _thinned(values: Floats) -> npt.NDArray[np.intp]:
    return np.unique(np.linspace(0, len(values) - 1, min(_POINTS, len(values))).astype(np.intp))


def _raw_and_mean(axes: Axes, values: Floats, window: int) -> None:
    at = _thinned(values)
    axes.plot(at, values[at], ".", markersize=2, color=RAW, label="episodes")
    _mean(axes, values, window, MEAN, f"mean of {window}")


def _mean(axes: Axes, values: Floats, window: int, color: str, label: str) -> None:
    length = min(window, len(values))
    means = rolling(values, length)
    axes.plot(np.arange(len(means)) + length - 1, means, color=color, linewidth=1.2, label=label)


def _png(figure: Figure) -> bytes:
    FigureCanvasAgg(figure)
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=110)
    return written.getvalue()
