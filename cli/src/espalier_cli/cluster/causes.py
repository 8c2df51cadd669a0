"""Details of a reason in one case: figures, deadlines, names, and the remaining quotas. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from espalier_cli.cluster.case import Case
from espalier_cli.cluster.output import amount, count, duration, of_type
from espalier_cli.cluster.usage import needs, scarcity
from espalier_core.types.reasons import Reason
from espalier_core.types.status import ConditionType
from espalier_operator.cluster.resource_quotas import demand_of
from espalier_operator.kube.settings import FIGURES_A_SECOND
from espalier_operator.model import JobFacts, Snapshot
from espalier_operator.model.queues import QueueLimits, QueueUsage, Quota

SILENT_SECONDS = 60.0
"""Seconds after which an unchanged status suggests that the operator is not running: a running job's status is written
every few seconds, with many jobs less often."""
OPERATOR_PODS = "kubectl get pods -A -l app.kubernetes.io/name=espalier-operator"


def particulars(case: Case, reason: Reason | None) -> list[str]:
    """Return sentences with the details that the general sentence of `reason` leaves open."""
    lines = [*_operator(case), *_avoided(case)]
    if reason is not None:
        lines += _PARTICULARS.get(reason, _nothing)(case)
    return lines


def _nothing(case: Case) -> list[str]:
    return []


def _avoided(case: Case) -> list[str]:
    """Describe the nodes that this job, or all jobs, avoid."""
    if case.facts is None or case.job.outcome is not None:
        return []
    own = {blame.node: blame for blame in case.facts.blames if case.now < blame.avoided_until}
    lines = []
    for blame in own.values():
        again = max(0.0, blame.barred_until - case.now)
        when = f", and tries it again in {duration(again)} if no other node has GPUs for it" if again else ""
        still = duration(blame.avoided_until - case.now)
        lines.append(f"It avoids node {blame.node} for {still}{when}: {blame.message}.")
    others = () if case.snapshot is None else (each for each in case.snapshot.avoided if each.node not in own)
    return lines + [
        f"All jobs avoid node {each.node} for {duration(each.until - case.now)}, which failed "
        f"{count(each.jobs, 'job')}: {each.message}."
        for each in others
    ]


def _operator(case: Case) -> list[str]:
    job, kept = case.job, case.job.status.scheduling
    age = duration(case.now - job.created_at)
    if not job.seen:
        return [f"It was made {age} ago, and no operator has written its status. Is one running? {OPERATOR_PODS}"]
    if job.status.observed_generation < job.generation:
        return ["The operator has not acted yet on the last change of its specification."]
    running = job.status.condition(ConditionType.RUNNING)
    lost = running is not None and running.reason is Reason.NODE_LOST
    counts = job.outcome is None and kept.admitted_at is not None and not lost  # not while its node is silent
    if counts and kept.counted_until is not None:
        silent = case.now - kept.counted_until.timestamp()
        if silent > SILENT_SECONDS + 2 * _figure_seconds(case):
            return [f"The operator last wrote {duration(silent)} ago. Is it running? {OPERATOR_PODS}"]
    return []


def _figure_seconds(case: Case) -> float:
    """Return the seconds between two writes of a job's figures, by the number of running jobs."""
    jobs = () if case.snapshot is None else case.snapshot.jobs
    return sum(job.admitted_at is not None and not job.finished for job in jobs) / FIGURES_A_SECOND


def _scarcity(case: Case) -> list[str]:
    if case.facts is None or case.snapshot is None or case.plan is None:
        return []
    if case.facts.admitted_at is None:
        first = needs(case.facts)
    else:
        first = "It has the GPUs that it is guaranteed; this is about those that it could be lent."
    return [first, *scarcity(case.facts, case.snapshot, case.plan)]


def _quota(case: Case) -> list[str]:
    if case.facts is None or case.snapshot is None:
        return []
    return [*queue_limits(case.facts, case.snapshot), *_scarcity(case)]


def _namespace_quota(case: Case) -> list[str]:
    return [] if case.facts is None or case.snapshot is None else namespace_limits(case.facts, case.snapshot)


def _extra_lost(case: Case) -> list[str]:
    facts = case.facts
    if facts is None or facts.lend_after is None or facts.lend_after <= case.now:
        return []
    return [f"It can be lent GPUs again in {duration(facts.lend_after - case.now)}."]


def _cooldown(case: Case) -> list[str]:
    facts = case.facts
    if facts is None or facts.changed_at is None:
        return []
    ends = facts.changed_at + facts.terms.cooldown_seconds
    changed = duration(case.now - facts.changed_at)
    if ends <= case.now:
        return [
            f"Its extra GPUs changed {changed} ago: the cooldown is over, and the scheduler decides at its next tick."
        ]
    whole = duration(facts.terms.cooldown_seconds)
    return [f"Its extra GPUs changed {changed} ago; the cooldown of {whole} ends in {duration(ends - case.now)}."]


def _little_budget(case: Case) -> list[str]:
    if case.facts is None or case.snapshot is None:
        return []
    terms = case.facts.terms
    least = case.snapshot.rules.lend_min_fraction * terms.time_budget_seconds
    left = case.facts.remaining_at(case.now)
    if left < least:
        return [f"{duration(left)} left of its time budget; below {duration(least)} nothing is lent."]
    if terms.gpu_seconds_budget is None:
        return []
    left = max(0.0, terms.gpu_seconds_budget - case.facts.gpu_seconds_at(case.now))
    return [f"{left:.0f} GPU-seconds of its GPU budget are left: too few for another worker to be of use."]


def _starting(case: Case) -> list[str]:
    job, leader = case.job, case.leader
    if job.outcome is not None:
        return _leader(case)
    lines = _leader(case)
    kept = job.status.scheduling
    if kept.failures:
        limit = job.spec.get("backoffLimit", 3)
        lines.append(f"Its workers failed {count(kept.failures, 'time')} (backoffLimit {limit}): {kept.last_failure}.")
    if kept.not_before is not None and kept.not_before.timestamp() > case.now:
        lines.append(f"Its leader is started again in {duration(kept.not_before.timestamp() - case.now)}.")
    facts = case.facts
    if facts is not None and not facts.trained and facts.admitted_at is not None and facts.refused_since is None:
        deadline = facts.terms.pre_running_deadline_seconds
        if deadline is not None and not facts.gated:
            left = facts.admitted_at + deadline - case.now
            lines.append(f"It fails unless it trains within {duration(left)} (preRunningDeadlineSeconds).")
    elif facts is not None and facts.refused_since is not None:
        lines.append("Unless that passes, it gives its GPUs back and is tried again later.")
    if leader is None and kept.admitted_at is not None and not kept.failures:
        lines.append("Its leader has no pod yet.")
    return lines


def _refused(case: Case) -> list[str]:
    if case.facts is None or case.facts.admitted_at is not None:
        return _starting(case)
    kept = case.job.status.scheduling
    if kept.hold_until is None or kept.hold_until.timestamp() <= case.now:
        return _scarcity(case)
    times, again = count(kept.unplaced, "time"), duration(kept.hold_until.timestamp() - case.now)
    said = case.job.status.condition(ConditionType.ADMITTED)
    by_scheduler = said is not None and said.reason is Reason.UNSCHEDULABLE
    text = "kube-scheduler could not place its workers" if by_scheduler else "Its workers could not start"
    return [f"{text}, {times} in a row. It is tried again in {again}."]


def _requested(case: Case) -> list[str]:
    kept = case.job.status.scheduling
    if kept.nodes_by is None:
        return []
    left = duration(max(0.0, kept.nodes_by.timestamp() - case.now))
    return [f"It waits {left} more for nodes of the group {kept.node_group!r}; its budget does not run."]


def _leader(case: Case) -> list[str]:
    leader = case.leader
    if leader is None:
        return []
    where = f" on node {leader.node}" if leader.node else ", bound to no node"
    code = "" if leader.exit_code is None else f", exit code {leader.exit_code}"
    message = f": {leader.message}" if leader.message else ""
    return [f"Its leader is pod {leader.name}: {leader.phase}{where}{code}{message}."]


def _reclaim(case: Case) -> list[str]:
    asked = case.job.status.scheduling.reclaim
    if asked is None:
        return []
    by = duration(asked.deadline.timestamp() - case.now)
    extra = count(asked.extra, "extra worker")
    return [f"It is asked to be down to {extra} in {by}; past that they are taken by force."]


def _stopping(case: Case) -> list[str]:
    stop = case.job.status.scheduling.stopping
    if stop is None:
        return []
    by = duration(stop.deadline.timestamp() - case.now)
    return [f"It is asked to checkpoint and end in {by}; past that it is ended by force."]


def _most(case: Case) -> list[str]:
    spec = case.job.spec
    return [f"minReplicas is {spec.get('minReplicas', 1)}, maxReplicas {spec.get('maxReplicas', 1)}."]


def _agent(case: Case) -> list[str]:
    adaptation = case.job.spec.get("adaptation") or {}
    url = (adaptation.get("agent") or {}).get("url")
    where = f"Its agent is {url}" if url else "It asks the installation's agent"
    fallback = adaptation.get("fallback", "None")
    return [f"{where}; adaptation.fallback is {fallback}."]


def _invalid(case: Case) -> list[str]:
    return [f"{problem}." for problem in case.problems]


def _preempted(case: Case) -> list[str]:
    allowed = case.job.spec.get("maxPreemptions")
    most = "without a limit" if allowed is None else f"of {allowed} allowed"
    return [f"GPUs were taken from it {count(case.job.status.preemptions, 'time')} so far, {most}.", *_starting(case)]


_PARTICULARS: Final[dict[Reason, Callable[[Case], list[str]]]] = {
    Reason.NO_FREE_GPU: _scarcity,
    Reason.TOO_LARGE: _scarcity,
    Reason.QUOTA_EXCEEDED: _quota,
    Reason.MIN_RUNTIME: _quota,
    Reason.RESOURCE_QUOTA_EXCEEDED: _namespace_quota,
    Reason.GPU_LOST: _scarcity,
    Reason.COOLDOWN: _cooldown,
    Reason.EXTRA_WORKERS_LOST: _extra_lost,
    Reason.TOO_LITTLE_BUDGET_LEFT: _little_budget,
    Reason.AT_MAX_REPLICAS: _most,
    Reason.RECLAIM_PENDING: _reclaim,
    Reason.NEEDED_BY_OTHER_JOB: _reclaim,
    Reason.RECLAIM_FORCED: _reclaim,
    Reason.SUSPENDED: _stopping,
    Reason.QUOTA_RECLAIMED: _stopping,
    Reason.PREEMPTED_BY_POLICY: _stopping,
    Reason.NODE_DEPARTING: _stopping,
    Reason.EVICTION_REQUESTED: _stopping,
    Reason.GPU_BUDGET_EXHAUSTED: _stopping,
    Reason.AGENT_UNAVAILABLE: _agent,
    Reason.ILLEGAL_ADVICE: _agent,
    Reason.INVALID_SPEC: _invalid,
    Reason.STARTING: _starting,
    Reason.GPUS_GRANTED: _starting,
    Reason.NO_REPORT: _starting,
    Reason.IMAGE_PULL_FAILED: _refused,
    Reason.UNSCHEDULABLE: _refused,
    Reason.POD_REJECTED: _refused,
    Reason.VOLUME_UNAVAILABLE: _refused,
    Reason.SCHEDULING_GATED: _starting,
    Reason.NODES_REQUESTED: _requested,
    Reason.CRASH_LOOP: _starting,
    Reason.TRAINER_FAILED: _starting,
    Reason.LOSS_NOT_FINITE: _leader,
    Reason.NOTHING_TRAINED: _leader,
    Reason.CHECKPOINT_NOT_WRITTEN: _leader,
    Reason.PRE_RUNNING_DEADLINE_EXCEEDED: _leader,
    Reason.BUDGET_ENFORCED: _leader,
    Reason.PREEMPTED: _preempted,
    Reason.NODE_LOST: _preempted,
    Reason.TOO_MANY_PREEMPTIONS: _preempted,
}


def queue_limits(job: JobFacts, snapshot: Snapshot) -> list[str]:
    """Describe the queue's quotas for GPUs that the job could use, the GPUs held, and whether it could ever fit."""
    queue = next((each for each in snapshot.queues if each.name == job.terms.queue), None)
    if queue is None or not queue.quotas:
        return []
    ledger = QueueUsage(snapshot.queues, snapshot.held_claims())
    held = {gpu_type: used for name, gpu_type, _, used in ledger.usage() if name == queue.name}
    types = sorted({node.gpu_type for node in snapshot.nodes if node.allocatable and job.terms.admit(node)})
    lines = []
    for quota in dict.fromkeys(map(queue.quota, types)):
        if quota is None:
            without = [each for each in types if queue.quota(each) is None]
            lines += [f"Queue {queue.name} has no quota for GPUs{of_type(each)}." for each in without]
        else:
            lines.append(_queue_quota(queue, quota, held[quota.gpu_type]))
    if types and not ledger.could_ever_hold(job.claim, types):
        lines.append(
            f"Its base workers need {count(job.base_gpus, 'GPU')}, more than the queue may ever hold: only a larger "
            "quota, or a job with a smaller minReplicas or fewer GPUs per worker, changes that."
        )
    return lines


def _queue_quota(queue: QueueLimits, quota: Quota, held: int) -> str:
    more = ""
    if queue.cohort is not None and quota.borrowing_limit is None:
        more = f"; it may borrow what cohort {queue.cohort} does not use"
    elif queue.cohort is not None:
        more = f"; it may borrow {quota.borrowing_limit or 'none'} of what cohort {queue.cohort} does not use"
    nominal = f"{count(quota.nominal, 'GPU')}{of_type(quota.gpu_type)}"
    return f"Queue {queue.name} has a quota of {nominal}, and its jobs hold {held or 'none'}{more}."


def namespace_limits(job: JobFacts, snapshot: Snapshot) -> list[str]:
    """Name the ResourceQuotas with too little room for the base workers of a waiting job."""
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
