"""What becomes of a job on a cluster: reports, suspension, failures, budgets, its end and its deletion."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from operators import World
from trainers import Raw

from espalier_core.files.documents import dumps
from espalier_core.types.report import Adaptation, AdaptationResult, AdaptationSource, Metric, Report, TrainerPhase

pytestmark = pytest.mark.slow


def named(*names: str, code: int = 0) -> Any:
    """Return an `ends_when` for leaders of these jobs."""
    return lambda job, pods: code if job["metadata"]["name"] in names else None


def say(world: World, job: str, text: str) -> None:
    """Write a job's report."""
    path = f"/api/v1/namespaces/{world.namespace}/configmaps/{job}-report"
    world.server.request("PATCH", path, {"data": {"report.json": text}})


def test_a_report_is_copied_into_the_status_and_a_bad_one_leaves_the_last_good(world: World) -> None:
    """Progress, metrics, adaptations and checkpoints are what the leader says; its words may also be nonsense."""
    world.kubelet.add_node("node", 1)
    world.operate(persist_seconds=0.2)
    world.trainers.silent.add("job")
    world.jobs.make("job")
    world.until("its leader runs", lambda: world.running("job"))
    world.until_condition("job", "Running", "False", "Starting")
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    adaptation = Adaptation(
        decision_id="d-1",
        time=now,
        used_seconds=3,
        trigger="ExtraGPUsGranted",
        generation=1,
        action="Deepen(features.0)",
        source=AdaptationSource.AGENT,
        policy="table@1",
        result=AdaptationResult.GROWN,
        depth_before=3,
        depth_after=4,
        parameters_before=100,
        parameters_after=150,
        seconds=0.5,
    )
    report = Report(
        job=f"{world.namespace}/job",
        incarnation=world.pods("job")["job-base-0-0"]["metadata"]["uid"],
        acknowledged_generation=1,
        phase=TrainerPhase.TRAINING,
        epoch=7,
        step=70,
        used_seconds=0.5,
        progress_percentage=12,
        metrics=(Metric(name="accuracy", value=0.75),),
        depth=4,
        parameters=150,
        adaptations=(adaptation,),
        last_checkpoint_time=now,
        updated_time=now,
    )
    say(world, "job", dumps(report))
    world.until_condition("job", "Running", "True", "Running")
    status = world.until("epoch 7", lambda: (s := world.jobs.status("job"))["training"].get("epoch") == 7 and s)
    assert status["training"]["metrics"] == [{"name": "accuracy", "value": 0.75}]
    assert status["training"]["depth"] == 4
    assert status["adaptationCount"] == 1
    assert (status["adaptations"][0]["action"], status["adaptations"][0]["depthAfter"]) == ("Deepen(features.0)", 4)
    assert status["lastCheckpointTime"].startswith("2026-05-01T12:00:00")
    world.until_event("job", "AdaptationGrown")

    for nonsense in (
        "{",
        "[]",
        '{"version": 99, "kind": "Report"}',
        dumps(report).replace('"epoch": 7', '"epoch": -1'),
    ):
        say(world, "job", nonsense)
    say(world, "job", dumps(report.model_copy(update={"epoch": 8})))
    world.until("epoch 8", lambda: world.jobs.status("job")["training"]["epoch"] == 8)
    assert world.jobs.status("job")["adaptationCount"] == 1


def test_suspended_it_gives_all_back_and_resumed_it_goes_on_with_its_budget(world: World) -> None:
    """Its leader is asked to stop and does; nothing counts while it waits."""
    world.kubelet.add_node("node", 2)
    world.operate(persist_seconds=0.2)
    world.jobs.make("job", maxReplicas=2, preemption={"cooldownSeconds": 0, "minRuntimeSeconds": 0})
    world.until("both workers run", lambda: len(world.running("job")) == 2)
    world.until("it used a second", lambda: world.jobs.status("job")["timeBudget"]["usedSeconds"] > 1)
    world.jobs.change("job", suspend=True)
    world.until_condition("job", "Suspended", "True", "Suspended")
    world.until("all its pods are gone or over", lambda: world.running("job") == [])
    world.until("its status says so", lambda: world.jobs.status("job")["replicas"] == 0)
    status = world.jobs.status("job")
    assert (status["phase"], status["allocation"]["replicas"]) == ("Suspended", 0)
    assert (status["restarts"], status["preemptions"], status["scheduling"]["failures"]) == (0, 0, 0)
    used = status["timeBudget"]["usedSeconds"]
    world.make_foreign("foreign", 2)
    world.kubelet.wait_running(world.namespace, "foreign")
    world.jobs.change("job", suspend=False)
    world.until_condition("job", "Admitted", "False", "NoFreeGPU")
    world.delete_pod("foreign")
    world.until_condition("job", "Running", "True", "Running")
    assert used <= world.jobs.status("job")["timeBudget"]["usedSeconds"] < used + 5
    assert world.running("job")[0] == "job-base-0-1", "another attempt, another pod"


def test_a_finished_job_is_deleted_after_its_ttl(world: World) -> None:
    """And not before."""
    world.kubelet.add_node("node", 1)
    world.operate()
    world.trainers.ends_when = named("kept", "brief")
    world.jobs.make("brief", ttlSecondsAfterFinished=1)
    world.jobs.make("kept")
    names = lambda: [item["metadata"]["name"] for item in world.server.request("GET", world.jobs.path)["items"]]  # noqa: E731
    world.until("the brief one is gone", lambda: names() == ["kept"])
    world.until_condition("kept", "Complete", "True", "BudgetExhausted")


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


def test_a_job_of_a_deleted_one_s_name_is_another_job(world: World) -> None:
    """It waits until what the first had is gone, and begins with a whole budget."""
    world.kubelet.add_node("node", 1)
    world.operate(persist_seconds=0.2)
    world.kubelet.stop_seconds = 1.0
    world.jobs.make("job")
    world.until("it used some", lambda: world.jobs.status("job").get("timeBudget", {}).get("usedSeconds", 0) > 0.5)
    first = world.pods("job")["job-base-0-0"]["metadata"]["uid"]
    world.jobs.delete("job")
    world.jobs.make("job")
    world.until_condition("job", "Running", "True", "Running")
    assert world.pods("job")["job-base-0-0"]["metadata"]["uid"] != first
    assert world.jobs.status("job")["timeBudget"]["usedSeconds"] < 20
