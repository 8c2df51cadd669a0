"""Who gets which GPUs on a cluster: jobs, other people's pods, nodes that come, go and fail."""

from __future__ import annotations

from operators import World

from espalier_core.types.job import ALLOCATION_ANNOTATION

QUICK = {"preemption": {"noticeSeconds": 5, "cooldownSeconds": 0, "minRuntimeSeconds": 0}}
"""Preemption of jobs that are to be lent GPUs at once."""


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


def test_a_job_whose_class_is_gone_gives_back_what_it_was_lent_to_an_operator_that_starts(world: World) -> None:
    """It goes on with its base worker and its budget; when that ends, it waits for its specification."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    name = f"fleeting-{world.namespace}"
    world.server.request("POST", classes, {"metadata": {"name": name}, "value": 1000})
    world.kubelet.add_node("node", 2)
    first = world.operate()
    world.jobs.make("old", maxReplicas=2, priorityClassName=name, **QUICK)
    world.until("the extra worker runs", lambda: len(world.running("old")) == 2)
    first.stop()
    world.server.request("DELETE", f"{classes}/{name}")
    world.operate()
    world.jobs.make("new")
    world.until_condition("new", "Running", "True", "Running")
    assert world.running("old") == ["old-base-0-0"]
    used = world.jobs.status("old")["timeBudget"]["usedSeconds"]
    world.until("its budget runs", lambda: world.jobs.status("old")["timeBudget"]["usedSeconds"] > used)
    world.until_event("old", "InvalidSpec")
    world.delete_pod("old-base-0-0")
    world.until_condition("old", "Admitted", "False", "InvalidSpec")
    assert "admittedAt" not in world.jobs.status("old")["scheduling"]


def test_workers_require_the_node_that_was_chosen_for_them(world: World) -> None:
    """One whose node is gone before it is bound is made again elsewhere, and that is not counted."""
    world.kubelet.add_node("small", 1)
    world.kubelet.add_node("large", 4)
    world.kubelet.binds = False
    world.operate()
    world.jobs.make("job")
    world.until("it is made", lambda: list(world.pods("job")) == ["job-base-0-0"])
    affinity = world.pods("job")["job-base-0-0"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    small = [{"key": "metadata.name", "operator": "In", "values": ["small"]}]
    assert [term["matchFields"] for term in terms] == [small] * len(terms)
    world.kubelet.remove_node("small")
    world.until("it is made again", lambda: list(world.pods("job")) == ["job-base-0-1"])
    world.kubelet.binds = True
    world.kubelet.set_gpus("large", 3)
    world.until_condition("job", "Running", "True", "Running")
    status = world.jobs.status("job")
    assert (status["restarts"], status["preemptions"], status["scheduling"]["failures"]) == (0, 0, 0)
    assert world.pods("job")["job-base-0-1"]["spec"]["nodeName"] == "large"


def test_kube_scheduler_chooses_after_it_refused_a_chosen_node(world: World) -> None:
    """It knows that a volume is elsewhere."""
    world.kubelet.add_node("small", 1)
    world.kubelet.add_node("large", 4)
    world.kubelet.refuses = lambda pod: "volume node affinity conflict" if "matchFields" in str(pod["spec"]) else None
    world.operate()
    world.jobs.make("job")
    world.until_condition("job", "Running", "True", "Running")
    assert list(world.pods("job")) == ["job-base-0-1"]
    assert world.jobs.status("job")["scheduling"].get("unplaced", 0) == 0


def test_a_job_that_is_scaled_down_gives_back_what_it_was_lent(world: World) -> None:
    """With notice; another job gets it."""
    world.kubelet.add_node("node", 3)
    world.operate()
    world.jobs.make("job", maxReplicas=3, **QUICK)
    world.until("it has all GPUs", lambda: len(world.running("job")) == 3)
    world.jobs.make("wide", minReplicas=2, maxReplicas=2, suspend=True)
    world.server.request("PATCH", f"{world.jobs.path}/job/scale", {"spec": {"replicas": 1}})
    world.until("it gives back", lambda: world.running("job") == ["job-base-0-0"])
    world.until_event("job", "AtMaxReplicas", "ReclaimAcknowledged")
    assert world.jobs.status("job")["preemptions"] == 0
    world.jobs.change("wide", suspend=False)
    world.until_condition("wide", "Running", "True", "Running")


def test_a_job_runs_by_the_operator_that_it_names(world: World) -> None:
    """Another ignores it, and counts its pods as those of others."""
    world.kubelet.add_node("node", 2)
    first = world.operate()
    world.jobs.make("second", gpus=2, controllerName="example.com/second")
    world.jobs.make("first")
    world.until_condition("first", "Running", "True", "Running")
    assert [job.key for job in first.snapshot.jobs] == [f"{world.namespace}/first"]
    assert "conditions" not in world.jobs.status("second")
    world.operate(controller_name="example.com/second")
    world.until_condition("second", "Admitted", "False", "NoFreeGPU")
    world.trainers.ends_when = lambda job, pods: 0 if job["metadata"]["name"] == "first" else None
    world.jobs.server.request("PATCH", f"{world.jobs.path}/first", {"metadata": {"labels": {"look": "now"}}})
    world.until_condition("first", "Complete", "True", "BudgetExhausted")
    world.until_condition("second", "Running", "True", "Running")
    world.until(
        "the first operator sees whose pod holds the GPUs",
        lambda: [(w.is_rival, w.node, w.gpus) for w in first.snapshot.workers] == [(True, "node", 2)],
    )
