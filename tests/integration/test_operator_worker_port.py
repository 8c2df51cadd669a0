"""What protects the port of workers that train together, on a real API server."""

from __future__ import annotations

import base64
from typing import Any

from operators import World

from espalier_core.types.pod_template import DEFAULT_GPU_RESOURCE


def test_workers_that_train_together_get_a_key_and_a_policy_of_their_own(world: World) -> None:
    """The key is written once, whatever happens to the operator, and never read; the policy follows the template."""
    world.kubelet.add_node("node", 4)
    operator = world.operate(worker_network_policies=True)
    container: dict[str, Any] = {
        "name": "trainer",
        "image": "trainer:dev",
        "resources": {"limits": {DEFAULT_GPU_RESOURCE: 1}},
    }
    pod = {"containers": [container]}
    world.jobs.make("alone")
    made = world.jobs.make("together", training={"elasticBatch": "keepGlobal"}, template={"spec": pod})
    base = f"/api/v1/namespaces/{world.namespace}"
    policies = f"/apis/networking.k8s.io/v1/namespaces/{world.namespace}/networkpolicies"
    name = f"together-workers-{made['metadata']['uid']}"
    for each in ("alone", "together"):
        world.until_condition(each, "Running", "True", "Running")
    secret = world.server.request("GET", f"{base}/secrets/{name}")
    key = base64.b64decode(secret["data"]["key"])
    assert len(key) == 32
    assert len(set(key)) > 8
    assert [each["metadata"]["name"] for each in world.server.request("GET", f"{base}/secrets")["items"]] == [name]
    (policy,) = world.server.request("GET", policies)["items"]
    assert policy["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    # Neither a spec, nor a status, nor an Event, nor a report holds it.
    kinds = ("pods", "configmaps", "events", "services")
    texts = [str(world.server.request("GET", f"{base}/{kind}")) for kind in kinds]
    texts.append(str(world.server.request("GET", world.jobs.path)))
    assert not [text for text in texts for form in (secret["data"]["key"], key.hex(), str(key)) if form in text]

    operator.stop()
    world.operate(worker_network_policies=True)
    world.jobs.change("together", suspend=True)
    world.until_condition("together", "Suspended", "True", "Suspended")
    container["ports"] = [{"containerPort": 6006}]
    world.jobs.change("together", template={"spec": pod})
    world.jobs.change("together", suspend=False)
    world.until_condition("together", "Running", "True", "Running")
    assert world.server.request("GET", f"{base}/secrets/{name}")["data"] == secret["data"]
    world.server.request("DELETE", f"{base}/secrets/{name}")
    world.kubelet.end(world.namespace, world.running("together")[0], 1)
    world.until("it has another key", lambda: world.server.request("GET", f"{base}/secrets")["items"])
    (policy,) = world.server.request("GET", policies)["items"]
    assert [each["port"] for each in policy["spec"]["ingress"][1]["ports"]] == [6006, 9464]


def test_a_job_that_begins_to_train_together_while_it_is_suspended_gets_its_key(world: World) -> None:
    world.kubelet.add_node("node", 2)
    world.operate()
    made = world.jobs.make("job")
    world.until_condition("job", "Running", "True", "Running")
    world.jobs.change("job", suspend=True)
    world.until_condition("job", "Suspended", "True", "Suspended")
    world.jobs.change("job", training={"elasticBatch": "keepGlobal"})
    world.jobs.change("job", suspend=False)
    world.until_condition("job", "Running", "True", "Running")
    secrets = world.server.request("GET", f"/api/v1/namespaces/{world.namespace}/secrets")["items"]
    assert [each["metadata"]["name"] for each in secrets] == [f"job-workers-{made['metadata']['uid']}"]
