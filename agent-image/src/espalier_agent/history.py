"""What the service kept, read back: for learning from real outcomes, and for looking at.

Nothing here writes. Advice and outcome may have met different replicas, each with a file of its own: they are joined
by decision id over all files that are given.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from espalier_agent.outcome_schema import DamagedError, StoreError, check_version, open_to_read
from espalier_api.advice import Action, PolicyVersion, Progress
from espalier_api.allocation import Allocation
from espalier_api.architecture import Architecture

_DECISIONS: Final = """
    SELECT decision_id, time, job, architectures.json, time_left_seconds, time_budget_seconds, allocation, progress,
           actions, probabilities, action, greedy, policy_name, policy_version
    FROM decisions JOIN architectures ON architectures.digest = decisions.architecture ORDER BY decisions.rowid"""
_SHADOWS: Final = "SELECT decision_id, policy_name, policy_version, action, probabilities, agreed FROM shadows"


@dataclass(frozen=True, slots=True)
class ShadowAnswer:
    """What another policy would have answered to the same question."""

    policy: PolicyVersion
    action: Action
    probabilities: tuple[float, ...]
    agreed: bool


@dataclass(frozen=True, slots=True)
class HistoryDecision:
    """One decision of the service: the state, what was possible, what was chosen by whom, and what came of it."""

    decision_id: str
    time: datetime
    job: str
    architecture: Architecture
    time_left_seconds: float
    time_budget_seconds: float
    allocation: Allocation
    progress: Progress
    actions: tuple[Action, ...]
    """What could be answered, `Nothing` last."""
    probabilities: tuple[float, ...]
    """What the policy gave to each of `actions`."""
    action: Action
    greedy: bool
    """Whether the most probable action was taken; else it was drawn by the probabilities."""
    policy: PolicyVersion
    final_accuracy: float | None
    """Of the job at its end; None where no outcome was reported (yet), or the decision was not carried out."""
    shadows: tuple[ShadowAnswer, ...] = ()

    @property
    def behaviour_probability(self) -> float:
        """The probability with which `action` was taken in this state: what importance weights divide by.

        A greedy choice is certain, whatever the policy's probabilities are.
        """
        return 1.0 if self.greedy else self.probabilities[self.actions.index(self.action)]


def history_files(sources: Sequence[Path]) -> tuple[Path, ...]:
    """Return the databases that are meant: files, and all `*.db` of folders. `StoreError` where there is none."""
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
    return tuple(found)


def decisions(*sources: Path) -> Iterator[HistoryDecision]:
    """Yield all decisions in these files and folders, of each file in the order in which they were stored.

    Raises `StoreError`, which names the file, where one is missing, damaged, of another version or another program.
    """
    files = history_files(sources)
    accuracies: dict[str, float] = {}
    latest: dict[str, str] = {}
    shadows: dict[str, list[ShadowAnswer]] = {}
    for file in files:
        for decision_id, time, accuracy in _rows(file, "SELECT decision_id, time, final_accuracy FROM outcomes"):
            # The same job's end may have been reported to two replicas: the later report holds, as within one file.
            if time >= latest.get(decision_id, ""):
                latest[decision_id], accuracies[decision_id] = time, accuracy
        for decision_id, name, version, action, probabilities, agreed in _rows(file, _SHADOWS):
            answer = ShadowAnswer(
                PolicyVersion(name=name, version=version),
                Action.model_validate_json(action),
                tuple(json.loads(probabilities)),
                bool(agreed),
            )
            shadows.setdefault(decision_id, []).append(answer)
    for file in files:
        for row in _rows(file, _DECISIONS):
            try:
                yield _decision(row, accuracies.get(row[0]), tuple(shadows.get(row[0], ())))
            except (ValidationError, ValueError) as error:
                raise DamagedError(f"{file}: decision {row[0]} cannot be read ({error}); move the file away") from error


def _rows(file: Path, query: str) -> Iterable[Any]:
    try:
        with closing(open_to_read(file)) as connection:
            check_version(connection, file)
            yield from connection.execute(query)
    except sqlite3.Error as error:
        raise DamagedError(
            f"{file}: cannot be read ({error}); where it is damaged, move it away, and the service begins a new one"
        ) from error


def _decision(row: Any, accuracy: float | None, shadows: tuple[ShadowAnswer, ...]) -> HistoryDecision:
    (
        decision_id,
        time,
        job,
        architecture,
        left,
        budget,
        allocation,
        progress,
        actions,
        probabilities,
        action,
        greedy,
        name,
        version,
    ) = row
    return HistoryDecision(
        decision_id=decision_id,
        time=datetime.fromisoformat(time),
        job=job,
        architecture=Architecture.model_validate_json(architecture),
        time_left_seconds=float(left),
        time_budget_seconds=float(budget),
        allocation=Allocation.model_validate_json(allocation),
        progress=Progress.model_validate_json(progress),
        actions=tuple(Action.model_validate(entry) for entry in json.loads(actions)),
        probabilities=tuple(json.loads(probabilities)),
        action=Action.model_validate_json(action),
        greedy=bool(greedy),
        policy=PolicyVersion(name=name, version=version),
        final_accuracy=accuracy,
        shadows=shadows,
    )
