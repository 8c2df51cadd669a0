"""What Workloads say, whatever is in them: property tests of the mapping from Kueue's words to an admission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.job import API_VERSION, KIND
from espalier_core.types.status import JobStatus
from espalier_operator.kube.objects.jobs import KubeJob, assigned_to, parse_job
from espalier_operator.kube.objects.kueue import (
    Flavor,
    admission_by,
    asks_of,
    assignment_of,
    extras_by,
    parse_workload,
    workload_of,
)
from espalier_operator.kube.objects.worker_pod import worker_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Node, WorkerRole
from espalier_operator.model.constraints import Taint
from operator_world.kube_objects import GPU, Raw, raw_job, template

SETTINGS = KubeSettings(kueue=True)
QUEUE = {"kueue.x-k8s.io/queue-name": "team"}
KINDS = ("QuotaReserved", "Admitted", "Evicted", "Finished", "PodsReady", "Requeued")

garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(("name", "template", "spec", "x")), some),
    max_leaves=6,
)
conditions = st.dictionaries(
    st.sampled_from(KINDS),
    st.tuples(st.sampled_from(("True", "False", "Unknown")), st.sampled_from(("Pending", "Inadmissible", "Preempted"))),
).map(lambda found: [{"type": kind, "status": is_so, "reason": why} for kind, (is_so, why) in found.items()])


def job_of(labels: Mapping[str, str] = QUEUE, settings: KubeSettings = SETTINGS, **spec: Any) -> KubeJob:
    raw = raw_job("one", {"template": template(), **spec})
    raw["metadata"]["labels"] = dict(labels)
    job = parse_job(raw, settings)
    assert isinstance(job, KubeJob)
    return job


def raw_workload(job: KubeJob, **status: Any) -> Raw:
    made = workload_of(job, SETTINGS)
    named = {**made["metadata"], "uid": "uid", "resourceVersion": "7"}
    return {**made, "metadata": named, "status": status}


@given(garbage, garbage, st.dictionaries(st.sampled_from(("podSets", "active", "queueName")), garbage))
def test_nothing_in_a_workload_keeps_others_from_being_read(status: Any, conditions: Any, spec: dict[str, Any]) -> None:
    owners = [{"apiVersion": API_VERSION, "kind": KIND, "name": "one", "uid": "u", "controller": True}]
    for references in ([], owners):
        metadata = {"namespace": "ns", "name": "w", "uid": "u", "resourceVersion": "1", "ownerReferences": references}
        body = {"metadata": metadata, "spec": spec}
        for given_status in (status, {"conditions": conditions, "admission": status, "admissionChecks": conditions}):
            found = parse_workload({**body, "status": given_status}, SETTINGS)
            assert found is None or not found.admitted


@given(conditions, st.booleans(), st.booleans())
def test_a_job_is_admitted_or_loses_its_quota_by_kueues_word_alone(
    said: list[Raw], active: bool, changed: bool
) -> None:
    job = job_of()
    raw = raw_workload(job, conditions=said)
    raw["spec"]["active"] = active
    workload = parse_workload(raw, SETTINGS)
    asks = asks_of(job_of(minReplicas=2, maxReplicas=2) if changed else job, SETTINGS)
    found = admission_by(workload, asks, {}, "")
    holds = {each["type"] for each in said if each["status"] == "True"}
    refused = any(each["type"] == "QuotaReserved" and each["status"] != "True" for each in said)
    ends = bool(holds & {"Evicted", "Finished"})
    assert found.admitted == ("Admitted" in holds and active and not ends and not changed)
    assert found.withdrawn == (changed or ends or refused or not active)
    assert found.message
    assert bool(workload.waits) <= (active and not ends and "Admitted" not in holds), "it wants GPUs, or has them"


def test_silence_takes_nothing_back() -> None:
    job = job_of()
    for workload in (None, parse_workload(raw_workload(job), SETTINGS)):
        found = admission_by(workload, asks_of(job, SETTINGS), {}, "")
        assert not found.admitted
        assert not found.withdrawn
        assert found.message


@pytest.mark.parametrize(
    ("spec", "is_other_quota"),
    [
        ({"minReplicas": 2, "maxReplicas": 2}, True),
        ({"template": template({"resources": {"limits": {GPU: 2}}})}, True),
        ({"template": template({"resources": {"limits": {GPU: 1}, "requests": {"cpu": "2"}}})}, True),
        ({"template": template(nodeSelector={"pool": "a"})}, False),
        ({"priority": 3}, False),
    ],
)
def test_what_a_job_asks_for_is_compared_with_what_its_workload_asks_for(spec: Raw, is_other_quota: bool) -> None:
    """An image or a command is no business of Kueue's; neither is who has made the Workload, or what was filled in."""
    workload = parse_workload(raw_workload(job_of()), SETTINGS)
    assert workload.asks == asks_of(job_of(template=template({"image": "other", "command": ["x"]})), SETTINGS)
    other = asks_of(job_of(**spec), SETTINGS)
    assert workload.asks != other
    assert (workload.asks.quota != other.quota) == is_other_quota


def test_the_planner_and_the_pods_get_what_kueue_assigns() -> None:
    job = job_of()
    check = {"name": "main", "nodeSelector": {"slice": "7"}, "annotations": {"consume": "it"}, "labels": {"a": "b"}}
    taint = {"key": "reserved", "operator": "Exists"}
    assigned = {"name": "main", "flavors": {GPU: "h100", "cpu": "any"}}
    yes = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")]
    checks = [{"name": "provisioned", "state": "Ready", "podSetUpdates": [check]}]
    raw = raw_workload(job, conditions=yes, admission={"podSetAssignments": [assigned]}, admissionChecks=checks)
    workload = parse_workload(raw, SETTINGS)
    assert workload is not None
    flavors = {"h100": Flavor(node_labels={"nvidia.com/gpu.product": "H100"}, tolerations=(taint,))}
    asks = asks_of(job, SETTINGS)
    assert not admission_by(workload, asks, flavors, "").admitted, "where a flavor cannot be read, nobody knows where"
    flavors["any"] = Flavor(node_labels={}, tolerations=())
    assert admission_by(workload, asks, flavors, "").admitted

    found = assigned_to(job, assignment_of(workload, flavors), SETTINGS)
    assert asks_of(found, SETTINGS) == asks
    pod = worker_pod(found, JobStatus(), WorkerRole.EXTRA, 0, 1, SETTINGS, "H100", "node")
    assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "H100", "slice": "7"}
    assert taint in pod["spec"]["tolerations"]
    assert pod["metadata"]["annotations"]["consume"] == "it"
    assert pod["metadata"]["labels"]["a"] == "b"
    labels = {"nvidia.com/gpu.product": "H100", "slice": "7"}
    fits = Node(name="a", gpu_type="H100", allocatable=1, labels=labels, taints=(Taint("reserved"),))
    other = Node(name="b", gpu_type="H100", allocatable=1, labels={**labels, "slice": "8"})
    assert found.terms.admit(fits)
    assert not found.terms.admit(other)


@given(st.lists(conditions, max_size=5), st.integers(0, 5))
def test_no_more_extra_workers_are_asked_back_than_kueue_takes_back(every: list[list[Raw]], extra: int) -> None:
    job = job_of()
    found = (parse_workload(raw_workload(job, conditions=said), SETTINGS) for said in every)
    workloads = [each for each in found if each is not None]
    admitted, withdrawn = extras_by(workloads, extra)
    assert admitted <= sum(each.admitted for each in workloads)
    assert withdrawn <= min(extra, sum(each.lost for each in workloads))
    if not any(each.lost for each in workloads):
        assert withdrawn == 0


def test_the_label_counts_only_where_kueue_is_switched_on() -> None:
    assert job_of().local_queue == "team"
    assert job_of(labels={}).local_queue == ""
    assert job_of(settings=KubeSettings()).local_queue == ""
    assert job_of(settings=KubeSettings()).terms.queue == "default"
