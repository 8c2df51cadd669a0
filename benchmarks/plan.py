"""Measures the time of `plan`: `.venv/bin/python benchmarks/plan.py [--jobs 1000] [--nodes 5000] [--json]`.

The snapshot is the worst case of a tick. Every node has 8 GPUs, running jobs hold base and extra workers, as many jobs
wait as run, and pods of others are pending, so the plan contains free GPUs, reclaims and refusals. The jobs have three
priorities and hold equal shares, so a sixth of all lent GPUs is moved in this tick. In the last case all jobs have the
same priority, and nothing is moved.

With constraints, jobs request CPU, memory and a place among the pods of a node. A tenth of them require one of four
zones, and a tenth of the nodes have CPUs for half of their GPUs only. With racks, nodes carry the
labels of one of four zones and of a rack of 16 nodes. Times are CPU time of the process, so others on the machine
hardly count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from itertools import product

from harness.printed import environment, rendered

from espalier_operator.constraints import Constraints
from espalier_operator.facts import JobFacts, Node, Role, Snapshot, Terms, Worker, WorkerState
from espalier_operator.plan import plan
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.topology import ZONE_LABEL

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
        terms = Terms(
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
            for role, count in ((Role.BASE, base), (Role.EXTRA, extra)):
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
        Worker(name=f"foreign-{n}", job=None, role=Role.FOREIGN, node=None, gpus=4, state=WorkerState.PENDING)
        for n in range(jobs // 20)
    )
    return Snapshot(taken_at=100.0, nodes=machines, workers=(*workers, *foreign), jobs=tuple(facts))


def constrained(snapshot: Snapshot) -> Snapshot:
    """Return `snapshot` with nodes and jobs as the last paragraph above says."""
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


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for (case, free_part, priorities), (has_constraints, has_racks) in product(CASES, VARIANTS):
        snapshot = full_cluster(options.jobs, options.nodes, free_part, priorities)
        if has_constraints:
            snapshot = constrained(snapshot)
        if has_racks:
            snapshot = racked(snapshot)
        times = []
        for _ in range(options.repeats):
            begin = time.process_time()
            planned = plan(snapshot, FairPolicy(), snapshot.taken_at)
            times.append((time.process_time() - begin) * 1000)
        rows.append(
            {
                "case": case,
                "constraints": has_constraints,
                "racks": has_racks,
                "jobs": options.jobs,
                "nodes": options.nodes,
                "workers": len(snapshot.workers),
                "actions": len(planned.actions),
                "medianMs": round(statistics.median(times), 1),
                "minMs": round(min(times), 1),
                "maxMs": round(max(times), 1),
            }
        )
    if options.json:
        print(json.dumps({"rows": rows, "environment": environment()}))
        return
    print(rendered(f"plan(), {options.repeats} repeats", list(rows[0]), [list(map(str, row.values())) for row in rows]))
    print(environment())


if __name__ == "__main__":
    main()
