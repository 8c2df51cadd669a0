"""Who gets which GPUs on a cluster: jobs, other people's pods, nodes that come, go and fail."""

from __future__ import annotations

import pytest
from operators import World

from espalier_core.types.job import ALLOCATION_ANNOTATION
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Rules

QUICK = {"preemption": {"noticeSeconds": 5, "cooldownSeconds": 0, "minRuntimeSeconds": 0}}
"""Preemption of jobs that are to be lent GPUs at once."""


def test_the_second_job_waits_for_the_gpu_of_the_first_and_is_reported(world: World) -> None:
    """Conditions and Events say why."""
    world.kubelet.add_node("node", 1)
    world.operate()
    world.jobs.make("first")
    world.until_condition("first", "Running", "True", "Running")
    world.jobs.make("second")
    world.until_condition("second", "Admitted", "False", "NoFreeGPU")
    assert world.pods("second") == {}
    assert world.jobs.status("second")["phase"] == "Pending"

    world.trainers.ends_when = lambda job, pods: 0 if job["metadata"]["name"] == "first" else None
    world.jobs.server.request("PATCH", f"{world.jobs.path}/first", {"metadata": {"labels": {"look": "now"}}})
    world.until("the first pod has ended", lambda: not world.running("first"))
    world.until_condition("second", "Admitted", "True", "GPUsGranted")
    world.until_condition("first", "Complete", "True", "BudgetExhausted")
    # Events are posted behind the status that they tell of.
    world.until(
        "both were told", lambda: {"NoFreeGPU", "GPUsGranted"} <= {e["reason"] for e in world.jobs.events("second")}
    )


def test_other_people_s_pods_hold_gpus(world: World) -> None:
    """Bound or on their way out, they are counted; gone, they are not."""
    world.kubelet.add_node("node", 2)
    world.kubelet.stop_seconds = 4.0  # long enough to be seen
    world.make_foreign("foreign")
    world.kubelet.wait_running(world.namespace, "foreign")
    operator = world.operate()
    world.jobs.make("job", gpus=2)
    world.until_condition("job", "Admitted", "False", "NoFreeGPU")
    world.delete_pod("foreign")
    world.until("it terminates", lambda: any(w.state == "terminating" for w in operator.snapshot.workers))
    assert world.jobs.condition("job", "Admitted") == ("False", "NoFreeGPU"), "a terminating pod still holds its GPU"
    world.until_condition("job", "Admitted", "True", "GPUsGranted")
    assert "foreign" not in {pod["metadata"]["name"] for pod in world.kubelet.pods(world.namespace)}


def test_other_people_s_pods_get_gpus_from_extra_workers_without_an_eviction(world: World) -> None:
    """The job is asked, gives back, and keeps what is its own."""
    world.kubelet.add_node("node", 2)
    world.operate()
    world.jobs.make("job", maxReplicas=2, **QUICK)
    world.until_lent("job")
    world.until("both workers run", lambda: len(world.running("job")) == 2)
    world.make_foreign("foreign")
    world.kubelet.wait_running(world.namespace, "foreign")
    assert world.running("job") == ["job-base-0-0"]
    status = world.jobs.status("job")
    assert (status["preemptions"], status["restarts"]) == (0, 0), "it was asked, not robbed"
    world.until_event("job", "NeededByOtherJob", "ReclaimAcknowledged")


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


def test_who_does_not_give_back_in_time_is_robbed_and_it_is_counted(world: World) -> None:
    """Past the deadline force is used."""
    world.kubelet.add_node("node", 2)
    world.operate()
    world.trainers.stubborn.add("first")
    world.jobs.make(
        "first", maxReplicas=2, preemption={"noticeSeconds": 1, "cooldownSeconds": 0, "minRuntimeSeconds": 0}
    )
    world.until_lent("first")
    world.jobs.make("second")
    world.until_condition("second", "Running", "True", "Running")
    assert world.jobs.status("first")["preemptions"] == 1
    world.until_event("first", "ReclaimForced")


def test_nodes_that_are_cordoned_not_ready_or_have_failing_gpus_offer_nothing(world: World) -> None:
    """One job for each of four nodes, of which three are unfit and become fit."""
    for name in ("cordoned", "away", "failing"):
        world.kubelet.add_node(name, 1)
    world.kubelet.cordon("cordoned")
    world.kubelet.set_ready("away", False)
    world.kubelet.set_gpus("failing", 1, allocatable=0)
    world.operate()
    world.jobs.make("job-0")
    world.until_condition("job-0", "Admitted", "False", "TooLarge")
    world.kubelet.cordon("cordoned", False)
    world.until_condition("job-0", "Running", "True", "Running")
    for number, mend in enumerate(
        (lambda: world.kubelet.set_ready("away", True), lambda: world.kubelet.set_gpus("failing", 1)), start=1
    ):
        world.jobs.make(f"job-{number}")
        world.until_condition(f"job-{number}", "Admitted", "False", "NoFreeGPU")
        mend()
        world.until_condition(f"job-{number}", "Running", "True", "Running")


def test_a_job_whose_gpu_fails_gives_back_what_it_was_lent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that the plugin takes out of allocatable is missed after a while, and lent workers go first."""
    monkeypatch.setattr(KubeSettings, "rules", property(lambda _: Rules(dip_seconds=1.0)))
    world.kubelet.add_node("node", 2)
    world.operate()
    world.jobs.make("job", maxReplicas=2, **QUICK)
    world.until("the extra worker runs", lambda: len(world.running("job")) == 2)
    world.kubelet.set_gpus("node", 2, allocatable=1)
    world.until("it is given back", lambda: world.running("job") == ["job-base-0-0"])
    world.until_event("job", "GPULost")


def test_a_job_stays_on_one_type_of_gpu(world: World) -> None:
    """Base workers together on one, extra workers on the same; who asks for a type waits for that."""
    world.kubelet.add_node("old-1", 1, gpu_type="old")
    world.kubelet.add_node("new-1", 1, gpu_type="new")
    world.operate()
    world.jobs.make("wide", minReplicas=2, maxReplicas=4, **QUICK)
    world.until_condition("wide", "Admitted", "False", "TooLarge")
    world.jobs.make("choosy", select={"nvidia.com/gpu.product": "old"})
    world.until_condition("choosy", "Running", "True", "Running")
    assert world.pods("choosy")["choosy-base-0-0"]["spec"]["nodeName"] == "old-1"
    world.kubelet.add_node("new-2", 2, gpu_type="new")
    world.until("it has all new ones", lambda: len(world.running("wide")) == 3)
    nodes = {pod["spec"]["nodeName"] for pod in world.pods("wide").values()}
    assert nodes == {"new-1", "new-2"}
    assert world.jobs.status("wide")["scheduling"]["gpuType"] == "new"


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


def test_a_node_that_is_lost_costs_no_failure(world: World) -> None:
    """After the time for which its pod tolerates that, its leader starts again elsewhere, with the budget it had."""
    world.kubelet.add_node("first", 1)
    world.operate()
    unreachable = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    world.jobs.make("job", backoffLimit=0, pod={"tolerations": [{**unreachable, "tolerationSeconds": 6}]})
    world.until_condition("job", "Running", "True", "Running")
    world.kubelet.add_node("second", 1)
    world.kubelet.set_ready("first", False)
    world.until_condition("job", "Running", "False", "NodeLost")
    assert list(world.pods("job")) == ["job-base-0-0"], "one reading of its node gives nobody up"
    world.until("it runs on the other", lambda: "job-base-0-1" in world.running("job"))
    world.until_condition("job", "Running", "True", "Running")
    status = world.jobs.status("job")
    assert (status["restarts"], status["preemptions"], status["scheduling"]["failures"]) == (1, 1, 0)
    world.until(
        "it is told why",
        lambda: any("the node of its leader" in event["message"] for event in world.jobs.events("job")),
    )


def test_a_pod_that_fits_on_no_node_holds_nobody_back(world: World) -> None:
    """Pods of a stranger with a node selector that no node has, or with more memory than any: jobs start, and are lent
    what is spare.
    """
    world.kubelet.add_node("node", 3)
    # As kube-scheduler says it where some nodes lack this, and others that.
    lacks = "0/2 nodes are available: 1 Insufficient memory, 2 Insufficient nvidia.com/gpu."
    world.kubelet.refuses = lambda pod: lacks if "stranger" in pod["metadata"].get("labels", ()) else None
    requests = {"requests": {"memory": "100Ti", "nvidia.com/gpu": 3}, "limits": {"nvidia.com/gpu": 3}}
    huge = {"containers": [{"name": "other", "image": "other:1", "resources": requests}]}
    for name in ("first", "second"):
        world.make_foreign(name, nodeSelector={"disk": "tape"}, labels={"stranger": ""})
    world.make_foreign("huge", **huge, labels={"stranger": ""})
    operator = world.operate()
    world.until("they are seen", lambda: sum(w.role == "foreign" for w in operator.snapshot.workers) == 3)
    world.jobs.make("job", maxReplicas=3, **QUICK)
    world.until("it has all GPUs", lambda: len(world.running("job")) == 3)


def test_a_pod_that_kube_scheduler_keeps_from_the_free_nodes_holds_nobody_back(world: World) -> None:
    """It must not run beside its like, which the planner cannot judge; other nodes lack GPUs."""
    for name, gpus in (("first", 2), ("second", 2), ("plain", 0)):
        world.kubelet.add_node(name, gpus)
    taken = "2 node(s) didn't match pod anti-affinity rules"
    message = f"0/3 nodes are available: 1 Insufficient nvidia.com/gpu, {taken}. preemption: 0/3 nodes are available."
    world.kubelet.refuses = lambda pod: message if "stranger" in pod["metadata"].get("labels", ()) else None
    world.make_foreign("other", labels={"stranger": ""})
    world.operate()
    world.jobs.make("job", maxReplicas=4, **QUICK)
    world.until("it has all GPUs", lambda: len(world.running("job")) == 4)


def test_a_job_starts_only_on_nodes_that_its_template_admits(world: World) -> None:
    """By required affinity and by tolerations; one that no node admits is told so, and holds nobody back."""
    world.kubelet.add_node("plain", 1)
    world.kubelet.add_node("vision", 1, labels={"team": "vision"}, taints=[{"key": "team", "effect": "NoSchedule"}])
    world.operate()
    expression = {"key": "team", "operator": "In", "values": ["vision"]}
    affinity = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    required = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": affinity}}
    world.jobs.make("picky", pod={"affinity": required})
    world.until_condition("picky", "Admitted", "False", "Unschedulable")
    world.jobs.make("vision", pod={"affinity": required, "tolerations": [{"key": "team", "operator": "Exists"}]})
    world.until_condition("vision", "Running", "True", "Running")
    assert world.pods("vision")["vision-base-0-0"]["spec"]["nodeName"] == "vision"
    world.jobs.make("other")
    world.until_condition("other", "Running", "True", "Running")
    assert world.jobs.condition("picky", "Admitted") == ("False", "Unschedulable")


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


def test_a_job_waits_for_the_cpus_that_a_pod_without_gpus_holds(world: World) -> None:
    """It holds back nobody who needs fewer, and says what is missing."""
    world.kubelet.add_node("node", 2)
    idle = [{"name": "other", "image": "other:1", "resources": {"requests": {"cpu": "40"}}}]
    world.make_foreign("foreign", nodeName="node", containers=idle)
    world.operate()
    resources = {"requests": {"cpu": "30500m"}, "limits": {"nvidia.com/gpu": 1}}
    world.jobs.make("hungry", pod={"containers": [{"name": "trainer", "image": "trainer:dev", "resources": resources}]})
    world.until_condition("hungry", "Admitted", "False", "Unschedulable")
    world.jobs.make("modest")
    world.until_condition("modest", "Running", "True", "Running")
    assert world.pods("hungry") == {}
    world.delete_pod("foreign")
    world.until_condition("hungry", "Running", "True", "Running")


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


def test_a_job_that_kube_scheduler_cannot_place_gives_way_and_says_why(world: World) -> None:
    """Its GPUs are free, and something else is missing that only kube-scheduler knows of."""
    world.kubelet.add_node("node", 1)
    world.operate(placement_seconds=0.5)
    world.kubelet.refuses = lambda pod: "4 Insufficient cpu" if pod["metadata"]["name"].startswith("hungry") else None
    world.jobs.make("hungry", priority=1)
    world.until_condition("hungry", "Admitted", "False", "Unschedulable")
    (admitted,) = [entry for entry in world.jobs.status("hungry")["conditions"] if entry["type"] == "Admitted"]
    assert admitted["message"] == "4 Insufficient cpu"
    world.until("its pods are gone", lambda: world.pods("hungry") == {})
    world.jobs.make("modest")
    world.until_condition("modest", "Running", "True", "Running")
    kept = world.jobs.status("hungry")["scheduling"]
    assert (kept["unplaced"], kept["failures"]) == (1, 0)
    assert kept["holdUntil"]


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


def test_gangs_of_two_operators_that_need_the_same_nodes_both_run(world: World) -> None:
    """One after the other."""
    for number in range(4):
        world.kubelet.add_node(f"node{number}", 2)
    world.trainers.ends_when = lambda job, pods: 0
    world.operate()
    world.operate(controller_name="example.com/second")
    world.jobs.make("first", minReplicas=8, maxReplicas=8)
    world.jobs.make("second", minReplicas=8, maxReplicas=8, controllerName="example.com/second")
    for job in ("first", "second"):
        world.until_condition(job, "Complete", "True", "BudgetExhausted")
