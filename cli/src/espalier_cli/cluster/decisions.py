"""A plan in sentences: every action and every refusal with its reason. Pure."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from espalier_cli.cluster.output import Row
from espalier_cli.cluster.shares import shares_document
from espalier_cli.cluster.wording import count, duration, of_type
from espalier_core.types.reasons import SENTENCES
from espalier_operator.model.actions import (
    Action,
    Admit,
    Fail,
    Finish,
    GrantExtra,
    NoticeReclaim,
    Plan,
    Refusal,
    ReleaseExtra,
    Replace,
    Requeue,
    Stop,
)

COLUMNS = ("JOB", "DECISION", "REASON", "WHY")


def says(action: Action, now: float) -> str:
    """Return what the action does, in a few words."""
    match action:
        case Admit():
            return f"starts on its base GPUs{of_type(action.gpu_type)}"
        case GrantExtra():
            return f"is lent GPUs, {count(action.extra, 'extra worker')} in all"
        case NoticeReclaim():
            by = duration(action.deadline - now)
            return f"is asked to be down to {count(action.extra, 'extra worker')} within {by}"
        case ReleaseExtra():
            how = "is taken GPUs by force" if action.forced else "gives GPUs back"
            return f"{how}, {count(action.extra, 'extra worker')} left"
        case Replace():
            who = "the planner" if action.pinned else "kube-scheduler"
            return f"has {count(len(action.workers), 'worker')} made again, on nodes that {who} chooses"
        case Stop():
            return f"is asked to checkpoint and end within {duration(action.deadline - now)}"
        case Requeue():
            return "waits again, its budget kept"
        case Finish():
            return "ends as complete"
        case Fail():
            return "ends as failed"


def rows_of(plan: Plan, now: float) -> list[Row]:
    """Return a row each action, in the order of the plan, then one each refusal, in that of the names."""
    rows: list[Row] = [[action.job, says(action, now), str(action.reason), _why(action)] for action in plan.actions]
    for key in sorted(plan.refusals):
        refusal = plan.refusals[key]
        rows.append([key, _says_refusal(refusal, now), str(refusal.reason), SENTENCES[refusal.reason]])
    return rows


def wakes(plan: Plan, now: float) -> str:
    """Say when time alone changes the plan."""
    if plan.wake_at is None:
        return "Time alone does not change this plan."
    then = f"Time alone may change this plan in {duration(plan.wake_at - now)}"
    try:
        return f"{then}, at {datetime.fromtimestamp(plan.wake_at, UTC):%Y-%m-%d %H:%M:%S} UTC."
    except (OverflowError, ValueError, OSError):  # in a year that has more than four digits
        return f"{then}."


def document_of(plan: Plan, now: float) -> dict[str, Any]:
    """Return the plan in plain JSON types."""
    return {
        "at": now,
        "actions": [
            {"action": type(action).__name__, **_plain(asdict(action)), "says": says(action, now), "why": _why(action)}
            for action in plan.actions
        ],
        "refusals": [
            {
                "job": key,
                "reason": str(plan.refusals[key].reason),
                "why": SENTENCES[plan.refusals[key].reason],
                "startsBy": plan.refusals[key].starts_by,
            }
            for key in sorted(plan.refusals)
        ],
        "shares": shares_document(plan),
        "ignored": list(plan.ignored),
        "fallback": plan.fallback or None,
        "wakeAt": plan.wake_at,
    }


def _says_refusal(refusal: Refusal, now: float) -> str:
    if refusal.starts_by is None:
        return "gets nothing (more)"
    return f"waits, and starts in {duration(refusal.starts_by - now)} at the latest"


def _why(action: Action) -> str:
    message = action.message if isinstance(action, Finish | Fail) else ""
    sentence = SENTENCES[action.reason]
    return f"{sentence}: {message}" if message and message != sentence else sentence


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    return {_CAMEL.get(key, key): str(value) if key == "reason" else value for key, value in entry.items()}


_CAMEL = {"gpu_type": "gpuType"}
