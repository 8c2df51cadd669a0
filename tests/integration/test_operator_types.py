"""Types of GPU on a real API server: jobs start on the type of their lease, and what they measure is kept with it."""

from __future__ import annotations

from typing import Any

from operators import World


def test_jobs_start_on_their_types_and_what_they_measure_is_kept_with_the_type(world: World) -> None:
    """The planner sees it in the next snapshot, and so does an operator that comes after."""
    types = {"fast": 0.25, "slow": 1.0}
    for gpu_type in types:
        world.kubelet.add_node(f"node-{gpu_type}", 1, gpu_type=gpu_type)
    world.trainers.step_seconds = types
    operator = world.operate(policy="gavel", persist_seconds=0.2)
    for name in ("one", "two"):
        world.jobs.make(name)
        world.until_condition(name, "Running", "True", "Running")

    def statuses() -> dict[str, Any]:
        return {name: world.jobs.status(name) for name in ("one", "two")}

    assert {status["scheduling"]["gpuType"] for status in statuses().values()} == set(types)
    for name, status in statuses().items():
        own = status["scheduling"]["gpuType"]
        (pod,) = world.pods(name).values()
        assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": own}
        assert {"name": "ESPALIER_GPU_TYPE", "value": own} in pod["spec"]["containers"][0]["env"]

    def kept(name: str) -> list[tuple[str, float]]:
        speeds = world.jobs.status(name).get("measurements", {}).get("speeds", ())
        return [(speed["gpuType"], speed["stepSeconds"]) for speed in speeds]

    for name, status in statuses().items():
        own = status["scheduling"]["gpuType"]
        world.until("what it measured is in its status", lambda name=name, own=own: kept(name) == [(own, types[own])])
    memory = operator.snapshot.policy_memory
    assert {tuple(names) for names, _ in memory["leases"]} == {
        (f"{world.namespace}/{name}",) for name in ("one", "two")
    }
    operator.stop()
    later = world.operate(policy="gavel")
    world.until("it plans", lambda: later.operator.snapshot is not None)
    seen = {job.key: [(speed.gpu_type, speed.step_seconds) for speed in job.speeds] for job in later.snapshot.jobs}
    assert seen == {f"{world.namespace}/{name}": kept(name) for name in ("one", "two")}
