"""What becomes of a job on a cluster: reports, suspension, failures, budgets, its end and its deletion."""

from __future__ import annotations

import pytest
from operators import World
from trainers import Raw

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_a_job_may_be_deleted_at_any_moment(world: World, policy: str) -> None:
    """Waiting, starting, training, giving back: its GPUs come free, nothing is left, nothing holds it up."""
    world.kubelet.add_node("node", 2)
    operator = world.operate()
    quick = {"preemption": {"noticeSeconds": 30, "cooldownSeconds": 0, "minRuntimeSeconds": 0}}
    world.trainers.stubborn.add("giving")
    world.trainers.silent.add("starting")
    world.jobs.make("giving", maxReplicas=2, **quick)
    world.until("both workers run", lambda: len(world.running("giving")) == 2)
    world.jobs.make("waiting")
    world.until_condition("giving", "ReclaimPending", "True", "NeededByOtherJob")
    assert "finalizers" not in world.jobs.get("giving")["metadata"]

    def delete(name: str) -> None:
        world.jobs.delete(name, propagationPolicy=policy)
        key = f"{world.namespace}/{name}"
        world.until(f"{name} is forgotten", lambda: key not in {job.key for job in operator.snapshot.jobs})
        if policy == "Foreground":  # the job is there until a garbage collector has removed what it owns
            world.server.request("PATCH", f"{world.jobs.path}/{name}", {"metadata": {"finalizers": None}})

    delete("giving")
    world.until_condition("waiting", "Running", "True", "Running")
    world.jobs.make("starting", priority=1)
    world.until("its leader starts", lambda: world.running("starting"))
    world.jobs.make("queued", gpus=2)
    world.until_condition("queued", "Admitted", "False", "NoFreeGPU")
    for name in ("queued", "starting", "waiting"):
        delete(name)

    def left() -> list[Raw]:
        kinds = ("pods", "services", "configmaps", "serviceaccounts")
        found = [world.server.request("GET", f"/api/v1/namespaces/{world.namespace}/{kind}")["items"] for kind in kinds]
        return [item for items in found for item in items if item["metadata"]["name"] != "default"]

    world.until("nothing is left", lambda: not left())
    world.until("the planner has forgotten them", lambda: operator.snapshot.jobs == () == operator.snapshot.workers)
    world.jobs.make("next", gpus=2)
    world.until_condition("next", "Running", "True", "Running")


def test_a_deleted_job_that_a_finalizer_holds_keeps_no_gpus(world: World) -> None:
    """Nobody would count its budget any more, nor reclaim what it was lent."""
    world.kubelet.add_node("node", 2)
    world.operate()
    world.jobs.make("held", maxReplicas=2, preemption={"cooldownSeconds": 0, "minRuntimeSeconds": 0})
    world.until("both workers run", lambda: len(world.running("held")) == 2)
    world.server.request("PATCH", f"{world.jobs.path}/held", {"metadata": {"finalizers": ["example.com/backup"]}})
    world.jobs.delete("held", propagationPolicy="Background")
    world.jobs.make("next", gpus=2)
    world.until_condition("next", "Running", "True", "Running")
    assert "deletionTimestamp" in world.jobs.get("held")["metadata"]
    world.server.request("PATCH", f"{world.jobs.path}/held", {"metadata": {"finalizers": None}})


def test_a_deletion_that_is_to_leave_the_pods_leaves_them(world: World) -> None:
    """`kubectl delete --cascade=orphan`; a garbage collector then takes their owner and the finalizer away."""
    world.kubelet.add_node("node", 1)
    operator = world.operate()
    world.jobs.make("left")
    world.until_condition("left", "Running", "True", "Running")
    world.jobs.delete("left", propagationPolicy="Orphan")
    world.until("it is forgotten", lambda: operator.snapshot.jobs == ())
    world.jobs.make("next")
    world.until_condition("next", "Admitted", "False", "NoFreeGPU")
    assert world.running("left")
    world.server.request("PATCH", f"{world.jobs.path}/left", {"metadata": {"finalizers": None}})
