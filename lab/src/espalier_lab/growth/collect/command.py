"""The command `espalier agent collect`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource
from pydantic import ValidationError

from espalier_cli.run import TimelineError, parse_moment
from espalier_cli.starting import JobFile
from espalier_core.console import INTERRUPTED, SEEDS, CommandError, RealRange, output_file
from espalier_core.files.documents import write_text_atomically
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.outcomes import OutcomeTable
from espalier_core.validation.reading import JobFileError, load_job, with_spec
from espalier_lab.growth.collect.corpus import CorpusOptions, Way, collect_corpus, part_of
from espalier_lab.growth.judge.options import shares
from espalier_lab.growth.progress_line import ProgressLine

if TYPE_CHECKING:
    from espalier_lab.growth.collect.state import WorkFolder

_OF_TABLES: Final = {
    "start_at": "--start-at",
    "decisions": "--decisions",
    "time_kind": "--time",
    "step_cost": "--step-cost",
    "time_budget": "--time-budget",
    "controls": "--controls",
    "scenario": "--scenario",
    "device": "--device",
}
_OF_CORPORA: Final = {"moments": "--moments", "most": "--most", "ways": "--way", "part": "--part"}
"""Options that only one of the two kinds of collection reads, by parameter."""


@click.command()
@click.argument("job_file", metavar="[JOB]", required=False, type=JobFile())
@click.option(
    "--corpus",
    metavar="NAME|FILE.py",
    help="Collect a corpus of growth: a set of families (growth, free, unseen, language, language-long, "
    "language-longest, language-unseen, regression, regression-unseen), or the cases of a file.",
)
@click.option(
    "--moments", default="20%,50%", show_default=True, callback=shares, help="For a corpus: when models grow."
)
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="For a corpus: number of growths to try for each model, and again as many that widen.",
)
@click.option(
    "--way",
    "ways",
    multiple=True,
    type=click.Choice([way.value for way in Way]),
    help="For a corpus: how models come to a decision. plain; grown: they have grown at the first moment; faster: "
    "--throughput speeds up what follows; inserted: they add whole blocks alone, exact, scaled and unfolding; "
    "every: as plain, and whole blocks also scaled and unfolding; again: as every, grown at the first moment; widened: "
    "they widen alone, which can then reach into equal blocks. "
    "Repeatable.  [default: plain, grown, faster; grown only with two moments]",
)
@click.option(
    "--part",
    metavar="K/N",
    default="1/1",
    callback=part_of,
    help="For a corpus: the K-th of N parts of its models, for one of N machines. `learn` takes several files.",
)
@click.option("--start-at", metavar="WHEN", help="When a GPU arrives, e.g. 20s, or 30% of the budget.")
@click.option("--decisions", type=click.IntRange(1, 100), default=3, show_default=True, help="Decisions per sequence.")
@click.option("--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of each sequence.")
@click.option("--first-seed", type=SEEDS, default=0, show_default=True, help="Seed of the first run.")
@click.option(
    "--parallel", type=click.IntRange(min=1), default=1, show_default=True, help="Number of runs at the same time."
)
@click.option(
    "--time",
    "time_kind",
    type=click.Choice(["virtual", "wall"]),
    default="virtual",
    show_default=True,
    help="virtual: a step costs what was measured for its architecture. wall: real time.",
)
@click.option(
    "--step-cost",
    metavar="MS,MS,...",
    help="For virtual time: ms of a step, then additional ms for a layer at each growth point (1.9,0.6,0.5,0.2), then "
    "for each doubled group of channels if the job widens.  "
    "[default: measured at the beginning]",
)
@click.option("--time-budget", type=float, help="Override spec.timeBudgetSeconds.")
@click.option("--controls/--no-controls", default=True, show_default=True, help="Also train the controls.")
@click.option(
    "--throughput",
    type=RealRange(min=1),
    default=1.8,
    show_default=True,
    help="Speed-up of steps in the control that only has more throughput; for a corpus, in --way faster.",
)
@click.option("--scenario", help="Name of the scenario in the table.  [default: the value of --start-at]")
@click.option("--device", default="cpu", show_default=True, help="Device for training: cpu, cuda, cuda:1.")
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for finished runs. A later command with more --seeds trains only the additional ones.  "
    "[default: OUTPUT.work, removed at the end, but kept for a corpus]",
)
@click.option("--restart", is_flag=True, help="Delete finished runs in the work folder.")
@output_file("File for the table.", click.Path(path_type=Path, dir_okay=False))
def collect(
    job_file: Path | None,
    corpus: str | None,
    moments: tuple[float, ...],
    most: int,
    ways: tuple[str, ...],
    part: tuple[int, int],
    start_at: str | None,
    decisions: int,
    seeds: int,
    first_seed: int,
    parallel: int,
    time_kind: str,
    step_cost: str | None,
    time_budget: float | None,
    controls: bool,
    throughput: float,
    scenario: str | None,
    device: str,
    work_dir: Path | None,
    restart: bool,
    output: Path,
) -> None:
    """Collect the outcomes of all sequences of decisions for the model of JOB, or of growths of many models (--corpus).

    With JOB: train its model under every sequence of decisions, and write the outcome table.

    A GPU arrives at --start-at. From then on, there is one decision at each epoch boundary. Common prefixes of
    sequences are trained once. If the command is killed or stopped, run it again: it continues from the finished runs.

    If the job's adaptation.actions contain Widen, sequences also double groups of channels. maxParameters does not
    limit them, because a table contains all sequences.
    """
    # Imported here, because the other commands of the agent need no trainer.
    from espalier_core.growth.architecture import GrowthError
    from espalier_lab.growth.collect.assemble import assemble
    from espalier_lab.growth.collect.collecting import collect as collect_runs
    from espalier_lab.growth.collect.collecting import set_up
    from espalier_lab.growth.collect.cost import StepCostError
    from espalier_lab.growth.collect.plan import runs_for
    from espalier_lab.growth.collect.state import WorkFolder
    from espalier_lab.growth.collect.training import CollectError, Time
    from espalier_lab.run_store import InUseError, RunStoreError
    from espalier_trainer.errors import TrainerError

    if (job_file is None) == (corpus is None):
        raise click.UsageError("give either a JOB or --corpus")
    context = click.get_current_context()
    for name, option in (_OF_TABLES if corpus is not None else _OF_CORPORA).items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            whose = "a JOB, not for --corpus" if corpus is not None else "--corpus, not for a JOB"
            raise click.UsageError(f"{option} is for {whose}; omit it")
    if corpus is not None:
        options = CorpusOptions(
            corpus, moments, most, [*map(Way, ways)], throughput, range(first_seed, first_seed + seeds), part
        )
        collect_corpus(options, parallel, work_dir, output, restart=restart)
        return
    if job_file is None or start_at is None:
        raise click.UsageError("a JOB needs --start-at")
    if step_cost is not None and time_kind == "wall":
        raise click.UsageError("--step-cost is for virtual time; omit it, or omit --time wall")
    if not output.absolute().parent.is_dir():
        raise CommandError(f"{output}: there is no folder {output.absolute().parent}")
    job = _job(job_file, time_budget)
    folder = WorkFolder(work_dir or output.with_name(f"{output.name}.work"))
    which = range(first_seed, first_seed + seeds)
    try:
        with folder.held():
            if restart:
                folder.clear()
            collection = set_up(
                job,
                start_at=parse_moment(start_at, job.spec.time_budget_seconds),
                decisions=decisions,
                time_kind=Time(time_kind),
                step_cost=step_cost,
                known_cost=folder.step_cost,
                throughput=throughput,
                device=device,
            )
            folder.begin(collection)
            if collection.cost is not None:
                click.echo(str(collection.cost), err=True)
            if collection.cost is None and parallel > 1:
                click.echo("warning: runs at the same time slow each other down, and this is wall time", err=True)
            runs = runs_for(which, len(collection.points), decisions, controls=controls, groups=len(collection.groups))
            records = collect_runs(collection, runs, folder, parallel, ProgressLine("runs"), _warn)
            table = assemble(collection, records, which, scenario or start_at)
            write_text_atomically(output, json.dumps(table.to_json()) + "\n")
            if work_dir is None:
                folder.remove()
    except InUseError as error:
        raise CommandError(str(error)) from error
    except RunStoreError as error:
        raise CommandError(str(error), "--restart forgets what it holds; --work-dir names another") from error
    except (TimelineError, StepCostError, CollectError, TrainerError, GrowthError, OSError) as error:
        raise CommandError(str(error), _left_behind(folder)) from error
    except KeyboardInterrupt:
        click.echo("interrupted; the same command continues from what is done", err=True)
        sys.exit(INTERRUPTED)
    _print(table, output)


def _job(path: Path, time_budget: float | None) -> AdaptiveTrainingJob:
    try:
        return with_spec(load_job(path), timeBudgetSeconds=time_budget)
    except JobFileError as error:
        raise CommandError(str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise CommandError(f"--time-budget: is {first['input']}; {first['msg'].lower()}") from error


def _left_behind(folder: WorkFolder) -> str | None:
    """Return the message about a work folder with finished runs; None if it has none."""
    if any((folder.path / "runs").glob("*.json")):
        return f"finished runs are kept in {folder.path}; the same command continues from them"
    return None


def _warn(message: str) -> None:
    click.echo(f"warning: {message}", err=True)


def _print(table: OutcomeTable, output: Path) -> None:
    best = max(table.sequences, key=lambda outcome: outcome.accuracy)
    nothing = table.outcome((len(table.actions) - 1,) * table.decisions_per_episode)
    click.echo(f"{output}: {table.name}, {len(table.sequences)} sequences, {len(table.seeds or ())} seeds")
    named = [
        (f"best: {', '.join(table.actions[index] for index in best.actions)}", best),
        (f"nothing (rank {table.rank(nothing.accuracy)})", nothing),
        *((control.name, control) for control in table.controls or ()),
    ]
    for name, one in named:
        spread = "" if one.accuracy_std is None else f" ± {one.accuracy_std:.4f}"
        click.echo(f"  {one.accuracy:.4f}{spread}  {name}")
