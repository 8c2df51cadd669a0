"""The planner's numbered invariants (see `espalier_operator.planner`) as checks of one tick.

Each is counted here in the plainest way, from the snapshot alone, sharing no code with the planner.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from espalier_core.types.reasons import Reason
from espalier_operator.model import NOWHERE, REFUSALS, JobFacts, Node, Snapshot, Worker, WorkerRole, WorkerState
from espalier_operator.model.actions import (
    Admit,
    Fail,
    Finish,
    GrantExtra,
    NoticeReclaim,
    Plan,
    ReleaseExtra,
    Requeue,
    Stop,
)
from espalier_operator.model.constraints import Amounts, Constraints


class InvariantError(AssertionError):
    """A plan breaks an invariant; the message begins with its number."""


def check(
    snapshot: Snapshot, plan: Plan, now: float, *, preempts: bool = False, types: Mapping[str, str | None] | None = None
) -> None:
    """Raise `InvariantError` where `plan` breaks an invariant that one tick can show.

    `preempts`: the policy asked for preemption; `types`: for which types of GPU, by job.
    """
    jobs = {job.key: job for job in snapshot.jobs}
    _grants_fit(snapshot, plan, jobs, now)
    for action in plan.actions:
        job = jobs[action.job]
        live = [w for w in snapshot.workers if w.job == job.key and w.state is not WorkerState.TERMINATING]
        match action:
            case Admit():
                _demand(job.admitted_at is None, 4, f"{job.key} is admitted twice")
                _demand(job.hold_until is None or now >= job.hold_until, 4, f"{job.key} is held back")
                wanted = job.terms.gpu_type
                _demand(wanted in (None, action.gpu_type), 4, f"{job.key} is on the wrong type of GPU")
            case GrantExtra():
                _demand(job.admitted_at is not None and job.has_reported, 5, f"{job.key} holds nothing")
                useful = job.terms.adapts or job.terms.trains_together
                _demand(job.training and useful, 5, f"{job.key} cannot use what it is lent")
                _demand(job.reclaim is None, 5, f"{job.key} is lent to while it gives back")
                most = job.terms.max_replicas - job.terms.min_replicas
                _demand(job.extra < action.extra <= most, 5, f"{job.key} is lent more than maxReplicas")
                quiet = job.changed_at is None or now >= job.changed_at + job.terms.cooldown_seconds
                _demand(quiet, 7, f"{job.key} is lent to in its cooldown")
            case NoticeReclaim():
                _demand(0 <= action.extra < job.extra, 5, f"{job.key} is asked for what it does not have")
                _demand(job.reclaim is None, 5, f"{job.key} gets a second notice")
                if action.reason is Reason.HELD_BY_POLICY:
                    changed_at = max(job.granted_at or 0.0, job.changed_at or 0.0)
                    _demand(now >= changed_at + job.terms.min_runtime_seconds, 7, f"{job.key} gives back too soon")
                if action.reason is Reason.NEEDED_BY_OTHER_JOB and job.granted_at is not None:
                    changed_at = max(job.granted_at, job.changed_at or 0.0)
                    young = now < changed_at + job.terms.min_runtime_seconds
                    _demand(not young or _base_or_foreign_waits(snapshot, plan), 7, f"{job.key} is asked too soon")
            case ReleaseExtra() if job.reclaim is not None:
                done = job.acknowledged_generation >= job.generation
                _demand(done or now >= job.reclaim.deadline, 5, f"{job.key} had time left")
            case ReleaseExtra():
                seen = sum(worker.role is WorkerRole.EXTRA for worker in live)
                _demand(action.extra >= min(seen, job.extra), 5, f"{job.key} loses workers without notice")
                promised = any(p.job == job.key and now < p.expires_at for p in snapshot.promises)
                _demand(not promised, 3, f"a promise to {job.key} is broken")
            case Stop() if action.reason is Reason.QUOTA_RECLAIMED:
                _demand(job.terms.base_preemptible, 4, f"{job.key} keeps its base GPUs")
                young = now < (job.admitted_at or 0.0) + job.terms.min_runtime_seconds
                _demand(not young and job.stopping is None, 10, f"{job.key} is stopped too soon or twice")
                _demand(_over_quota(snapshot, job) > 0, 10, f"{job.terms.queue} has borrowed nothing")
            case Stop() if action.reason is Reason.PREEMPTED_BY_POLICY:
                _demand(preempts and job.terms.base_preemptible, 4, f"{job.key} keeps its base GPUs")
                young = now < (job.admitted_at or 0.0) + job.terms.min_runtime_seconds
                _demand(not young and job.stopping is None, 4, f"{job.key} is stopped too soon or twice")
                notice = max(snapshot.rules.stop_grace_seconds, job.terms.notice_seconds)
                _demand(action.deadline >= now + notice, 4, f"{job.key} has no time for a checkpoint")
                moves = _has_room(snapshot, plan, job, types or {}) or _makes_room(plan, job, jobs, types or {})
                _demand(moves or bool(_waits_for(job, plan, jobs)), 4, f"nobody waits for the GPUs of {job.key}")
            case Stop() if action.reason is Reason.NODE_DEPARTING:
                _demand(job.terms.base_preemptible and job.stopping is None, 4, f"{job.key} keeps its base GPUs")
                going = {node.name for node in snapshot.nodes if node.departing}
                there = any(worker.role is WorkerRole.BASE and worker.node in going for worker in live)
                _demand(there, 4, f"no node of {job.key} is about to go")
            case Stop() if action.reason is Reason.EVICTION_REQUESTED:
                _demand(job.terms.base_preemptible and job.stopping is None, 4, f"{job.key} keeps its base GPUs")
                asked = any(worker.role is WorkerRole.BASE and worker.asked_to_leave for worker in live)
                _demand(asked, 4, f"nobody asks {job.key} to leave")
            case Requeue() if action.reason in (
                Reason.EVICTION_REQUESTED,
                Reason.QUOTA_RECLAIMED,
                Reason.PREEMPTED_BY_POLICY,
                Reason.NODE_DEPARTING,
            ):
                _demand(job.stopping is not None, 10, f"{job.key} is not stopped with notice")
            case Requeue() if action.reason is not Reason.SUSPENDED:
                bound = sum(worker.role is WorkerRole.BASE and worker.node is not None for worker in live)
                since = job.down_since if job.trained else job.admitted_at
                down = now - (now if since is None else since)
                overdue = down >= (job.terms.pre_running_deadline_seconds or math.inf) and not job.leader_running
                waited = now - (now if job.refused_since is None else job.refused_since)
                patience = snapshot.rules.placement_seconds
                if action.reason is not Reason.UNSCHEDULABLE and not (job.trained and job.leader_running):
                    patience = snapshot.rules.refusal_seconds
                useless = waited >= patience and action.reason in REFUSALS
                lacks = bound < job.terms.min_replicas
                _demand(lacks or overdue or useless, 4, f"base GPUs are taken from {job.key}")
                if action.reason in REFUSALS - {Reason.POD_REJECTED} and not overdue:
                    _demand(useless, 4, f"{job.key} is not waited for")
            case Finish() | Fail():
                _demand(not job.finished, 8, f"{job.key} ends twice")
            case _:
                pass
    stopped = {action.job for action in plan.actions if isinstance(action, Stop)}
    for action in plan.actions:
        ends_in_order = action.job not in stopped or isinstance(action, Stop | ReleaseExtra)
        _demand(ends_in_order, 4, f"{action.job} is stopped, and has no time to end in order: {action}")
    _quotas_hold(snapshot, plan, jobs)
    _namespaces_hold(snapshot, plan, jobs, now)
    named = {action.job for action in plan.actions} | set(plan.refusals)
    for job in snapshot.jobs:
        _demand(job.finished or job.key in named, 8, f"{job.key} gets neither action nor reason")


def _has_room(snapshot: Snapshot, plan: Plan, job: JobFacts, types: Mapping[str, str | None]) -> bool:
    """Return whether `job` is to have another type of GPU, and enough of these are free, lent, or given up now."""
    wished = types.get(job.key)
    if wished in (None, job.gpu_type):
        return False
    nodes = [node for node in snapshot.nodes if node.ready and node.schedulable and node.gpu_type == wished]
    names = {node.name for node in nodes if node.admits(job.terms.constraints)}
    stopped = {action.job for action in plan.actions if isinstance(action, Stop | Requeue | Finish | Fail)}
    stopped |= {each.key for each in snapshot.jobs if each.stopping is not None}
    stays = [each for each in snapshot.workers if each.node in names and each.job not in stopped]
    held = Counter[str | None]()
    for each in stays:
        if each.role is not WorkerRole.EXTRA and each.state is not WorkerState.TERMINATING:
            held[each.node] += each.gpus
    # Those on a node that is about to go take nothing of what the others offer.
    free = sum(max(0, node.offered - held[node.name]) for node in nodes if node.name in names)
    return free >= _base_gpus(job)


def _makes_room(plan: Plan, job: JobFacts, jobs: Mapping[str, JobFacts], types: Mapping[str, str | None]) -> bool:
    """Return whether another job is stopped to have the type of GPU that `job` has."""
    stopped = (jobs[action.job] for action in plan.actions if isinstance(action, Stop) and action.job != job.key)
    return any(types.get(other.key) == job.gpu_type != other.gpu_type for other in stopped)


def _waits_for(holder: JobFacts, plan: Plan, jobs: Mapping[str, JobFacts]) -> list[str]:
    """Return the jobs that got nothing in this plan and could use the GPUs of `holder`."""
    reasons = (Reason.NO_FREE_GPU, Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED, Reason.MIN_RUNTIME)
    refused = [jobs[refusal.job] for refusal in plan.refusals.values() if refusal.reason in reasons]
    waiting = [job for job in refused if job.admitted_at is None]
    return [job.key for job in waiting if job.terms.gpu_type in (None, holder.gpu_type)]


def _namespaces_hold(snapshot: Snapshot, plan: Plan, jobs: Mapping[str, JobFacts], now: float) -> None:
    """What is granted fits into the ResourceQuotas beside all pods, those that are still to be made among them."""
    for limit in snapshot.namespace_limits:
        inside = {key: job for key, job in jobs.items() if key.startswith(f"{limit.namespace}/")}
        each = {key: _requested(job, limit.resource) for key, job in inside.items()}
        new = sum(job.terms.min_replicas * each[key] for key, job in inside.items() if _is_admitted(plan, key))
        for action in plan.actions:
            if isinstance(action, GrantExtra) and action.job in inside:
                new += (action.extra - inside[action.job].extra) * each[action.job]
        held = sum(each[worker.job] for worker in snapshot.workers if worker.job in inside and worker.gpus)
        held = max(held, limit.used)
        promised = {promise.job for promise in snapshot.promises if now < promise.expires_at}
        for key, job in inside.items():
            if job.admitted_at is None or job.finished or job.stopping is not None or job.ended is not None:
                continue
            if any(action.job == key and isinstance(action, Requeue | Finish | Fail | Stop) for action in plan.actions):
                continue
            live = [w for w in snapshot.workers if w.job == key and w.state is not WorkerState.TERMINATING]
            missing = max(0, job.terms.min_replicas - sum(worker.role is WorkerRole.BASE for worker in live))
            if key in promised and job.reclaim is None:
                missing += max(0, job.extra - sum(worker.role is WorkerRole.EXTRA for worker in live))
            held += missing * each[key]
        _demand(new == 0 or held + new <= limit.hard, 11, f"{limit.namespace} is granted more than its ResourceQuota")


def _is_admitted(plan: Plan, key: str) -> bool:
    return any(isinstance(action, Admit) and action.job == key for action in plan.actions)


def _requested(job: JobFacts, resource: str) -> int:
    """Return what each worker of a job requests of a resource that a ResourceQuota limits."""
    if resource == job.terms.gpu_resource:
        return job.terms.gpus_per_worker
    return dict(job.terms.constraints.requests).get(resource, 0)


def _quotas_hold(snapshot: Snapshot, plan: Plan, jobs: Mapping[str, JobFacts]) -> None:
    """Count the base GPUs of each queue and cohort after the plan, by the quota that is for them."""
    queues = {queue.name: queue for queue in snapshot.queues}
    admitted = [(jobs[action.job], action.gpu_type or "") for action in plan.actions if isinstance(action, Admit)]
    held = [(job, job.gpu_type or "") for job in snapshot.jobs if job.admitted_at is not None and not job.finished]
    used: Counter[tuple[str, str | None]] = Counter()
    for job, gpu_type in held + admitted:
        queue = queues.get(job.terms.queue)
        types = set() if queue is None else {quota.gpu_type for quota in queue.quotas}
        used[job.terms.queue, gpu_type if gpu_type in types else None] += job.gpus_held or _base_gpus(job)
        used[job.terms.queue, gpu_type if gpu_type in types else None] -= job.extra * job.terms.gpus_per_worker
    for job, gpu_type in admitted:
        if not queues or job.terms.gpus_per_worker == 0:
            continue
        queue = queues[job.terms.queue]
        namespace = job.key.split("/")[0]
        _demand(queue.namespaces == () or namespace in queue.namespaces, 10, f"{job.key} may not use {queue.name}")
        _demand(job.terms.priority <= (queue.max_priority or 1000), 10, f"{job.key} has too high a priority")
        limits = {quota.gpu_type: quota for quota in queue.quotas}
        kind = gpu_type if gpu_type in limits else None
        if not limits:
            continue
        _demand(kind in limits, 10, f"{job.key} runs on {gpu_type}, for which {queue.name} has no quota")
        over = used[queue.name, kind] - limits[kind].nominal
        may_borrow = 0 if queue.cohort is None else limits[kind].borrowing_limit
        _demand(may_borrow is None or over <= may_borrow, 10, f"{queue.name} holds {over} too many, with {job.key}")
        members = [each for each in queues.values() if each.cohort == queue.cohort and queue.cohort is not None]
        whole = sum(quota.nominal for each in members for quota in each.quotas if quota.gpu_type == kind)
        together = sum(used[each.name, kind] for each in members if kind in {quota.gpu_type for quota in each.quotas})
        _demand(not members or together <= whole, 10, f"cohort {queue.cohort} holds {together} of {whole}")
    for refusal in plan.refusals.values():
        job = jobs[refusal.job]
        if refusal.reason is Reason.QUOTA_EXCEEDED:
            # One that was told by when it starts keeps its quota.
            kept = [each for each in plan.refusals.values() if each.starts_by is not None]
            # So does one for whom others leave its namespace's ResourceQuota.
            waits = (Reason.QUOTA_EXCEEDED, Reason.RESOURCE_QUOTA_EXCEEDED)
            others = [*kept, *(each for each in plan.refusals.values() if each.reason in waits)]
            alone = len(others) == 1 and queues[job.terms.queue].cohort is None
            free = [
                quota
                for quota in queues[job.terms.queue].quotas
                if used[job.terms.queue, quota.gpu_type] + _base_gpus(job) <= quota.nominal
                and quota.gpu_type is not None
                and job.terms.gpu_type == quota.gpu_type
            ]
            _demand(not (alone and free), 10, f"{job.key} waits for a quota that is not used up")


def _over_quota(snapshot: Snapshot, job: JobFacts) -> int:
    """Return how many GPUs the queue of a running job holds beyond its nominal quota of the job's type."""
    (queue,) = (each for each in snapshot.queues if each.name == job.terms.queue)
    named = {quota.gpu_type: quota.nominal for quota in queue.quotas}
    kind = job.gpu_type if job.gpu_type in named else None
    alike = {job.gpu_type} if kind is not None else {each.gpu_type for each in snapshot.jobs} - named.keys()
    held = sum(
        _base_gpus(each)
        for each in snapshot.jobs
        if each.admitted_at is not None
        and not each.finished
        and each.terms.queue == queue.name
        and each.gpu_type in alike
    )
    return held - named[kind]


def _base_gpus(job: JobFacts) -> int:
    return job.terms.min_replicas * job.terms.gpus_per_worker


def _grants_fit(snapshot: Snapshot, plan: Plan, jobs: dict[str, JobFacts], now: float) -> None:
    """Place each granted worker on some node that admits it, by search."""
    nodes = {node.name: node for node in snapshot.nodes if node.ready and node.schedulable}
    types = {node.name: node.gpu_type for node in nodes.values()}
    free = Counter({n.name: n.offered for n in snapshot.nodes if n.name in types})
    for worker in snapshot.workers:
        if worker.node in types:
            free[worker.node] -= worker.gpus
    granted: list[tuple[int, str]] = []
    wishes: list[tuple[int, frozenset[str], Amounts]] = []
    for action in plan.actions:
        job = jobs[action.job]
        if isinstance(action, Admit) and action.gpu_type is not None:
            gpu_type, workers = action.gpu_type, job.terms.min_replicas
        elif isinstance(action, GrantExtra):
            gpu_type, workers = job.gpu_type or "", action.extra - job.extra
        else:
            continue
        granted += [(job.terms.gpus_per_worker, gpu_type)] * workers
        admitting = _admitting(nodes.values(), gpu_type, job.terms.constraints)
        wishes += [(job.terms.gpus_per_worker, admitting, job.terms.constraints.requests)] * workers
    room = {name: max(0, count) for name, count in free.items()}
    due: list[tuple[int, str]] = []
    if not any(job.terms.gpus_per_worker > 1 for job in snapshot.jobs):
        for job, gpu_type in _due(snapshot, now):  # others may have taken the only GPU that it can use
            admitting = _admitting(nodes.values(), gpu_type, job.terms.constraints)
            chosen = admitting.intersection(snapshot.placements.get(job.key, NOWHERE).extra)
            if any(room[name] for name in chosen or admitting):
                due.append((1, gpu_type))
    spare = Counter(dict.fromkeys(types.values(), 0))
    for name, count in room.items():
        spare[types[name]] += count
    for gpu_type in {gpu_type for _, gpu_type in granted}:
        wanted = sum(gpus for gpus, granted_type in granted if granted_type == gpu_type)
        owed = sum(gpus for gpus, due_type in due if due_type == gpu_type)
        _demand(wanted + owed <= spare[gpu_type], 3, f"{wanted} {gpu_type} granted, {owed} owed, {spare} free")
    wishes.sort(key=lambda wish: (-wish[0], sorted(wish[1]), wish[2]))
    left = {name: _left(node, snapshot, jobs) for name, node in nodes.items()}
    _demand(_can_place(wishes, room, left), 1, f"what is granted does not fit: {wishes}, free: {room}, {left}")


def _left(node: Node, snapshot: Snapshot, jobs: Mapping[str, JobFacts]) -> dict[str, int]:
    """Return what is free on a node of resources other than GPUs."""
    left = Counter(node.resources)
    left.subtract({name: amount for name, amount in node.used.items() if name in node.resources})
    for worker in snapshot.workers:
        if worker.node == node.name and worker.job in jobs:
            if not worker.gpus and jobs[worker.job].terms.gpus_per_worker:
                continue  # its pod has ended
            requests = jobs[worker.job].terms.constraints.requests
            left.subtract({name: amount for name, amount in requests if name in node.resources})
    return dict(left)


def _admitting(nodes: Iterable[Node], gpu_type: str, constraints: Constraints) -> frozenset[str]:
    """Return the nodes of a type that a pod with `constraints` may be bound to."""
    return frozenset(node.name for node in nodes if node.gpu_type == gpu_type and node.admits(constraints))


def _can_place(
    wishes: Sequence[tuple[int, frozenset[str], Amounts]],
    room: Mapping[str, int],
    left: Mapping[str, Mapping[str, int]],
) -> bool:
    """Return whether each of `wishes`, (GPUs, nodes, other requests), finds a node with room."""
    failed: set[object] = set()

    def place(first: int, room: Mapping[str, int], left: Mapping[str, Mapping[str, int]]) -> bool:
        if first == len(wishes):
            return True
        state = (first, tuple(room.values()), tuple(tuple(each.values()) for each in left.values()))
        if state in failed:
            return False
        gpus, nodes, requests = wishes[first]
        for name in nodes:
            rest = {key: amount - dict(requests).get(key, 0) for key, amount in left[name].items()}
            fits = room[name] >= gpus and min(rest.values(), default=0) >= 0
            if fits and place(first + 1, {**room, name: room[name] - gpus}, {**left, name: rest}):
                return True
        failed.add(state)
        return False

    return place(0, room, left)


def _due(snapshot: Snapshot, now: float) -> list[tuple[JobFacts, str]]:
    """Return running jobs, and the type of a GPU that each was granted and nobody has seen bound yet."""
    due: list[tuple[JobFacts, str]] = []
    for job in snapshot.jobs:
        if job.admitted_at is None or job.finished or job.stopping is not None or job.ended is not None:
            continue
        promised = max((p.extra for p in snapshot.promises if p.job == job.key and now < p.expires_at), default=0)
        missing = _missing(snapshot, job, WorkerRole.EXTRA, min(promised, job.extra))
        due += [(job, job.gpu_type or "")] * missing
    return due


def _missing(snapshot: Snapshot, job: JobFacts, role: WorkerRole, wanted: int) -> int:
    return max(0, wanted - sum(_is_bound(worker, job.key, role) for worker in snapshot.workers))


def _is_bound(worker: Worker, key: str, role: WorkerRole) -> bool:
    mine = worker.job == key and worker.role is role and worker.node is not None
    return mine and worker.state is not WorkerState.TERMINATING


def _base_or_foreign_waits(snapshot: Snapshot, plan: Plan) -> bool:
    """Return whether base workers or others wait for GPUs, or will: those of a job that moves."""
    stopping = (job.stopping for job in snapshot.jobs if job.stopping is not None)
    stops = (*(action for action in plan.actions if isinstance(action, Stop)), *stopping)
    moves = any(stop.reason is Reason.PREEMPTED_BY_POLICY for stop in stops)
    foreign = any(w.role is WorkerRole.FOREIGN and w.node is None for w in snapshot.workers)
    waiting = any(job.admitted_at is None and not job.finished and not job.terms.suspend for job in snapshot.jobs)
    missing = any(
        job.admitted_at is not None
        and not job.finished
        and _missing(snapshot, job, WorkerRole.BASE, job.terms.min_replicas)
        for job in snapshot.jobs
    )
    return foreign or waiting or missing or moves


def _demand(holds: bool, number: int, message: str) -> None:
    if not holds:
        raise InvariantError(f"invariant {number}: {message}")
