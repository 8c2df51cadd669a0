"""GPUs by holder, added up from a snapshot, and why there are none for a job. Pure.

GPUs are counted as held exactly as the planner counts them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espalier_cli.cluster.output import amount, count, duration, listed, of_type
from espalier_operator.kube.inspection import KubeSettings
from espalier_operator.model import Blame, JobFacts, Node, Snapshot, Worker, WorkerRole, WorkerState
from espalier_operator.model.actions import Plan
from espalier_operator.model.constraints import REPELLING
from espalier_operator.policies.decisions import LendingOrder
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Decision

HOLDERS_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeUse:
    """The GPUs of one type on the nodes that count.

    `base + lent + others + terminating + promised + free` is `total + short` as long as the promised GPUs are free.
    """

    gpu_type: str
    nodes: int
    total: int
    base: int
    lent: int
    others: int
    """GPUs held by pods that are not of our jobs."""
    terminating: int
    promised: int
    """GPUs granted to jobs whose pods are not bound to a node yet; no longer free."""
    free: int
    largest_free: int
    """Maximum of free GPUs on one node: a worker's GPUs are all on one."""
    short: int
    """GPUs held beyond the capacity of nodes: GPUs that failed in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUse:
    """The GPUs of one job."""

    job: str
    gpu_type: str
    base: int
    lent: int
    terminating: int
    promised: int
    remaining_seconds: float
    training: bool

    @property
    def held(self) -> int:
        """GPUs of the job in all states."""
        return self.base + self.lent + self.terminating + self.promised


def use_by_type(snapshot: Snapshot) -> list[TypeUse]:
    """Return the use of each type of GPU that nodes have, in order of name."""
    counting = {node.name: node for node in snapshot.nodes if snapshot.rules.takes_workers(node)}
    held: dict[str, Counter[str]] = defaultdict(Counter)
    on_node: Counter[str] = Counter()
    for worker in snapshot.workers:
        if worker.node in counting:
            held[counting[worker.node].gpu_type][_use_of(worker)] += worker.gpus
            on_node[worker.node] += worker.gpus
    promised: Counter[str] = Counter()
    for use in use_by_job(snapshot):
        promised[use.gpu_type] += use.promised
    uses = []
    for gpu_type in sorted({node.gpu_type for node in snapshot.nodes if node.allocatable or on_node[node.name]}):
        nodes = [node for node in counting.values() if node.gpu_type == gpu_type]
        balance = [node.allocatable - on_node[node.name] for node in nodes]
        free = sum(max(0, left) for left in balance)
        uses.append(
            TypeUse(
                gpu_type=gpu_type,
                nodes=sum(node.allocatable > 0 for node in nodes),
                total=sum(node.allocatable for node in nodes),
                base=held[gpu_type]["base"],
                lent=held[gpu_type]["lent"],
                others=held[gpu_type]["others"],
                terminating=held[gpu_type]["terminating"],
                promised=promised[gpu_type],
                free=max(0, free - promised[gpu_type]),
                largest_free=max([0, *balance]),
                short=sum(max(0, -left) for left in balance),
            )
        )
    return uses


def use_by_job(snapshot: Snapshot) -> list[JobUse]:
    """Return the GPUs that each job holds or is promised, in descending order; jobs without any are left out."""
    own: dict[str, list[Worker]] = defaultdict(list)
    for worker in snapshot.workers:
        if worker.job is not None:
            own[worker.job].append(worker)
    due = {promise.job for promise in snapshot.promises if snapshot.taken_at < promise.expires_at}
    uses = []
    for job in snapshot.jobs:
        held: Counter[str] = Counter()
        for worker in own[job.key]:
            if worker.node is not None:
                held[_use_of(worker)] += worker.gpus
        use = JobUse(
            job=job.key,
            gpu_type=job.gpu_type or "",
            base=held["base"],
            lent=held["lent"],
            terminating=held["terminating"],
            promised=_promised(job, own[job.key], job.key in due),
            remaining_seconds=job.remaining_at(snapshot.taken_at),
            training=job.training,
        )
        if use.held:
            uses.append(use)
    return sorted(uses, key=lambda use: (-use.held, use.job))


def others(snapshot: Snapshot) -> list[tuple[str, int, int]]:
    """Return (namespace, GPUs held, GPUs waited for) of pods that are not of our jobs, in descending order."""
    held: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for worker in snapshot.workers:
        if worker.role is WorkerRole.FOREIGN:
            amount = wanted if worker.node is None else held
            amount[worker.name.partition("/")[0]] += worker.gpus
    names = sorted({*held, *wanted}, key=lambda name: (-held[name] - wanted[name], name))
    return [(name, held[name], wanted[name]) for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidedUse:
    """A node that jobs avoid because it refused, failed or ended their workers."""

    node: str
    jobs: int
    """Number of unfinished jobs that avoid it because of their own workers."""
    by_all: bool
    """Whether all other jobs avoid it, too."""
    seconds: float
    """Seconds for which at least one of them still avoids it."""
    message: str


def avoided(snapshot: Snapshot) -> list[AvoidedUse]:
    """Return the nodes that jobs avoid, in order of name."""
    now, by_all = snapshot.taken_at, {each.node: each for each in snapshot.avoided}
    found: dict[str, list[Blame]] = defaultdict(list)
    for job in snapshot.jobs:
        for blame in job.blames:
            if now < blame.avoided_until and not job.finished:
                found[blame.node].append(blame)
    uses = []
    for node in sorted({*found, *by_all}):
        blames, general = found[node], by_all.get(node)
        ends = [blame.avoided_until for blame in blames] + ([] if general is None else [general.until])
        last = max(blames, key=lambda blame: blame.at, default=None)
        message = last.message if last is not None else general.message if general is not None else ""
        uses.append(
            AvoidedUse(
                node=node,
                jobs=max(len(blames), 0 if general is None else general.jobs),
                by_all=general is not None,
                seconds=max(ends) - now,
                message=message,
            )
        )
    return uses


def why_not(raw: Mapping[str, Any], settings: KubeSettings) -> list[str]:
    """Return why the GPUs of a node of the API server do not count; nothing if they do."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    reasons = []
    ready = next((entry for entry in status.get("conditions") or () if entry.get("type") == "Ready"), None)
    if ready is None or ready.get("status") != "True":
        message = "" if ready is None else ready.get("message") or ready.get("reason") or ""
        reasons.append(f"not ready{f' ({message})' if message else ''}")
    if "deletionTimestamp" in raw["metadata"]:
        reasons.append("being deleted")
    if spec.get("unschedulable"):
        reasons.append("cordoned")
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in REPELLING]
    for taint in taints:
        known = taint.get("key") in settings.tolerated_taints
        repeated = taint.get("key", "").startswith("node.kubernetes.io/")  # the problem above again, as a taint
        if not known and not (repeated and reasons):
            reasons.append(f"tainted {taint.get('key')}:{taint['effect']}")
    return reasons


def _use_of(worker: Worker) -> str:
    if worker.state is WorkerState.TERMINATING:
        return "terminating"
    return {WorkerRole.BASE: "base", WorkerRole.EXTRA: "lent", WorkerRole.FOREIGN: "others"}[worker.role]


def _promised(job: JobFacts, workers: Iterable[Worker], due: bool) -> int:
    """Return the number of GPUs granted to a job and not bound to a node yet."""
    if job.admitted_at is None or job.finished:
        return 0
    live = [worker for worker in workers if worker.state is not WorkerState.TERMINATING]
    bound = Counter(worker.role for worker in live if worker.node is not None)
    unbound = sum(worker.role is WorkerRole.EXTRA and worker.node is None for worker in live)
    base = max(0, job.terms.min_replicas - bound[WorkerRole.BASE])
    extra = max(0, job.extra - bound[WorkerRole.EXTRA]) if due else min(unbound, job.extra)
    return (base + extra) * job.terms.gpus_per_worker


def needs(job: JobFacts) -> str:
    """Describe the needs of a waiting job."""
    terms = job.terms
    each = f"{count(terms.gpus_per_worker, 'GPU')}{of_type(terms.gpu_type)}"
    if terms.min_replicas == 1:
        return f"It needs {each} on one node."
    one_type = "" if terms.gpu_type else ", all of one type"
    return f"It needs {terms.min_replicas} workers with {each} each, all at once{one_type}."


def scarcity(job: JobFacts, snapshot: Snapshot, plan: Plan) -> list[str]:
    """Describe the holders of the GPUs that the job could use, one line per type, and the jobs before it by `plan`."""
    wanted = job.gpu_type if job.admitted_at is not None else job.terms.gpu_type
    uses = [use for use in use_by_type(snapshot) if wanted is None or use.gpu_type == wanted]
    lines = []
    if not any(use.total for use in uses):
        lines.append(f"No node that counts has GPUs{of_type(wanted)}.")
    for use in (use for use in uses if use.total):
        lines.append(_supply(use, job))
        lines += _holders(use, snapshot, job.key)
    nodes = [node for node in snapshot.nodes if node.allocatable and (wanted is None or node.gpu_type == wanted)]
    nodes = [node for node in nodes if not job.terms.admit(node)]
    excluded = [node for node in nodes if snapshot.rules.takes_workers(node)]
    if excluded:
        lines.append(f"Its node selector, affinity and tolerations exclude {_described(excluded)}.")
    lines += _lacking([node for node in snapshot.nodes if job.terms.admit(node) and node.allocatable], job, snapshot)
    hidden = [node for node in nodes if not snapshot.rules.takes_workers(node)]
    if hidden:
        verb = "does" if len(hidden) == 1 else "do"
        lines.append(f"{_described(hidden)} {verb} not count; `espalier top` says why.")
    if job.admitted_at is None:
        lines += [*_queue(job, snapshot, plan), *_reservation(job, snapshot, plan)]
    return lines


def _lacking(nodes: Sequence[Node], job: JobFacts, snapshot: Snapshot) -> list[str]:
    """Name the resources of which nodes with enough free GPUs have too little for another worker."""
    requests = {other.key: other.terms.constraints.requests for other in snapshot.jobs}
    gpus, used = Counter[str](), {node.name: Counter(node.used) for node in nodes}
    for worker in snapshot.workers:
        if worker.node in used:
            gpus[worker.node] += worker.gpus
            used[worker.node].update(dict(requests.get(worker.job or "", ())))
    short, requested = Counter[str](), dict(job.terms.constraints.requests)
    for node in nodes:
        if node.allocatable - gpus[node.name] >= job.terms.gpus_per_worker:
            taken = used[node.name]
            short.update(
                name
                for name, needed in requested.items()
                if node.resources.get(name, taken[name] + needed) < taken[name] + needed
            )
    return [
        f"{count(number, 'node')} with free GPUs {_has(number)} too little {resource} left for a worker, which "
        f"requests {amount(resource, requested[resource])}."
        for resource, number in sorted(short.items())
    ]


def _has(number: int) -> str:
    return "has" if number == 1 else "have"


def _described(nodes: Sequence[Node]) -> str:
    return f"{count(len(nodes), 'node')} with {count(sum(node.allocatable for node in nodes), 'GPU')}"


def _supply(use: TypeUse, job: JobFacts) -> str:
    free = f"{use.free or 'none'} free"
    if job.terms.gpus_per_worker > 1 and use.free:
        free += f", at most {use.largest_free} on one node"
    verb = "is" if use.total == 1 else "are"
    return f"There {verb} {count(use.total, 'GPU')}{of_type(use.gpu_type)}, {free}."


def _holders(use: TypeUse, snapshot: Snapshot, own: str) -> list[str]:
    jobs = [entry for entry in use_by_job(snapshot) if entry.gpu_type == use.gpu_type and entry.job != own]
    lines = [_holder(entry, snapshot) for entry in jobs[:HOLDERS_NAMED]]
    if len(jobs) > HOLDERS_NAMED:
        rest = sum(entry.held for entry in jobs[HOLDERS_NAMED:])
        lines.append(f"{count(len(jobs) - HOLDERS_NAMED, 'more job')} hold {rest}.")
    if use.others:
        namespaces = [name for name, held, _ in others(snapshot) if held]
        lines.append(f"Pods that are not Espalier's hold {use.others}, in {listed(namespaces[:HOLDERS_NAMED])}.")
    return lines


def _holder(use: JobUse, snapshot: Snapshot) -> str:
    parts = [f"{amount} {what}" for amount, what in ((use.base, "base"), (use.lent, "lent")) if amount]
    parts += [f"{use.promised} promised"] if use.promised else []
    parts += [f"{use.terminating} terminating"] if use.terminating else []
    left = duration(use.remaining_seconds)
    if use.held == use.terminating:
        until = "and is giving them back"
    elif use.training:
        until = f"until its time budget ends, in {left} at most"
    else:
        until = f"with {left} of its time budget left, which do not count before it trains"
    text = f"Job {use.job} holds {use.held} ({', '.join(parts)}) {until}"
    if use.lent:
        notice = next(job.terms.notice_seconds for job in snapshot.jobs if job.key == use.job)
        text += f"; those lent come back within a notice of {duration(notice)}"
    return text + "."


def _reservation(job: JobFacts, snapshot: Snapshot, plan: Plan) -> list[str]:
    refusal = plan.refusals.get(job.key)
    if refusal is None or refusal.starts_by is None:
        return []
    left = duration(refusal.starts_by - snapshot.taken_at)
    return [f"GPUs are kept for it: it starts in {left} at the latest, if no job fails and starts again."]


def _queue(job: JobFacts, snapshot: Snapshot, plan: Plan) -> list[str]:
    policy = configured(snapshot.rules.policy)
    unfinished = [other for other in snapshot.jobs if not other.finished]
    order = LendingOrder(Decision(shares=plan.shares), unfinished)
    waiting = [other for other in unfinished if other.admitted_at is None and not other.terms.suspend]
    keys = [other.key for other in order.sorted([job, *(other for other in waiting if other.key != job.key)])]
    names = keys[: keys.index(job.key)]
    if not names:
        return []
    named = ", ".join(names[:HOLDERS_NAMED]) + (", ..." if len(names) > HOLDERS_NAMED else "")
    verb = "waits" if len(names) == 1 else "wait"
    return [
        f"{count(len(names), 'job')} {verb} before it, {policy.queue_order} (policy {snapshot.rules.policy}): {named}."
    ]
