"""Runs in several processes, jobs with the options of a benchmark, and published traces that tests carry, too."""

from __future__ import annotations

import argparse
import tarfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.command import DATA, Option
from bench.printing import PROJECT
from espalier_agent.policies.advice import advise
from espalier_agent.policies.policy import default_policy
from espalier_core.types.advice import AdviceRequest, OutcomeReport
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.report import AdaptationSource
from espalier_core.validation.reading import load_job, with_spec
from espalier_trainer.growth.advisor import AdvisorDecision

T = TypeVar("T")

OF_A_JOB: Final = {
    "time_budget": Option(None, "overrides spec.timeBudgetSeconds", type=float),
    "data": DATA,
    "processes": Option(2, "runs at a time"),
}
"""Options of benchmarks that train one job in several ways."""


def job_of(path: Path, options: argparse.Namespace) -> AdaptiveTrainingJob:
    """Return the job of a file with the budget and data of the options."""
    dataset = {"path": options.data or None}
    return with_spec(load_job(path), timeBudgetSeconds=options.time_budget or None, training={"dataset": dataset})


def example(name: str) -> Path:
    """Return the file of an example job."""
    return PROJECT / "examples" / f"{name}.yaml"


def unpacked(name: str, scratch: Path) -> Path:
    """Unpack the published traces `name` into `scratch`; return their folder."""
    with tarfile.open(PROJECT / "tests" / "data" / f"{name}.tar.gz") as archive:
        archive.extractall(scratch, filter="data")
    return scratch / name


def run_all(
    run: Callable[..., T], calls: Iterable[tuple[Any, ...]], processes: int, done: Callable[[str, T], None]
) -> None:
    """Call `run` with each of `calls`, some at a time, and `done` with `n/all` and each result as it comes.

    Calls start in their order. An error or Ctrl-C ends all processes at once.
    """
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(run, *call) for call in calls]
        try:
            for count, future in enumerate(as_completed(waiting), 1):
                done(f"{count}/{len(waiting)}", future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in active_children():  # a run takes a minute, and nothing keeps its result
                process.terminate()
            raise


class DefaultPolicy:
    """The shipped policy as an advisor, without a server."""

    def __init__(self) -> None:
        self._policy = default_policy()

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        """Return the policy's greedy decision."""
        answer = advise(self._policy, request, f"decision-{request.progress.adaptations}")
        return AdvisorDecision(answer.decision_id, answer.action, AdaptationSource.AGENT, self._policy.name)

    def report_outcome(self, outcome: OutcomeReport) -> None:
        """Nothing learns here."""
