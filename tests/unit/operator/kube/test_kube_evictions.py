"""EvictionRequests, as Kubernetes 1.37 serves them: which workers they ask to leave, and in what order these go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.k8s.resources import EVICTION_REQUESTS, PODS
from espalier_operator.job.state import JobState
from espalier_operator.kube.objects.pods import parse_eviction_request
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.workers import sort_pods, workers_of
from espalier_operator.kube.watch.store import Store, optional_kinds
from espalier_operator.model import WorkerRole
from operator_world.kube_objects import Raw, kube_job, raw_worker

JOB = kube_job(spec={"maxReplicas": 4})
EXTRA = [raw_worker(JOB, index, role=WorkerRole.EXTRA) for index in range(3)]
EVICTED = {"type": "Evicted", "status": "True", "reason": "TargetTerminated", "message": "", "observedGeneration": 1}


def request(pod: Raw, name: str = "drain", version: int = 7, intent: str = "Eviction", **changes: Any) -> Raw:
    """Return a request as a drain makes it."""
    target = {"pod": {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}}
    return {
        "apiVersion": "lifecycle.k8s.io/v1alpha1",
        "kind": "EvictionRequest",
        "metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version), "generation": 1},
        "spec": {"target": target, "requesterName": "kubectl.example.com/drain", "intent": intent},
        "status": {"observedGeneration": 1, "conditions": []},
        **changes,
    }


def known(*pods: Raw) -> Store:
    store = Store(KubeSettings(eviction_requests=True))
    store.replace(PODS, pods, 3)
    return store


def asked(store: Store) -> list[str]:
    """Return the names of the pods that are asked to leave, as the planner sees them."""
    pods = sort_pods(JOB, JobState(submitted_at=0.0, attempts=(0,)), store.pods_of(JOB.ref))
    return [worker.name for worker in workers_of("ns/one", pods, JobState(submitted_at=0.0)) if worker.asked_to_leave]


def test_a_worker_that_is_asked_to_leave_is_the_first_extra_worker_to_go() -> None:
    store = known(raw_worker(JOB), *EXTRA)
    store.take_changed()
    store.take(EVICTION_REQUESTS, "ADDED", request(EXTRA[0]))
    assert store.take_changed() == {JOB.uid}
    pods = sort_pods(JOB, JobState(submitted_at=0.0, attempts=(0,)), store.pods_of(JOB.ref))
    assert [pod.name for pod in pods.extra] == ["one-extra-1-0", "one-extra-2-0", "one-extra-0-0"]
    last = [each for each in workers_of("ns/one", pods, JobState(submitted_at=0.0)) if each.asked_to_leave]
    assert [(each.role, each.index) for each in last] == [(WorkerRole.EXTRA, 2)]


@pytest.mark.parametrize("first", ["pods", "requests"])
@pytest.mark.parametrize("over", ["withdrawn", "evicted", "deleted", "two, of which one is withdrawn"])
def test_a_request_counts_until_it_is_withdrawn_or_over(first: str, over: str) -> None:
    store, base = Store(KubeSettings(eviction_requests=True)), raw_worker(JOB)
    for kind in ("pods", "requests") if first == "pods" else ("requests", "pods"):
        if kind == "pods":
            store.replace(PODS, [base], 3)
        else:
            store.replace(EVICTION_REQUESTS, [request(base)], 7)
    assert asked(store) == ["ns/one-base-0-0"]
    base["metadata"]["resourceVersion"] = "8"
    store.take(PODS, "MODIFIED", base)
    assert asked(store) == ["ns/one-base-0-0"], "a pod that changes is still asked"
    match over:
        case "withdrawn":
            store.take(EVICTION_REQUESTS, "MODIFIED", request(base, version=9, intent="Withdrawn"))
        case "evicted":
            store.take(EVICTION_REQUESTS, "MODIFIED", request(base, version=9, status={"conditions": [EVICTED]}))
        case "deleted":
            store.take(EVICTION_REQUESTS, "DELETED", request(base, version=9))
        case _:
            store.take(EVICTION_REQUESTS, "ADDED", request(base, "descheduler", 9))
            store.take(EVICTION_REQUESTS, "DELETED", request(base, version=10))
            assert asked(store) == ["ns/one-base-0-0"], "the other still asks"
            store.replace(EVICTION_REQUESTS, (), 11)
    assert asked(store) == []


def test_a_request_asks_only_the_pod_of_its_namespace_and_uid() -> None:
    base = raw_worker(JOB)
    elsewhere = request(base)
    elsewhere["metadata"]["namespace"] = "others"
    earlier = request({"metadata": {**base["metadata"], "uid": "uid-of-an-earlier-pod"}}, "earlier")
    store = known(base)
    for raw in (elsewhere, earlier):
        store.take(EVICTION_REQUESTS, "ADDED", raw)
    assert asked(store) == []


garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(("pod", "name", "uid", "type")), some),
    max_leaves=6,
)


@given(garbage, garbage, garbage)
def test_nothing_in_a_request_keeps_others_from_being_read(target: Any, intent: Any, status: Any) -> None:
    raw = request(raw_worker(JOB), status=status)
    assert parse_eviction_request({**raw, "spec": {**raw["spec"], "intent": intent}}) is None
    assert parse_eviction_request({**raw, "spec": target}) is None
    parse_eviction_request({**raw, "spec": {**raw["spec"], "target": target}})


def test_requests_are_watched_in_the_managed_namespaces_only_if_the_settings_say_so() -> None:
    assert EVICTION_REQUESTS not in dict(optional_kinds(KubeSettings()))
    assert dict(optional_kinds(KubeSettings(eviction_requests=True)))[EVICTION_REQUESTS]
    assert EVICTION_REQUESTS.plural not in Store(KubeSettings()).unknown()
