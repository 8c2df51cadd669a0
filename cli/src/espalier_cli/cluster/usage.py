"""Who holds which GPUs, added up from a snapshot. Pure; what counts as held is what counts for the planner."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from espalier_operator.kube.inspection import KubeSettings
from espalier_operator.model import Blame, JobFacts, Role, Snapshot, Worker, WorkerState
from espalier_operator.model.constraints import REPELLING


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeUse:
    """The GPUs of one type on the nodes that count.

    `base + lent + others + terminating + promised + free` is `total + short` while what is promised is free still.
    """

    gpu_type: str
    nodes: int
    total: int
    base: int
    lent: int
    others: int
    """Held by pods that are not of our jobs."""
    terminating: int
    promised: int
    """Granted to jobs whose pods are not bound to a node yet; not free any more."""
    free: int
    largest_free: int
    """The most that are free on one node: a worker's GPUs are all on one."""
    short: int
    """Held beyond what nodes have: GPUs that failed in use."""


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
        """All of them."""
        return self.base + self.lent + self.terminating + self.promised


def use_by_type(snapshot: Snapshot) -> list[TypeUse]:
    """Return the use of each type of GPU that a node has, in order of name."""
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
    """Return what each job holds or is promised, those with the most first; jobs with nothing are left out."""
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
    """Return (namespace, GPUs held, GPUs waited for) of pods that are not of our jobs, those with the most first."""
    held: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for worker in snapshot.workers:
        if worker.role is Role.FOREIGN:
            amount = wanted if worker.node is None else held
            amount[worker.name.partition("/")[0]] += worker.gpus
    names = sorted({*held, *wanted}, key=lambda name: (-held[name] - wanted[name], name))
    return [(name, held[name], wanted[name]) for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidedUse:
    """A node that jobs avoid because it refused, failed or ended their workers."""

    node: str
    jobs: int
    """How many unfinished jobs avoid it for what it did to them."""
    by_all: bool
    """Whether other jobs avoid it, too."""
    seconds: float
    """For how long still, at least one of them."""
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
    """Return why the GPUs of a node of the API server do not count; nothing where they do."""
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
        repeated = taint.get("key", "").startswith("node.kubernetes.io/")  # the problem above, as a taint
        if not known and not (repeated and reasons):
            reasons.append(f"tainted {taint.get('key')}:{taint['effect']}")
    return reasons


def _use_of(worker: Worker) -> str:
    if worker.state is WorkerState.TERMINATING:
        return "terminating"
    return {Role.BASE: "base", Role.EXTRA: "lent", Role.FOREIGN: "others"}[worker.role]


def _promised(job: JobFacts, workers: Iterable[Worker], due: bool) -> int:
    """Return the GPUs that are granted to a job and not bound to a node yet."""
    if job.admitted_at is None or job.finished:
        return 0
    live = [worker for worker in workers if worker.state is not WorkerState.TERMINATING]
    bound = Counter(worker.role for worker in live if worker.node is not None)
    unbound = sum(worker.role is Role.EXTRA and worker.node is None for worker in live)
    base = max(0, job.terms.min_replicas - bound[Role.BASE])
    extra = max(0, job.extra - bound[Role.EXTRA]) if due else min(unbound, job.extra)
    return (base + extra) * job.terms.gpus_per_worker
