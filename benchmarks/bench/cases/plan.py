"""The time of `plan`, and of a tick of the operator around it.

The snapshot is the worst case of a tick. Every node has 8 GPUs, running jobs hold base and extra workers, as many jobs
wait as run, and pods of others are pending, so the plan contains free GPUs, reclaims and refusals. The jobs have three
priorities and hold equal shares, so a sixth of all lent GPUs is moved in this tick. In the last case all jobs have the
same priority, and nothing is moved.

With constraints, jobs request CPU, memory and a place among the pods of a node. A tenth of them require one of four
zones, and a tenth of the nodes have CPUs for half of their GPUs only. With racks, nodes carry the
labels of one of four zones and of a rack of 16 nodes.

The rows after these have a tenth of the GPUs free, and a thousand different constraints: each job requests another
amount of CPU, tolerates another taint, or rules out another node by its host name.

The last rows are the cluster of `make bench-operator`: pods of others hold all GPUs that the base workers of 1,000 jobs
do not need, 20,000 pods without GPUs run there too, and 0 or 150 GPUs have just come free.

No snapshot is planned twice, because a plan uses again what the last ones knew of nodes (`cluster/node_index.py`). Each
differs from the one before it by one event. `podMs`: a pod has come or gone, and a second has passed; most events are
like this. `nodeMs`: besides, the labels of a node have changed, so nothing of the nodes can be used again. Both are
medians, and `maxMs` is the most of all.

The tick is one of the cluster of `make bench-operator`: pods of others hold the GPUs that the jobs' base workers do not
need, and four pods without GPUs run on each node. All jobs are admitted and train. The store, the jobs and the writer
are the operator's own. The API server answers from memory, outside of the times that are measured. Before each tick a
second passes, a GPU of another pod comes free, and a tenth of the leaders report. The parts: `look` brings all jobs up
to date and makes the snapshot, `plan` plans by it, `record` carries out the actions and queues what is to be written.
`sync_figures` is what the loop does when there is news and no plan is due.

Times are CPU time of the process, so others on the machine hardly count. Garbage is collected as rarely as in the
operator.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from bench.command import Option
from bench.load import objects
from bench.load.objects import Case, layout_of
from bench.load.snapshots import after_nodes, after_pods, snapshots
from bench.printing import Parts, Table
from espalier_core.k8s import resources
from espalier_core.k8s.resources import Raw, Resource
from espalier_operator.kube.apply.writer import JobWriter
from espalier_operator.kube.backend import KubeBackend
from espalier_operator.kube.metrics.exporter import OperatorMetrics
from espalier_operator.kube.objects.pods import parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.store import Store
from espalier_operator.model import Rules, Snapshot
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.policies.memory import RecentUse

OPTIONS: Final = {"jobs": Option(1000), "nodes": Option(5000), "repeats": Option(10), "ticks": Option(20)}
QUICK: Final = {"jobs": 40, "nodes": 60, "repeats": 2, "ticks": 3}


def milliseconds(each: Iterable[Snapshot]) -> tuple[list[float], int]:
    """Return the CPU time of a plan by each snapshot but the first, and how many actions the last plan had."""
    times, actions = list[float](), 0
    gc.collect()
    for snapshot in each:
        begin = time.process_time()
        planned = plan(snapshot, FairPolicy(), snapshot.taken_at)
        times.append((time.process_time() - begin) * 1000)
        actions = len(planned.actions)
    return times[1:], actions


_WARM_UP: Final = 3
"""Ticks that are not counted."""


class VirtualClock:
    """Time that passes when it is set."""

    def __init__(self) -> None:
        """Begin with now."""
        self.time = time.time()

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self.time

    def wall_seconds(self, seconds: float) -> float:
        """Return a time that does not pass here."""
        return 1e6


class ApiServer:
    """Answers what the writer asks, and shows the store what follows: pods are bound where they are to be, and run."""

    def __init__(self, settings: KubeSettings) -> None:
        """Nothing is there yet."""
        self._settings, self._version = settings, 0
        self.jobs: dict[str, Raw] = {}
        self.reports: dict[str, Raw] = {}
        self.leaders: dict[str, str] = {}
        """By job: the UID of its first pod."""
        self.pods: list[Raw] = []
        """Made since they were last taken."""

    def stored(self, raw: Mapping[str, Any]) -> Raw:
        """Return an object as it is kept: with a version, and a UID."""
        self._version += 1
        given = {"uid": f"uid-{self._version}", "generation": 1, "creationTimestamp": objects.now_text()}
        return {**raw, "metadata": {**given, **raw["metadata"], "resourceVersion": str(self._version)}}

    async def create(self, manifest: Mapping[str, Any], owner: str | None) -> Raw | None:
        """Make an object."""
        made = self.stored(manifest)
        if manifest["kind"] == "ConfigMap":
            self.reports[owner or ""] = made
        elif manifest["kind"] == "Pod":
            status = {"phase": "Running", "startTime": objects.now_text(), "containerStatuses": []}
            made = {
                **made,
                "spec": {**made["spec"], "nodeName": parse_pod(made, self._settings).pinned_to},
                "status": status,
            }
            self.leaders.setdefault(owner or "", made["metadata"]["uid"])
            self.pods.append(made)
        return made

    async def put_status(
        self, resource: Resource, namespace: str, name: str, uid: str, version: str, status: Any
    ) -> Raw | None:
        """Put a job's status in place of the one that it has."""
        self.jobs[uid] = self.stored({**self.jobs[uid], "status": status})
        return self.jobs[uid]

    async def patch(self, resource: Resource, namespace: str, name: str, uid: str, body: Any) -> Raw | None:
        """Annotate a pod: nobody reads that here."""
        return None

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Raw | None:
        """Delete nothing: no job ends here."""
        return None


class Cluster:
    """The operator's parts over a cluster in memory."""

    def __init__(self, case: Case) -> None:
        """List everything."""
        settings, rules = KubeSettings(), Rules()
        layout = layout_of(case)
        self.clock, self.api, self.store = VirtualClock(), ApiServer(settings), Store(settings, lambda: self.clock.time)
        stored = self.api.stored
        self.api.jobs = {job["metadata"]["uid"]: job for job in map(stored, layout.jobs)}
        running = ({**pod, "status": {"phase": "Running"}} for pod in [*layout.foreign, *layout.idle])
        self.foreign = {objects.key(pod): pod for pod in map(stored, running)}
        self.single = [f"{objects.NAMESPACES[0]}/{name}" for name in layout.single]
        for resource in (resources.PRIORITY_CLASSES, resources.QUEUES, resources.CONFIG_MAPS):
            self.store.replace(resource, (), 1)
        self.store.replace(resources.NODES, [stored(objects.node(number)) for number in range(case.nodes)], 1)
        self.store.replace(resources.PODS, self.foreign.values(), 1)
        self.store.replace(resources.JOBS, self.api.jobs.values(), 1)
        metrics = OperatorMetrics()
        writer = JobWriter(self.api, self.store, settings, self.clock, metrics)  # type: ignore[arg-type]
        use = RecentUse(rules.fair_share_half_life_seconds)
        self.backend = KubeBackend(self.store, writer, settings, self.clock, rules, metrics.signals, lambda: None, use)

    async def tick(self) -> dict[str, float]:
        """Look, plan and record once; return the CPU milliseconds of each. Then let everything be written."""
        self.store.all_listed()
        begun = time.process_time()
        snapshot = await self.backend.observe()
        looked = time.process_time()
        planned = plan(snapshot, FairPolicy(), snapshot.taken_at)
        thought = time.process_time()
        for action in planned.actions:
            await self.backend.apply(action)
        self.backend.planned(snapshot, planned)
        recorded = time.process_time()
        await self.written()
        parts = {"look": looked - begun, "plan": thought - looked, "record": recorded - thought}
        return {name: 1000 * seconds for name, seconds in parts.items()}

    def sync_figures(self) -> float:
        """Glance once; return the CPU milliseconds."""
        begun = time.process_time()
        self.backend.sync_figures()
        return 1000 * (time.process_time() - begun)

    async def written(self) -> None:
        """Wait until all is written that was queued, and show what was made."""
        while not self.backend.queue.is_idle():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        made, self.api.pods = self.api.pods, []
        for pod in made:
            self.store.take(resources.PODS, "ADDED", pod)

    def report(self, part: int, of: int, seconds: float) -> None:
        """Let one of `of` equal parts of the leaders report."""
        for number, (uid, leader) in enumerate(self.api.leaders.items()):
            if number % of == part:
                name = self.api.jobs[uid]["metadata"]["name"]
                data = objects.report(name, leader, generation=10**6, seconds=seconds)
                stored = self.api.stored({**self.api.reports[uid], **data})
                self.store.take(resources.CONFIG_MAPS, "MODIFIED", stored)

    def free_one(self) -> None:
        """Delete a pod of somebody else that holds one GPU."""
        key = self.single.pop()
        self.store.take(resources.PODS, "DELETED", self.api.stored(self.foreign.pop(key)))


async def measured(case: Case, ticks: int) -> dict[str, float]:
    """Return the median CPU milliseconds of each part of a tick."""
    cluster = Cluster(case)
    for _ in range(3):  # admit, see the pods, see the reports
        await cluster.tick()
        cluster.report(0, 1, 1.0)
        cluster.clock.time += 1
    collect_rarely()
    parts: dict[str, list[float]] = {}
    for number in range(_WARM_UP + ticks):
        cluster.clock.time += 1
        cluster.report(number % 10, 10, 2.0 + number)
        took = {"sync_figures": cluster.sync_figures()}
        await cluster.written()
        cluster.free_one()
        took |= await cluster.tick()
        for name, milliseconds in took.items() if number >= _WARM_UP else ():
            parts.setdefault(name, []).append(milliseconds)
    return {name: statistics.median(times) for name, times in parts.items()}


def collect_rarely() -> None:
    """Let Python look for garbage as rarely as it does in the operator."""
    gc.collect()
    gc.freeze()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, 100 * old)


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time the plans of each case."""
    for case, has_constraints, has_racks, snapshot in snapshots(options.jobs, options.nodes):
        pods, actions = milliseconds(after_pods(snapshot, options.repeats + 1))
        nodes, _ = milliseconds(after_nodes(snapshot, options.repeats + 1))
        yield {
            "case": case,
            "constraints": has_constraints,
            "racks": has_racks,
            "workers": len(snapshot.workers),
            "actions": actions,
            "podMs": round(statistics.median(pods), 1),
            "nodeMs": round(statistics.median(nodes), 1),
            "maxMs": round(max(*pods, *nodes), 1),
        }


def run(options: argparse.Namespace) -> Parts:
    """Measure plans, then ticks."""
    collect_rarely()
    names = ("case", "constraints", "racks", "workers", "actions", "podMs", "nodeMs", "maxMs")
    yield Table.of(
        f"CPU time of plan() after a pod and after a node has changed, medians of {options.repeats} snapshots each",
        [(name, name, "" if name in ("case", "constraints", "racks") else "g") for name in names],
        rows(options),
    )
    nodes, ticks = options.nodes, options.ticks
    case = Case(nodes=nodes, jobs=options.jobs, events=_WARM_UP + ticks, idle_pods=4 * nodes)
    figures = asyncio.run(measured(case, ticks))
    parts = [{"part": name, "ms": milliseconds} for name, milliseconds in figures.items()]
    yield Table.of(f"one tick, median of {ticks}, CPU ms", [("part", "part", ""), ("ms", "ms", ".1f")], parts)
