"""The command `espalier agent judge`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from espalier_cli.errors import InputError
from espalier_cli.options import drawing, picture_option
from espalier_cli.tables import plain_console
from espalier_core.console import RealRange
from espalier_core.types.job import Insertion
from espalier_core.types.task import MEASURE_OF
from espalier_lab.growth.judge.options import shares
from espalier_lab.growth.progress_line import ProgressLine
from espalier_lab.intervals import Interval

if TYPE_CHECKING:
    from espalier_lab.growth.judge.case import Cases
    from espalier_lab.growth.judge.verdict import JudgedMoment, JudgeVerdict


def _operations(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
    from espalier_core.growth import operation_names

    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in operation_names():
            raise click.BadParameter(f"{name!r} is not a growth operation; known: {', '.join(operation_names())}")
    return names


def _insertions(_context: click.Context, _option: click.Parameter, text: str) -> tuple[Insertion, ...]:
    """Return the inexact ways; exact arms are always trained."""
    allowed = (Insertion.EXACT, Insertion.SCALED, Insertion.UNFOLD)
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if name not in allowed:
            raise click.BadParameter(f"{name!r} is not a way to insert whole blocks; known: {', '.join(allowed)}")
    return tuple(way for way in allowed[1:] if way in names)


@click.command()
@click.option(
    "--models", "file", type=click.Path(path_type=Path), help="Python file with a function `cases()`; see the docs."
)
@click.option("--model", metavar="NAME|PACKAGE.MODULE:FUNCTION", help="One model instead, as `training.model`.")
@click.option("--options", default="{}", metavar="JSON", help="Arguments of that function.")
@click.option("--dataset", metavar="NAME|PACKAGE.MODULE:FUNCTION", help="Its data, as `training.dataset`.")
@click.option("--dataset-path", help="Folder or archive of the data.")
@click.option("--budget", metavar="STEPS|TIME", help="Its budget: 500 (steps of the starting model), or 20s.")
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--optimizer", type=click.Choice(["Adam", "AdamW", "SGD", "RMSprop"]), default="Adam", show_default=True)
@click.option("--learning-rate", type=RealRange(0, 100, min_open=True), default=0.01, show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each arm.")
@click.option("--moments", default="20%,50%", show_default=True, callback=shares, help="When the model may grow.")
@click.option(
    "--actions", default="Deepen,AddBlock", show_default=True, callback=_operations, help="How the model may grow."
)
@click.option(
    "--most", type=click.IntRange(min=1), default=8, show_default=True, help="Growths that are tried of each model."
)
@click.option(
    "--insertions",
    default="Exact",
    show_default=True,
    callback=_insertions,
    help="How whole blocks are inserted, each way an arm: Exact,Scaled,Unfold.",
)
@click.option("--policy", type=click.Path(path_type=Path), help="Policy folder; default: the shipped one.")
@click.option(
    "--parallel", type=click.IntRange(min=1), help="Trainings at the same time.  [default: the number of cores]"
)
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs/judge"),
    show_default=True,
    help="Folder for finished trainings: the same command continues from them.",
)
@picture_option("the figures")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def judge(
    file: Path | None,
    model: str | None,
    options: str,
    dataset: str | None,
    dataset_path: str | None,
    budget: str | None,
    batch_size: int,
    optimizer: str,
    learning_rate: float,
    seeds: int,
    moments: tuple[float, ...],
    actions: tuple[str, ...],
    most: int,
    insertions: tuple[Insertion, ...],
    policy: Path | None,
    parallel: int | None,
    work_dir: Path,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Train a model with and without each growth, and report whether growing pays and whether the advice is good.

    The arms train under virtual time: no growth, each growth, and growth as advised, alone and with trials on extra
    GPUs (`Confirm`, `Race` and `Auto`). Regret is how far the test score (accuracy, R² or bits per character) is behind
    that of the best arm, which is chosen by the same seeds.
    """
    from espalier_agent.policies.policy import PolicyError
    from espalier_lab.growth.judge.case import CaseError
    from espalier_lab.growth.judge.deciding import Setting
    from espalier_lab.growth.judge.judging import JudgeSettings, made
    from espalier_lab.growth.judge.running import cores
    from espalier_lab.growth.judge.verdict import sentence
    from espalier_trainer.errors import TrainerError

    try:
        make, digest = _cases(file, model, options, dataset, dataset_path, budget, batch_size, optimizer, learning_rate)
        setting = Setting(moments, actions, most, inserted=insertions)
        judgement = JudgeSettings(make, made(make), seeds, setting, work_dir / digest, parallel or cores(), policy)
        verdict = judgement.verdict(ProgressLine("trainings"))
    except (CaseError, TrainerError, PolicyError, OSError) as error:
        raise InputError(str(error)) from error
    if as_json:
        click.echo(json.dumps(verdict.document(), indent=2))
    else:
        _show(verdict)
        click.echo(sentence(verdict))
    if picture is not None:
        from espalier_lab.growth.judge.picture import draw  # matplotlib takes a second to import

        with drawing(picture):
            draw(verdict, picture)


def _cases(
    file: Path | None,
    model: str | None,
    options: str,
    dataset: str | None,
    dataset_path: str | None,
    budget: str | None,
    batch_size: int,
    optimizer: str,
    learning_rate: float,
) -> tuple[Cases, str]:
    """Return the function that creates the cases, and the name of a folder for their trainings."""
    from dataclasses import replace

    from espalier_lab.growth.judge.case import CaseFile
    from espalier_lab.growth.judge.own import OwnModel, steps_of

    if (file is None) == (model is None):
        raise click.UsageError("give either --models FILE.py or --model with --dataset and --budget")
    if file is not None:
        found = CaseFile(str(file))
        return found, found.digest()[:12]
    if model is None or dataset is None or budget is None:
        raise click.UsageError("--model needs --dataset and --budget")
    own = OwnModel(model, options, dataset, dataset_path, 1, batch_size, optimizer, learning_rate)
    own = replace(own, steps=steps_of(budget, own()[0]))
    click.echo(f"a budget of {own.steps} steps of {batch_size}", err=True)
    return own, own.digest()[:12]


def _show(verdict: JudgeVerdict) -> None:
    console = plain_console()
    if len(verdict.decisions) <= 10:
        for one in verdict.decisions:
            console.print(_arms(one))
    table = Table(show_edge=False, title=f"{verdict.cases} cases of {verdict.families} families")
    for name in ("advisor", "regret", "95 %", "worse than none"):
        table.add_column(name, justify="left" if name == "advisor" else "right")
    for name, regret in verdict.regret.items():
        within = "{:.4f} to {:.4f}".format(*verdict.interval[name]) if name in verdict.interval else "-"
        table.add_row(name, f"{regret:.4f}", within, f"{verdict.worse[name]:.0%}")
    console.print(table)
    for (name, simple), (mean, low, high) in verdict.paired.items():
        console.print(f"{name} - {simple}: {mean:+.4f} ({low:+.4f} to {high:+.4f})")


def _arms(one: JudgedMoment) -> Table:
    table = Table(show_edge=False, title=f"{one.case} at {one.share:.0%} of the budget", title_justify="left")
    by = MEASURE_OF[one.task]
    for name in ("arm", f"test {by.title}", "95 %"):
        table.add_column(name, justify="left" if name == "arm" else "right", overflow="fold")
    named = {**one.arms, **{f"{name} (ends)": values for name, values in one.advised.items() if name in _ENDS}}
    for name, values in named.items():
        sign, most = (1, 1.0) if by.higher_is_better else (-1, math.inf)
        mean, low, high = Interval.of([sign * value for value in values])
        spread = "-" if low is None or high is None else f"{max(low, 0.0):.3f} to {min(high, most):.3f}"
        table.add_row(name, f"{mean:.4f}", spread)
    return table


_ENDS = ("advice", "confirm", "race", "auto")
