"""A judgement from beginning to end: all arms of all cases, the policy's trials, and the verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from espalier_agent.policies.policy import open_policy
from espalier_core.types.outcomes import CaseRecord
from espalier_core.types.task import Task
from espalier_lab.growth.judge.case import CaseError, Cases, JudgeCase
from espalier_lab.growth.judge.deciding import Setting
from espalier_lab.growth.judge.records import TrialsRecord
from espalier_lab.growth.judge.running import Runner, Watcher
from espalier_lab.growth.judge.tasks import Arms, TrialTask
from espalier_lab.growth.judge.trialling import version_of
from espalier_lab.growth.judge.verdict import JudgeVerdict, decisions_of, judged


@dataclass(frozen=True)
class JudgeSettings:
    """The subject and settings of a judgement."""

    make: Cases
    cases: Sequence[JudgeCase]
    """The cases that `make` creates."""
    seeds: int
    setting: Setting
    folder: Path
    """Folder of finished trainings."""
    parallel: int
    policy: Path | None = None
    """Folder of the policy; None: the shipped one."""

    def verdict(self, watcher: Watcher) -> JudgeVerdict:
        """Train what is missing, and judge; raise `CaseError`, or `PolicyError` for an unusable policy."""
        tasks = {case.task for case in self.cases}
        if Task.LANGUAGE_MODEL in tasks and len(tasks) > 1:
            raise CaseError(
                f"the cases are of several tasks ({', '.join(sorted(tasks))}), and bits per character have no mean "
                "with accuracy or R²; put language models into a file of their own"
            )
        return judged(decisions_of(*self.records(watcher)))

    def records(self, watcher: Watcher, *, trials: bool = True) -> tuple[list[CaseRecord], list[TrialsRecord]]:
        """Train what is missing; return arms, and trials if wanted. Raise as `verdict`."""
        version = version_of(open_policy(self.policy))
        places = {case.name: place for place, case in enumerate(self.cases)}
        arms = [Arms(place, seed, self.setting) for seed in range(self.seeds) for place in range(len(self.cases))]
        with Runner(self.make, self.cases, self.folder, self.parallel) as runner:
            found = runner.run(arms, watcher, time.monotonic)
            tasks = [TrialTask(places[record.case], record, self.setting, self.policy, version) for record in found]
            return found, runner.run(tasks, watcher, time.monotonic) if trials else []


def made(make: Cases) -> Sequence[JudgeCase]:
    """Return the cases; raise `CaseError` if there are none."""
    cases = make()
    if not cases:
        raise CaseError("there is no case to judge")
    return cases
