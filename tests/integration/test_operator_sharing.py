"""Who gets which GPUs on a cluster: jobs, other people's pods, nodes that come, go and fail."""

from __future__ import annotations

from operators import World

from espalier_core.types.job import ALLOCATION_ANNOTATION


def test_extra_gpus_are_lent_noticed_acknowledged_and_given_to_the_second_job(world: World) -> None:
    """The whole story, in generations of the allocation."""
    world.kubelet.add_node("node", 2)
    world.operate()
    world.trainers.stubborn.add("first")
    world.jobs.make(
        "first", maxReplicas=4, preemption={"noticeSeconds": 20, "cooldownSeconds": 0, "minRuntimeSeconds": 0}
    )
    world.until_lent("first")
    world.until("the extra worker runs", lambda: world.running("first") == ["first-base-0-0", "first-extra-0-2"])
    lent = world.jobs.status("first")
    assert (lent["allocation"]["generation"], lent["allocation"]["replicas"], lent["replicas"]) == (2, 2, 2)
    extra = world.pods("first")["first-extra-0-2"]["spec"]
    assert (extra["priorityClassName"], extra["preemptionPolicy"]) == ("espalier-extra", "Never")

    world.jobs.make("second")
    world.until_condition("first", "ReclaimPending", "True", "NeededByOtherJob")
    asked = world.jobs.status("first")["allocation"]
    assert (asked["generation"], asked["replicas"], asked["direction"]) == (3, 1, "down")
    assert "deadline" in asked
    assert "first-extra-0-2" in world.running("first"), "it has until the deadline"
    world.until_condition("second", "Admitted", "False", "NoFreeGPU")
    world.until(
        "the way without API access says the same: the annotation follows the status",
        lambda: (
            '"generation": 3' in world.pods("first")["first-base-0-0"]["metadata"]["annotations"][ALLOCATION_ANNOTATION]
        ),
    )

    world.trainers.stubborn.clear()
    world.jobs.server.request("PATCH", f"{world.jobs.path}/first", {"metadata": {"labels": {"look": "now"}}})
    world.until_condition("second", "Running", "True", "Running")
    assert world.running("first") == ["first-base-0-0"]
    given = world.jobs.status("first")
    assert (given["preemptions"], given["replicas"]) == (0, 1)
    world.until("no reclaim is pending", lambda: world.jobs.condition("first", "ReclaimPending")[0] == "False")


def test_priority_classes_say_who_goes_first(world: World) -> None:
    """Their value wins over submission; a job with a class that is not there is told so, until it is there."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    name = f"urgent-{world.namespace}"
    world.kubelet.add_node("node", 1)
    world.make_foreign("foreign")
    world.kubelet.wait_running(world.namespace, "foreign")
    world.operate()
    world.jobs.make("patient")
    world.jobs.make("urgent", priorityClassName=name)
    world.until_condition("patient", "Admitted", "False", "NoFreeGPU")
    world.until_condition("urgent", "Admitted", "False", "InvalidSpec")
    message = next(c["message"] for c in world.jobs.status("urgent")["conditions"] if c["type"] == "Admitted")
    assert f"there is no PriorityClass '{name}'" in message
    world.server.request("POST", classes, {"metadata": {"name": name}, "value": 1000})
    try:
        world.until_condition("urgent", "Admitted", "False", "NoFreeGPU")
        world.delete_pod("foreign")
        world.until_condition("urgent", "Running", "True", "Running")
        assert world.pods("urgent")["urgent-base-0-0"]["spec"]["priority"] == 1000
        assert world.jobs.condition("patient", "Admitted") == ("False", "NoFreeGPU")
    finally:
        world.server.request("DELETE", f"{classes}/{name}")
