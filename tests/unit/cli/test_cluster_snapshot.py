"""From lists of raw objects to what the planner reads."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest
from click.testing import CliRunner
from cluster_objects import NOW, SETTINGS, Object, acted, admitted, gpus, job, lists, node, time, worker

from espalier_cli.cluster.options import settings_options
from espalier_cli.options import policy_option
from espalier_core.types.reasons import Reason
from espalier_operator.kube.settings import AS_RECORDED, KubeSettings
from espalier_operator.kube.snapshot import seen_by_operator
from espalier_operator.model import DEFAULT_POLICY, Snapshot, WorkerState
from espalier_operator.model.actions import Finish


def seen(**objects: object) -> Snapshot:
    return seen_by_operator(lists(**objects), NOW, SETTINGS).snapshot  # type: ignore[arg-type]


def test_a_pod_listed_twice_is_one_worker() -> None:
    raw = admitted(job("a"))
    leader = worker(raw, "n")
    assert len(seen(jobs=[raw], pods=[leader, leader], nodes=[node("n", 1)]).workers) == 1


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
