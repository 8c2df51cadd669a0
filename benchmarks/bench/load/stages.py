"""What is measured of one case: convergence, GPUs that come free, and `plan` alone."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.load import objects
from bench.load.api import for_all
from bench.load.cluster import PATIENCE, REST_SECONDS, Cluster, Figures, Say, Tools, cluster_of
from bench.load.lending import Leaders, Raised, free_gpus
from bench.load.objects import Case, Layout, layout_of
from bench.load.world import World, condition, rank
from bench.statistics import percentile
from espalier_operator.model import Snapshot
from espalier_operator.planner import plan
from espalier_operator.policies.fair import FairPolicy

Raw = dict[str, Any]

_PLANS: Final = 10


async def measure(case: Case, tools: Tools, directory: Path, say: Say) -> tuple[Figures, str]:
    """Return the figures of one case, and the API server's version. `directory` (empty) takes data and logs."""
    layout = layout_of(case)
    async with cluster_of(case, layout, tools, directory, say) as cluster:
        figures = {**cluster.start, **await converge(case, layout, cluster, say)}
        if case.events and layout.foreign:
            await cluster.probe.rest(REST_SECONDS)
            figures |= await lend(case, layout, cluster, say)
        figures |= await plan_alone(cluster)
        figures["peakMiB"] = cluster.operator.memory_mib("VmHWM")
        log = cluster.operator.log.read_text(errors="replace")
        troubles = [line for line in log.splitlines() if " WARNING " in line or " ERROR " in line]
        figures["warnings"] = len(troubles)
        if cluster.api.ended_watches:
            say(f"the API server ended {cluster.api.ended_watches} watches of the benchmark: too much for the machine")
        for line in troubles[:5]:
            say(f"the operator reported: {line}")
        return figures, cluster.version


async def converge(case: Case, layout: Layout, cluster: Cluster, say: Say) -> Figures:
    """Submit all jobs and wait until each that fits has its status written and its pods made and bound."""

    async def submit(job: Raw) -> None:
        path = objects.path_of("adaptivetrainingjobs", job["metadata"]["namespace"], api=objects.JOBS_API)
        await cluster.api.request("POST", path, job)

    world, probe, count = cluster.world, cluster.probe, len(layout.jobs)
    cluster.audit.take()
    probe.begin()
    begun = time.monotonic()
    await for_all(layout.jobs, submit)
    submitted = time.monotonic() - begun
    say(f"{count} jobs submitted in {submitted:.1f} s")
    gpus = case.gpus - layout.foreign_gpus
    done = await world.wait_for(
        "jobs that fit are admitted and bound", lambda: _converged(world, count, gpus), PATIENCE
    )
    cpu, requests, waits = probe.cpu_seconds(), cluster.audit.take().counted, probe.waits()
    admitted = sum(condition(job, "Admitted") == "True" for job in world.jobs.values())
    say(f"converged after {done - begun:.1f} s: {admitted} jobs admitted with {cpu:.1f} CPU s")
    return {
        "submitSeconds": submitted,
        "convergeSeconds": done - begun,
        "admitted": admitted,
        "workers": sum(len(pods) for pods in world.workers().values()),
        "convergeCpuSeconds": cpu,
        "requestsPerJob": requests.total() / count,
        **{f"requestsPerJob {name}": number / count for name, number in sorted(requests.items())},
        "convergeWaitP99Ms": 1000 * percentile(waits, 0.99),
        "convergeWaitMaxMs": 1000 * max(waits),
    }


def _converged(world: World, count: int, gpus: int) -> bool:
    """Return whether all `count` jobs have their word, the admitted ones their pods, and the first to wait no room.

    `gpus` are those that other people's pods do not hold.
    """
    if len(world.jobs) < count:
        return False
    workers, waiting = world.workers(), []
    for job in world.jobs.values():
        need, admitted = job["spec"]["minReplicas"], condition(job, "Admitted")
        if admitted == "True" and len(workers.get(objects.key(job), ())) == need:
            gpus -= need
        elif admitted == "False":
            waiting.append(job)
        else:
            return False
    return not waiting or int(min(waiting, key=rank)["spec"]["minReplicas"]) > gpus


async def lend(case: Case, layout: Layout, cluster: Cluster, say: Say) -> Figures:
    """Let all leaders train, then free GPUs and time how long it takes until a leader sees that it is lent them."""
    world, probe, api = cluster.world, cluster.probe, cluster.api
    raises: list[Raised] = []
    leaders = Leaders(
        api, case.report_seconds, case.seed, lambda job, at, more: raises.extend([Raised(job, at)] * more)
    )
    workers = world.workers()
    found = []
    for job in sorted(world.jobs.values(), key=rank):
        name = f"{job['metadata']['name']}-base-0-0"
        found.append((job, next(pod for pod in workers[objects.key(job)] if pod["metadata"]["name"] == name)))
    begun = time.monotonic()
    try:
        await leaders.start(cluster.group, found)
        await world.wait_for("the operator knows that all leaders train", leaders.all_train, PATIENCE)
        say(f"all leaders train after {time.monotonic() - begun:.1f} s")
        await world.wait_for("no GPU is free", lambda: world.bound_gpus() == case.gpus, PATIENCE)
        cluster.audit.take()
        probe.begin()
        begun, own = time.monotonic(), time.process_time()
        with _no_pauses():
            figures = await free_gpus(api, world, leaders, layout.single, raises, case)
        seconds, waits, cores = time.monotonic() - begun, probe.waits(), probe.cores()
        figures["loadCores"] = (time.process_time() - own) / seconds
        requests = cluster.audit.take()
        say(f"{case.events} GPUs freed in {seconds:.0f} s; p99 of the answer {figures['reactionP99Ms']:.0f} ms")
        return {
            **figures,
            "steadyCores": cores,
            "steadyRequestsPerSecond": requests.counted.total() / seconds,
            "steadyWriteP50Ms": 1000 * percentile(requests.write_seconds, 0.5),
            "steadyWriteP99Ms": 1000 * percentile(requests.write_seconds, 0.99),
            "steadyWaitP99Ms": 1000 * percentile(waits, 0.99),
            "steadyWaitMaxMs": 1000 * max(waits),
        }
    finally:
        leaders.stop()


@contextmanager
def _no_pauses() -> Iterator[None]:
    """Keep Python from looking for garbage in this process: a thousand leaders would hear of nothing meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def plan_alone(cluster: Cluster) -> Figures:
    """Time `plan` on what the operator sees now."""
    text = await cluster.probe.snapshot()
    if text is None:
        raise RuntimeError("the operator gives no snapshot any more")
    snapshot, times = Snapshot.from_json(text), []
    gc.collect()
    gc.freeze()  # as the operator does
    for _ in range(_PLANS):
        begun = time.process_time()
        plan(snapshot, FairPolicy(), snapshot.taken_at)
        times.append(time.process_time() - begun)
    return {"planMs": 1000 * statistics.median(times), "planMaxMs": 1000 * max(times)}
