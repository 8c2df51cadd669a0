"""Snapshots of which plans take long; the case `plan` describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Final

from bench.command import BenchError
from bench.load import objects
from bench.load.objects import Case, layout_of
from espalier_core.k8s import resources
from espalier_operator.cluster.node_index import ZONE_LABEL
from espalier_operator.kube.objects.jobs import InvalidJob, parse_job
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.store import Store
from espalier_operator.model import JobFacts, JobTerms, Node, Snapshot, Worker, WorkerRole, WorkerState
from espalier_operator.model.constraints import Constraints, NodeSelectorRequirement, NodeSelectorTerm, Toleration

GPUS_OF_A_NODE = 8
GPU_TYPES = ("a100", "h100")
CASES = (("full", 0.0, 3), ("a tenth free", 0.1, 3), ("half free", 0.5, 3), ("full, shared", 0.0, 1))
"""Name, part of the GPUs that is free, priorities."""
VARIANTS = ((False, False), (True, False), (False, True), (True, True))
"""Whether there are constraints, and racks."""
RACK = "example.com/rack"
NODES_OF_A_RACK = 16
GIBIBYTE = 2**30


def full_cluster(jobs: int, nodes: int, free_part: float, priorities: int) -> Snapshot:
    """Return a snapshot in which half of `jobs` run on the GPUs that are not free, and half wait."""
    machines = tuple(
        Node(name=f"node-{n:05}", gpu_type=GPU_TYPES[n % 2], allocatable=GPUS_OF_A_NODE) for n in range(nodes)
    )
    running = jobs // 2
    slots = {
        gpu_type: [m.name for m in machines if m.gpu_type == gpu_type for _ in range(GPUS_OF_A_NODE)]
        for gpu_type in GPU_TYPES
    }
    share = max(2, int(nodes * GPUS_OF_A_NODE * (1 - free_part) / max(1, running)))
    facts: list[JobFacts] = []
    workers: list[Worker] = []
    for number in range(jobs):
        gpu_type = GPU_TYPES[number % 2]
        runs = number < running
        base = share // 2 if runs else share
        key = f"ns/job-{number:05}"
        terms = JobTerms(
            min_replicas=base,
            max_replicas=base + share,
            priority=number % priorities,
            gpu_type=gpu_type,
            time_budget_seconds=1e5,
            cooldown_seconds=1.0,
            min_runtime_seconds=1.0,
        )
        extra = share - base if runs else 0
        facts.append(
            JobFacts(
                key=key,
                terms=terms,
                submitted_at=float(number),
                admitted_at=0.0 if runs else None,
                gpu_type=gpu_type if runs else None,
                extra=extra,
                granted_at=0.0 if runs else None,
                leader_running=runs,
                has_reported=runs,
                training=runs,
                trained=runs,
            )
        )
        if runs:
            for role, count in ((WorkerRole.BASE, base), (WorkerRole.EXTRA, extra)):
                workers += [
                    Worker(
                        name=f"{key}-{role}-{index}",
                        job=key,
                        role=role,
                        index=index,
                        node=slots[gpu_type].pop(),
                        gpus=1,
                        state=WorkerState.RUNNING,
                    )
                    for index in range(min(count, len(slots[gpu_type])))
                ]
    foreign = tuple(
        Worker(name=f"foreign-{n}", job=None, role=WorkerRole.FOREIGN, node=None, gpus=4, state=WorkerState.PENDING)
        for n in range(jobs // 20)
    )
    return Snapshot(taken_at=100.0, nodes=machines, workers=(*workers, *foreign), jobs=tuple(facts))


def constrained(snapshot: Snapshot) -> Snapshot:
    """Return `snapshot` with what its pods request, and with zones that some of them require."""
    ample = {"cpu": 128_000, "memory": 1024 * GIBIBYTE, "pods": 110}
    used = {"cpu": 4_000, "memory": 32 * GIBIBYTE, "pods": 8}
    nodes = tuple(
        replace(
            node,
            labels={**node.labels, ZONE_LABEL: f"zone-{n % 4}"},
            resources=ample if n % 10 else {**ample, "cpu": 40_000},
            used=used,
        )
        for n, node in enumerate(snapshot.nodes)
    )
    jobs = tuple(
        replace(job, terms=replace(job.terms, constraints=_constraints(n))) for n, job in enumerate(snapshot.jobs)
    )
    return replace(snapshot, nodes=nodes, jobs=jobs)


def racked(snapshot: Snapshot) -> Snapshot:
    """Return `snapshot` with nodes that carry the labels of their zone and rack, none in the order of racks."""
    racks = max(1, len(snapshot.nodes) // NODES_OF_A_RACK)
    nodes = tuple(
        replace(node, labels={**node.labels, ZONE_LABEL: f"zone-{n % racks % 4}", RACK: f"rack-{n % racks}"})
        for n, node in enumerate(snapshot.nodes)
    )
    return replace(snapshot, nodes=nodes, rules=replace(snapshot.rules, rack_label=RACK))


def _constraints(number: int) -> Constraints:
    requests = (("cpu", 4_000 * (1 + number % 3)), ("memory", 16 * GIBIBYTE * (1 + number % 3)), ("pods", 1))
    zone = ((ZONE_LABEL, f"zone-{number // 10 % 4}"),) if number % 10 == 9 else ()
    return Constraints(node_selector=zone, requests=requests)


HOSTNAME: Final = "kubernetes.io/hostname"
TENANTS: Final[dict[str, Callable[[int], Constraints]]] = {
    "CPU requests": lambda n: Constraints(requests=(("cpu", 4_000 + n), ("memory", 16 * GIBIBYTE), ("pods", 1))),
    "tolerations": lambda n: Constraints(tolerations=(Toleration(f"team-{n}", "Exists"),), requests=(("pods", 1),)),
    "nodes ruled out": lambda n: Constraints(
        affinity=(NodeSelectorTerm((NodeSelectorRequirement(HOSTNAME, "NotIn", (f"node-{n:05}",)),)),),
        requests=(("pods", 1),),
    ),
}
"""By what they differ in: the constraints of each job."""


def unlike(snapshot: Snapshot, constraints: Callable[[int], Constraints]) -> Snapshot:
    """Return `snapshot` with nodes that carry their host names, and for each job the constraints of its number."""
    nodes = tuple(replace(node, labels={**node.labels, HOSTNAME: node.name}) for node in snapshot.nodes)
    jobs = tuple(
        replace(job, terms=replace(job.terms, constraints=constraints(n))) for n, job in enumerate(snapshot.jobs)
    )
    return replace(snapshot, nodes=nodes, jobs=jobs)


def shared_cluster(jobs: int, nodes: int, idle_pods: int, freed: int) -> Snapshot:
    """Return what the operator sees of the cluster of `make bench-operator` when `freed` GPUs have come free."""
    settings = KubeSettings()
    layout, store = layout_of(Case(nodes=nodes, jobs=jobs, events=freed, idle_pods=idle_pods)), Store(settings)
    for number in range(nodes):
        store.take(resources.NODES, "ADDED", _stored(objects.node(number), number))
    for number, pod in enumerate([*layout.foreign[freed:], *layout.idle]):
        store.take(resources.PODS, "ADDED", _stored({**pod, "status": {"phase": "Running"}}, number))
    facts, workers = list[JobFacts](), list[Worker]()
    for number, raw in enumerate(layout.jobs):
        parsed = parse_job(_stored(raw, number), settings)
        if isinstance(parsed, InvalidJob):
            raise BenchError(f"{parsed.problems}")
        facts.append(
            JobFacts(
                key=objects.key(raw),
                terms=parsed.terms,
                submitted_at=float(number),
                admitted_at=1.0,
                gpu_type="",
                leader_running=True,
                has_reported=True,
                training=True,
                trained=True,
            )
        )
        for index in range(parsed.terms.min_replicas):
            node = objects.node_name(len(workers) // GPUS_OF_A_NODE)
            name = f"{objects.key(raw)}-base-{index}-0"
            workers.append(
                Worker(
                    name=name,
                    job=objects.key(raw),
                    role=WorkerRole.BASE,
                    index=index,
                    node=node,
                    gpus=1,
                    state=WorkerState.RUNNING,
                )
            )
    workers += store.foreign_workers.values()
    return Snapshot(
        taken_at=100.0, nodes=tuple(store.planned_nodes.values()), workers=tuple(workers), jobs=tuple(facts)
    )


def _stored(raw: dict[str, Any], number: int) -> dict[str, Any]:
    """Return an object as the API server would return it."""
    given = {"resourceVersion": "1", "uid": f"uid-{number}", "generation": 1, "creationTimestamp": objects.now_text()}
    return {**raw, "metadata": {**raw["metadata"], **given}}


def snapshots(jobs: int, nodes: int) -> Iterator[tuple[str, bool, bool, Snapshot]]:
    """Yield name, whether there are constraints and racks, and the snapshot of each case."""
    for (case, free_part, priorities), (has_constraints, has_racks) in product(CASES, VARIANTS):
        snapshot = full_cluster(jobs, nodes, free_part, priorities)
        if has_constraints:
            snapshot = constrained(snapshot)
        yield case, has_constraints, has_racks, racked(snapshot) if has_racks else snapshot
    for name, constraints in TENANTS.items():
        snapshot = constrained(full_cluster(jobs, nodes, 0.1, 3))
        yield f"different {name}", True, False, unlike(snapshot, constraints)
    for freed in (0, min(150, jobs // 2)):
        yield f"pods of others, {freed} free", True, False, shared_cluster(jobs, nodes, 4 * nodes, freed)


def after_pods(snapshot: Snapshot, count: int) -> Iterator[Snapshot]:
    """Yield `count` snapshots, a second apart: the last pod of `snapshot` has gone, and is there again, in turn."""
    for number in range(count):
        workers = snapshot.workers if number % 2 else snapshot.workers[:-1]
        yield replace(snapshot, taken_at=snapshot.taken_at + number, workers=workers)


def after_nodes(snapshot: Snapshot, count: int) -> Iterator[Snapshot]:
    """Yield the same, but with each of them the labels of another node have changed: no plan knows these nodes yet."""
    nodes = snapshot.nodes
    for number, each in enumerate(after_pods(snapshot, count)):
        place = number % len(nodes)
        changed = replace(nodes[place], labels={**nodes[place].labels, "changed": str(number)})
        nodes = (*nodes[:place], changed, *nodes[place + 1 :])
        yield replace(each, nodes=nodes)
