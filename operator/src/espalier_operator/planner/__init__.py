"""The planner: makes actions and reasons from a snapshot. Pure: no clock, no I/O, no state between calls.

Invariants, whatever the policy; `tests/unit/operator/test_plan_properties.py` checks each by its number.

1.  Never more GPUs than exist: grants fit into the free GPUs of ready, schedulable nodes, node by node, on nodes that
    the job's constraints admit, whatever nodes the policy prefers.
2.  A GPU is held while its worker is pending, running or terminating; only a worker's absence frees it.
3.  A promise (extra workers granted, not yet seen) is counted until they are seen or it expires. The base workers
    of an admitted job are always counted.
4.  Base GPUs are granted all at once or not at all, on one type of GPU, and are never taken from a running job.
    Where they are physically gone and no lent GPU can replace them, or kube-scheduler finds no node for a worker
    though they are free, the whole job waits again with its budget kept; the latter with back-off. Only a job that
    allows it is stopped, with notice and not before `minRuntimeSeconds`: where its queue has borrowed its GPUs and a
    job waits for their quota, or where the policy preempts and an earlier job waits for them (`preemption`), or its own
    share is of another type of GPU and there is room for it there, or it has no share and makes that room, or its
    node is about to go, or an EvictionRequest asks a base worker to leave. A job that stops gets no notice: it gives
    back its extra workers too.
5.  Every lent GPU has a holder that has reported, trains and may grow; GPUs that it may no longer hold, by its terms
    or by its share, are reclaimed. A GPU is reclaimed by a notice, followed by the holder's acknowledgement or the
    deadline. Only GPUs that no longer exist are released without a notice.
6.  Lent GPUs never delay base GPUs or foreign pods by more than one notice, or the stop of their holder. Foreign pods
    count only on nodes that their constraints admit: a pod that fits on no node delays no job.
7.  The extra workers of an allocation do not increase within `cooldownSeconds` of their last change. To give extra
    GPUs to another job, or for a smaller share, they are not reduced within `minRuntimeSeconds` of their last change;
    where they must be reduced anyway, not within `minRuntimeSeconds` of their last increase.
8.  An action or a refusal with its reason names every unfinished job.
9.  Planning is idempotent: once grants and notices are applied, the next plan is empty. Ends and releases free GPUs,
    so the next plan may use these GPUs, and nothing else. Workers with several GPUs may need one more reclaim if they
    are bound to other nodes.

Queue: in the policy's order, with EASY backfilling (`reservations`). A job that must wait reserves the GPUs on which it
starts at the latest, when running jobs have used up their budgets; later jobs start before it where they do not delay
it. GPUs that are idle meanwhile are lent as extra GPUs, which can be reclaimed within one notice. A job that would not
fit even if all our jobs had ended reserves none: it is too large, or waits for foreign pods, which may never leave.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from espalier_operator.model import Snapshot
from espalier_operator.model.actions import Plan
from espalier_operator.model.queues import QueueUsage
from espalier_operator.planner.admission import AdmissionStep
from espalier_operator.planner.claims import Claims
from espalier_operator.planner.cycle import OpenJobs, PlanningCycle
from espalier_operator.planner.lending import Lending
from espalier_operator.planner.lifecycle import JobLimits, PlanBuilder
from espalier_operator.planner.placement import WorkerIndex
from espalier_operator.planner.provisioning import NodeRequests
from espalier_operator.policies import Policy
from espalier_operator.policies.learned import FALLBACK


def plan(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
    """Return the plan at `now`, with a reason for each action and refusal.

    Each step works with the rest of the earlier ones.
    """
    record, workers = PlanBuilder(now), WorkerIndex(snapshot.workers)
    ledger = QueueUsage(snapshot.queues, snapshot.held_claims())
    limits = JobLimits(record, ledger, snapshot.rules, now)

    # 1. End, stop or requeue jobs, each by its own facts.
    unfinished = [limits.within_limits(job) for job in snapshot.jobs if not job.finished]
    for job in unfinished:
        limits.end(job)
    for claim, gpu_type in snapshot.stopping_claims():
        ledger.give_back(claim, gpu_type)

    # 2. Get the policy's decision about the others: their order, and the share of each.
    jobs = OpenJobs.by(policy, snapshot, record, unfinished, now)
    record.wake(jobs.decision.until)

    # 3. Release extra workers that jobs have given back or lost, and reclaim those that they may no longer hold.
    promises = {promise.job: promise for promise in snapshot.promises}
    kept = {
        job.key: limits.release_extra(job, jobs.order, promises.get(job.key), len(workers.extras[job.key]))
        for job in jobs.running
    }

    # 4. Count the GPUs of nodes, now and after all pending releases. Keep GPUs for workers on their way to them.
    cycle = PlanningCycle(snapshot, jobs, workers, record, ledger, kept, now)
    cycle.hold_granted(promises)

    # 5. Reclaim loans on nodes that lose GPUs, move jobs off nodes that are about to go, and both where pods are asked.
    node_requests = NodeRequests(cycle)
    claims = Claims(cycle, node_requests)
    claims.leave_departing_gpus()
    claims.leave_as_asked()

    # 6. Find GPUs for base workers that have lost theirs, and for foreign pods. Jobs that find none wait again.
    claims.place()

    # 7. Admit waiting jobs in order: on free GPUs, on reclaimed ones, or on GPUs of jobs that yield. A job that must
    # wait reserves GPUs; later ones are backfilled.
    AdmissionStep(cycle, node_requests).admit()

    # 8. Keep GPUs for workloads that a queueing system is to admit: nothing is lent that these could have.
    claims.serve_queued()

    # 9. Lend the GPUs that are left, one extra worker at a time.
    Lending(cycle).lend()

    # 10. Give notice to each job whose extra workers are reclaimed.
    cycle.give_notice()
    return cycle.result()


@dataclass(frozen=True, slots=True)
class Resumed:
    """A plan, and the circumstances of its making."""

    snapshot: Snapshot
    """The planned snapshot, without the policy's memory where the policy cannot use it."""
    plan: Plan
    unusable: Exception | None = None
    """The error for which the policy starts with an empty memory."""
    raised: Exception | None = None
    """The error raised by the policy; `FALLBACK` has then decided in its place, and it keeps its memory."""


def plan_resumed(snapshot: Snapshot, policy: Policy, now: float) -> Resumed:
    """Plan, with an empty memory where the policy cannot use its own."""
    try:
        return Resumed(snapshot, plan(snapshot, policy, now))
    except Exception as error:
        # The memory may contain anything, and must not keep a scheduler from starting.
        if not snapshot.policy_memory:
            raise
        unusable = error
    emptied = replace(snapshot, policy_memory={})
    return Resumed(emptied, plan(emptied, policy, now), unusable)


def plan_safely(snapshot: Snapshot, policy: Policy, now: float, *, resumed: bool = True) -> Resumed:
    """Plan, by `FALLBACK` where the policy raises; `resumed` as for `plan_resumed`.

    A policy may come from any package, and its input from anybody's jobs.
    """
    try:
        return plan_resumed(snapshot, policy, now) if resumed else Resumed(snapshot, plan(snapshot, policy, now))
    except Exception as error:
        made = plan(snapshot, FALLBACK, now)  # a fault of the planner itself is raised again
        why = f"it raised {type(error).__name__}: {error}"
        return Resumed(snapshot, replace(made, fallback=why, policy_memory=snapshot.policy_memory), raised=error)
