"""The figures of reports that no other benchmark draws, from the tables of these reports.

Takes seconds.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.command import Option
from bench.printing import PROJECT, Parts

OURS, OTHER, GREY = "#1b5e20", "#1565c0", "#9e9e9e"


def tables(page: Path, head: str) -> Iterator[list[list[str]]]:
    """Give the rows of each table whose head begins with `head`; an empty first cell means the one above."""
    for block in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.M):
        first, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines()]
        if not " | ".join(first).startswith(head):
            continue
        for above, row in itertools.pairwise(rows):
            row[0] = row[0] or above[0]
        yield rows


def numbers(cell: str) -> list[float]:
    """Return the numbers of a cell, without the separators of thousands."""
    return [float(found) for found in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", re.sub(r",(?=\d{3})", "", cell))]


def scheduling(axes: Axes, page: Path) -> None:
    """Mean completion time by load, in that of `tiresias`."""
    (rows,) = tables(page, "load | `tiresias`")
    names = {"tiresias": 1, "optimus": 2, "soonest": 3, "Pollux, published": 4, "goodput": 5}
    for place, (name, column) in enumerate(names.items()):
        shares = [numbers(row[column])[0] / numbers(row[1])[0] for row in rows]
        xs = [number + (place - 2) * 0.16 for number in range(len(rows))]
        colour = {"goodput": OURS, "Pollux, published": OTHER}.get(name)
        axes.bar(xs, shares, 0.15, label=name, color=colour or GREY, alpha=1 if colour else 0.4 + 0.2 * place)
    axes.set_xticks(range(len(rows)), [f"load {row[0]}" for row in rows])
    axes.set_ylabel("mean completion time ÷ that of tiresias")
    axes.legend(frameon=False, ncols=5, fontsize=7, loc="upper center")
    axes.set_ylim(0, 1.7)


def elastic(axes: Axes, page: Path) -> None:
    """Throughput over DistributedDataParallel's, with quartiles."""
    (rows,) = tables(page, "model | policy | workers")
    for above, row in itertools.pairwise(rows):
        row[1] = row[1] or above[1]
    for place, row in enumerate(reversed(rows)):
        middle, low, high = numbers(row[5])
        axes.errorbar(middle, place, xerr=[[middle - low], [high - middle]], fmt="o", color=OURS, capsize=3)
    labels = [f"{row[0].strip('`')}, {row[1]}, {row[2]} worker{'s' if row[2] != '1' else ''}" for row in reversed(rows)]
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.axvline(1, color="#000000", lw=1)
    axes.set_xlabel("examples a second ÷ those of DistributedDataParallel")


def rewrites(axes: Axes, page: Path) -> None:
    """Gain of a training step by the best plan of a search and by torch.compile, for each net on a CPU."""
    rows = next(tables(page, "net | how | graphs costed | by the table | step"))
    gains: dict[str, list[float]] = {}
    for row in rows:
        compiled = row[1] == "torch.compile"
        of_net = gains.setdefault(row[0].partition(" (")[0], [1.0, 1.0])
        step = numbers(row[4])[0]
        of_net[compiled] = step if compiled else max(of_net[0], step)
    for place, (rewritten, compiled) in enumerate(reversed(gains.values())):
        axes.barh(place + 0.2, rewritten - 1, 0.38, left=1, color=OURS, label="" if place else "rewrites")
        axes.barh(place - 0.2, compiled - 1, 0.38, left=1, color=GREY, label="" if place else "torch.compile")
    axes.set_yticks(range(len(gains)), list(reversed(gains)), fontsize=8)
    axes.axvline(1, color="#000000", lw=1)
    axes.set_xlabel("a training step of the model ÷ one of its execution")
    axes.legend(frameon=False, fontsize=8)


def zoo(axes: Axes, page: Path) -> None:
    """How many models change by how much at most when they grow at all places at once."""
    rows = [row for rows in tables(page, "model | layers") for row in rows if row[-1] and "float32" not in row[-1]]
    largest = [numbers(row[-1])[0] for row in rows]
    decades = Counter(max(-17, math.floor(math.log10(value or 1e-17))) for value in largest)
    places = range(min(decades), max(decades) + 1)
    axes.bar(list(places), [decades[place] for place in places], color=OURS)
    axes.set_xticks(list(places), ["below 1e-16" if place == -17 else f"1e{place}" for place in places], fontsize=8)
    axes.set_xlabel("largest relative difference of outputs after growth, float64, from this on")
    axes.set_ylabel("models")


REPORTS = PROJECT / "docs" / "reports"
OPTIONS = {"pages": Option(REPORTS, "folder of the reports"), "to": Option(REPORTS / "images", "folder of the figures")}
FIGURES = {"scheduling": scheduling, "elastic": elastic, "rewrites": rewrites, "zoo": zoo}


def run(options: argparse.Namespace) -> Parts:
    """Write all figures into a folder."""
    for name, draws in FIGURES.items():
        figure = Figure(figsize=(7.6, 4.2), layout="constrained")
        axes = figure.subplots()
        draws(axes, options.pages / f"{name}.md")
        axes.grid(axis="both", alpha=0.2)
        figure.savefig(options.to / f"{name}.png", dpi=120)
        yield f"{options.to / name}.png"
