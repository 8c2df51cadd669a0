"""Command-line interface of `espalier run`: its options, its output, and why a run ended without growth."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console

from espalier_cli.errors import InputError, check_trainer
from espalier_cli.options import policy_option
from espalier_cli.run import (
    Finished,
    TimelineError,
    clear,
    default_directory,
    folder_of,
    parse_arrival,
    parse_departure,
    parse_moment,
    require_in_time,
    resume_command,
    run_jobs,
    with_changes,
)
from espalier_cli.starting import JobFile
from espalier_cli.tables import plain_console, table_for
from espalier_cli.terminal import Terminal
from espalier_core.client.local import LocalHandle
from espalier_core.console import INTERRUPTED, RealRange
from espalier_core.files.documents import DocumentError
from espalier_core.types.event_lines import progress_of, sentence_of
from espalier_core.types.explanation import Explanation, Section
from espalier_core.types.job import AdaptationMode, AdaptiveTrainingJob, Trials
from espalier_core.types.report import AdaptationResult, AdaptationSource
from espalier_core.types.result import RunResult
from espalier_core.validation.reading import JobFileError, load_jobs
from espalier_operator.local import LocalRunError, LocalSettings
from espalier_operator.local.backend import is_own
from espalier_operator.local.files import PICTURE_FILE, RESULT_FILE, TRAINER_LOG
from espalier_operator.local.settings import FolderInUseError
from espalier_operator.local.workers import cuda_devices
from espalier_operator.model import DEFAULT_POLICY
from espalier_operator.policies.settings import configured_here


@click.command()
@click.argument("files", nargs=-1, required=True, type=JobFile())
@click.option(
    "--gpus", type=click.IntRange(min=0), help="Number of GPUs at the start.  [default: all CUDA devices, or 1]"
)
@click.option(
    "--arrive", multiple=True, metavar="WHEN:COUNT", help="GPUs arrive: 20s:1, or 30%:1 of the (first job's) budget."
)
@click.option(
    "--depart", multiple=True, metavar="WHEN:COUNT", help="GPUs leave, after a notice of the jobs' noticeSeconds."
)
@click.option("--submit", multiple=True, metavar="JOB:WHEN", help="Submit a job later than the others.")
@click.option("--simulate", is_flag=True, help="Count GPUs without using them, even if there are CUDA devices.")
@click.option(
    "--time-scale",
    type=RealRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Budget seconds per second: with 10, a budget of 400 s takes 40 s.",
)
@click.option("--time-budget", type=float, help="Override spec.timeBudgetSeconds.")
@click.option(
    "--adaptation", type=click.Choice([str(mode) for mode in AdaptationMode]), help="Override spec.adaptation.mode."
)
@click.option("--seed", type=int, help="Override spec.training.seed.")
@click.option("--agent-url", help="URL of a running agent.  [default: start one]")
@click.option("--no-agent", is_flag=True, help="Do not start an agent: adaptation.fallback decides.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for results and checkpoints. An existing folder is resumed.  [default: runs/JOB-TIME]",
)
@policy_option("Scheduling policy: which of several jobs gets which GPUs.", DEFAULT_POLICY)
@click.option("--restart", is_flag=True, help="Delete the results of an earlier run in the output folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON on stdout.")
def run(
    files: tuple[Path, ...],
    gpus: int | None,
    arrive: tuple[str, ...],
    depart: tuple[str, ...],
    submit: tuple[str, ...],
    simulate: bool,
    time_scale: float,
    time_budget: float | None,
    adaptation: str | None,
    seed: int | None,
    agent_url: str | None,
    no_agent: bool,
    output: Path | None,
    policy: str,
    restart: bool,
    as_json: bool,
) -> None:
    """Train the jobs of FILES on this machine, with GPUs that come and go; `example:digits` is a carried example.

    Several jobs share the GPUs as the scheduling policy decides. Ctrl-C, or a closed terminal, ends
    the run with a checkpoint; the same command with the same --output resumes it.
    """
    jobs = _load(files, time_budget=time_budget, adaptation=adaptation, seed=seed)
    if not all(job.spec.has_own_command for job in jobs):
        check_trainer("run")
    directory = output or default_directory(jobs, datetime.now().astimezone())
    budget = jobs[0].spec.time_budget_seconds
    notice = max(job.spec.preemption.notice_seconds for job in jobs)
    devices = () if simulate else cuda_devices()
    try:
        configured_here(policy)
    except ValueError as error:
        raise InputError(f"--policy {error}") from error
    if no_agent and agent_url is not None:
        raise InputError("--no-agent and --agent-url exclude each other; give one of them")
    try:
        settings = LocalSettings(
            directory=directory,
            gpus=gpus if gpus is not None else max(1, len(devices)),
            changes=(
                *(parse_arrival(text, budget) for text in arrive),
                *(parse_departure(text, budget, notice) for text in depart),
            ),
            devices=devices,
            hide_devices=simulate,
            time_scale=time_scale,
            agent_url=agent_url,
            policy=policy,
            submit_at=dict(_submission(text, jobs) for text in submit),
        )
        if no_agent:
            settings = replace(settings, agent_command=None)
        require_in_time(settings.changes, [job.spec.time_budget_seconds for job in jobs], settings.submit_at)
    except (TimelineError, LocalRunError) as error:
        hint = "--simulate counts GPUs without using them" if devices else None
        raise InputError(str(error), hint) from error
    console = Console(stderr=True, markup=False)
    with Terminal() as terminal:
        try:
            if restart:
                clear(directory, jobs)
            finished = run_jobs(jobs, settings, console, terminal)
        except (LocalRunError, DocumentError) as error:
            hint = None
            if is_own(directory) and not isinstance(error, FolderInUseError):
                hint = "--restart forgets what the folder holds; another --output keeps it"
            raise InputError(str(error), hint) from error
        _print(finished, directory, jobs, as_json=as_json)
        if finished.interrupted:
            click.echo(f"interrupted; to resume: {resume_command(directory)}", err=True)
            sys.exit(INTERRUPTED)
    if any(result.phase != "Complete" for result in finished.results.values()):
        sys.exit(1)


def _load(
    files: tuple[Path, ...], *, time_budget: float | None, adaptation: str | None, seed: int | None
) -> tuple[AdaptiveTrainingJob, ...]:
    jobs: list[AdaptiveTrainingJob] = []
    for path in files:
        try:
            jobs.extend(load_jobs(path))
        except JobFileError as error:
            raise InputError(str(error)) from error
    names = [job.metadata.name for job in jobs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"job name {name!r} is used {names.count(name)} times; names must differ in one run")
    try:
        return tuple(with_changes(job, time_budget=time_budget, adaptation=adaptation, seed=seed) for job in jobs)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{place}: is {first['input']}; {first['msg'].lower()}") from error


def _submission(text: str, jobs: tuple[AdaptiveTrainingJob, ...]) -> tuple[str, float]:
    name, separator, when = text.partition(":")
    if not separator or name not in {job.metadata.name for job in jobs}:
        known = ", ".join(job.metadata.name for job in jobs)
        raise TimelineError(f"{text!r} is not a submission; write JOB:WHEN, where JOB is one of: {known}")
    return name, parse_moment(when, jobs[0].spec.time_budget_seconds)


def _print(finished: Finished, directory: Path, jobs: tuple[AdaptiveTrainingJob, ...], *, as_json: bool) -> None:
    if as_json:
        shown = [result.to_json() for result in finished.results.values()]
        click.echo(json.dumps(shown[0] if len(shown) == 1 else shown, indent=1))
        return
    measures = {result.score.by.title for result in finished.results.values() if result.score is not None}
    one = len(measures) < 2
    score = f"test {next(iter(measures), 'accuracy')}" if one else "on the test split"
    columns = ("job", "ended", score, "depth", "parameters", "budget used", "longest pause")
    rows = [
        (
            name,
            f"{result.phase}, {result.reason}",
            "-" if result.score is None else result.score.shown if one else str(result.score),
            f"{result.depth_before} -> {result.depth_after}" if result.depth_after else "-",
            f"{result.parameters_before:,} -> {result.parameters_after:,}" if result.depth_after else "-",
            f"{result.used_seconds:.2f} of {result.time_budget_seconds:g} s",
            f"{result.max_step_gap_seconds:.2f} s",
        )
        for name, result in finished.results.items()
    ]
    console = plain_console()
    console.print(table_for(console.width, columns, rows))
    for name, result in finished.results.items():
        if read := progress_of(result.steps, result.done, result.metrics) if result.depth_after == 0 else "":
            click.echo(f"{name}: {read}", err=True)
        if why := why_not_grown(result, next(job for job in jobs if job.metadata.name == name)):
            click.echo(f"{name}: {why}", err=True)
        if result.phase == "Failed":
            click.echo(f"{name}: {result.message or result.reason}", err=True)
        folder = folder_of(directory, name, jobs)
        files = [folder / file for file in (PICTURE_FILE, RESULT_FILE) if (folder / file).exists()]
        click.echo(f"{name}: {', '.join([*map(str, files), f'log: {folder / TRAINER_LOG}'])}", err=True)


def why_not_grown(result: RunResult, job: AdaptiveTrainingJob) -> str:
    """Return why the model did not grow; '' if it grew, or if the job does not ask for growth."""
    spec = job.spec
    asked = [each for each in result.adaptations if each.source in (AdaptationSource.AGENT, AdaptationSource.FALLBACK)]
    if (
        spec.program is not None
        or spec.adaptation.mode is AdaptationMode.OFF
        or result.depth_after == 0  # it never trained
        or result.phase == "Failed"
        or any(each.result is AdaptationResult.GROWN for each in asked)
    ):
        return ""
    if result.cannot_grow:
        return f"it did not grow: {result.cannot_grow}"
    if spec.adaptation.mode is AdaptationMode.DRY_RUN:
        return "it did not grow: adaptation.mode is DryRun, which only records the advice; set it to Auto"
    if spec.max_replicas <= spec.min_replicas:
        return f"it did not grow: it can be lent no extra GPU (maxReplicas {spec.max_replicas}); raise maxReplicas"
    if all(each.allocation.replicas <= spec.min_replicas for each in result.allocations):
        return (
            f"it did not grow: no extra GPU was lent to it (minReplicas {spec.min_replicas}, maxReplicas "
            f"{spec.max_replicas}); it needs a free GPU, such as by --arrive 30%:1"
        )
    if not asked and result.not_tried:
        return f"it did not grow: {result.not_tried}"
    if not asked:
        return "it did not grow: it ended before the agent answered"
    last = asked[-1]
    if last.result is AdaptationResult.UNKNOWN:
        alone = spec.training.elastic_batch is None
        remedy = "training.elasticBatch: keepGlobal" if alone else "adaptation.trials: Race"
        return (
            f"it did not grow: {last.policy} does not know such a model ({last.message}); {remedy}, with an extra GPU, "
            "can find out"
        )
    if last.result is not AdaptationResult.DECLINED:
        return f"it did not grow: {last.action} failed: {last.message}"
    times = "once" if len(asked) == 1 else f"{len(asked)} times"
    if last.arms:
        return f"it did not grow: tried {times}, no growth was better ({last.message})"
    if last.source is AdaptationSource.FALLBACK:
        remedy = "start an agent, or set adaptation.fallback to Heuristic"
        return f"it did not grow: no agent answered, and the fallback {last.policy} advised {last.action}; {remedy}"
    untried = spec.adaptation.trials in (Trials.OFF, Trials.AUTO)
    tries = "adaptation.trials: Race tries it on the extra GPU, and " if untried else ""
    remedy = f"{tries}--no-agent leaves the decision to adaptation.fallback"
    return f"it did not grow: {last.policy} advised {times} against it; {remedy}"


def explained(handle: LocalHandle) -> Explanation:
    """Explain a run of this machine."""
    from espalier_cli.cluster.explain_command import ADAPTATIONS_SHOWN, adaptation_line
    from espalier_cli.cluster.output import duration

    result, job = handle.result(), handle.read_job()
    over = result.phase in ("Complete", "Failed", "Stopped")
    why = ": ".join(part for part in (result.reason, result.message or sentence_of(result.reason)) if part)
    changes = [] if not over else [f"{text[:1].upper()}{text[1:]}." for text in [why_not_grown(result, job)] if text]
    if result.phase in ("Failed", "Stopped"):
        changes.append(f"Its log is {result.log}; `resume` continues from its last checkpoint.")
    budget = f"{duration(result.used_seconds)} of {duration(result.time_budget_seconds)} used."
    score = "" if result.score is None else f", {result.score} on the test split"
    trained = f"Epoch {result.epochs}, step {result.steps:,}, depth {result.depth_after}, parameters "
    sections = (
        Section("Where it stands", (f"{handle.name} is {result.phase}{f'. {why}' if why else ''}.",)),
        Section("What would change it", tuple(changes)),
        Section("Time budget", (budget,)),
        Section("Training", (f"{trained}{result.parameters_after:,}{score}.",) if result.depth_after else ()),
        Section("Adaptations", tuple(map(adaptation_line, result.adaptations[-ADAPTATIONS_SHOWN:]))),
    )
    shown = tuple(section for section in sections if section.lines)
    return Explanation(handle.name, result.phase, result.reason or None, shown)
