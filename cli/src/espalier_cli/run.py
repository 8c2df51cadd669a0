"""`espalier run`: jobs on this machine, with GPUs that come and go, and models that grow."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console

from espalier_cli.display import JobRow, display_for
from espalier_cli.terminal import Prints, Silences, Terminal, stopping_signals
from espalier_core.files.documents import write_text_atomically
from espalier_core.types.event_lines import line_for
from espalier_core.types.events import AnyEvent, EpochFinished, Warned
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.result import RunResult, read_history, summarize
from espalier_core.types.status import JobPhase
from espalier_core.validation.reading import with_spec
from espalier_operator.local import LocalOutcome, LocalSettings, RunView, end_orphans, files, run_local, run_lock
from espalier_operator.local.backend import require_own
from espalier_operator.local.files import PICTURE_FILE, RESULT_FILE
from espalier_operator.local.settings import STOP_WALL_SECONDS, GpuChange

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+\Z", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%\Z", re.ASCII)
_SECONDS = re.compile(r"\d+(?:\.\d+)?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a run."""

    results: Mapping[str, RunResult]
    """Results by job name."""
    interrupted: bool


def with_changes(
    job: AdaptiveTrainingJob, *, time_budget: float | None, adaptation: str | None, seed: int | None
) -> AdaptiveTrainingJob:
    """Return the job with the overrides of the command line; raise `ValidationError` if they are not allowed."""
    return with_spec(job, timeBudgetSeconds=time_budget, adaptation={"mode": adaptation}, training={"seed": seed})


def default_directory(jobs: Sequence[AdaptiveTrainingJob], now: datetime) -> Path:
    """Return `runs/<names>-<time>`."""
    names = "-".join(job.metadata.name for job in jobs)[:60]
    return Path("runs") / f"{names}-{now:%Y%m%d-%H%M%S}"


def folder_of(directory: Path, job: str, jobs: Sequence[AdaptiveTrainingJob]) -> Path:
    """Return the folder of a job's files: `directory` itself if it is the only job."""
    return directory if len(jobs) == 1 else directory / job


def clear(directory: Path, jobs: Sequence[AdaptiveTrainingJob]) -> None:
    """Remove the files that an earlier run of these jobs left in `directory`, and nothing else.

    Raise `LocalRunError` if another run uses it, or if no run has written those files.
    """
    folders = {directory, *(folder_of(directory, job.metadata.name, jobs) for job in jobs)}
    require_own(directory, folders)
    if not os.path.isdir(directory):  # the run reports a name that is too long
        return
    with run_lock(directory):
        asyncio.run(end_orphans(folders, STOP_WALL_SECONDS))  # otherwise they would write once more
        for folder in folders:
            for name in files.FILES:
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / files.CHECKPOINT_FOLDER, ignore_errors=True)


def run_jobs(
    jobs: Sequence[AdaptiveTrainingJob], settings: LocalSettings, console: Console, terminal: Terminal
) -> Finished:
    """Run the jobs to their ends, or until a signal asks to stop or the terminal is gone.

    Write each job's `result.json` and `training.png`. Raise `DocumentError` if an earlier run's history is damaged.
    """
    views = [JobRow(job.metadata.name, job.spec.time_budget_seconds) for job in jobs]
    stopped, no_agent = False, settings.agent_command is None and settings.agent_url is None
    for job in jobs:  # fail now, not when the budget is used up
        _history(folder_of(settings.directory, job.metadata.name, jobs))
    names = [job.metadata.name for job in jobs]
    logs = [f"{name}: prints into {folder_of(settings.directory, name, jobs) / files.TRAINER_LOG}" for name in names]
    logs_told: list[str] = []
    silences = Silences(job.metadata.name for job in jobs if job.spec.program is None)
    prints = {name: Prints(name, folder_of(settings.directory, name, jobs) / files.TRAINER_LOG) for name in names}

    async def run() -> dict[str, LocalOutcome]:
        nonlocal stopped
        stop = asyncio.Event()

        def interrupt() -> None:
            nonlocal stopped
            stopped = True
            stop.set()

        loop = asyncio.get_running_loop()
        for number in stopping_signals():
            loop.add_signal_handler(number, interrupt)
        terminal.when_gone(lambda: loop.call_soon_threadsafe(interrupt))
        with display_for(views, console) as display:

            def on_event(job: str, event: AnyEvent) -> None:
                if isinstance(event, Warned) and job in prints:
                    prints[job].skip(f"{event.reason}: {event.message}")
                    if event.reason == Reason.AGENT_UNAVAILABLE and no_agent:
                        return  # the user asked for it
                if line_for(event) or isinstance(event, EpochFinished):
                    silences.heard(job)
                display.show(job, event)

            def on_tick(view: RunView) -> None:
                if not logs_told:
                    logs_told.extend(logs)
                    for line in logs:
                        console.print(line, highlight=False, soft_wrap=True)
                for each in prints.values():
                    each.show(console)
                display.tick({job.name: job.used_seconds for job in view.jobs})
                for job, line in silences.lines(view.jobs):
                    display.print(display.rows[job], line)

            outcomes = await run_local(jobs, settings, on_event=on_event, stop=stop, on_tick=on_tick)
            for each in prints.values():
                each.show(console, ended=True)
            return outcomes

    try:
        outcomes = asyncio.run(run())
    finally:
        terminal.when_gone(lambda: None)
    results = {}
    for job in jobs:
        name = job.metadata.name
        # An interrupted run must end quickly: the picture is drawn when it is complete.
        folder = folder_of(settings.directory, name, jobs)
        results[name] = write_results(folder, job, outcomes[name], draw=not stopped)
    return Finished(results, interrupted=stopped and any(result.phase == "Stopped" for result in results.values()))


def write_results(folder: Path, job: AdaptiveTrainingJob, outcome: LocalOutcome, *, draw: bool) -> RunResult:
    """Write `result.json`, and with `draw` also `training.png` if there is anything to draw; return the result.

    A full disk causes only a warning: the terminal shows the result of the run anyway.
    """
    events = _history(folder)
    over = outcome.phase in (JobPhase.COMPLETE, JobPhase.FAILED)
    result = summarize(
        job,
        events,
        seed=job.spec.training.seed,
        phase=str(outcome.phase) if over else "Stopped",
        reason=str(outcome.reason),
        message=outcome.message,
        used_seconds=outcome.used_seconds,
        gpu_seconds_used=outcome.gpu_seconds_used,
        report=outcome.report,
        log=str(folder / files.TRAINER_LOG),
        command=shlex.join(_command()),
    )
    text = json.dumps(result.to_json(), indent=1)
    try:
        write_text_atomically(folder / RESULT_FILE, text + "\n")
        if draw and any(isinstance(event, EpochFinished) for event in events):
            from espalier_cli.picture import Curve, draw_training  # matplotlib takes a second to import

            draw_training(Curve(job.metadata.name, result, events), folder / PICTURE_FILE)
    except OSError as error:
        click.echo(f"warning: {folder}: results cannot be kept: {error.strerror or error}", err=True)
    return result


def _history(folder: Path) -> tuple[AnyEvent, ...]:
    """Return the past events of the job of `folder`; raise `DocumentError` if they cannot be read."""
    path = folder / files.HISTORY_FILE
    return read_history(path) if os.path.exists(path) else ()  # the run reports a name that is too long


def resume_command(directory: Path) -> str:
    """Return the command that resumes an interrupted run: the same one, without `--restart`."""
    words = [word for word in _command() if word != "--restart"]
    if not any(word == "--output" or word.startswith("--output=") for word in words):
        words += ["--output", str(directory)]
    return shlex.join(words)


def _command() -> list[str]:
    """Return the arguments of this process's command, with its short name if the PATH finds it."""
    name = Path(sys.argv[0]).name
    if name == "__main__.py":
        return [sys.executable, "-m", "espalier_cli", *sys.argv[1:]]
    found = shutil.which(name)
    here = found is not None and Path(found).resolve() == Path(sys.argv[0]).resolve()
    return [name if here else sys.argv[0], *sys.argv[1:]]


class TimelineError(ValueError):
    """A moment or a change of GPUs is invalid. The message names it and the allowed forms."""


def parse_moment(text: str, budget_seconds: float) -> float:
    """Return the budget seconds of `20s`, `1m30s`, `500ms`, a bare number of seconds, or `30%` of the budget."""
    if percent := _PERCENT.match(text):
        return float(percent[1]) / 100 * budget_seconds
    if _DURATION.match(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if _SECONDS.match(text):
        return float(text)
    raise TimelineError(f"{text!r} is not a moment; write 20s, 1m30s, 500ms or 30% (of the time budget)")


def parse_arrival(text: str, budget_seconds: float) -> GpuChange:
    """Return the arrival from `MOMENT:COUNT`."""
    at, count = _change(text, budget_seconds)
    return GpuChange(at_seconds=at, change=count)


def parse_departure(text: str, budget_seconds: float, notice_seconds: float) -> GpuChange:
    """Return the departure from `MOMENT:COUNT`, announced `notice_seconds` before."""
    at, count = _change(text, budget_seconds)
    return GpuChange(at_seconds=at, change=-count, notice_seconds=min(notice_seconds, at))


def require_in_time(changes: Sequence[GpuChange], budgets: Sequence[float], submit_at: Mapping[str, float]) -> None:
    """Raise `TimelineError` for a change that never comes because all jobs have ended before.

    `budgets` are the jobs' time budgets; `submit_at` has the moments of jobs that are submitted later. Jobs that run
    one after the other take the longest.
    """
    end = max(submit_at.values(), default=0.0) + sum(budgets)
    late = next((change for change in changes if change.at_seconds > end), None)
    if late is not None:
        kind, option = ("arrival", "--arrive") if late.change > 0 else ("departure", "--depart")
        raise TimelineError(
            f"{option}: the {kind} at {late.at_seconds:g} s never comes: the time budget ends at {end:g} s; name an "
            "earlier moment"
        )


def _change(text: str, budget_seconds: float) -> tuple[float, int]:
    moment, separator, count = text.partition(":")
    if not separator or not re.fullmatch(r"\d+", count, re.ASCII) or int(count) < 1:
        raise TimelineError(
            f"{text!r} is not a change of GPUs; write MOMENT:COUNT, as 20s:1 (one GPU after 20 seconds)"
        )
    if (percent := _PERCENT.match(moment)) and float(percent[1]) > 100:
        raise TimelineError(f"{text!r} is after the end of the time budget; write at most 100%")
    return parse_moment(moment, budget_seconds), int(count)
