"""Random snapshots of crowded clusters: many nodes and jobs of few kinds; much is lent, reclaimed and reserved."""

from __future__ import annotations

from random import Random

from espalier_operator.cluster.node_index import ZONE_LABEL
from espalier_operator.model import JobFacts, JobTerms, Node, Reclaim, Rules, Snapshot, Worker, WorkerRole, WorkerState
from espalier_operator.model.constraints import ANYWHERE, Constraints, Taint, Toleration
from espalier_operator.model.queues import QueueLimits, Quota

NOW = 1000.0
RACK_LABEL = "example.com/rack"
_GPU_TYPES = ("a100", "h100")
_TAINT = Taint("team", "a")


def crowd(seed: int, *, nodes: int = 30, jobs: int = 40) -> Snapshot:
    """Return a snapshot of about this number of nodes and jobs; equal seeds, equal snapshots."""
    chance = Random(seed)
    machines = [_node(number, chance) for number in range(chance.randint(nodes // 3, nodes))]
    free = {node.name: node.allocatable for node in machines}
    workers, facts = list[Worker](), list[JobFacts]()
    waits = chance.choice((0.0, 0.05, 0.4))
    for number in range(chance.randint(jobs // 3, jobs)):
        facts.append(_job(number, chance, machines, free, workers, waits))
    for number in range(chance.randrange(4)):
        workers.append(_stranger(f"others/waits-{number}", None, chance.choice((1, 2, 4, 8)), chance))
    for node in machines:
        if free[node.name] and chance.random() < 0.2:
            workers.append(_stranger(f"others/on-{node.name}", node.name, chance.randint(1, free[node.name]), chance))
    queues = (QueueLimits(name="default", quotas=(Quota(nominal=nodes),)),) if chance.random() < 0.2 else ()
    rules = Rules(rack_label=RACK_LABEL if chance.random() < 0.5 else None, reservations=chance.choice((0, 2, 8)))
    return Snapshot(
        taken_at=NOW, nodes=tuple(machines), workers=tuple(workers), jobs=tuple(facts), queues=queues, rules=rules
    )


def _node(number: int, chance: Random) -> Node:
    departs = chance.random() < 0.03
    return Node(
        name=f"node-{number:03}",
        gpu_type=_GPU_TYPES[number % 2],
        allocatable=chance.choice((2, 4, 8, 8)),
        ready=chance.random() < 0.97,
        labels={ZONE_LABEL: f"zone-{number % 3}", RACK_LABEL: f"rack-{number % 7}"},
        taints=(_TAINT,) if chance.random() < 0.1 else (),
        resources=chance.choice(({}, {"cpu": 64_000, "pods": 110}, {"cpu": 9_000, "pods": 5})),
        used=chance.choice(({}, {"cpu": 2_000, "pods": 1})),
        departing=2 if departs else 0,
        departs_at=NOW + 60 if departs else None,
    )


def _constraints(chance: Random) -> Constraints:
    if chance.random() < 0.4:
        return ANYWHERE
    return Constraints(
        node_selector=((ZONE_LABEL, f"zone-{chance.randrange(3)}"),) if chance.random() < 0.3 else (),
        tolerations=(Toleration(_TAINT.key, "Exists"),) if chance.random() < 0.3 else (),
        requests=(("cpu", chance.choice((1_000, 2_000, 4_000))), ("pods", 1)),
    )


def _job(
    number: int, chance: Random, machines: list[Node], free: dict[str, int], workers: list[Worker], waits: float
) -> JobFacts:
    """Return a job that waits with probability `waits`, or where there is no room for it."""
    key, gpus = f"ns-{number % 3}/job-{number:03}", chance.choice((1, 1, 1, 2))
    constraints, base = _constraints(chance), chance.choice((1, 2, 4, 8))
    gpu_type = chance.choice((None, *_GPU_TYPES))
    terms = JobTerms(
        min_replicas=base,
        max_replicas=base + chance.choice((0, 2, 8)),
        gpus_per_worker=gpus,
        priority=chance.randrange(3),
        gpu_type=gpu_type,
        constraints=constraints,
        time_budget_seconds=chance.choice((500.0, 5000.0)),
        base_preemptible=chance.random() < 0.3,
        cooldown_seconds=chance.choice((0.0, 60.0)),
        min_runtime_seconds=chance.choice((0.0, 60.0)),
    )
    submitted = float(number)
    running_on = gpu_type or chance.choice(_GPU_TYPES)
    slots = [
        node.name
        for node in machines
        if node.gpu_type == running_on and node.admits(constraints)
        for _ in range(free[node.name] // gpus)
    ]
    if chance.random() < waits or (len(slots) < base and waits):
        return JobFacts(key=key, terms=terms, submitted_at=submitted)
    if chance.random() < 0.5:
        chance.shuffle(slots)
    extra = max(0, min(terms.max_replicas - base, len(slots) - base))
    if chance.random() < 0.3:
        extra //= 2
    for place, node in enumerate(slots[: base + extra]):
        role, index = (WorkerRole.BASE, place) if place < base else (WorkerRole.EXTRA, place - base)
        state, pinned = WorkerState.RUNNING, None
        if chance.random() < 0.03:
            state = WorkerState.TERMINATING
        elif chance.random() < 0.03:
            state, pinned = WorkerState.PENDING, node
        workers.append(
            Worker(
                name=f"{key}-{role}-{index}",
                job=key,
                role=role,
                index=index,
                node=None if pinned else node,
                pinned_to=pinned,
                gpus=gpus,
                state=state,
            )
        )
        free[node] -= gpus
    reclaim = None
    if extra and chance.random() < 0.1:
        reclaim = Reclaim(extra=extra // 2, deadline=NOW + 10, reason="NeededByOtherJob")  # type: ignore[arg-type]
    return JobFacts(
        key=key,
        terms=terms,
        submitted_at=submitted,
        admitted_at=submitted,
        gpu_type=running_on,
        generation=1,
        extra=extra,
        reclaim=reclaim,
        changed_at=chance.choice((None, NOW - 30)),
        leader_running=True,
        has_reported=chance.random() < 0.95,
        training=True,
        trained=True,
        used_seconds=chance.choice((0.0, 100.0, 400.0)),
    )


def _stranger(name: str, node: str | None, gpus: int, chance: Random) -> Worker:
    return Worker(
        name=name,
        job=None,
        role=WorkerRole.FOREIGN,
        node=node,
        gpus=gpus,
        state=WorkerState.PENDING if node is None else WorkerState.RUNNING,
        gpu_type=None if node else chance.choice((None, *_GPU_TYPES)),
        constraints=ANYWHERE if node else _constraints(chance),
    )
