"""`espalier compare A B`: compare runs, with a sentence about the difference."""

from __future__ import annotations

from pathlib import Path

from rich.console import RenderableType
from rich.table import Table

from espalier_api.documents import DocumentError
from espalier_api.result import RunResult, read_history
from espalier_cli.picture import Curve
from espalier_cli.tables import table_for, turned
from espalier_operator.local.layout import HISTORY_FILE, RESULT_FILE


def read_run(folder: Path, label: str | None = None) -> Curve:
    """Read a run's folder; `DocumentError` says what is missing and how to get it."""
    try:
        result = RunResult.model_validate_json((folder / RESULT_FILE).read_text(encoding="utf-8"))
        events = read_history(folder / HISTORY_FILE)
    except FileNotFoundError as error:
        raise DocumentError(
            f"{folder}: holds no finished run ({Path(str(error.filename)).name} is missing); "
            f"make one with: espalier run JOB --output {folder}"
        ) from error
    except ValueError as error:
        raise DocumentError(f"{folder / RESULT_FILE}: {error}") from error
    return Curve(label or folder.name, result, events)


def table_of(curves: list[Curve], width: int) -> RenderableType:
    """Return a table with a column a run, or a list a run where `width` characters are too few."""
    names, runs = ("", *_ROWS), [(curve.label, *_column(curve.result)) for curve in curves]
    columns, rows = turned(names, runs)
    table = table_for(width, columns, rows, right=True)
    return table if isinstance(table, Table) else table_for(width, names, runs)


_ROWS = (
    "test accuracy",
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
        _number(result.test_accuracy, ".4f"),
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
    """Say in a sentence what two runs show, and what they do not."""
    first, second = curves[0].result, curves[-1].result
    if first.test_accuracy is None or second.test_accuracy is None:
        return "One of the runs has no test accuracy: nothing can be compared."
    if other := next((each for each in curves if each.result.dataset != first.dataset), None):
        names = [each.result.dataset or "data that only its script knows" for each in (curves[0], other)]
        return (
            f"{curves[0].label} was trained on {names[0]}, {other.label} on {names[1]}: accuracies on different data "
            "sets cannot be compared."
        )
    difference = second.test_accuracy - first.test_accuracy
    word = "more" if difference > 0 else "less" if difference < 0 else "neither more nor less"
    amount = f"{abs(difference):.4f} " if difference else ""
    seeds = f"seed {first.seed}" if first.seed == second.seed else f"seeds {first.seed} and {second.seed}"
    return (
        f"{curves[-1].label} has {amount}{word} accuracy than {curves[0].label} ({seeds}, one run each: an anecdote; "
        "`make bench-digits` runs ten seeds with two controls)."
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
