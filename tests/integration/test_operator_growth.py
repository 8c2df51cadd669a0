"""The policy `growth` on a real API server: the spare GPU goes to who gains by growing, and comes back."""

from __future__ import annotations

from typing import Any

from operators import World

LENDING: Any = {"noticeSeconds": 5, "cooldownSeconds": 0, "minRuntimeSeconds": 0}


def test_the_spare_gpu_goes_to_who_gains_and_comes_back_once_it_has_grown(world: World) -> None:
    """What leaders say is kept in the status, so an operator that comes after decides by it at once."""
    world.kubelet.add_node("node", 3)
    gains = {"older": 0.0, "gains": 0.05}
    world.trainers.gains = gains
    operator = world.operate(policy="growth", persist_seconds=0.2)
    for name in gains:
        world.jobs.make(name, maxReplicas=2, preemption=LENDING)
        world.until_condition(name, "Running", "True", "Running")
    world.until_lent("gains")
    assert world.jobs.status("older")["replicas"] == 1
    world.until("it is kept", lambda: growth_of(world, "gains") == 0.05)
    operator.stop()
    later = world.operate(policy="growth", persist_seconds=0.2)
    world.until("it plans", lambda: later.operator.snapshot is not None)
    assert {job.key.split("/")[1]: job.growth and job.growth.gain for job in later.snapshot.jobs} == gains
    assert world.jobs.status("gains")["replicas"] == 2
    gains |= {"older": 0.05, "gains": 0.0}
    for name in gains:  # a change of a job makes its leader report again
        touched = {"metadata": {"annotations": {"touched": "yes"}}}
        path = f"/apis/espalier.dev/v1alpha1/namespaces/{world.namespace}/adaptivetrainingjobs/{name}"
        world.server.request("PATCH", path, touched)
    world.until_lent("older")
    world.until("it is back", lambda: world.running("gains") == ["gains-base-0-0"])
    assert world.jobs.status("gains")["preemptions"] == 0


def growth_of(world: World, name: str) -> float | None:
    growth = world.jobs.status(name).get("measurements", {}).get("growth")
    return None if growth is None else float(growth["gain"])
