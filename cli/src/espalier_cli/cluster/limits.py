"""What the quotas of its queue, and the ResourceQuotas of its namespace, leave for a job, in sentences. Pure."""

from __future__ import annotations

from espalier_cli.cluster.wording import amount, count, of_type
from espalier_operator.cluster.resource_quotas import demand_of
from espalier_operator.model import JobFacts, Snapshot
from espalier_operator.model.queues import Ledger, Queue, Quota


def queue_limits(job: JobFacts, snapshot: Snapshot) -> list[str]:
    """Say what the queue's quotas are for GPUs that the job could use, what is held, and whether it could ever fit."""
    queue = next((each for each in snapshot.queues if each.name == job.terms.queue), None)
    if queue is None or not queue.quotas:
        return []
    ledger = Ledger(snapshot.queues, snapshot.held_claims())
    held = {gpu_type: used for name, gpu_type, _, used in ledger.usage() if name == queue.name}
    types = sorted({node.gpu_type for node in snapshot.nodes if node.allocatable and job.terms.admit(node)})
    lines = []
    for quota in dict.fromkeys(map(queue.quota, types)):
        if quota is None:
            without = [each for each in types if queue.quota(each) is None]
            lines += [f"Queue {queue.name} has no quota for GPUs{of_type(each)}." for each in without]
        else:
            lines.append(_quota(queue, quota, held[quota.gpu_type]))
    if types and not ledger.could_ever_hold(job.claim, types):
        lines.append(
            f"Its base workers need {count(job.base_gpus, 'GPU')}, more than the queue may ever hold: only a larger "
            "quota, or a job with a smaller minReplicas or fewer GPUs per worker, changes that."
        )
    return lines


def _quota(queue: Queue, quota: Quota, held: int) -> str:
    more = ""
    if queue.cohort is not None and quota.borrowing_limit is None:
        more = f"; it may borrow what cohort {queue.cohort} does not use"
    elif queue.cohort is not None:
        more = f"; it may borrow {quota.borrowing_limit or 'none'} of what cohort {queue.cohort} does not use"
    nominal = f"{count(quota.nominal, 'GPU')}{of_type(quota.gpu_type)}"
    return f"Queue {queue.name} has a quota of {nominal}, and its jobs hold {held or 'none'}{more}."


def namespace_limits(job: JobFacts, snapshot: Snapshot) -> list[str]:
    """Name the ResourceQuotas that have too little left for the base workers of a job that waits."""
    if job.admitted_at is not None:
        return []
    demand = demand_of(job)
    lines = []
    for limit in snapshot.namespace_limits:
        needed = job.terms.min_replicas * demand[limit.resource]
        holds = limit.namespace == job.namespace and limit.covers(job.terms.quota_scopes)
        if holds and needed and limit.used + needed > limit.hard:
            hard, used, more = (amount(limit.resource, value) for value in (limit.hard, limit.used, needed))
            lines.append(
                f"ResourceQuota {limit.quota} allows {hard} of {limit.resource}, and {used} are used; its base workers "
                f"request {more}."
            )
    return lines
