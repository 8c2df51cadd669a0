"""What a policy decided for each job: its place, its share, the type of GPU and the nodes that it wishes. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from espalier_cli.cluster.output import Row
from espalier_cli.cluster.wording import count, listed, of_type
from espalier_operator.model.actions import Plan
from espalier_operator.policies import Policy
from espalier_operator.policies.learned import FALLBACK, NOT_ASKED
from espalier_operator.policies.view import Share

SHARE_COLUMNS = ("PLACE", "JOB", "WORKERS", "SPARE", "GPU TYPE", "NODES")


def share_rows(plan: Plan) -> list[Row]:
    """Return a row each share, in the order in which they are served."""
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
    """Say what the policy, with its settings as `configured`, decided for a job."""
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
    """Return the nodes wished, each with the number of workers if that is not one."""
    workers = Counter(share.nodes)
    named = [name if number == 1 else f"{name} ({number})" for name, number in workers.items()]
    return listed(named) if named else ""
