"""Records of decisions and outcomes, and the rows that store them: pure, no database here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from espalier_core.types.advice import AdviceRequest, OutcomeReport, PolicyVersion

if TYPE_CHECKING:
    # Not while it runs: it brings torch with it, which takes seconds, and a database needs none.
    from espalier_agent.policies.advice import Decision

Row = tuple[str | float | int | None, ...]
Statement = tuple[str, Row]

_ARCHITECTURE = "INSERT OR IGNORE INTO architectures VALUES (?, ?)"
_DECISION = "INSERT OR IGNORE INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_OUTCOME = (
    "INSERT INTO outcomes SELECT ?1, ?2, ?3, ?4, ?5 "
    "WHERE NOT EXISTS (SELECT 1 FROM decisions WHERE decision_id = ?1 AND job != ?3) "
    "ON CONFLICT (decision_id) DO UPDATE SET time = excluded.time, "
    "job = excluded.job, final_accuracy = excluded.final_accuracy, time_budget_seconds = excluded.time_budget_seconds "
    "WHERE job = excluded.job"
)
_TRIAL = (
    "INSERT INTO trials SELECT ?1, ?2, ?3, ?4, ?5 "
    "WHERE NOT EXISTS (SELECT 1 FROM decisions WHERE decision_id = ?1 AND job != ?3) "
    "ON CONFLICT (decision_id) DO UPDATE SET time = excluded.time, action = excluded.action, arms = excluded.arms "
    "WHERE job = excluded.job"
)
_SHADOW = "INSERT OR IGNORE INTO shadows VALUES (?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A consultation and its answer."""

    decision_id: str
    time: datetime
    request: AdviceRequest
    decision: Decision
    policy: PolicyVersion

    kind = "decision"

    def statements(self) -> list[Statement]:
        """Return the statements that store it. An architecture is stored once, however often it occurs."""
        request = self.request
        architecture = _json(request.architecture.to_json())
        digest = hashlib.sha256(architecture.encode()).hexdigest()
        row: Row = (
            self.decision_id,
            _moment(self.time),
            _text(request.job),
            digest,
            request.time_left_seconds,
            request.time_budget_seconds,
            _json(request.allocation.to_json()),
            _json(request.progress.to_json()),
            _json([action.to_json() for action in request.actions()]),
            _json([entry.probability for entry in self.decision.probabilities]),
            _json(self.decision.action.to_json()),
            int(self.decision.action == self.decision.preferred),
            _text(self.policy.name),
            _text(self.policy.version),
            self.decision.behaviour_probability,
            _json(dict(request.places)),
            request.batch_size,
        )
        return [(_ARCHITECTURE, (digest, architecture)), (_DECISION, row)]


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """A job's end, for each of its decisions.

    It is stored for decisions that were made for the job that reports, not for those of others.
    A repeated report changes nothing; a later one replaces it: a job whose leader was restarted reports again.
    """

    time: datetime
    report: OutcomeReport

    kind = "outcome"

    def statements(self) -> list[Statement]:
        """Return the statements that store it."""
        report = self.report
        rest = (_moment(self.time), _text(report.job), report.final_accuracy, report.time_budget_seconds)
        ends = [(_OUTCOME, (_text(decision_id), *rest)) for decision_id in dict.fromkeys(report.decision_ids)]
        tried: list[Statement] = [
            (_TRIAL, (_text(one.decision_id), *rest[:2], _text(one.action), _json([arm.to_json() for arm in one.arms])))
            for one in report.trials
            if one.decision_id in report.decision_ids
        ]
        return [*ends, *tried]


@dataclass(frozen=True, slots=True)
class ShadowRecord:
    """The answer of another policy."""

    decision_id: str
    time: datetime
    decision: Decision
    policy: PolicyVersion
    agreed: bool

    kind = "shadow"

    def statements(self) -> list[Statement]:
        """Return what stores it."""
        row: Row = (
            self.decision_id,
            _text(self.policy.name),
            _text(self.policy.version),
            _moment(self.time),
            _json(self.decision.action.to_json()),
            _json([entry.probability for entry in self.decision.probabilities]),
            int(self.agreed),
        )
        return [(_SHADOW, row)]


StoredRecord = DecisionRecord | OutcomeRecord | ShadowRecord


def _json(value: object) -> str:
    # ASCII: names of layers may hold what is no text to a database, half a surrogate pair for one.
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


def _text(value: str) -> str:
    return value.encode("utf-8", "replace").decode()


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds")
