"""From lists of raw objects to what the planner reads."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest
from click.testing import CliRunner
from cluster_objects import NOW, SETTINGS, Object, acted, admitted, gpus, job, lists, node, pod, report, time, worker

from espalier_cli.cluster.options import settings_options
from espalier_cli.options import policy_option
from espalier_core.types.reasons import Reason
from espalier_operator.kube.settings import AS_RECORDED, KubeSettings
from espalier_operator.kube.snapshot import seen_by_operator
from espalier_operator.model import DEFAULT_POLICY, Snapshot, WorkerRole, WorkerState
from espalier_operator.model.actions import Finish


def seen(**objects: object) -> Snapshot:
    return seen_by_operator(lists(**objects), NOW, SETTINGS).snapshot  # type: ignore[arg-type]


def test_a_job_nobody_has_looked_at_waits() -> None:
    snapshot = seen(jobs=[job("a", minReplicas=2, maxReplicas=4)], nodes=[node("n", 4, "x")])
    (facts,) = snapshot.jobs
    assert (facts.key, facts.admitted_at, facts.terms.min_replicas) == ("default/a", None, 2)
    assert facts.submitted_at == NOW - 600
    assert [(entry.name, entry.gpu_type, entry.allocatable) for entry in snapshot.nodes] == [("n", "x", 4)]


def test_what_the_status_keeps_and_the_pods_and_the_report_say_come_together() -> None:
    raw = admitted(job("a", maxReplicas=3), gpu_type="x", extra=2, at=NOW - 100)
    leader = worker(raw, "n")
    extra = worker(raw, "n", role=WorkerRole.EXTRA, attempt=2)
    snapshot = seen(
        jobs=[raw], pods=[leader, extra], nodes=[node("n", 4, "x")], reports=[report(raw, leader, acknowledged=2)]
    )
    (facts,) = snapshot.jobs
    assert (facts.gpu_type, facts.extra, facts.generation, facts.acknowledged_generation) == ("x", 2, 2, 2)
    assert facts.leader_running
    assert facts.has_reported
    assert facts.training
    assert facts.used_seconds == 60.0  # since its leader started: the operator was away, the leader was not
    assert {(entry.name, entry.role, entry.node, entry.gpus) for entry in snapshot.workers} == {
        ("default/a-base-0-0", WorkerRole.BASE, "n", 1),
        ("default/a-extra-0-2", WorkerRole.EXTRA, "n", 1),
    }
    (promise,) = snapshot.promises
    assert (promise.job, promise.extra, promise.expires_at) == ("default/a", 2, NOW - 100 + SETTINGS.promise_seconds)


def test_a_pod_listed_twice_is_one_worker() -> None:
    raw = admitted(job("a"))
    leader = worker(raw, "n")
    assert len(seen(jobs=[raw], pods=[leader, leader], nodes=[node("n", 1)]).workers) == 1


def test_pods_of_others_hold_and_want_gpus() -> None:
    ended = pod("ended", 4, "n", phase="Succeeded")
    snapshot = seen(pods=[pod("held", 2, "n"), pod("wanted", 1, None, phase="Pending"), ended], nodes=[node("n", 4)])
    assert {(entry.name, entry.job, entry.node, entry.gpus) for entry in snapshot.workers} == {
        ("default/held", None, "n", 2),
        ("default/wanted", None, None, 1),
    }


def test_workers_of_a_job_that_is_gone_hold_their_gpus_and_want_none() -> None:
    gone = job("gone")
    snapshot = seen(
        pods=[worker(gone, "n"), worker(gone, None, role=WorkerRole.EXTRA, phase="Pending")], nodes=[node("n", 4)]
    )
    assert [(entry.role, entry.node) for entry in snapshot.workers] == [(WorkerRole.FOREIGN, "n")]


def test_workers_on_a_node_that_is_not_heard_of_are_on_their_way_out() -> None:
    raw = admitted(job("a"))
    silent, well = node("n", 4, ready=False), node("m", 4)
    snapshot = seen(jobs=[raw], pods=[worker(raw, "n")], nodes=[silent, well])
    assert [entry.state for entry in snapshot.workers] == [WorkerState.TERMINATING]
    snapshot = seen(jobs=[raw], pods=[worker(raw, "n")], nodes=[silent])
    assert [entry.state for entry in snapshot.workers] == [WorkerState.RUNNING], "no node reports: nobody is given up"


def test_a_job_that_cannot_be_run_is_left_out_with_its_problems() -> None:
    broken = job("broken", template=gpus(0))
    unreadable = {**job("unreadable"), "status": {"restarts": "many"}}
    made = seen_by_operator(lists(jobs=[broken, unreadable, job("good")]), NOW, SETTINGS)
    assert [facts.key for facts in made.snapshot.jobs] == ["default/good"]
    assert list(made.left_out) == ["default/broken", "default/unreadable"]
    assert "nvidia.com/gpu" in made.left_out["default/broken"][0]
    assert made.left_out["default/unreadable"][0].startswith("status: cannot be read: ")


def test_the_value_of_its_priority_class_wins_and_one_that_is_not_there_is_a_problem() -> None:
    raws = [job("a", priorityClassName="high", priority=1), job("b", priorityClassName="absent")]
    made = seen_by_operator(lists(jobs=raws, classes={"high": 7}), NOW, SETTINGS)
    assert [(facts.key, facts.terms.priority) for facts in made.snapshot.jobs] == [("default/a", 7)]
    assert "there is no PriorityClass 'absent'" in made.left_out["default/b"][0]
    unknown = seen_by_operator(lists(jobs=raws), NOW, SETTINGS)
    assert [facts.terms.priority for facts in unknown.snapshot.jobs] == [1, 0]


def test_a_job_on_its_way_out_is_not_planned_for() -> None:
    raw = job("a")
    raw["metadata"]["deletionTimestamp"] = time()
    assert seen(jobs=[raw], nodes=[node("n", 4)]).jobs == ()


def test_a_job_that_is_over_is_reported_while_it_has_workers() -> None:
    raw = acted(admitted(job("a")), Finish(job="default/a", reason=Reason.COMPLETED))
    assert seen(jobs=[raw]).jobs == ()
    assert [facts.finished for facts in seen(jobs=[raw], pods=[worker(raw, "n")], nodes=[node("n", 1)]).jobs] == [True]


def test_what_the_api_server_said_to_its_pods_is_read_from_the_status() -> None:
    raw = admitted(job("a"))
    running = next(entry for entry in raw["status"]["conditions"] if entry["type"] == "Running")
    running |= {"reason": "PodRejected", "message": "exceeded quota: gpus"}
    (facts,) = seen(jobs=[raw], nodes=[node("n", 1)]).jobs
    assert (facts.trouble, facts.last_failure) == (Reason.POD_REJECTED, "exceeded quota: gpus")


# ---- the scheduling policy


def policy_of(*jobs: Object, policy: str = AS_RECORDED) -> str:
    return seen_by_operator(lists(jobs=jobs), NOW, replace(SETTINGS, policy=policy)).snapshot.rules.policy


def recorded(name: str, policy: str, **spec: object) -> Object:
    return {**admitted(job(name, **spec)), "status": {**admitted(job(name))["status"], "schedulingPolicy": policy}}


def test_the_policy_is_the_one_that_the_operator_recorded() -> None:
    assert policy_of(job("new")) == DEFAULT_POLICY
    assert policy_of(job("new"), recorded("a", "las:promote=3600")) == "las:promote=3600"


def test_a_policy_that_another_operator_recorded_or_that_is_not_installed_here_is_passed_over() -> None:
    assert policy_of(recorded("theirs", "las", controllerName="other.example/x"), recorded("mine", "fifo")) == "fifo"
    assert policy_of(recorded("a", "of-a-package-not-installed"), recorded("b", "fifo")) == "fifo"
    assert policy_of(recorded("a", "of-a-package-not-installed")) == DEFAULT_POLICY


def test_the_policy_that_is_named_wins() -> None:
    assert policy_of(recorded("a", "las"), policy="fifo") == "fifo"


@pytest.mark.parametrize(
    ("words", "expected"), [((), AS_RECORDED), (("--policy", "las:promote=3600"), "las:promote=3600")]
)
def test_a_command_that_names_no_policy_takes_the_recorded_one(words: tuple[str, ...], expected: str) -> None:
    @click.command()
    @settings_options
    @policy_option("It.", None)
    def shown(settings: KubeSettings) -> None:
        click.echo(repr(settings.policy))

    assert CliRunner().invoke(shown, words).stdout == f"{expected!r}\n"
