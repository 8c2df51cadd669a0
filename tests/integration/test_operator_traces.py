"""The name of a signal's trace on a real API server: in the status, and in the document that a trainer reads."""

from __future__ import annotations

import json

from operators import World

from espalier_core.types.allocation import SignalTrace
from espalier_core.types.job import ALLOCATION_ANNOTATION


def test_the_allocation_names_its_trace_where_traces_are_exported(world: World) -> None:
    world.kubelet.add_node("node", 1)
    operator = world.operate(traces_endpoint="http://127.0.0.1:9/v1/traces")
    traced = []
    operator.operator.backend._signals.trace = traced.append
    made = world.jobs.make("job", maxReplicas=2, preemption={"cooldownSeconds": 0})
    world.until_condition("job", "Running", "True", "Running")
    assert "traceparent" not in world.jobs.status("job")["allocation"], "the operator makes no span of an admission"
    env = world.pods("job")["job-base-0-0"]["spec"]["containers"][0]["env"]
    assert {"name": "ESPALIER_TRACES_ENDPOINT", "value": "http://127.0.0.1:9/v1/traces"} in env
    world.kubelet.set_gpus("node", 2)
    world.until_lent("job")
    allocation = world.jobs.status("job")["allocation"]
    trace = SignalTrace.of(made["metadata"]["uid"], allocation["generation"])
    assert allocation["traceparent"] == trace.traceparent

    def read() -> str:
        note = world.pods("job")["job-base-0-0"]["metadata"]["annotations"][ALLOCATION_ANNOTATION]
        return str(json.loads(note)["allocation"].get("traceparent"))

    world.until("the trainer's document names it too", lambda: read() == trace.traceparent)
    world.until("the leader has acknowledged", lambda: traced)
    assert (traced[0].uid, traced[0].generation) == (made["metadata"]["uid"], allocation["generation"])
