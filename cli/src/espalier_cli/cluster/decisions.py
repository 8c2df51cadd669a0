"""A plan in sentences: every action and every refusal with its reason, and a policy's decision for each job. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from espalier_cli.cluster.output import Row, count, duration, listed, of_type
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
    RequestNodes,
    Requeue,
    Stop,
)
from espalier_operator.policies import Policy
from espalier_operator.policies.learned import FALLBACK, NOT_ASKED
from espalier_operator.policies.view import Share

COLUMNS = ("JOB", "DECISION", "REASON", "WHY")
SHARE_COLUMNS = ("PLACE", "JOB", "WORKERS", "SPARE", "GPU TYPE", "NODES")


def says(action: Action, now: float) -> str:
    """Return a short description of the action."""
    match action:
        case RequestNodes():
            wait = duration(action.nodes_by - now)
            return f"asks for nodes of the group {action.node_group!r}, and waits {wait} for them"
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
    """Return one row per action, in the order of the plan, then one per refusal, in the order of names."""
    rows: list[Row] = [[action.job, says(action, now), str(action.reason), _why(action)] for action in plan.actions]
    for key in sorted(plan.refusals):
        refusal = plan.refusals[key]
        rows.append([key, _says_refusal(refusal, now), str(refusal.reason), SENTENCES[refusal.reason]])
    return rows


def wakes(plan: Plan, now: float) -> str:
    """Describe when time alone changes the plan."""
    if plan.wake_at is None:
        return "Time alone does not change this plan."
    then = f"Time alone may change this plan in {duration(plan.wake_at - now)}"
    try:
        return f"{then}, at {datetime.fromtimestamp(plan.wake_at, UTC):%Y-%m-%d %H:%M:%S} UTC."
    except (OverflowError, ValueError, OSError):  # a year of more than four digits
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


def share_rows(plan: Plan) -> list[Row]:
    """Return one row per share, in the order in which they are served."""
    return [
        [str(place), share.job, str(share.workers), str(share.spare), share.gpu_type or "any", _nodes(share) or "any"]
        for place, share in enumerate(plan.shares, 1)
    ]


def shares_document(plan: Plan) -> list[dict[str, Any]]:
    """Return the shares in plain JSON types."""
    return [
        {
            "place": place,
            "job": share.job,
            "workers": share.workers,
            "spare": share.spare,
            "weight": float(share.weight),
            "gpuType": share.gpu_type,
            "nodes": list(share.nodes),
        }
        for place, share in enumerate(plan.shares, 1)
    ]


def described_share(job: str, plan: Plan, policy: Policy, configured: str) -> list[str]:
    """Describe the decision for a job of the policy that is `configured` with its settings."""
    if not plan.fallback:
        return _described_share(job, plan, policy, configured)
    first = (
        f"Policy {configured} does not decide: {plan.fallback}. {FALLBACK.name} decides about all jobs until it does."
    )
    if plan.fallback == NOT_ASKED:
        first = (
            f"What policy {configured} decides is not known here: the operator's note of its last answer, in the "
            f"operator's Lease, is missing, too old or not yours to read. {FALLBACK.name} would decide like this."
        )
    return [first, *_described_share(job, plan, FALLBACK, FALLBACK.name)]


def _described_share(job: str, plan: Plan, policy: Policy, configured: str) -> list[str]:
    keys = [share.job for share in plan.shares]
    ignored = [f"Of its share was ignored: {what.partition(': ')[2]}." for what in plan.ignored if _is_of(what, job)]
    if job not in keys:
        return [f"Policy {configured} gives it no share: it keeps what it holds, and waits for more.", *ignored]
    place = keys.index(job)
    share = plan.shares[place]
    lines = [f"Policy {configured} serves it as number {place + 1} of {len(keys)}, {policy.queue_order}."]
    if not share.workers:
        lines.append("Its share is none: it is to wait.")
    else:
        spare = f", and {count(share.spare, 'spare one')} as long as nobody needs it" if share.spare else ""
        nodes = f"; wished on {_nodes(share)}" if share.nodes else ""
        lines.append(f"Its share is {count(share.workers, 'worker')}{spare}{of_type(share.gpu_type)}{nodes}.")
    return lines + ignored


def _is_of(what: str, job: str) -> bool:
    return what.startswith(f"{job}: ")


def _nodes(share: Share) -> str:
    """Return the wished nodes, each with its number of workers if that is not one."""
    workers = Counter(share.nodes)
    named = [name if number == 1 else f"{name} ({number})" for name, number in workers.items()]
    return listed(named) if named else ""
