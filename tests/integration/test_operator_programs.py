"""Programs under a real API server: no library, no reports, and the same life as every job."""

from __future__ import annotations

from typing import Any

from operators import World

PROGRAM = {"progress": {"log": {"pattern": "step (?P<step>[0-9]+)"}}}


def pod(world: World, job: str) -> str:
    """Return the name of the leader's pod, once it runs."""
    found: str = world.until(f"{job} has a leader", lambda: next(iter(world.running(job)), None))
    return found


def make(world: World, name: str, **spec: Any) -> None:
    """Make a program whose leader the fake trainers do not play."""
    world.trainers.silent.add(name)
    world.jobs.make(name, program=PROGRAM, pod={"terminationGracePeriodSeconds": 5}, **spec)


def test_a_program_trains_as_soon_as_it_runs_fails_and_completes_by_its_exit_code(world: World) -> None:
    """There is no kubelet here that knows its log: what cannot be read does not keep its end from being judged."""
    world.kubelet.add_node("node", 1)
    world.operate(restart_seconds=0.1)
    make(world, "program", backoffLimit=1)
    world.until_condition("program", "Running", "True", "Running")
    first = pod(world, "program")
    world.kubelet.end(world.namespace, first, 3)
    world.until("it is started again", lambda: world.running("program") not in ([], [first]))
    status = world.jobs.status("program")
    assert (status["restarts"], status["scheduling"]["failures"]) == (1, 1)
    world.kubelet.end(world.namespace, pod(world, "program"), 0)
    world.until_condition("program", "Complete", "True", "Completed")
    found = world.server.request("GET", f"/api/v1/namespaces/{world.namespace}/configmaps")["items"]
    names = [each["metadata"]["name"] for each in found]
    assert "program-report" not in names


def test_a_suspended_program_is_ended_and_waits_and_its_budget_stays(world: World) -> None:
    """Nobody but SIGTERM tells it."""
    world.kubelet.add_node("node", 1)
    world.operate()
    make(world, "program")
    world.until_condition("program", "Running", "True", "Running")
    first = pod(world, "program")
    world.jobs.change("program", suspend=True)
    world.until_condition("program", "Suspended", "True", "Suspended")
    world.until("its pod is gone", lambda: first not in world.pods("program"))
    status = world.jobs.status("program")
    used = status["timeBudget"]["usedSeconds"]
    assert status["scheduling"]["failures"] == 0
    world.jobs.change("program", suspend=False)
    world.until_condition("program", "Running", "True", "Running")
    assert pod(world, "program") != first
    assert world.jobs.status("program")["timeBudget"]["usedSeconds"] >= used > 0


def test_the_end_of_the_budget_is_a_normal_end(world: World) -> None:
    """Its pod is deleted, which is SIGTERM, and the job is complete."""
    world.kubelet.add_node("node", 1)
    world.operate()
    make(world, "program", timeBudgetSeconds=2)
    world.until_condition("program", "Complete", "True", "BudgetExhausted")
    world.until("its pod is gone", lambda: not world.pods("program"))
    status = world.jobs.status("program")
    assert status["timeBudget"]["usedSeconds"] >= 2
    assert (status["scheduling"]["failures"], status["restarts"], status["preemptions"]) == (0, 0, 0)
