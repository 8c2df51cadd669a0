"""Devices of dynamic resource allocation: what nodes have, what claims hold, and what workers claim."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.k8s import resources
from espalier_core.types.status import JobStatus
from espalier_operator.kube.objects.devices import Requirement, parse_class, parse_template, requirements_of
from espalier_operator.kube.objects.jobs import InvalidJob, KubeJob, parse_job
from espalier_operator.kube.objects.limits import parse_quota
from espalier_operator.kube.objects.worker_pod import worker_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.store import optional_kinds
from espalier_operator.model import HANGING_SECONDS, WorkerRole, WorkerState
from operator_world.kube_devices import (
    CLASS,
    DRIVER,
    RESOURCE,
    allocation,
    asking,
    claiming,
    raw_claim,
    raw_class,
    raw_slice,
    raw_template,
)
from operator_world.kube_known import Known
from operator_world.kube_objects import kube_job, raw_job, raw_node, raw_worker

SETTINGS = KubeSettings(other_gpu_resources=(RESOURCE,))
KINDS = {
    "Node": resources.NODES,
    "Pod": resources.PODS,
    "Job": resources.JOBS,
    "Class": resources.DEVICE_CLASSES,
    "Slice": resources.RESOURCE_SLICES,
    "Template": resources.RESOURCE_CLAIM_TEMPLATES,
    "Claim": resources.RESOURCE_CLAIMS,
}


class Devices(Known):
    """A store that counts devices."""

    def put(self, kind: str, raw: dict[str, Any], event: str | None = None) -> None:
        self.take(KINDS[kind], raw, event)

    def free(self, node: str = "node") -> int:
        """Return the devices of a node that nobody holds now."""
        place = f"{node}/{RESOURCE}"
        planned = self.store.planned_nodes.get(place)
        held = sum(each.gpus for each in self.store.foreign_workers.values() if each.node == place)
        return 0 if planned is None else planned.allocatable - held


def cluster(devices: int = 4) -> Devices:
    known = Devices(SETTINGS)
    known.put("Node", raw_node(gpus=0))
    known.put("Class", raw_class())
    known.put("Slice", raw_slice("node", [f"gpu-{number}" for number in range(devices)]))
    known.put("Template", raw_template(asking()))
    return known


def pod(
    name: str = "pod", node: str | None = None, spec: dict[str, Any] | None = None, **status: Any
) -> dict[str, Any]:
    whole = {**(spec or claiming()), **({"nodeName": node} if node else {})}
    metadata = {"name": name, "namespace": "ns", "uid": f"uid-of-{name}"}
    return {"metadata": metadata, "spec": whole, "status": {"phase": "Pending", **status}}


# ---- what nodes have


def test_devices_are_gpus_of_a_resource_of_their_own() -> None:
    known = cluster(3)
    found = {node.name: (node.gpu_type, node.allocatable) for node in known.store.planned_nodes.values()}
    assert found == {"node": ("", 0), f"node/{RESOURCE}": (RESOURCE, 3)}
    known.put("Slice", raw_slice("node", ["gpu-0"], generation=2))
    assert known.free() == 1
    known.put("Slice", raw_slice("node", []), "DELETED")
    assert known.free() == 0
    known.put("Node", raw_node(gpus=0), "DELETED")
    assert not known.store.planned_nodes


def test_a_class_that_comes_late_or_changes_counts_its_devices_again() -> None:
    known = Devices(SETTINGS)
    known.put("Slice", raw_slice("node", ["a", {"name": "b", "attributes": {"type": {"string": "mig"}}}]))
    known.put("Node", raw_node(gpus=0))
    assert known.free() == 0
    known.put("Class", raw_class())
    assert known.free() == 2
    known.put("Class", raw_class(CLASS, f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'"))
    assert known.free() == 1
    known.put("Class", raw_class(), "DELETED")
    assert known.free() == 0


def test_no_device_of_a_pool_counts_that_is_not_complete_tainted_or_of_no_single_node() -> None:
    known = cluster(0)
    known.put("Slice", raw_slice("node", ["a"], name="first", pool="large", slices=2))
    assert known.free() == 0
    known.put("Slice", raw_slice("node", ["b"], name="second", pool="large", slices=2))
    assert known.free() == 2
    known.put(
        "Slice", raw_slice("node", [{"name": "b", "taints": [{"key": "k", "effect": "NoExecute"}]}], name="tainted")
    )
    assert known.free() == 2
    shared = raw_slice("node", ["far"], name="shared", pool="net")
    known.put("Slice", {**shared, "spec": {key: value for key, value in shared["spec"].items() if key != "nodeName"}})
    assert known.free() == 2
    known.put("Slice", raw_slice("node", ["c"], name="first", pool="large", slices=2, generation=2))
    assert known.free() == 0, "the newest generation lacks a slice"


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("device.driver == 'a'", [Requirement(None, "a", True)]),
        (
            'device.driver == "a" && device.attributes["a"].type == "gpu"',
            [Requirement(None, "a", True), Requirement("a/type", "gpu", True)],
        ),
        ("device.attributes['a.b'].index != 3 && true", [Requirement("a.b/index", 3, False)]),
        ("device.attributes['a'].healthy", [Requirement("a/healthy", True, True)]),
        ("device.driver == 'a' || device.driver == 'b' && device.attributes['a'].x == 1", []),
        ("!(device.driver == 'a')", []),
        ("device.driver in ['a', 'b'] && device.driver != 'b'", [Requirement(None, "b", False)]),
        (
            "device.capacity['a'].memory.compareTo(quantity('40Gi')) >= 0 && device.driver == 'a && b'",
            [Requirement(None, "a && b", True)],
        ),
        ("device.driver == 'a\\'' && device.driver == 'b'", []),
        ("device.driver == 'a' ? true : false", []),
        ("", []),
    ],
)
def test_only_parts_of_a_selector_are_judged_that_must_hold_in_any_case(
    expression: str, parts: list[Requirement]
) -> None:
    assert list(requirements_of(expression)) == parts


@given(st.text(max_size=200) | st.from_regex(r"(device\.driver|[&|()'\"?\[\] ]|== 'a'){0,12}", fullmatch=True))
def test_any_text_may_be_a_selector(expression: str) -> None:
    parse_class(raw_class(CLASS, expression))


# ---- what claims hold


def test_a_claim_holds_its_devices_as_long_as_it_is_allocated() -> None:
    known = cluster()
    known.put("Claim", raw_claim("theirs"))
    assert known.free() == 4
    known.put("Claim", raw_claim("theirs", status=allocation("node", ["gpu-0", "gpu-1"])))
    assert known.free() == 2
    for name in ("first", "second"):  # pods that share it hold no more
        shared = {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": "theirs"}]}
        known.put("Pod", pod(name, "node", shared, phase="Running"))
    assert known.free() == 2
    known.put("Claim", raw_claim("theirs"))
    assert known.free() == 4
    known.put("Claim", raw_claim("theirs", status=allocation("node", ["gpu-0", "other"])))
    assert known.free() == 3
    known.put("Claim", raw_claim("theirs"), "DELETED")
    assert known.free() == 4


def test_access_for_administrators_takes_no_device() -> None:
    known = cluster()
    status = allocation("node", ["gpu-0"])
    status["allocation"]["devices"]["results"][0]["adminAccess"] = True
    known.put("Claim", raw_claim("monitoring", asking(adminAccess=True), status))
    assert known.free() == 4


def test_a_pod_of_others_wants_the_devices_of_its_template_until_its_claim_has_them() -> None:
    known = cluster()
    known.put("Pod", pod())
    [waiting] = known.store.foreign_workers.values()
    assert (waiting.node, waiting.gpus, waiting.name) == (None, 1, "ns/pod")
    made = pod(resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "pod-gpu"}])
    known.put("Claim", raw_claim("pod-gpu", pod=made, status=allocation("node", ["gpu-0"])))
    bound = {**made, "spec": {**made["spec"], "nodeName": "node"}}
    known.put("Pod", bound)
    [holding] = known.store.foreign_workers.values()
    assert (holding.node, holding.gpus, holding.state) == (f"node/{RESOURCE}", 1, WorkerState.RUNNING)
    known.put("Pod", bound, "DELETED")
    [leaving] = known.store.foreign_workers.values()
    assert leaving.state is WorkerState.TERMINATING, "the claim goes soon"


def test_the_claim_of_a_worker_is_not_counted_twice_and_is_about_to_go_after_it() -> None:
    known = cluster()
    known.put("Job", raw_job(spec={"template": {"spec": claiming()}}))
    job = kube_job(
        spec={"template": {"spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}}
    )
    worker = raw_worker(job, resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "made"}])
    worker["spec"] = {**claiming(), "nodeName": "node"}
    known.put("Pod", worker)
    [seen] = known.store.pods_of(job.ref)
    assert (seen.gpus, seen.place) == (1, f"node/{RESOURCE}")
    known.put("Template", raw_template(asking()), "DELETED")
    known.put("Claim", raw_claim("made", pod=worker, status=allocation("node", ["gpu-0"])))
    assert known.free() == 4, "what workers of jobs hold is counted by pods"
    known.put("Pod", worker)
    [seen] = known.store.pods_of(job.ref)
    assert seen.gpus == 1, "the claim tells what it asked for"
    known.put("Pod", {**worker, "status": {**worker["status"], "phase": "Succeeded"}})
    [leaving] = known.store.foreign_workers.values()
    assert (leaving.gpus, leaving.state) == (1, WorkerState.TERMINATING)


def test_devices_of_a_pod_that_is_gone_are_waited_for_only_for_a_while() -> None:
    """Whoever makes a claim may name a pod that never was."""
    known = cluster()
    nobody = pod("nobody")
    for _ in range(2):
        known.put("Claim", raw_claim("kept", pod=nobody, status=allocation("node", ["gpu-0"])))
        [leaving] = known.store.foreign_workers.values()
        assert leaving.leaves_between() == (-math.inf, known.now + HANGING_SECONDS)
        known.now, begun = known.now + 100.0, known.now
        known.put("Claim", raw_claim("kept", pod=nobody, status=allocation("node", ["gpu-0", "gpu-1"])))
        [leaving] = known.store.foreign_workers.values()
        assert leaving.leaves_between()[1] == begun + HANGING_SECONDS
        known.put("Claim", raw_claim("kept"))


def test_a_claim_that_is_listed_before_its_pod_is_waited_for_only_from_when_the_pod_went() -> None:
    """At the start of the operator, claims are known before pods."""
    known = cluster()
    own = raw_worker(kube_job(), resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "made"}])
    own["spec"] = {**claiming(), "nodeName": "node"}
    known.put("Claim", raw_claim("made", pod=own, status=allocation("node", ["gpu-0"])))
    known.put("Pod", own)
    assert not known.store.foreign_workers
    known.now += 1000.0
    known.remove(resources.PODS, own)
    [leaving] = known.store.foreign_workers.values()
    assert leaving.leaves_at == known.now


def test_a_pod_that_only_names_a_job_as_its_owner_holds_its_claim_once() -> None:
    known = cluster()
    owner = raw_worker(kube_job())["metadata"]["ownerReferences"]
    other = pod("other", "node", phase="Running", resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "made"}])
    other["metadata"]["ownerReferences"] = owner
    known.put("Pod", other)
    known.put("Claim", raw_claim("made", pod=other, status=allocation("node", ["gpu-0"])))
    assert known.free() == 3


def test_a_claim_that_somebody_made_for_a_worker_counts_where_the_worker_does_not_name_it() -> None:
    known = cluster()
    job = kube_job()
    worker = raw_worker(job)
    known.put("Pod", worker)
    known.put("Claim", raw_claim("forged", pod=worker, status=allocation("node", ["gpu-0"])))
    assert known.free() == 3


@given(data=st.data(), order=st.permutations(["Node", "Class", "Slice", "Template", "Claim"]))
def test_in_any_order_free_is_what_is_there_without_what_claims_name(data: st.DataObject, order: list[str]) -> None:
    """Compared with a plain count; whatever comes twice, late or not at all."""
    nodes, names = ("a", "b"), [f"gpu-{number}" for number in range(4)]
    devices = {node: data.draw(st.sets(st.sampled_from(names))) for node in nodes}
    claims: dict[str, tuple[str, set[str]]] = {}
    free = {node: set(found) for node, found in devices.items()}
    for number in range(data.draw(st.integers(0, 4))):
        node = data.draw(st.sampled_from(nodes))
        taken = data.draw(st.sets(st.sampled_from(sorted(free[node])))) if free[node] else set()
        free[node] -= taken
        claims[f"claim-{number}"] = (node, taken)
    known = Devices(SETTINGS)
    for kind in [*order, *data.draw(st.lists(st.sampled_from(order), max_size=3))]:
        match kind:
            case "Node":
                for node in nodes:
                    known.put(kind, raw_node(node, 0))
            case "Class":
                known.put(kind, raw_class())
            case "Slice":
                for node in nodes:
                    known.put(kind, raw_slice(node, sorted(devices[node])))
            case "Template":
                known.put(kind, raw_template(asking()))
            case "Claim":
                for name, (node, taken) in claims.items():
                    known.put(kind, raw_claim(name, status=allocation(node, sorted(taken)) if taken else {}))
    gone = data.draw(st.sets(st.sampled_from(sorted(claims)))) if claims else set()
    for name in gone:
        node, taken = claims.pop(name)
        free[node] |= taken
        known.put("Claim", raw_claim(name), "DELETED")
    assert {node: known.free(node) for node in nodes} == {node: len(found) for node, found in free.items()}
    held = Counter(each.node for each in known.store.foreign_workers.values())
    assert sum(held.values()) == sum(bool(taken) for _, taken in claims.values())


# ---- what jobs claim


def parsed(spec: dict[str, Any], template: dict[str, Any] | None = None, settings: KubeSettings = SETTINGS) -> Any:
    asked = None if template is None else parse_template(raw_template(template))
    raw = raw_job(spec={"template": {"spec": spec}})
    return parse_job(raw, settings, {}, claim_template=lambda name: asked if name == "ns/one-gpu" else None)


@pytest.mark.parametrize("number", [1, 2, 8])
def test_a_worker_has_as_many_gpus_as_its_template_claims(number: int) -> None:
    job = parsed(claiming(), asking(number))
    assert isinstance(job, KubeJob)
    assert (job.terms.gpu_resource, job.terms.gpus_per_worker) == (RESOURCE, number)
    made = worker_pod(job, JobStatus(), WorkerRole.BASE, 0, 0, SETTINGS, RESOURCE, f"node/{RESOURCE}")["spec"]
    assert made["resourceClaims"] == claiming()["resourceClaims"]
    assert made["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}


def test_the_ready_trainer_gets_no_gpu_besides_those_that_it_claims() -> None:
    spec = claiming()
    spec["containers"] = [{"name": "trainer", "resources": {"claims": [{"name": "gpu"}]}}]
    made = worker_pod(parsed(spec, asking()), JobStatus(), WorkerRole.BASE, 0, 0, SETTINGS, RESOURCE)["spec"]
    assert made["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}


SHARED = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
LIMITS = {"containers": [{"name": "trainer", "image": "mine", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}


@pytest.mark.parametrize(
    ("spec", "template", "problem"),
    [
        (
            claiming("none"),
            None,
            "resourceClaims[0].resourceClaimTemplateName: there is no ResourceClaimTemplate 'none'",
        ),
        (claiming(), asking(allocationMode="All"), "cannot be counted: request 'gpu' has allocationMode All"),
        (claiming(), {"devices": {"requests": [{"name": "gpu", "firstAvailable": [{}]}]}}, "has alternatives"),
        (
            claiming(),
            asking(name="nic.example.com"),
            "no ResourceClaimTemplate that it names asks for devices of gpu.exa",
        ),
        (claiming(containers=[{"name": "a", "image": "b"}]), asking(), "no container uses the claim 'gpu'"),
        ({**claiming(), **SHARED}, asking(), "no container has a limit of nvidia.com/gpu or deviceclass"),
        (
            {**claiming(), "containers": [*claiming()["containers"], {**LIMITS["containers"][0], "name": "b"}]},
            asking(),
            f"has limits of, or claims, nvidia.com/gpu and {RESOURCE}; a worker can use one",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused_with_the_field(
    spec: dict[str, Any], template: dict[str, Any] | None, problem: str
) -> None:
    job = parsed(spec, template)
    assert isinstance(job, InvalidJob)
    assert len(job.problems) == 1
    assert problem in job.problems[0]
    assert job.problems[0].startswith("spec.template.spec.")


def test_claims_for_other_devices_are_kube_schedulers_business() -> None:
    for template in (None, asking(name="nic.example.com"), asking(name="nic.example.com", allocationMode="All")):
        job = parsed({**claiming(), **LIMITS}, template)
        assert isinstance(job, KubeJob)
        assert (job.terms.gpu_resource, job.terms.gpus_per_worker) == ("nvidia.com/gpu", 1)


def test_without_a_class_in_the_settings_claims_do_not_count_and_nothing_is_watched() -> None:
    job = parsed(claiming(), asking(), KubeSettings())
    assert isinstance(job, InvalidJob)
    assert "the operator counts no claimed devices (--other-gpu-resources deviceclass" in job.problems[0]
    assert not {kind for kind, _ in optional_kinds(KubeSettings())} & set(resources.DEVICE_KINDS)
    assert {kind for kind, _ in optional_kinds(SETTINGS)} > set(resources.DEVICE_KINDS)


def test_a_job_is_read_again_when_its_claim_template_comes() -> None:
    known = Devices(SETTINGS)
    known.put("Job", raw_job(spec={"template": {"spec": claiming()}}))
    [job] = known.store.jobs.values()
    assert isinstance(job.parsed, InvalidJob)
    known.put("Template", raw_template(asking(2)))
    [job] = known.store.jobs.values()
    assert isinstance(job.parsed, KubeJob)
    assert job.parsed.terms.gpus_per_worker == 2
    known.put("Template", raw_template(asking(2)), "DELETED")
    [job] = known.store.jobs.values()
    assert isinstance(job.parsed, InvalidJob)


def test_a_quota_of_devices_limits_the_resource() -> None:
    name = f"{CLASS}.deviceclass.resource.k8s.io/devices"
    raw = {"metadata": {"name": "q", "namespace": "ns"}, "status": {"hard": {name: "4"}, "used": {name: "1"}}}
    [limit] = parse_quota(raw)
    assert (limit.resource, limit.hard, limit.used) == (RESOURCE, 4, 1)
