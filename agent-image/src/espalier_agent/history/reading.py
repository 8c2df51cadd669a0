"""Reading of the service's database, for learning from real outcomes and for inspection.

Read-only. Advice and outcome may have reached different replicas, each with its own file: they are joined by decision
id over all given files.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from espalier_agent.history.schema import DamagedError, StoreError, check_version, open_to_read
from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import Action, AdviceRequest, PolicyVersion, Progress, TrialOutcome
from espalier_core.types.allocation import Allocation
from espalier_core.types.task import Task, task_by

_DECISIONS: Final = """
    SELECT decision_id, time, job, architectures.json, time_left_seconds, time_budget_seconds, allocation, progress,
           actions, probabilities, action, greedy, policy_name, policy_version, {columns}
    FROM decisions JOIN architectures ON architectures.digest = decisions.architecture ORDER BY decisions.rowid"""
_COLUMNS: Final = {
    1: "NULL, '{}', NULL",
    2: "behaviour_probability, '{}', NULL",
    3: "behaviour_probability, places, batch_size",
}
"""Columns that differ between versions of the file."""
_TRIALS: Final = "SELECT decision_id, job, time, action, arms FROM trials"
_TRIALS_SINCE: Final = 3
_OUTCOMES: Final = "SELECT decision_id, job, time, final_accuracy FROM outcomes"
_SHADOWS: Final = "SELECT decision_id, policy_name, policy_version, action, probabilities, agreed FROM shadows"
_UNREADABLE: Final = (ValueError, TypeError, RecursionError)
"""Errors of reading a damaged row: invalid values, wrong types (SQLite accepts any), nested too deep."""


@dataclass(frozen=True, slots=True)
class ShadowAnswer:
    """The answer of another policy to the same request."""

    policy: PolicyVersion
    action: Action
    probabilities: tuple[float, ...]
    agreed: bool


@dataclass(frozen=True, slots=True)
class HistoryDecision:
    """One decision of the service: the state, the possible actions, the choice with its policy, and the outcome."""

    decision_id: str
    time: datetime
    job: str
    architecture: Architecture
    time_left_seconds: float
    time_budget_seconds: float
    allocation: Allocation
    progress: Progress
    actions: tuple[Action, ...]
    """The possible actions, `Nothing` last."""
    probabilities: tuple[float, ...]
    """The policy's probability of each of `actions`."""
    action: Action
    greedy: bool
    """Whether the most probable action was taken."""
    behaviour_probability: float
    """The probability with which `action` was taken in this state, the divisor of importance weights. 1 for a service
    that does not explore: its choice was certain, whatever the policy's probabilities."""
    policy: PolicyVersion
    final_accuracy: float | None
    """Final accuracy of the job; None if no outcome was reported (yet), or the decision was not carried out."""
    reported: str | None = None
    """Time at which the job's end was reported, the same for all decisions of a job that were carried out."""
    shadows: tuple[ShadowAnswer, ...] = ()
    places: Mapping[str, int] = field(default_factory=dict)
    batch_size: int | None = None
    trial: TrialOutcome | None = None
    """The decision of a trial in the agent's place, and its results."""

    @property
    def task(self) -> Task:
        """The task of the job, by the measure of its score at that time."""
        return task_by({each.name: each.value for each in self.progress.metrics})

    def request(self) -> AdviceRequest:
        """Return the request to the agent, as far as it is stored."""
        return AdviceRequest(
            job=self.job,
            architecture=self.architecture,
            time_left_seconds=self.time_left_seconds,
            time_budget_seconds=self.time_budget_seconds,
            allocation=self.allocation,
            allowed_actions=tuple(action for action in self.actions if action.grows),
            progress=self.progress,
            places=dict(self.places),
            batch_size=self.batch_size,
            task=self.task,
        )


def history_files(sources: Sequence[Path]) -> tuple[Path, ...]:
    """Return the given databases: files, and all `*.db` of folders. Raise `StoreError` if there is none."""
    found: list[Path] = []
    for source in sources:
        if source.is_dir():
            files = sorted(source.glob("*.db"))
            if not files:
                raise StoreError(f"{source}: has no *.db in it; name the file that `agent serve --outcomes-db` writes")
            found.extend(files)
        elif source.is_file():
            found.append(source)
        else:
            raise StoreError(f"{source}: no such file; `agent serve --outcomes-db` makes it at its first decision")
    # A file that is named twice, or also through its folder, counts once.
    return tuple({file.resolve(): file for file in found}.values())


def decisions(*sources: Path) -> Iterator[HistoryDecision]:
    """Yield all decisions in these files and folders, each file in the order of storage.

    A decision in several files, such as a copy and its original, is yielded once. Raise `StoreError`, which names the
    file, if one is missing, damaged, of another version or of another program.
    """
    files = history_files(sources)
    accuracies: dict[tuple[str, str], float] = {}
    # By decision and job: another job's report about a decision does not count.
    latest: dict[tuple[str, str], str] = {}
    trials: dict[tuple[str, str], TrialOutcome] = {}
    shadows: dict[str, list[ShadowAnswer]] = {}
    for file in files:
        for decision_id, job, time, accuracy in _rows(file, _OUTCOMES):
            if not isinstance(time, str):
                raise DamagedError(f"{file}: outcome {decision_id}: time {time!r} is not text; move the file away")
            # The same job's end may have been reported to two replicas: the later report counts, as within one file.
            if time >= latest.get((decision_id, job), ""):
                latest[decision_id, job] = time
                accuracies[decision_id, job] = _within(accuracy, 0.0, 1.0, "final_accuracy", file)
        for decision_id, job, time, action, arms in _rows(file, _TRIALS):
            # Reported together with the outcome, so the same report counts.
            if time == latest.get((decision_id, job)):
                try:
                    trials[decision_id, job] = _trial(decision_id, action, arms)
                except _UNREADABLE as error:
                    raise DamagedError(
                        f"{file}: trial of decision {decision_id} cannot be read ({error}); move the file away"
                    ) from error
        for decision_id, *row in _rows(file, _SHADOWS):
            try:
                shadows.setdefault(decision_id, []).append(_shadow(row))
            except _UNREADABLE as error:
                raise DamagedError(
                    f"{file}: shadow of decision {decision_id} cannot be read ({error}); move the file away"
                ) from error
    models: dict[str, Architecture] = {}
    seen: set[str] = set()
    for file in files:
        for row in _rows(file, _DECISIONS):
            decision_id = row[0]
            if decision_id in seen:
                continue
            seen.add(decision_id)
            try:
                yield _decision(
                    row,
                    models,
                    accuracies.get((decision_id, row[2])),
                    latest.get((decision_id, row[2])),
                    tuple(shadows.get(decision_id, ())),
                    trials.get((decision_id, row[2])),
                )
            except _UNREADABLE as error:
                raise DamagedError(
                    f"{file}: decision {decision_id} cannot be read ({error}); move the file away"
                ) from error


def _rows(file: Path, query: str) -> Iterable[Any]:
    try:
        with closing(open_to_read(file)) as connection:
            version = check_version(connection, file)
            if query is _TRIALS and version < _TRIALS_SINCE:
                return
            yield from connection.execute(query.format(columns=_COLUMNS[version]))
    except sqlite3.Error as error:
        raise DamagedError(
            f"{file}: cannot be read ({error}); if it is damaged, move it away, and the service begins a new one"
        ) from error


def _within(value: Any, low: float, high: float, name: str, file: Path) -> float:
    # NaN is not between anything.
    if not isinstance(value, int | float) or not low <= value <= high:
        raise DamagedError(f"{file}: {name} {value!r} is not between {low:g} and {high:g}; move the file away")
    return float(value)


def _shadow(row: Any) -> ShadowAnswer:
    name, version, action, encoded_probabilities, agreed = row
    probabilities = tuple(json.loads(encoded_probabilities))
    if not all(0 <= probability <= 1 for probability in probabilities):
        raise ValueError(f"probabilities {encoded_probabilities} are not between 0 and 1")
    return ShadowAnswer(
        PolicyVersion(name=name, version=version), Action.model_validate_json(action), probabilities, bool(agreed)
    )


def _trial(decision_id: str, action: str, arms: str) -> TrialOutcome:
    return TrialOutcome(decision_id=decision_id, action=action, arms=tuple(json.loads(arms)))


def _decision(
    row: Any,
    models: dict[str, Architecture],
    accuracy: float | None,
    reported: str | None,
    shadows: tuple[ShadowAnswer, ...],
    trial: TrialOutcome | None,
) -> HistoryDecision:
    (
        decision_id,
        time,
        job,
        architecture,
        left,
        budget,
        allocation,
        progress,
        encoded_actions,
        encoded_probabilities,
        encoded_action,
        greedy,
        name,
        version,
        behaviour,
        places,
        batch_size,
    ) = row
    if architecture not in models:
        # Few models, many decisions about each.
        models[architecture] = Architecture.model_validate_json(architecture)
    actions = tuple(Action.model_validate(entry) for entry in json.loads(encoded_actions))
    probabilities = tuple(json.loads(encoded_probabilities))
    action = Action.model_validate_json(encoded_action)
    if len(probabilities) != len(actions) or not all(0 <= probability <= 1 for probability in probabilities):
        raise ValueError(f"probabilities {encoded_probabilities} are not one between 0 and 1 for each action")
    if action not in actions:
        raise ValueError(f"action {action} is not among those that were possible")
    if behaviour is None:
        behaviour = 1.0 if greedy else probabilities[actions.index(action)]
    if not 0 < behaviour <= 1:
        raise ValueError(f"behaviour_probability {behaviour} is not above 0 and at most 1")
    if not (math.isfinite(left) and math.isfinite(budget) and left >= 0 and budget > 0):
        raise ValueError(f"time_left_seconds {left} and time_budget_seconds {budget} are not times")
    found = HistoryDecision(
        decision_id=decision_id,
        time=datetime.fromisoformat(time),
        job=job,
        architecture=models[architecture],
        time_left_seconds=float(left),
        time_budget_seconds=float(budget),
        allocation=Allocation.model_validate_json(allocation),
        progress=Progress.model_validate_json(progress),
        actions=actions,
        probabilities=probabilities,
        action=action,
        greedy=bool(greedy),
        behaviour_probability=float(behaviour),
        policy=PolicyVersion(name=name, version=version),
        final_accuracy=accuracy,
        reported=reported,
        shadows=shadows,
        places=json.loads(places),
        batch_size=batch_size,
        trial=trial,
    )
    # Requests have the same limits: a violation is reported with its file here, not later in learning.
    found.request()
    return found
