"""What the API server answers to the deletion of a pod, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from espalier_core.k8s import resources
from espalier_operator.clock import WallClock
from espalier_operator.kube.apply.steps import DeletePod
from espalier_operator.kube.apply.writer import JobWriter
from espalier_operator.kube.objects.jobs import KubeJob, parse_job
from espalier_operator.kube.objects.pods import parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.store import Store
from operator_world.kube_objects import raw_job, raw_worker, template

SETTINGS = KubeSettings()


@pytest.mark.parametrize("versioned", [True, False])
def test_a_pod_that_is_gone_at_once_may_be_answered_without_a_version(versioned: bool) -> None:
    job = parse_job(raw_job(spec={"template": template()}), SETTINGS)
    assert isinstance(job, KubeJob)
    raw = {**raw_worker(job), "kind": "Pod"}
    answer = {
        **raw,
        "metadata": {**raw["metadata"], "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z"},
    }
    if not versioned:
        del answer["metadata"]["resourceVersion"]

    class Client:
        async def delete(self, *_: Any) -> Any:
            return answer

    store = Store(SETTINGS)
    store.take(resources.PODS, "ADDED", raw)
    pod = parse_pod(raw, SETTINGS)
    writer = JobWriter(cast("Any", Client()), store, SETTINGS, WallClock(), cast("Any", None))
    asyncio.run(writer._delete(DeletePod(pod=pod)))
    kept = store.pods.get(pod.key)
    assert kept is not None, "the watch tells when it is gone"
    assert kept.deleting == versioned
