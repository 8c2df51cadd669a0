"""Makes a `Snapshot` from lists of the API server's objects. No I/O.

The scheduler keeps its state in the cluster's objects, so the lists give the snapshot of an operator that starts at
that moment. The lists go through the operator's own `Store` and `ManagedJob`, only without a history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from espalier_core.k8s.resources import JOBS, LEASES, PODS, Listing, Resource
from espalier_core.types.job import DEFAULT_CONTROLLER
from espalier_core.types.reasons import Reason
from espalier_core.types.status import ConditionStatus, ConditionType, JobStatus
from espalier_operator.job.view import Trouble
from espalier_operator.kube.objects.names import POLICY_MEMORY, RECENT_USE
from espalier_operator.kube.settings import AS_RECORDED, KubeSettings
from espalier_operator.kube.state.managed_job import ManagedJob
from espalier_operator.kube.state.workers import foreign_worker
from espalier_operator.kube.watch.store import Store
from espalier_operator.model import DEFAULT_POLICY, NOWHERE, Blame, Rules, Snapshot, Worker
from espalier_operator.model.nodes import avoided_by_all, trained_on
from espalier_operator.model.queues import ExternalAdmission
from espalier_operator.policies.memory import RecentUse, remembered
from espalier_operator.policies.settings import configured


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """The state of an operator that starts from the lists."""

    snapshot: Snapshot
    left_out: Mapping[str, tuple[str, ...]]
    """Problems of jobs that cannot be run or read, by key."""


def seen_by_operator(
    lists: Mapping[Resource, Listing], now: float, settings: KubeSettings, rules: Rules | None = None
) -> InitialState:
    """Return the state of an operator that starts at `now` (epoch seconds).

    `lists` has jobs, nodes, the ConfigMaps with the report label, all workers, and all other pods that have not ended.
    PriorityClasses and queues may be missing: then the jobs' own priorities apply, and no quotas. The Leases of
    operators may be missing too: then the policy's memory is empty, and no use of GPUs is known. If two operators
    have recorded the use of queues, neither counts. The policy `AS_RECORDED` is the one that the operator wrote into
    the status of its jobs, if it is known here.
    """
    if settings.policy == AS_RECORDED:
        settings = replace(settings, policy=_recorded_policy(lists[JOBS], settings.controller_name))
    lists = dict(lists)
    leases = lists.pop(LEASES, None)
    store = Store(settings, lambda: now)
    # Pods after the rest, which decides their claims, and jobs last, as all else decides whether they can be run.
    for resource, listed in sorted(lists.items(), key=lambda item: (item[0] is JOBS, item[0] is PODS)):
        store.replace(resource, listed.items, listed.version)
    for key in store.reports.late():  # they were listed before their jobs
        store.reports.read_late(key)
    jobs: list[ManagedJob] = []
    left_out: dict[str, tuple[str, ...]] = {}
    for seen in sorted(store.jobs.values(), key=lambda seen: seen.key):
        if seen.deleting:
            continue
        try:
            job = ManagedJob(seen, store, settings, now)
        except ValueError as error:
            left_out[seen.key] = (f"status: cannot be read: {' '.join(str(error).split())}",)
            continue
        if job.problems is not None and job.job is None:
            left_out[seen.key] = job.problems.problems
        job.reject(rejection_of(job.written))
        job.kueue.recorded = admission_of(job.written)
        job.look(now)
        jobs.append(job)
    snapshot = assemble(jobs, store, now, rules or settings.rules)
    uses = _notes(leases, RECENT_USE)
    use = RecentUse(snapshot.rules.fair_share_half_life_seconds, uses[0] if len(uses) == 1 else None)
    memory = _remembered(_notes(leases, POLICY_MEMORY), snapshot.rules.policy)
    return InitialState(snapshot=use.seen(replace(snapshot, policy_memory=memory)), left_out=left_out)


def assemble(jobs: Iterable[ManagedJob], store: Store, now: float, rules: Rules) -> Snapshot:
    """Return the planner's view of the jobs just observed, and of everything else in `store`.

    A finished job is included while it still has workers. Pods of jobs that are not planned, which may be another
    Espalier's, hold their GPUs; pods that wait for a chosen node keep its GPUs from new workers.
    """
    planned = [(job, facts) for job in jobs if (facts := job.facts) is not None]
    own = {job.ref for job, _ in planned}
    namespaces = {ref.namespace for ref in own}
    workers: list[Worker] = [worker for job, _ in planned for worker in job.workers]
    workers += store.foreign_workers.values()
    workers += store.queued({job.ref for job, facts in planned if facts.admitted_at is not None})
    for ref, pods in store.pods_by_job.items():
        if ref not in own:
            found = (foreign_worker(pod) for pod in pods.values())
            workers += [worker for worker in found if worker is not None]
    return Snapshot(
        taken_at=now,
        nodes=tuple(store.planned_nodes.values()),
        workers=tuple(workers),
        promises=tuple(job.promise for job, _ in planned if job.promise is not None),
        jobs=tuple(facts for job, facts in planned if not facts.finished or job.workers),
        queues=tuple(sorted((each.queue for each in store.queue_objects.values()), key=lambda queue: queue.name)),
        namespace_limits=tuple(
            limit for limits in store.quotas.values() for limit in limits if limit.namespace in namespaces
        ),
        avoided=avoided_by_all(map(blames_of, jobs), now),
        placements={job.key: job.placement for job, _ in planned if job.placement is not NOWHERE},
        rules=rules,
    )


def blames_of(job: ManagedJob) -> tuple[Blame, ...]:
    """Return the nodes that a job blames; a completed job was not the cause itself."""
    state = job.state
    has_completed = state.outcome is not None and not state.outcome.failed
    return trained_on(state.blames, ()) if has_completed and state.blames else state.blames


def _recorded_policy(jobs: Listing, controller: str) -> str:
    """Return the policy recorded in a job's status by the operator; the default where it is unknown here."""
    for raw in jobs.items:
        recorded = (raw.get("status") or {}).get("schedulingPolicy")
        if recorded and raw["spec"].get("controllerName", DEFAULT_CONTROLLER) == controller:
            try:
                configured(recorded)
            except ValueError:
                continue
            return str(recorded)
    return DEFAULT_POLICY


def _notes(leases: Listing | None, name: str) -> list[str]:
    """Return the notes of operators in an annotation of their Leases."""
    annotations = (raw["metadata"].get("annotations") or {} for raw in (() if leases is None else leases.items))
    return [each[name] for each in annotations if each.get(name)]


def _remembered(notes: Iterable[str], policy: str) -> Mapping[str, Any]:
    """Return the policy's memory; empty where two may be meant."""
    found = [memory for note in notes if (memory := remembered(policy, note))]
    return found[0] if len(found) == 1 else {}


def admission_of(status: JobStatus | None) -> ExternalAdmission | None:
    """Return Kueue's last message on a waiting job, from its status."""
    admitted = None if status is None else status.condition(ConditionType.ADMITTED)
    if admitted is None or admitted.reason is not Reason.WAITING_FOR_KUEUE:
        return None
    return ExternalAdmission(message=admitted.message)


def rejection_of(status: JobStatus | None) -> Trouble | None:
    """Return the API server's last refusal of a job's pods, from its status."""
    running = None if status is None else status.condition(ConditionType.RUNNING)
    if running is None or running.status is not ConditionStatus.FALSE or running.reason is not Reason.POD_REJECTED:
        return None
    return Trouble(reason=running.reason, message=running.message)
