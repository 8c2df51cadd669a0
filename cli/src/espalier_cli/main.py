"""`espalier`: the command that people type. stdout is data, stderr is progress and logs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from espalier_cli.errors import INSTALL, InputError, check_trainer
from espalier_cli.options import drawing, picture_option
from espalier_cli.starting import JobFile
from espalier_cli.tables import plain_console
from espalier_core.console import COMMANDS, LazyGroup, RealRange
from espalier_core.files.documents import DocumentError
from espalier_core.validation.problems import Problem
from espalier_core.validation.reading import JobFileError, check_file, jobs_in

EXIT_CODES = """\
Exit codes: 0 success, 1 a job failed or an internal error, 2 an input cannot be used,
130 interrupted (the run can be resumed)."""


_ELSEWHERE = {
    "init": "espalier_cli.starting:init",
    "doctor": "espalier_cli.environment:doctor",
    "completion": "espalier_cli.environment:completion",
    "submit": "espalier_cli.cluster.job_commands:submit",
    "delete": "espalier_cli.cluster.job_commands:delete",
    "suspend": "espalier_cli.cluster.job_commands:suspend",
    "resume": "espalier_cli.cluster.job_commands:resume",
    "logs": "espalier_cli.cluster.job_commands:logs",
    "run": "espalier_cli.run_command:run",
    "points": "espalier_cli.points_command:points",
    "export": "espalier_cli.export_command:export",
    "agent": "espalier_cli.agent_command:agent",
    "list": "espalier_cli.cluster.list_command:list_jobs",
    "explain": "espalier_cli.cluster.explain_command:explain",
    "top": "espalier_cli.cluster.top_command:top",
    "watch": "espalier_cli.cluster.watch_command:watch",
    "snapshot": "espalier_cli.cluster.plan_command:snapshot",
    "plan": "espalier_cli.cluster.plan_command:plan",
}
"""Commands whose imports take time (torch takes seconds); they are imported on use."""


_SECTIONS = {
    "Train on this machine": ("init", "validate", "run", "compare", "export", "points"),
    "Jobs of a cluster": (
        *("submit", "list", "explain", "watch", "logs", "suspend", "resume", "delete"),
        *("top", "snapshot", "plan"),
    ),
    "This command": ("doctor", "completion"),
    "Research": ("agent", "policies", "simulate"),
}


@click.group(
    cls=LazyGroup,
    elsewhere=_ELSEWHERE,
    sections=_SECTIONS,
    group=COMMANDS,
    missing=INSTALL,
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="espalier-cli", prog_name="espalier")
def cli() -> None:
    """Train neural networks under a time budget, and grow them into GPUs that become free during training."""


@cli.command()
@click.argument("files", nargs=-1, required=True, type=JobFile())
@click.option(
    "--deep",
    is_flag=True,
    help="Also try the code and the data of the jobs: import, build the model, take one step, evaluate one batch.",
)
@click.option(
    "--time-limit",
    type=RealRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="With --deep: how long each job may take.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def validate(files: tuple[Path, ...], deep: bool, time_limit: float, as_json: bool) -> None:
    """Print every problem in FILES with jobs or queues as `file:line: field: what is wrong, what is allowed`.

    With --deep, an error of a job's code is one sentence with its file and line. What was found and what was not
    checked goes to stderr, with all that the code prints.
    """
    problems: list[Problem] = []
    for path in files:
        try:
            names = check_file(path)
        except JobFileError as error:
            found = list(error.problems)
        else:
            found = _tried(path, time_limit) if deep else []
            if not found:
                click.echo(f"{path}: {', '.join(names)}: valid", err=True)
        problems += found
        for problem in [] if as_json else found:
            click.echo(str(problem))
    if as_json:
        click.echo(json.dumps([asdict(problem) for problem in problems], indent=1))
    if problems:
        sys.exit(2)


def _tried(path: Path, time_limit: float) -> list[Problem]:
    """Return why jobs of a valid file fail when they are tried; print findings meanwhile."""
    from espalier_cli.deep import check_deep

    check_trainer("validate --deep")
    problems = []
    for job in jobs_in(path):
        place = f"{path}: {job.metadata.name}"

        def tell(text: str, place: str = place) -> None:
            click.echo(f"{place}: {text}", err=True)

        if problem := check_deep(job, time_limit, tell).problem:
            problems.append(Problem(str(path), 0, job.metadata.name, problem))
    return problems


@cli.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False))
@picture_option("the runs")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def compare(folders: tuple[Path, ...], picture: Path | None, as_json: bool) -> None:
    """Compare finished runs: the FOLDERS that `espalier run --output` created."""
    from espalier_cli.compare import read_run, table_of, verdict

    try:
        curves = [read_run(folder) for folder in folders]
    except DocumentError as error:
        raise InputError(str(error)) from error
    said = verdict(curves) if len(curves) > 1 else None
    if as_json:
        runs = [{"run": curve.label, **curve.result.to_json()} for curve in curves]
        click.echo(json.dumps({"runs": runs, "verdict": said}, indent=1))
    else:
        console = plain_console()
        console.print(table_of(curves, console.width))
        if said:
            console.print(said, soft_wrap=True)
    if picture is not None:
        from espalier_cli.picture import draw_comparison

        with drawing(picture):
            draw_comparison(curves, picture)
        click.echo(f"picture: {picture}", err=True)


def main() -> None:
    """Run the command line; kubectl finds it as its plugin `kubectl espalier`."""
    # The commands import what they need, so that `espalier validate` does not wait for torch.
    cli(prog_name="kubectl espalier" if Path(sys.argv[0]).name.startswith("kubectl-") else "espalier")
