"""Runs in several processes, jobs with the options of a benchmark, and published traces that tests carry, too."""

from __future__ import annotations

import argparse
import os
import tarfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.command import DATA, Option
from bench.printing import PROJECT
from espalier_agent.policies.advice import decide
from espalier_agent.policies.policy import Policy, default_policy
from espalier_core.types.advice import Action, AdviceRequest, ExpectedGain
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.report import AdaptationSource
from espalier_core.validation.reading import load_job, with_spec
from espalier_trainer.growth.advisor import Advisor, AdvisorDecision

T = TypeVar("T")
_LOOPBACK: Final = {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}

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


def prepare_process() -> None:
    """Let this process talk on the loopback interface alone, and compute on the CPU."""
    os.environ.update(_LOOPBACK)


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


@dataclass
class ShippedPolicy(Advisor):
    """The shipped policy as an advisor, in this process: what it says does not depend on the time it takes."""

    policy: Policy = field(default_factory=default_policy)
    instead: Action | None = None
    """In place of what it says: what a race tries."""
    gains: dict[str, ExpectedGain] = field(default_factory=dict)
    """What the policy expects of actions, by their texts: from its latest advice."""

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        """Return what the policy says."""
        advice = decide(self.policy, request)
        self.gains = {str(entry.action): entry.gain for entry in advice.probabilities if entry.gain is not None}
        action = advice.action if self.instead is None else self.instead
        return AdvisorDecision(
            f"asked-{request.progress.adaptations}", action, AdaptationSource.AGENT, self.policy.name
        )
