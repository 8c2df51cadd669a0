"""Facts that are only in pods: how a worker ended, under a real API server where others delete and change pods."""

from __future__ import annotations

from typing import Any

import pytest
from operators import World


def make(world: World, name: str, **spec: Any) -> None:
    """Make a program whose workers the fake trainers do not play."""
    world.trainers.silent.add(name)
    world.jobs.make(name, program={}, pod={"terminationGracePeriodSeconds": 1}, **spec)


def delete_ended(world: World, phase: str = "Succeeded") -> None:
    """Do as `kubectl delete pod --field-selector=status.phase=Succeeded`."""
    path = f"/api/v1/namespaces/{world.namespace}/pods"
    world.server.request("DELETE", path, fieldSelector=f"status.phase={phase}")


def completed(world: World, job: str) -> list[int]:
    """Return the workers of a job that are recorded as completed."""
    found: list[int] = world.jobs.status(job).get("scheduling", {}).get("completedWorkers", [])
    return found


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed")])
def test_an_end_counts_though_the_pod_is_deleted_in_the_same_moment(world: World, code: int, phase: str) -> None:
    world.kubelet.add_node("node", 1)
    world.operate(restart_seconds=0.1)
    make(world, "program")
    world.until_condition("program", "Running", "True", "Running")
    world.kubelet.end(world.namespace, "program-base-0-0", code)
    delete_ended(world, phase)
    if code == 0:
        world.until_condition("program", "Complete", "True", "Completed")
    else:
        world.until("it is started again", lambda: world.running("program") == ["program-base-0-1"])
    status = world.jobs.status("program")
    assert (status["scheduling"]["failures"], status["preemptions"]) == (code, 0)


def test_ends_count_that_no_operator_was_there_to_see(world: World) -> None:
    """The pods go as well before the next one begins: the API server still knows what happened."""
    world.kubelet.add_node("node", 4)
    first = world.operate(restart_seconds=0.1)
    make(world, "done")
    make(world, "failed")
    make(world, "pair", minReplicas=2, maxReplicas=2)
    for job in ("done", "failed", "pair"):
        world.until_condition(job, "Running", "True", "Running")
    first.stop()
    for name, code in (("done-base-0-0", 0), ("failed-base-0-0", 1), ("pair-base-1-0", 0)):
        world.kubelet.end(world.namespace, name, code)
    delete_ended(world, "Failed")
    delete_ended(world)
    world.operate(restart_seconds=0.1)
    world.until_condition("done", "Complete", "True", "Completed")
    world.until("it is started again", lambda: world.running("failed") == ["failed-base-0-1"])
    world.until("that is recorded", lambda: completed(world, "pair") == [1])
    found = {job: world.jobs.status(job) for job in ("done", "failed", "pair")}
    assert [each["preemptions"] for each in found.values()] == [0, 0, 0]
    assert found["failed"]["scheduling"]["failures"] == 1
    assert set(world.pods("pair")) == {"pair-base-0-0"}
