"""What is read of the API server's objects, as real clusters show them; and that none is too strange to be read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from espalier_core.types.reasons import Reason
from espalier_core.types.status import parse_status
from espalier_operator.kube import reading
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.jobs import InvalidJob, KubeJob, parse_job
from espalier_operator.kube.objects.names import JobRef
from espalier_operator.kube.objects.nodes import constraints_of, parse_node, request_of, requests_of
from espalier_operator.kube.objects.pods import UNKNOWN, parse_pod, read_pod
from espalier_operator.kube.objects.queues import parse_queue_object
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.workers import foreign_worker
from espalier_operator.model import Node, WorkerRole
from espalier_operator.model.constraints import (
    Constraints,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
)
from espalier_operator.model.queues import QueueLimits, Quota
from operator_world.kube_objects import (
    EPOCH,
    GPU,
    kube_job,
    raw_job,
    raw_node,
    raw_stranger,
    raw_worker,
    template,
    terminated,
    time_at,
    unschedulable,
    waiting_for,
)
from operator_world.kube_strategies import mutated

SETTINGS = KubeSettings()
JOB = kube_job()


def pod_of(raw: Any):
    return parse_pod(raw, SETTINGS)


def worker(**changes: Any):
    return pod_of(raw_worker(JOB, **changes))


# ---- quantities and times


@pytest.mark.parametrize(
    ("quantity", "count"),
    [
        ("0", 0),
        ("8", 8),
        (8, 8),
        ("4k", 4000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("2Ki", 2048),
        ("+3", 3),
        ("0.5", 1),
        ("1500m", 2),
        (2.0, 2),
        ("1e30", 2**63 - 1),
        ("-1", 0),
        ("-1k", 0),
        ("", 0),
        ("four", 0),
        ("٣", 0),
        ("1e", 0),
        ("1e9999999999", 0),
        ("9" * 10_000, 0),
        (math.nan, 0),
        (math.inf, 0),
        (True, 0),
        (None, 0),
        ([2], 0),
    ],
)
def test_quantities_of_whole_things(quantity, count):
    assert reading.count(quantity) == count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2027-01-15T08:00:00Z", EPOCH),
        ("2027-01-15T08:00:00.250000Z", EPOCH + 0.25),
        ("2027-01-15T09:00:00+01:00", EPOCH),
        ("2027-01-15T08:00:00", EPOCH),
        ("0001-01-01T00:00:00Z", -62135596800.0),
        ("yesterday", None),
        ("", None),
        (5, None),
    ],
)
def test_times(text, seconds):
    assert reading.time({"at": text}, "at") == seconds


# ---- nodes


SILENT = {"ready": False, "schedulable": False}


def test_a_node_with_gpus():
    labels = {"nvidia.com/gpu.product": "A100"}
    expected = Node(name="n1", gpu_type="A100", allocatable=8, labels=labels)
    assert replace(parse_node(raw_node("n1", 8, "A100"), SETTINGS), resources={}) == expected


def test_what_a_node_has_besides_gpus():
    raw = raw_node("n1", 8)
    raw["status"]["allocatable"] |= {"cpu": "3500m", "memory": "2Gi", "ephemeral-storage": "1k", "pods": "110", "x": []}
    resources = {"cpu": 3500, "memory": 2 * 1024**3, "ephemeral-storage": 1000, "pods": 110, "x": 0}
    assert parse_node(raw, SETTINGS).resources == resources


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"status": {"allocatable": {"cpu": "4"}}}, {"allocatable": 0, **SILENT}),
        ({"status": {"allocatable": {GPU: "1k"}}}, {"allocatable": 1000, **SILENT}),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, {"allocatable": 0, **SILENT}),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, {"allocatable": 0, "schedulable": False}),
        ({"spec": {"unschedulable": True}}, {"schedulable": False, "departing": 4}),
        (
            {"spec": {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]}},
            {"taints": (Taint(GPU, "present"),)},
        ),
        ({"spec": {"taints": [{"key": "team", "effect": "PreferNoSchedule"}]}}, {}),
        (
            {"spec": {"taints": [{"key": "team", "effect": "NoExecute"}, {"key": "x", "effect": "Strange"}, 3]}},
            {"taints": (Taint("team", "", "NoExecute"),)},
        ),
        ({"metadata": {"name": "n1", "deletionTimestamp": "2027-01-15T08:00:00Z"}}, {"schedulable": False}),
        (
            {"metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "H100", "zone": 7}}},
            {"gpu_type": "H100", "labels": {"nvidia.com/gpu.product": "H100"}},
        ),
    ],
)
def test_nodes_that_offer_less(change, expected):
    plain = Node(name="n1", gpu_type="", allocatable=4)
    assert replace(parse_node({**raw_node("n1"), **change}, SETTINGS), resources={}) == replace(plain, **expected)


def container(gpus: Any = None, restart: str | None = None, **resources: Any) -> dict[str, Any]:
    limits = {} if gpus is None else {"limits": {GPU: gpus}}
    return {"resources": {**limits, **resources}, **({"restartPolicy": restart} if restart else {})}


@pytest.mark.parametrize(
    ("spec", "requests"),
    [
        ({}, {}),
        ({"containers": [container(requests={"cpu": "1500m", GPU: 2})]}, {"cpu": 1500}),
        ({"containers": [container(limits={"memory": "1Ki"}, requests={"cpu": 1})]}, {"cpu": 1000, "memory": 1024}),
        ({"containers": [container(limits={"cpu": 4}, requests={"cpu": 1})] * 2}, {"cpu": 2000}),
        (
            {
                "initContainers": [container(requests={"cpu": 3})],
                "containers": [container(requests={"cpu": 1})],
                "overhead": {"cpu": "250m"},
            },
            {"cpu": 3250},
        ),
        ({"containers": [container(requests={"cpu": "a lot"}), 3]}, {}),
        (
            {
                "resources": {"requests": {"cpu": 8}, "limits": {"cpu": 9, "memory": "2Ki"}},
                "containers": [container(requests={"cpu": 1, "memory": "1Ki"})],
            },
            {"cpu": 8000, "memory": 1024},
        ),
        ({"resources": {"limits": {"cpu": 2}}, "overhead": {"cpu": 1}, "containers": [{}]}, {"cpu": 3000}),
    ],
)
def test_what_a_pod_requests_besides_gpus(spec, requests):
    assert dict(requests_of(spec, GPU)) == {**requests, "pods": 1}


# ---- effective requests of pods


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({"containers": [container("1"), container("2"), container()]}, 3),
        ({"containers": [container(None, requests={GPU: "4"})]}, 4),
        ({"containers": [container("1")], "initContainers": [container("4"), container("2")]}, 4),
        ({"containers": [container("3")], "initContainers": [container("1")]}, 3),
        ({"containers": [container("1")], "initContainers": [container("2", "Always")]}, 3),
        ({"containers": [container("1")], "initContainers": [container("1", "Always"), container("4")]}, 5),
        ({"containers": [container("1")], "initContainers": [container("4"), container("1", "Always")]}, 4),
        ({"containers": [container("-1"), container("x"), {"resources": None}, {}]}, 0),
        ({}, 0),
    ],
)
def test_what_a_pod_takes(spec, gpus):
    assert request_of(spec, GPU) == gpus


# ---- what binds a pod to nodes


def test_what_a_pod_asks_of_nodes():
    spec = {
        "nodeSelector": {"zone": "a"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["1", "2"]}]},
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
            }
        },
        "tolerations": [{"key": "team", "value": "vision"}, {"operator": "Exists", "effect": "NoExecute"}],
    }
    assert constraints_of(spec, GPU, ("gpu",)) == Constraints(
        node_selector=(("zone", "a"),),
        affinity=(
            NodeSelectorTerm(labels=(NodeSelectorRequirement("rack", "In", ("1", "2")),)),
            NodeSelectorTerm(fields=(NodeSelectorRequirement("metadata.name", "In", ("n1",)),)),
        ),
        tolerations=(
            Toleration("team", "Equal", "vision"),
            Toleration("", "Exists", "", "NoExecute"),
            Toleration("gpu", "Exists"),
        ),
        requests=(("pods", 1),),
    )
    assert constraints_of({}, GPU) == Constraints(requests=(("pods", 1),))


@pytest.mark.parametrize(
    ("change", "wants"),
    [
        ({}, True),
        ({"message": f"0/3 nodes are available: 1 Insufficient {GPU}, 2 node(s) were unschedulable."}, True),
        ({"message": "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."}, False),
        ({"message": "0/3 nodes are available: 3 Insufficient cpu."}, False),
        ({"scheduler": "volcano"}, False),
    ],
)
def test_which_pods_of_others_wait_for_gpus(change, wants):
    """One that kube-scheduler cannot place for another reason holds nobody back."""
    refused = [unschedulable(change["message"])] if "message" in change else []
    raw = raw_stranger(node=None, phase="Pending", conditions=refused)
    raw["spec"]["schedulerName"] = change.get("scheduler", "default-scheduler")
    assert (foreign_worker(pod_of(raw)) is not None) == wants
    raw["spec"]["nodeName"] = "node"
    assert foreign_worker(pod_of(raw)) is not None, "once it is bound it holds them"


@pytest.mark.parametrize(
    ("reasons", "barred"),
    [
        (f"5 Insufficient {GPU}", 0),
        (f"2 Insufficient {GPU}, 3 node(s) had untolerated taint {{team: vision}}", 0),
        (f"1 node(s) had taint {{a: b}}, that the pod didn't tolerate, 4 Insufficient {GPU}", 0),
        (f"1 Insufficient memory, 2 node(s) didn't match pod anti-affinity rules, 3 Insufficient {GPU}", 2),
        (f"1 node(s) had volume node affinity conflict, 1 node(s) didn't have free ports, 3 Insufficient {GPU}", 2),
        (f"{'9' * 5000} node(s) exceed max volume count, 3 Insufficient {GPU}", 0),
    ],
)
def test_from_how_many_nodes_kube_scheduler_keeps_a_pod_for_reasons_unknown_here(reasons, barred):
    preemption = " preemption: 0/5 nodes are available: 2 No preemption victims found, 3 Preemption is not helpful."
    for message in (f"0/5 nodes are available: {reasons}.", f"0/5 nodes are available: {reasons}.{preemption}"):
        raw = raw_stranger(node=None, phase="Pending", conditions=[unschedulable(message)])
        assert foreign_worker(pod_of(raw)).barred_nodes == barred
        raw["spec"]["nodeName"] = "node"
        assert foreign_worker(pod_of(raw)).barred_nodes == 0, "it has found one"


# ---- whose a pod is


def test_a_worker_of_ours():
    pod = pod_of(raw_worker(JOB, 3, 7, role=WorkerRole.EXTRA))
    assert (pod.key, pod.owner) == ("ns/one-extra-3-7", JobRef("ns", "one", "uid-1"))
    assert (pod.role, pod.index, pod.attempt) == (WorkerRole.EXTRA, 3, 7)
    assert (pod.node, pod.gpus, pod.phase, pod.started_at) == ("node", 1, "Running", EPOCH)
    assert (pod.exit_code, pod.ended, pod.done, pod.trouble) == (None, False, False, None)


(OWNER,) = raw_worker(JOB)["metadata"]["ownerReferences"]


@pytest.mark.parametrize(
    "change",
    [
        {"ownerReferences": []},
        {"ownerReferences": None},
        {"ownerReferences": [{"kind": "AdaptiveTrainingJob", "name": "one", "uid": "uid-1", "controller": True}]},
        {"name": "one-base-0"},
        {"name": "one-debug"},
        {"name": "one-base-x-0"},
        {"name": "two-base-0-0"},
        {"name": "one-base-99999999999-0"},
        {"ownerReferences": [{**OWNER, "controller": False}]},
    ],
)
def test_pods_that_only_look_like_ours_or_refer_to_a_job_that_does_not_control_them_are_foreign(change):
    raw = raw_worker(JOB)
    raw["metadata"]["labels"] = names.worker_labels("one", WorkerRole.BASE, 0, 0)
    raw["metadata"] |= change
    pod = pod_of(raw)
    assert (pod.owner, pod.role, pod.index, pod.attempt) == (None, WorkerRole.FOREIGN, 0, 0)
    assert pod.gpus == 1


def test_labels_that_somebody_took_off_are_not_foreign():
    raw = raw_worker(JOB, 1, 2)
    raw["metadata"]["labels"] = {"espalier.dev/role": "extra", "espalier.dev/index": "7"}
    pod = pod_of(raw)
    assert (pod.role, pod.index, pod.attempt) == (WorkerRole.BASE, 1, 2)


@given(
    st.text("abc-0123456789", max_size=12),
    st.sampled_from((WorkerRole.BASE, WorkerRole.EXTRA)),
    st.integers(0, 9999),
    st.integers(0, 10**6),
)
def test_names_tell_the_worker(job, role, index, attempt):
    name = names.pod_name(job, role, index, attempt)
    assert names.worker_of(job, name) == (role, index, attempt)
    assert names.worker_of(f"{job}x", name) is None


@given(
    st.tuples(*[st.sampled_from(("a", "a-base-0", "a-base-0-1", "a-extra-1-base"))] * 2),
    st.sampled_from(("base", "extra")),
)
def test_pods_of_two_jobs_never_share_a_name(jobs, role):
    one, two = jobs
    made = {names.pod_name(one, WorkerRole(role), index, attempt) for index in (0, 1) for attempt in (0, 1)}
    others = {
        names.pod_name(two, each, index, attempt)
        for each in (WorkerRole.BASE, WorkerRole.EXTRA)
        for index in (0, 1)
        for attempt in (0, 1)
    }
    assert one == two or not made & others


# ---- what becomes of pods, as the kubelet and the control plane write it


@pytest.mark.parametrize(
    ("why", "trouble"),
    [
        ("3 Insufficient nvidia.com/gpu.", Reason.UNSCHEDULABLE),
        ('persistentvolumeclaim "data" not found. preemption: not helpful.', Reason.VOLUME_UNAVAILABLE),
    ],
)
def test_what_kube_scheduler_refuses_wants_a_node_or_a_claim_that_does_not_exist(why, trouble):
    message = f"0/3 nodes are available: {why}"
    pod = worker(phase="Pending", node=None, state={}, conditions=[unschedulable(message)])
    assert (pod.trouble, pod.message, pod.node) == (trouble, message, None)


@pytest.mark.parametrize("where", ["containerStatuses", "initContainerStatuses"])
@pytest.mark.parametrize(
    ("reason", "trouble"),
    [
        ("ImagePullBackOff", Reason.IMAGE_PULL_FAILED),
        ("ErrImagePull", Reason.IMAGE_PULL_FAILED),
        ("InvalidImageName", Reason.IMAGE_PULL_FAILED),
        ("ErrImageNeverPull", Reason.IMAGE_PULL_FAILED),
        ("CreateContainerConfigError", Reason.POD_REJECTED),
        ("ContainerCreating", None),
        ("PodInitializing", None),
    ],
)
def test_waiting_containers(where, reason, trouble):
    waiting = waiting_for(reason, 'Back-off pulling image "x"')
    pod = worker(phase="Pending", **{where: [{"name": "some", "state": waiting}]})
    assert pod.trouble is trouble
    assert pod.message == (f'{reason}: Back-off pulling image "x"' if trouble else "")


def test_gated():
    pod = worker(phase="Pending", node=None, state={}, gates=["queue"])
    assert (pod.gated, pod.trouble) == (True, Reason.SCHEDULING_GATED)
    assert pod.message.endswith("scheduling gates: queue")
    assert not worker().gated


EVICTED, MEMORY = {"reason": "Evicted"}, "The node was low on resource: memory."


@pytest.mark.parametrize(
    ("end", "words", "told"),
    [
        (terminated(0, reason="Completed"), {}, {"exit_code": 0, "finished_at": EPOCH + 10, "message": ""}),
        (terminated(137, reason="OOMKilled"), {}, {"exit_code": 137, "message": "OOMKilled"}),
        (terminated(1, reason="Error", message="no data in /data\n"), {}, {"message": "no data in /data"}),
        (
            terminated(137, reason="Error"),
            {**EVICTED, "message": MEMORY},
            {"disrupted": True, "exit_code": 137, "message": f"Evicted: {MEMORY}"},
        ),
        (terminated(137), EVICTED, {"disrupted": True}),
        (terminated(137), {**EVICTED, "message": "The node had condition: [DiskPressure]. "}, {"disrupted": True}),
        (
            terminated(137),
            {"reason": "Preempting", "message": "Preempted in order to admit critical pod"},
            {"disrupted": True},
        ),
        (terminated(137), {"reason": "OOMKilled", "message": "Usage of EmptyDir volume "}, {}),
        (
            terminated(143),
            {"reason": "Terminated", "message": "terminated in response to node shutdown."},
            {"disrupted": True},
        ),
        (terminated(137, reason="ContainerStatusUnknown"), {}, {"disrupted": True}),
        (terminated(137, reason="Unknown"), {}, {"disrupted": True}),
        (
            terminated(143),
            {"reason": "DeadlineExceeded", "message": "active on the node longer than the specified deadline"},
            {"overran": True},
        ),
        (  # a command that does not exist: nothing has run since 1970
            terminated(128, EPOCH, started=0, reason="StartError", message='exec: "train": not found in $PATH'),
            {},
            {"exit_code": 128, "started_at": None, "finished_at": EPOCH},
        ),
    ],
    ids=str,
)
def test_how_a_pod_has_ended(end, words, told):
    """An eviction is the job's own fault only where it exceeds a limit of its template."""
    pod = worker(phase="Succeeded" if told.get("exit_code") == 0 else "Failed", state=end, **words)
    assert pod.ended
    expected = {"disrupted": False, "overran": False, **told}
    assert {name: getattr(pod, name) for name in expected} == expected


def test_lost_with_its_node():
    assert worker(phase="Unknown", reason="NodeLost").disrupted


@pytest.mark.parametrize(
    "message",
    [
        'Usage of EmptyDir volume "espalier-checkpoints" exceeds the limit "1Gi". ',
        "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ",
        'Container trainer exceeded its local ephemeral storage limit "2Gi". ',
    ],
)
@pytest.mark.parametrize("state", [terminated(137, reason="ContainerStatusUnknown"), terminated(143), {}])
def test_evicted_by_the_kubelet_for_a_limit_of_its_own(message, state):
    """As kubelet 1.34 words it (`pkg/kubelet/eviction/helpers.go`)."""
    pod = worker(phase="Failed", state=state, reason="Evicted", message=message)
    assert (pod.overran, pod.disrupted, pod.done) == (True, False, True)
    assert pod.message.startswith(f"Evicted: {message[:20]}")


def test_preempted_by_the_scheduler_and_on_its_way_out():
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pod = worker(conditions=[target], deleted_at=EPOCH + 5)
    assert pod.leaves_at == EPOCH + 5
    assert (pod.disrupted, pod.deleting, pod.done) == (True, True, False)


def test_refused_by_the_kubelet():
    words = {"reason": "UnexpectedAdmissionError", "message": "Allocate failed due to no healthy devices present"}
    pod = pod_of({**raw_worker(JOB), "status": {"phase": "Failed", **words}})
    assert (pod.ended, pod.exit_code, pod.started_at, pod.disrupted) == (True, None, None, False)


def test_an_init_container_that_failed():
    end = terminated(7, message="no such bucket")
    pod = worker(
        phase="Failed",
        state=waiting_for("PodInitializing"),
        initContainerStatuses=[{"name": "fetch", "state": end}],
    )
    assert (pod.exit_code, pod.started_at, pod.message) == (7, None, "no such bucket")


def several(*states: tuple[str, dict[str, Any]], phase: str = "Running", side_car: bool = False):
    """A worker whose containers are `b` (the one that trains) and others; statuses sorted by name, as kubelets do."""
    raw = raw_worker(JOB, phase=phase)
    statuses = [{"name": name, "state": state} for name, state in sorted(states)]
    raw["spec"]["containers"] = [{"name": name} for name in ("b", "a", "c")]
    raw["status"]["initContainerStatuses" if side_car else "containerStatuses"] = statuses
    return pod_of(raw)


def test_the_worker_is_the_first_container_of_the_template_wherever_its_status_stands():
    pod = several(("b", terminated(3, EPOCH + 5)), ("a", terminated(1, EPOCH + 9)), phase="Failed")
    assert (pod.exit_code, pod.finished_at) == (3, EPOCH + 5)
    assert several(("b", terminated(0)), ("a", terminated(1)), phase="Failed").exit_code == 0


def injected(where: str, **changes: Any):
    """A worker as it comes back from a mutating webhook that puts two side-cars into it."""
    raw = raw_worker(JOB, **changes)
    ours = raw["spec"]["containers"][0]
    ours |= {"env": [{"name": "ESPALIER_INCARNATION", "value": "x"}], "readinessProbe": {"exec": {}}}
    others = [{"name": name, "env": [{"name": "A", "value": "b"}]} for name in ("proxy", "agent")]
    raw["spec"]["containers"] = {"first": [*others, ours], "around": [others[0], ours, others[1]]}[where]
    raw["status"]["containerStatuses"] += [
        {"name": "agent", "state": terminated(2, EPOCH + 3, message="agent: no such host"), "ready": False},
        {"name": "proxy", "state": {"running": {"startedAt": time_at(EPOCH - 5)}}, "ready": True},
    ]
    return pod_of(raw)


@pytest.mark.parametrize("where", ["first", "around"])
def test_side_cars_before_the_worker_hide_nothing_of_it(where: str):
    running = injected(where)
    assert (running.container, running.done, running.ready, running.started_at) == ("trainer", False, False, EPOCH)
    end = injected(where, state=terminated(1, EPOCH + 7, message="ImportError: no module"))
    assert (end.done, end.ended, end.exit_code, end.finished_at) == (True, False, 1, EPOCH + 7)
    assert end.message == "ImportError: no module", "of the worker alone"
    assert injected(where, phase="Failed", state=terminated(0)).exit_code == 0, "the agent has failed, not the worker"


def test_a_worker_is_done_though_another_container_runs_on():
    pod = several(("b", terminated(0)), ("a", {"running": {"startedAt": time_at(EPOCH)}}))
    assert (pod.done, pod.ended, pod.exit_code) == (True, False, 0)
    assert not several(("b", {"running": {}}), ("a", terminated(1))).done


def test_a_side_car_that_was_ended_last_is_not_the_worker_s_failure():
    raw = raw_worker(JOB, phase="Succeeded", state=terminated(0))
    raw["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}]
    raw["status"]["initContainerStatuses"] = [{"name": "proxy", "state": terminated(143)}]
    assert pod_of(raw).exit_code == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"allocation": {"generation": 3}}', (3, None, None, False)),
        ('{"allocation": {"generation": 3}, "stop": "Suspended"}', (3, "Suspended", None, False)),
        ('{"allocation": {"generation": 3}, "timeBudget": {"budgetSeconds": 1.5}}', (3, None, 1.5, False)),
        ('{"allocation": {"generation": 3}, "timeBudget": {"budgetSeconds": [1]}}', (3, None, None, False)),
        ('{"allocation": {"generation": 3}, "waitsForWorkers": true}', (3, None, None, True)),
        ('{"allocation": {"generation": 3}, "waitsForWorkers": "yes"}', (3, None, None, False)),
        ('{"allocation": {"generation": "3"}}', None),
        ('{"allocation": 3}', None),
        ("[1]", None),
        ("{", None),
        ("[" * 100_000, None),
    ],
)
def test_what_a_pod_was_told(text, told):
    raw = raw_worker(JOB)
    raw["metadata"]["annotations"] = {"espalier.dev/allocation": text}
    assert pod_of(raw).announced == told
    assert worker().announced is None


# ---- jobs


def test_a_job_understood():
    job = parse_job(raw_job("one", {"minReplicas": 2, "maxReplicas": 3, "priority": 5}), SETTINGS)
    assert isinstance(job, KubeJob)
    assert (job.key, job.uid, job.generation, job.created_at) == ("ns/one", "uid-1", 1, EPOCH)
    assert (job.terms.min_replicas, job.terms.priority, job.terms.gpus_per_worker) == (2, 5, 1)
    assert (job.terms.grace_seconds, job.terms.pre_running_deadline_seconds) == (10.0, 900.0)


def test_terms_come_from_settings_template_and_class():
    init = [{"name": "warm", "resources": {"limits": {GPU: 4}}}]
    spec = {
        "timeBudgetSeconds": 1000,
        "priority": 5,
        "priorityClassName": "high",
        "preRunningDeadlineSeconds": 30,
        "template": template(nodeSelector={"nvidia.com/gpu.product": "a"}, initContainers=init),
    }
    job = parse_job(raw_job("one", spec), SETTINGS, {"high": 1000})
    assert isinstance(job, KubeJob)
    assert (job.terms.priority, job.terms.gpu_type, job.terms.grace_seconds) == (1000, "a", 100.0)
    assert job.terms.pre_running_deadline_seconds == 30
    assert job.terms.gpus_per_worker == 4, "an init container takes them too"
    assert parse_job(raw_job("one", spec), SETTINGS, None).terms.priority == 5, "classes are not known yet"


def test_a_class_that_is_not_there():
    job = parse_job(raw_job("one", {"priorityClassName": "high"}), SETTINGS, {})
    assert job == InvalidJob(
        key="ns/one",
        uid="uid-1",
        generation=1,
        problems=("spec.priorityClassName: there is no PriorityClass 'high'; create it or name another",),
    )


def test_all_that_is_wrong_with_a_job_at_once():
    spec = {"timeBudgetSeconds": "long", "minReplicas": 3, "template": {"spec": {"containers": [{"image": "x"}]}}}
    job = parse_job(raw_job("one", spec), SETTINGS)
    assert isinstance(job, InvalidJob)
    assert len(job.problems) == 3
    assert 'spec.timeBudgetSeconds: is "long" (text); must be a number' in job.problems


def test_what_is_nested_too_deep_is_refused_by_its_depth():
    options: dict[str, Any] = {}
    raw = raw_job("one", {"training": {"model": {"name": "digits", "options": options}}})
    for _ in range(9_000):
        options["a"] = options = {}
    found = parse_job(raw, SETTINGS)
    assert isinstance(found, InvalidJob)
    assert found.problems == ("spec: lists and mappings are nested more than 100 deep; make it flatter",)


def test_a_status_is_read_apart():
    raw = raw_job() | {"status": {"restarts": 2}}
    assert isinstance(parse_job(raw, SETTINGS), KubeJob)
    assert parse_status(raw).restarts == 2
    assert parse_status(raw_job()) is None
    with pytest.raises(ValueError, match="restarts"):
        parse_status({"status": {"restarts": "many"}})


# ---- nothing is too strange


def full_pod() -> dict[str, Any]:
    raw = raw_worker(JOB, phase="Failed", state=terminated(1, reason="Error", message="m"), reason="Evicted")
    raw["spec"]["initContainers"] = [container("1", "Always"), container("2")]
    raw["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "a"}
    raw["spec"]["schedulingGates"] = [{"name": "g"}]
    raw["metadata"]["annotations"] = {"espalier.dev/allocation": '{"allocation": {"generation": 3}}'}
    raw["metadata"]["deletionTimestamp"] = time_at(EPOCH)
    raw["status"]["conditions"] = [{"type": "PodScheduled", "reason": "Unschedulable", "message": "m"}]
    raw["status"]["initContainerStatuses"] = [{"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}]
    return raw


def full_node() -> dict[str, Any]:
    raw = raw_node("n", 4, "a")
    raw["spec"] = {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]}
    return raw


def full_job() -> dict[str, Any]:
    metadata = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    given_template = template({"env": [{"name": "A"}]}, nodeSelector={"a": "b"}) | {"metadata": metadata}
    return raw_job("one", {"template": given_template, "priorityClassName": "p", "minReplicas": 1})


@given(mutated(full_pod()))
@example({})
def test_no_pod_is_too_strange(raw):
    pod = parse_pod(raw, SETTINGS)
    assert pod.gpus >= 0
    assert (pod.owner is None) == (pod.role is WorkerRole.FOREIGN)
    json.dumps([pod.message, pod.name])
    known = read_pod(raw, SETTINGS, lambda *_: ()) or UNKNOWN
    assert known.pod == (pod if pod.owner is not None or (pod.gpus and not pod.ended) else None)
    assert (known.load is None) == (pod.node is None or pod.ended)
    assert known.load is None or (known.load.node, known.load.owner) == (pod.node, pod.owner)


@given(mutated(full_node()))
@example({})
def test_no_node_is_too_strange(raw):
    assert parse_node(raw, SETTINGS).allocatable >= 0


@given(mutated(full_job()))
@example({})
def test_no_job_is_too_strange(raw):
    job = parse_job(raw, SETTINGS, {"p": 1})
    if isinstance(job, InvalidJob):
        assert job.problems
        assert all(job.problems)
    else:
        assert job.terms.gpus_per_worker >= 1


def test_a_queue_is_read_with_its_quotas_and_a_damaged_one_holds_nothing() -> None:
    text = (Path(__file__).parents[4] / "examples" / "queues" / "two-teams.yaml").read_text(encoding="utf-8")
    read = [parse_queue_object(raw) for raw in YAML(typ="safe", pure=True).load_all(text)]
    vision, language, default = (each.queue for each in read)
    assert vision == QueueLimits(
        name="vision",
        cohort="research",
        namespaces=("vision",),
        max_priority=100,
        quotas=(Quota(nominal=8, borrowing_limit=2),),
    )
    assert (language.quotas, language.max_priority) == ((Quota(nominal=4),), None)
    assert (default.cohort, default.max_priority) == (None, 0)
    damaged = {"kind": "Queue", "metadata": {"name": "vision"}, "spec": {"quotas": "all"}}
    assert parse_queue_object(damaged).queue == QueueLimits(name="vision", quotas=(Quota(nominal=0),))
