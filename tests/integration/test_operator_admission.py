"""Pods that admission refuses, or that cannot start: their GPUs are for others within seconds, and nothing is final."""

from __future__ import annotations

from typing import Any

import pytest
from operators import World
from webhooks import Webhook

QUICK = {"placement_seconds": 1.0}


def test_a_passing_no_of_a_webhook_fails_no_job_that_has_trained(world: World) -> None:
    """Without a code, which the API server turns into 400. Another job starts meanwhile; then it goes on."""
    world.kubelet.add_node("node", 1)
    world.operate(**QUICK)
    denials = list[dict[str, Any]]()
    with Webhook(world.server, world.namespace, lambda _: denials[0] if denials else []):
        world.jobs.make("job")
        world.until_condition("job", "Running", "True", "Running")
        denials.append({"message": "try again later"})
        world.delete_pod("job-base-0-0")
        world.until_condition("job", "Admitted", "False", "PodRejected")
        assert "try again later" in world.jobs.message("job", "Admitted")
        denials.clear()
        world.jobs.change("job", suspend=True)
        world.until_condition("job", "Suspended", "True", "Suspended")
        world.jobs.change("job", suspend=False)
        world.until_condition("job", "Running", "True", "Running")


@pytest.mark.parametrize(
    "denial",
    [
        {"code": 422, "reason": "Invalid", "message": 'Pod "a" is invalid: spec: Invalid value'},
        {"code": 404, "reason": "NotFound", "message": "no"},
        {"code": 409, "reason": "AlreadyExists", "message": "no"},
        {"code": 429, "reason": "TooManyRequests", "message": "no"},
        {"code": 503, "message": "no"},
    ],
    ids=lambda denial: str(denial["code"]),
)
def test_whatever_code_a_webhook_answers_with(world: World, denial: dict[str, Any]) -> None:
    """The job waits, with the webhook's words, and its GPUs are for others."""
    world.kubelet.add_node("node", 1)
    world.operate(**QUICK)
    with Webhook(world.server, world.namespace, lambda _: denial):
        world.jobs.make("job")
        world.until_condition("job", "Admitted", "False", "PodRejected")
        assert denial["message"] in world.jobs.message("job", "Admitted")
        assert world.jobs.status("job")["phase"] == "Pending"


def test_pods_with_scheduling_gates_hold_no_gpus(world: World) -> None:
    """Another job starts on them; when the gates are gone the first one waits for GPUs, and has lost nothing."""
    world.kubelet.add_node("node", 1)
    world.operate()
    gate = [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "example.com/queue"}]}]
    with Webhook(world.server, world.namespace, lambda pod: gate if "gated" in pod["metadata"]["name"] else []):
        world.jobs.make("gated", preRunningDeadlineSeconds=2)
        world.until_condition("gated", "Running", "False", "SchedulingGated")
        assert "example.com/queue" in world.jobs.message("gated", "Running")
        world.jobs.make("next")
        world.until_condition("next", "Running", "True", "Running")
        assert world.jobs.condition("gated", "Running") == ("False", "SchedulingGated")
    world.jobs.delete("next")
    world.delete_pod("next-base-0-0")
    world.jobs.change("gated", preRunningDeadlineSeconds=60)  # from here on it counts, and the machine may be busy
    pod = f"/api/v1/namespaces/{world.namespace}/pods/gated-base-0-0"
    world.server.request("PATCH", pod, {"spec": {"schedulingGates": None}})
    world.until_condition("gated", "Running", "True", "Running")


def limited(world: World) -> None:
    """Let a LimitRange refuse what requests more than a millicore."""
    limits = {"spec": {"limits": [{"type": "Container", "max": {"cpu": "1m"}}]}, "metadata": {"name": "small"}}
    world.server.request("POST", f"/api/v1/namespaces/{world.namespace}/limitranges", limits)


def denied(world: World) -> None:
    """Let a ValidatingAdmissionPolicy refuse pods with the network of their node, as invalid."""
    path, name = "/apis/admissionregistration.k8s.io/v1", world.namespace
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    only = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    validation = {"expression": "!has(object.spec.hostNetwork)", "message": "not on its network"}
    policy = {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": only}}
    world.server.request("POST", f"{path}/validatingadmissionpolicies", {"metadata": {"name": name}, "spec": policy})
    bindings = f"{path}/validatingadmissionpolicybindings"
    world.server.request("POST", bindings, {"metadata": {"name": name}, "spec": binding})
    pods = f"/api/v1/namespaces/{name}/pods"
    probe = {"metadata": {"name": "probe"}, "spec": {"hostNetwork": True, "containers": [{"name": "c", "image": "c"}]}}
    world.until("the policy is enforced", lambda: refuses(world, pods, probe))


def refuses(world: World, path: str, manifest: dict[str, Any]) -> bool:
    """Return whether the API server would not make an object."""
    return world.server.api.post(path, json=manifest, params={"dryRun": "All"}).status_code >= 400


def test_pods_that_admission_refuses_hold_no_gpus(world: World) -> None:
    """Pod Security, a missing RuntimeClass, a LimitRange, a policy that says 422: all the same."""
    world.kubelet.add_node("node", 1)
    denied(world)
    limited(world)
    world.operate(**QUICK)
    world.jobs.make("policy", pod={"hostNetwork": True})
    world.jobs.make("runtime", pod={"runtimeClassName": "missing"})
    container = {"name": "trainer", "image": "t:1", "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 1}}}
    world.jobs.make("limits", pod={"containers": [container]})
    for job, words in {"policy": "not on its network", "runtime": "missing", "limits": "maximum cpu"}.items():
        world.until_condition(job, "Admitted", "False", "PodRejected")
        assert words in world.jobs.message(job, "Admitted")
