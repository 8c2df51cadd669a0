"""Why there are no GPUs for a job: how many there are, who holds them, and until when at most. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from espalier_cli.cluster.usage import JobUse, TypeUse, others, use_by_job, use_by_type
from espalier_cli.cluster.wording import amount, count, duration, listed, of_type
from espalier_operator.model import JobFacts, Node, Snapshot
from espalier_operator.model.actions import Plan
from espalier_operator.policies.order import Order
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Decision

HOLDERS_NAMED = 5


def needs(job: JobFacts) -> str:
    """Say what a waiting job needs."""
    terms = job.terms
    each = f"{count(terms.gpus_per_worker, 'GPU')}{of_type(terms.gpu_type)}"
    if terms.min_replicas == 1:
        return f"It needs {each} on one node."
    one_type = "" if terms.gpu_type else ", all of one type"
    return f"It needs {terms.min_replicas} workers with {each} each, all at once{one_type}."


def scarcity(job: JobFacts, snapshot: Snapshot, plan: Plan) -> list[str]:
    """Say how the GPUs that the job could use are held, a line a type, and who waits before it by `plan`."""
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
    """Name what nodes with enough free GPUs have too little of for another worker."""
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
    order = Order(Decision(shares=plan.shares), unfinished)
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
