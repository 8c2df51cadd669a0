"""`espalier agent reproduce`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from espalier_agent.commands.progress_lines import ProgressLines
from espalier_agent.data import lamelas_tables
from espalier_agent.study.experiments import run_study
from espalier_agent.study.workers import Told, workers
from espalier_agent.tables.tree import decision_tree
from espalier_api.documents import write_bytes_atomically, write_text_atomically
from espalier_cli.errors import BadInput
from espalier_cli.study.figures import figures
from espalier_cli.study.report import report


@click.command()
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder for page and pictures.",
)
@click.option("--seeds", type=click.IntRange(min=1), default=2, show_default=True, help="Of learning from scratch.")
@click.option(
    "--episodes",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Of each stage; the paper's number.",
)
@click.option("--processes", type=click.IntRange(min=1), help="Default: one a core.")
def reproduce(output: Path, seeds: int, episodes: int, processes: int | None) -> None:
    """Learn the paper's agents again, and write its Figures 7 to 12 and tables beside ours.

    Takes a few minutes. The tables are those published with the paper; they are carried.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--output {output}: {error.strerror}; name a folder that can be written") from error
    with workers(processes or os.cpu_count() or 1, _stage_lines()) as learn:
        study = run_study([decision_tree(table) for table in lamelas_tables()], range(seeds), episodes, learn)
    for name, picture in figures(study).items():
        write_bytes_atomically(output / name, picture)
    page = output / "index.md"
    write_text_atomically(page, report(study))
    click.echo(page)


def _stage_lines() -> Told:
    lines = ProgressLines()

    def tell(stage: str, done: int, of: int) -> None:
        lines.tell(done, of, lambda seconds: f"{seconds:4.0f} s  {stage}: {done:,} of {of:,} episodes")

    return tell
