"""`espalier compare A B`: compare runs, with a sentence about the difference."""

from __future__ import annotations

from pathlib import Path

from rich.console import RenderableType
from rich.table import Table

from espalier_cli.picture import Curve
from espalier_cli.tables import table_for, turned
from espalier_core.files.documents import DocumentError
from espalier_core.types.result import RunResult, read_history, read_result
from espalier_core.types.task import Score
from espalier_operator.local.files import HISTORY_FILE, RESULT_FILE


def read_run(folder: Path, label: str | None = None) -> Curve:
    """Read a run's folder; `DocumentError` names the missing file and the command that makes it."""
    try:
        result = read_result(folder / RESULT_FILE)
        events = read_history(folder / HISTORY_FILE)
    except FileNotFoundError as error:
        raise DocumentError(
            f"{folder}: holds no finished run ({Path(str(error.filename)).name} is missing); "
            f"make one with: espalier run JOB --output {folder}"
        ) from error
    return Curve(label or folder.name, result, events)


def table_of(curves: list[Curve], width: int) -> RenderableType:
    """Return a table with one column per run, or a list per run if `width` characters are too few."""
    measures = {curve.result.score.by.title for curve in curves if curve.result.score is not None}
    score = "test score" if len(measures) > 1 else f"test {next(iter(measures), 'accuracy')}"
    names, runs = ("", score, *_ROWS), [(curve.label, *_column(curve.result)) for curve in curves]
    columns, rows = turned(names, runs)
    table = table_for(width, columns, rows, right=columns[1:])
    return table if isinstance(table, Table) else table_for(width, names, runs)


_ROWS = (
    "test loss",
    "time budget used (s)",
    "GPU-seconds",
    "optimizer steps",
    "depth",
    "parameters",
    "longest pause (s)",
    "ended",
)


def _column(result: RunResult) -> tuple[str, ...]:
    return (
        "-" if result.score is None else result.score.shown,
        _number(result.test_loss, ".4f"),
        f"{result.used_seconds:.2f} of {result.time_budget_seconds:g}",
        f"{result.gpu_seconds_used:.1f}",
        f"{result.steps:,}",
        f"{result.depth_before} -> {result.depth_after}",
        f"{result.parameters_before:,} -> {result.parameters_after:,}",
        f"{result.max_step_gap_seconds:.3f}",
        f"{result.phase}, {result.reason}",
    )


def verdict(curves: list[Curve]) -> str:
    """Return a sentence on the difference between two runs, and its limits."""
    first, second = curves[0].result, curves[-1].result
    ours, theirs = second.score, first.score
    if ours is None or theirs is None:
        return "One of the runs has no score on the test split: nothing can be compared."
    if ours.measure != theirs.measure:
        return (
            f"{curves[0].label} is judged by {theirs.by.title}, {curves[-1].label} by {ours.by.title}: they cannot be "
            "compared."
        )
    if other := next((each for each in curves if each.result.dataset != first.dataset), None):
        names = [each.result.dataset or "data that only its script knows" for each in (curves[0], other)]
        return (
            f"{curves[0].label} was trained on {names[0]}, {other.label} on {names[1]}: scores on different data sets "
            "cannot be compared."
        )
    ahead = ours.ahead_of(theirs)
    amount = f"{abs(ahead):.{ours.by.digits}f} " if ahead else ""
    seeds = f"seed {first.seed}" if first.seed == second.seed else f"seeds {first.seed} and {second.seed}"
    return (
        f"{curves[-1].label} {_has(ours, ahead, amount)} than {curves[0].label} ({seeds}, one run each: an anecdote; "
        "`make bench-digits` runs ten seeds with two controls)."
    )


def _has(score: Score, ahead: float, amount: str) -> str:
    """Describe the second run's lead: more or less of the measure, and whether that is better."""
    more = ahead > 0 if score.by.higher_is_better else ahead < 0
    word = ("more" if more else "less") if ahead else "neither more nor less"
    better = "" if score.by.higher_is_better or not ahead else f", which is {'better' if ahead > 0 else 'worse'},"
    return f"has {amount}{word} {score.by.title}{better}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
