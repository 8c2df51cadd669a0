"""What is built of a job, whole: each case says only how it differs from the plain one."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.files.documents import loads
from espalier_core.k8s.resources import trainer_of
from espalier_core.types.allocation import Allocation, AllocationDocument
from espalier_core.types.job import MAX_NAME_LENGTH
from espalier_core.types.status import AvoidedNode, JobStatus, SchedulingStatus, TimeBudgetStatus
from espalier_operator.job.view import utc
from espalier_operator.kube.objects import manifests as objects
from espalier_operator.kube.objects.jobs import KubeJob, parse_job
from espalier_operator.kube.objects.nodes import constraints_of, parse_node
from espalier_operator.kube.objects.worker_pod import DEFAULT_CONTAINER, DELETION_COST, STAYS, worker_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import WorkerRole
from operator_world.kube_objects import EPOCH, GPU, kube_job, raw_job, template

SETTINGS = KubeSettings(departing_nodes=())
STATUS = JobStatus(
    allocation=Allocation(generation=3, replicas=2, gpus=2), time_budget=TimeBudgetStatus(used_seconds=12.5)
)
OWNED = {
    "namespace": "ns",
    "labels": {"espalier.dev/job": "one", "app.kubernetes.io/managed-by": "espalier"},
    "ownerReferences": [
        {
            "apiVersion": "espalier.dev/v1alpha1",
            "kind": "AdaptiveTrainingJob",
            "name": "one",
            "uid": "uid-1",
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ],
}
LIMITS = {"limits": {GPU: 1}}
CONTRACT = [
    {"name": "ESPALIER_JOB_FILE", "value": "/etc/espalier/job.json"},
    {"name": "ESPALIER_ALLOCATION_FILE", "value": "/etc/espalier/allocation.json"},
    {"name": "ESPALIER_JOB_NAME", "value": "one"},
    {"name": "ESPALIER_JOB_NAMESPACE", "value": "ns"},
    {"name": "ESPALIER_REPORT_CONFIG_MAP", "value": "one-report"},
    {"name": "ESPALIER_WORKER_ROLE", "value": "base"},
    {"name": "ESPALIER_WORKER_INDEX", "value": "0"},
    {"name": "ESPALIER_JOB_UID", "value": "uid-1"},
    {"name": "ESPALIER_ATTEMPT", "value": "0"},
    {"name": "ESPALIER_INCARNATION", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    {"name": "ESPALIER_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
]
METRICS = {"name": "ESPALIER_METRICS_PORT", "value": "9464"}
PORT = {"name": "metrics", "containerPort": 9464}
CONTRACT_MOUNT = {"name": "espalier-contract", "mountPath": "/etc/espalier", "readOnly": True}
CONTRACT_VOLUME = {
    "name": "espalier-contract",
    "downwardAPI": {
        "items": [
            {"path": "job.json", "fieldRef": {"fieldPath": "metadata.annotations['espalier.dev/job']"}},
            {"path": "allocation.json", "fieldRef": {"fieldPath": "metadata.annotations['espalier.dev/allocation']"}},
        ]
    },
}
TOKEN = {"name": "ESPALIER_AGENT_TOKEN_FILE", "value": "/var/run/secrets/espalier.dev/agent/token"}
TOKEN_MOUNT = {"name": "espalier-agent-token", "mountPath": "/var/run/secrets/espalier.dev/agent", "readOnly": True}
TOKEN_SOURCE = {"path": "token", "audience": "espalier-agent/ns/one/uid-1", "expirationSeconds": 3600}
TOKEN_VOLUME = {"name": "espalier-agent-token", "projected": {"sources": [{"serviceAccountToken": TOKEN_SOURCE}]}}
CHECKPOINT_MOUNT = {"name": "espalier-checkpoints", "mountPath": "/checkpoints"}
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
CHECKPOINT_VOLUME = {"name": "espalier-checkpoints", "emptyDir": {}}


def a_container(**changes):
    """The training container of a template with image `mine`."""
    plain = {
        "name": "trainer",
        "image": "mine",
        "resources": LIMITS,
        "env": [*CONTRACT, METRICS],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [PORT],
        "volumeMounts": [CONTRACT_MOUNT, CHECKPOINT_MOUNT],
    }
    return {key: value for key, value in (plain | changes).items() if value is not None}


def contract(**changes):
    """The variables of a worker, some with another value."""
    return [{**entry, **({"value": changes[entry["name"]]} if entry["name"] in changes else {})} for entry in CONTRACT]


def a_spec(container=None, **changes):
    """The pod spec of a worker; a change to None takes a field away."""
    plain = {
        "containers": [a_container() if container is None else container],
        "serviceAccountName": "one-trainer",
        "restartPolicy": "Never",
        "hostname": "one-base-0",
        "subdomain": "one",
        "enableServiceLinks": False,
        "tolerations": [{"key": GPU, "operator": "Exists"}],
        "volumes": [CONTRACT_VOLUME, CHECKPOINT_VOLUME],
    }
    return {key: value for key, value in (plain | changes).items() if value is not None}


def spec_of(job: KubeJob, role: WorkerRole = WorkerRole.BASE, index: int = 0, settings=SETTINGS, gpu_type=None):
    return worker_pod(job, STATUS, role, index, 0, settings, gpu_type)["spec"]


def templated(container=None, **spec):
    return kube_job("one", {"template": template(container, **spec)})


# ---- beside the pods


def test_the_objects_of_a_job_in_the_order_in_which_they_are_made():
    rbac = "rbac.authorization.k8s.io"
    assert objects.owned_objects(kube_job()) == (
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "one", **OWNED},
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"espalier.dev/job": "one"}},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "one-report", **OWNED, "labels": {**OWNED["labels"], "espalier.dev/report": "true"}},
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "one-trainer", **OWNED}},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": {"name": "one-trainer", **OWNED},
            "rules": [
                {
                    "apiGroups": ["espalier.dev"],
                    "resources": ["adaptivetrainingjobs"],
                    "resourceNames": ["one"],
                    "verbs": ["get", "list", "watch"],
                },
                {
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "resourceNames": ["one-report"],
                    "verbs": ["get", "patch"],
                },
            ],
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "one-trainer", **OWNED},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "one-trainer"},
            "subjects": [{"kind": "ServiceAccount", "name": "one-trainer", "namespace": "ns"}],
        },
    )


# ---- workers that train together

TOGETHER = {"training": {"elasticBatch": "keepGlobal"}}


def test_the_key_of_workers_that_train_together_is_in_a_secret_of_this_very_job():
    job = kube_job("one", TOGETHER)
    assert objects.worker_secret(job, b"\x00\xff") == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "one-workers-uid-1", **OWNED},
        "type": "Opaque",
        "immutable": True,
        "data": {"key": "AP8="},
    }


@pytest.mark.parametrize(("role", "index"), [(WorkerRole.BASE, 0), (WorkerRole.BASE, 1), (WorkerRole.EXTRA, 0)])
def test_each_worker_finds_the_key_in_a_file_and_neither_in_its_environment_nor_its_job(role, index):
    spec = spec_of(kube_job("one", {**TOGETHER, "template": template()}), role, index)
    folder = "/var/run/secrets/espalier.dev/workers"
    (container,) = spec["containers"]
    assert {"name": "ESPALIER_RENDEZVOUS_KEY_FILE", "value": f"{folder}/key"} in container["env"]
    mounted = {"name": "espalier-workers-key", "mountPath": folder, "readOnly": True}
    assert mounted in container["volumeMounts"]
    assert {"name": "espalier-workers-key", "secret": {"secretName": "one-workers-uid-1"}} in spec["volumes"]
    assert not [entry for entry in container["env"] if "secretKeyRef" in str(entry)]
    assert "espalier-workers-key" not in str(spec_of(templated(), role, index))


def test_a_policy_admits_the_jobs_own_pods_to_all_ports_and_others_to_those_that_are_declared():
    ports = [{"containerPort": 6006}, {"containerPort": 29400}, {"containerPort": 40000, "protocol": "UDP"}]
    sidecar = {"name": "mesh", "image": "mesh", "restartPolicy": "Always", "ports": [{"containerPort": 15090}]}
    job = kube_job("one", {**TOGETHER, "template": template({"ports": ports}, initContainers=[sidecar])})
    *others, policy = objects.owned_objects(job, isolated=True)
    assert tuple(others) == objects.owned_objects(job)
    own = {"podSelector": {"matchLabels": {"espalier.dev/job": "one"}}}
    declared = [(6006, "TCP"), (9464, "TCP"), (15090, "TCP"), (40000, "UDP")]
    assert policy == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "one-workers", **OWNED},
        "spec": {
            **own,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [own]}, {"ports": [{"port": port, "protocol": how} for port, how in declared]}],
        },
    }
    assert objects.owned_objects(kube_job(), isolated=True) == objects.owned_objects(kube_job())


@pytest.mark.parametrize(
    "ports", [None, 5, "x", [None, 5, {}], [{"containerPort": each} for each in (True, 0, 70_000, "1")]]
)
def test_ports_that_are_none_are_left_to_the_api_server(ports):
    job = kube_job("one", {**TOGETHER, "template": template({"ports": ports})})
    assert objects.network_policy(job)["spec"]["ingress"][1] == {"ports": [{"port": 9464, "protocol": "TCP"}]}


@pytest.mark.parametrize("field", ["serviceAccountName", "serviceAccount"])
def test_an_account_of_the_template_gets_the_rights_and_runs_the_pods(field):
    job = templated(**{field: "mine"})
    assert objects.role_binding(job)["subjects"] == [{"kind": "ServiceAccount", "name": "mine", "namespace": "ns"}]
    assert spec_of(job) == a_spec(serviceAccountName="mine")


# ---- the pod of a worker


def test_a_leader_whole():
    pod = worker_pod(templated(), STATUS, WorkerRole.BASE, 0, 7, SETTINGS)
    annotations = pod["metadata"].pop("annotations")
    assert pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "one-base-0-7",
            **OWNED,
            "labels": {
                **OWNED["labels"],
                "espalier.dev/role": "base",
                "espalier.dev/index": "0",
                "espalier.dev/attempt": "7",
            },
        },
        "spec": a_spec(a_container(env=[*contract(ESPALIER_ATTEMPT="7"), METRICS])),
    }
    assert annotations.keys() == {
        "espalier.dev/job",
        "espalier.dev/allocation",
        DEFAULT_CONTAINER,
        DELETION_COST,
        *STAYS,
    }
    assert annotations[DEFAULT_CONTAINER] == pod["spec"]["containers"][0]["name"] == trainer_of(pod["spec"])
    told = loads(annotations["espalier.dev/allocation"], AllocationDocument, "annotation")
    assert (told.job, told.allocation, told.time_budget.used_seconds) == ("ns/one", STATUS.allocation, 12.5)
    document = json.loads(annotations["espalier.dev/job"])
    assert (document["kind"], document["metadata"]) == ("AdaptiveTrainingJob", {"name": "one", "namespace": "ns"})
    assert document["spec"]["timeBudgetSeconds"] == 100
    assert "template" not in document["spec"], "it may be large, and no trainer reads it"


def test_building_changes_nothing_in_the_job():
    job = templated({"env": [{"name": "A", "value": "b"}]}, tolerations=[], nodeSelector={"a": "b"}, affinity={})
    before = copy.deepcopy(job)
    first = worker_pod(job, STATUS, WorkerRole.BASE, 0, 0, SETTINGS, "")
    assert worker_pod(job, STATUS, WorkerRole.BASE, 0, 0, SETTINGS, "") == first
    assert job == before


def test_an_extra_worker_yields_to_everybody():
    job = kube_job("one", {"template": template(priority=7, preemptionPolicy="Never"), "priorityClassName": "high"})
    extra = a_container(env=contract(ESPALIER_WORKER_ROLE="extra", ESPALIER_WORKER_INDEX="2"), ports=None)
    assert spec_of(job, WorkerRole.EXTRA, 2) == a_spec(
        extra, hostname="one-extra-2", priorityClassName="espalier-extra"
    )
    assert spec_of(job) == a_spec(priorityClassName="high", preemptionPolicy="Never"), "base workers take the job's"
    plain = KubeSettings(extra_priority_class=None)
    assert spec_of(job, WorkerRole.EXTRA, 2, plain)["priorityClassName"] == "high"
    lower = replace(job, has_lower_class=True)
    assert spec_of(lower, WorkerRole.EXTRA, 2)["priorityClassName"] == "high"


def test_the_ready_trainer_has_the_pull_secrets_of_its_image_and_those_of_its_template():
    settings = KubeSettings(trainer_image="ours:1", image_pull_secrets=("ours", "both"))
    own = kube_job("own", {"template": template({"image": None}, imagePullSecrets=[{"name": "both"}])})
    assert spec_of(own, settings=settings)["imagePullSecrets"] == [{"name": "both"}, {"name": "ours"}]
    theirs = kube_job("theirs", {"template": template()})
    assert "imagePullSecrets" not in spec_of(theirs, settings=settings)


def test_the_ready_trainer_runs_under_restricted_pod_security():
    settings = KubeSettings(
        departing_nodes=(), trainer_image="ours:1", image_pull_policy="Never", agent_url="http://agent:8080"
    )
    ready = a_container(
        image="ours:1",
        imagePullPolicy="Never",
        securityContext={**RESTRICTED, "readOnlyRootFilesystem": True},
        env=[*CONTRACT, TOKEN, {"name": "ESPALIER_AGENT_URL", "value": "http://agent:8080"}, METRICS],
        volumeMounts=[{"name": "espalier-tmp", "mountPath": "/tmp"}, CONTRACT_MOUNT, TOKEN_MOUNT, CHECKPOINT_MOUNT],
    )
    expected = a_spec(
        ready,
        securityContext={
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        volumes=[{"name": "espalier-tmp", "emptyDir": {}}, CONTRACT_VOLUME, TOKEN_VOLUME, CHECKPOINT_VOLUME],
    )
    assert spec_of(kube_job(), settings=settings) == expected
    imageless = {"spec": {"containers": [{"resources": LIMITS}]}}
    assert spec_of(kube_job("one", {"template": imageless}), settings=settings) == expected


def test_what_a_template_without_image_says_of_security_stays():
    container = {"resources": LIMITS, "securityContext": {"readOnlyRootFilesystem": False}}
    given = {"securityContext": {"runAsUser": 7, "supplementalGroups": [5]}, "containers": [container]}
    spec = spec_of(kube_job("one", {"template": {"spec": given}}))
    assert spec["securityContext"] == {
        "runAsUser": 7,
        "supplementalGroups": [5],
        "runAsNonRoot": True,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert spec["containers"][0]["securityContext"] == {**RESTRICTED, "readOnlyRootFilesystem": False}


def test_the_platform_may_choose_the_user_of_the_ready_trainer():
    """OpenShift refuses users outside of a namespace's range."""
    free = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert spec_of(kube_job(), settings=KubeSettings(trainer_user=None))["securityContext"] == free
    given = {"runAsUser": None, "fsGroup": None, "seccompProfile": None}
    container = {"resources": LIMITS, "securityContext": {"readOnlyRootFilesystem": None}}
    job = kube_job("one", {"template": {"spec": {"securityContext": given, "containers": [container]}}})
    spec = spec_of(job)
    assert spec["securityContext"] == {"runAsNonRoot": True}
    assert spec["containers"][0]["securityContext"] == RESTRICTED


@pytest.mark.parametrize(
    ("mount_path", "path"),
    [
        ("/checkpoints", "/checkpoints"),
        ("/checkpoints/", "/checkpoints"),
        ("/data", "/data/run/checkpoints"),
        ("/data/run", "/data/run/checkpoints/"),
        ("//data", "/data"),
        ("data", "data/checkpoints"),
    ],
)
def test_checkpoints_on_a_volume_of_the_template_are_not_hidden(mount_path, path):
    own = {"name": "claim", "mountPath": mount_path}
    claim = {"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}}
    job = kube_job(
        "one", {"template": template({"volumeMounts": [own]}, volumes=[claim]), "checkpoint": {"path": path}}
    )
    spec = spec_of(job)
    assert spec["containers"][0]["volumeMounts"] == [own, CONTRACT_MOUNT]
    assert spec["volumes"] == [claim, CONTRACT_VOLUME]


def test_a_volume_beside_the_checkpoints_is_no_place_for_them():
    own = {"name": "claim", "mountPath": "/check"}
    spec = spec_of(templated({"volumeMounts": [own]}))
    assert spec["containers"][0]["volumeMounts"] == [own, CONTRACT_MOUNT, CHECKPOINT_MOUNT]


def test_a_relative_checkpoint_path_is_made_absolute_and_the_trainer_told():
    job = kube_job("one", {"template": template(), "checkpoint": {"path": "runs/a"}})
    spec = spec_of(job)
    assert spec["containers"][0]["volumeMounts"][-1] == {"name": "espalier-checkpoints", "mountPath": "/runs/a"}
    assert {"name": "ESPALIER_CHECKPOINT_DIR", "value": "/runs/a"} in spec["containers"][0]["env"]


def test_the_contract_s_variables_win_and_the_template_s_may_refer_to_them():
    own = [
        {"name": "ESPALIER_JOB_FILE", "value": "/elsewhere"},
        {"name": "ESPALIER_INCARNATION", "value": "me"},
        {"name": "ESPALIER_AGENT_URL", "value": "http://mine"},
        {"name": "LOGS", "value": "/logs/$(ESPALIER_JOB_NAME)"},
    ]
    job = templated({"env": own})
    assert spec_of(job, settings=KubeSettings(departing_nodes=(), agent_url="http://agent")) == a_spec(
        a_container(
            env=[*CONTRACT, TOKEN, own[2], own[3], METRICS],
            volumeMounts=[CONTRACT_MOUNT, TOKEN_MOUNT, CHECKPOINT_MOUNT],
        ),
        volumes=[CONTRACT_VOLUME, TOKEN_VOLUME, CHECKPOINT_VOLUME],
    )


def test_the_leader_alone_has_a_token_for_the_agent_and_only_where_there_is_one():
    def has_token(worker: WorkerRole, index: int, agent_url: str | None, adaptation: dict[str, object]) -> bool:
        spec = spec_of(kube_job("one", {"adaptation": adaptation}), worker, index, KubeSettings(agent_url=agent_url))
        found = [name for name in (TOKEN["name"], TOKEN_MOUNT["name"]) if name in json.dumps(spec)]
        assert len(found) in (0, 2)
        return bool(found)

    installed, own = "http://agent", {"agent": {"url": "http://mine"}}
    assert has_token(WorkerRole.BASE, 0, installed, {})
    assert has_token(WorkerRole.BASE, 0, None, own)
    assert not has_token(WorkerRole.BASE, 0, None, {})
    assert not has_token(WorkerRole.BASE, 0, installed, {"mode": "Off"})
    assert not has_token(WorkerRole.BASE, 1, installed, own)
    assert not has_token(WorkerRole.EXTRA, 0, installed, own)


def test_no_template_takes_the_place_of_the_token():
    own = {"env": [{**TOKEN, "value": "/elsewhere"}], "volumeMounts": [{**TOKEN_MOUNT, "name": "mine"}]}
    job = templated(own, volumes=[{"name": "espalier-agent-token", "emptyDir": {}}])
    spec = spec_of(job, settings=KubeSettings(agent_url="http://agent"))
    assert [each for each in spec["containers"][0]["env"] if each["name"] == TOKEN["name"]] == [TOKEN]
    assert TOKEN_MOUNT in spec["containers"][0]["volumeMounts"]
    assert [each for each in spec["volumes"] if each["name"] == TOKEN_MOUNT["name"]] == [TOKEN_VOLUME]


@pytest.mark.parametrize(
    ("container", "spec"),
    [
        ({"ports": [{"name": "metrics", "containerPort": 8000}]}, {}),
        ({"ports": [{"name": "mine", "containerPort": 9464}]}, {}),
        ({}, {"hostNetwork": True}),
    ],
    ids=["name", "number", "host"],
)
def test_a_leader_is_not_scraped_where_its_port_is_taken(container, spec):
    built = spec_of(templated(container, **spec))["containers"][0]
    assert built.get("ports") == container.get("ports")
    assert METRICS not in built["env"]


def test_a_port_of_the_template_s_stays_beside_that_for_metrics():
    mine = {"name": "mine", "containerPort": 8000}
    assert spec_of(templated({"ports": [mine]}))["containers"][0]["ports"] == [mine, PORT]
    own = {"name": "ESPALIER_METRICS_PORT", "value": "9464"}
    assert spec_of(templated({"env": [own]}))["containers"][0]["env"].count(own) == 1


OTHERS = [{"name": "logs", "image": "logs", "env": [{"name": "A", "value": "b"}]}]
INIT = [{"name": "fetch", "image": "fetch"}, {"name": "proxy", "image": "proxy", "restartPolicy": "Always"}]
MINE = {"name": "espalier-checkpoints", "persistentVolumeClaim": {"claimName": "mine"}}
ETC, HIDDEN = {"name": "etc", "mountPath": "/etc"}, {"name": "mine", "mountPath": "/etc/espalier/"}


@pytest.mark.parametrize(
    ("container", "spec", "expected"),
    [
        ({"env": None, "volumeMounts": None, "securityContext": None}, {"affinity": None, "nodeSelector": None}, {}),
        (  # an image of one's own gets no security of ours
            {"securityContext": {"privileged": True}},
            {"securityContext": {"runAsUser": 0}},
            {
                "container": a_container(securityContext={"privileged": True}),
                "securityContext": {"runAsUser": 0},
            },
        ),
        ({}, {"volumes": [MINE]}, {"volumes": [MINE, CONTRACT_VOLUME]}),
        (  # the contract has its folder whatever the template mounts there
            {"volumeMounts": [ETC, HIDDEN]},
            {"volumes": [{"name": "espalier-contract", "emptyDir": {}}]},
            {"container": a_container(volumeMounts=[ETC, CONTRACT_MOUNT, CHECKPOINT_MOUNT])},
        ),
        ({}, {"initContainers": INIT}, {"initContainers": INIT}),
    ],
    ids=["nulls mean nothing", "security", "a volume that is called ours", "a folder that is ours", "init containers"],
)
def test_what_a_template_says_stays_but_for_what_is_ours(container, spec, expected):
    assert spec_of(templated(container, **spec)) == a_spec(**expected)


def test_other_containers_stay_as_they_are():
    given = template()
    given["spec"]["containers"] += OTHERS
    assert spec_of(kube_job("one", {"template": given})) == a_spec(containers=[a_container(), *OTHERS])


def test_gpus_may_be_those_of_a_second_container_and_of_another_make():
    settings = KubeSettings(
        departing_nodes=(), gpu_resource="amd.com/gpu", tolerated_taints=("amd.com/gpu", "dedicated")
    )
    given = {
        "spec": {
            "containers": [
                {"name": "trainer", "image": "mine"},
                {"name": "helper", "image": "helper", "resources": {"limits": {"amd.com/gpu": 2}}},
            ]
        }
    }
    job = kube_job("one", {"template": given}, settings)
    assert job.terms.gpus_per_worker == 2
    trainer = a_container()
    del trainer["resources"]
    assert spec_of(job, settings=settings) == a_spec(
        containers=[trainer, given["spec"]["containers"][1]],
        tolerations=[{"key": "amd.com/gpu", "operator": "Exists"}, {"key": "dedicated", "operator": "Exists"}],
    )
    ready = spec_of(kube_job("one", None, settings), settings=settings)
    assert ready["containers"][0]["resources"] == {"limits": {"amd.com/gpu": 1}}


def test_selector_tolerations_and_names_of_the_template_stay_but_for_what_makes_a_worker():
    own = {"key": "team", "operator": "Equal", "value": "a"}
    job = templated(
        nodeSelector={"disk": "fast"},
        tolerations=[own, {"key": GPU, "operator": "Exists"}],
        hostname="mine",
        subdomain="mine",
        restartPolicy="OnFailure",
        enableServiceLinks=True,
        terminationGracePeriodSeconds=90,
        imagePullSecrets=[{"name": "s"}],
    )
    spec = spec_of(job, gpu_type="a100")
    environment = spec["containers"][0]["env"]
    environment.remove({"name": "ESPALIER_GPU_TYPE", "value": "a100"})
    assert spec == a_spec(
        nodeSelector={"disk": "fast", "nvidia.com/gpu.product": "a100"},
        tolerations=[own, {"key": GPU, "operator": "Exists"}],
        enableServiceLinks=True,
        terminationGracePeriodSeconds=90,
        imagePullSecrets=[{"name": "s"}],
    )


def test_a_job_on_nodes_without_type_stays_off_those_with_one():
    absent = {"key": "nvidia.com/gpu.product", "operator": "DoesNotExist"}
    empty = {"key": "nvidia.com/gpu.product", "operator": "In", "values": [""]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms: list[dict[str, object]] = [{"matchExpressions": [absent]}, {"matchExpressions": [empty]}]
    assert spec_of(templated(), gpu_type="") == a_spec(
        affinity={"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}
    )
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    given = {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [zone]}]}
    spec = spec_of(templated(affinity={"nodeAffinity": {required: given}, "podAffinity": {}}), gpu_type="")
    terms = [
        {"matchExpressions": [zone, absent]},
        {"matchExpressions": [zone, empty]},
        {"matchFields": [zone], "matchExpressions": [absent]},
        {"matchFields": [zone], "matchExpressions": [empty]},
    ]
    assert spec["affinity"] == {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}, "podAffinity": {}}


def test_a_worker_whose_node_kube_scheduler_chooses_prefers_others_than_those_that_refused_the_job():
    refused = [AvoidedNode(node=node, last_time=utc(EPOCH)) for node in ("a", "b")]
    status = JobStatus(scheduling=SchedulingStatus(avoided_nodes=tuple(refused)))
    chosen = worker_pod(kube_job("one"), status, WorkerRole.BASE, 0, 0, KubeSettings(), "x", "b")
    assert "preferred" not in json.dumps(chosen["spec"]["affinity"])
    free = worker_pod(kube_job("one"), status, WorkerRole.BASE, 0, 0, KubeSettings(), "x")
    terms = free["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    wanted = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("a", "b")]
    assert [term["preference"]["matchFields"] for term in terms] == [[each] for each in wanted]


def test_kube_scheduler_chooses_no_node_that_is_about_to_go():
    settings = KubeSettings(departing_nodes=("maintenance=ONGOING", "spot-itn"))
    signs = ({"maintenance": "ONGOING"}, {"spot-itn": ""}, {"maintenance": "NONE"}, {})
    nodes = [parse_node({"metadata": {"name": "n", "labels": labels}}, settings) for labels in signs]
    for wanted in (None, ""):  # two terms
        pod = worker_pod(kube_job("one"), STATUS, WorkerRole.BASE, 0, 0, settings, wanted)
        asked = constraints_of(pod["spec"], GPU, settings.tolerated_taints)
        assert [node.admits(asked) for node in nodes] == [node.departing == 0 for node in nodes]
        assert [node.departing for node in nodes] == [1, 1, 0, 0]


def test_a_worker_is_bound_where_the_planner_sees_gpus_without_type():
    """The planner takes nodes whose label of the type is empty and those that lack it for the same type."""
    for labels, gpu_type in (({}, ""), ({"nvidia.com/gpu.product": ""}, ""), ({"nvidia.com/gpu.product": "a"}, "a")):
        node = parse_node({"metadata": {"name": "n", "labels": labels}}, SETTINGS)
        assert node.gpu_type == gpu_type
        for wanted in ("", "a"):
            for pin in (None, "n"):
                pod = worker_pod(kube_job("one"), STATUS, WorkerRole.BASE, 0, 0, SETTINGS, gpu_type=wanted, node=pin)
                asked = constraints_of(pod["spec"], GPU, SETTINGS.tolerated_taints)
                assert node.admits(asked) == (wanted == gpu_type)


def test_labels_and_annotations_of_the_template_are_put_on_but_for_ours():
    given = template() | {
        "metadata": {
            "labels": {"team": "a", "espalier.dev/role": "base-0"},
            "annotations": {"note": "b", "espalier.dev/job": "c"},
            "name": "mine",
        }
    }
    metadata = worker_pod(kube_job("one", {"template": given}), STATUS, WorkerRole.EXTRA, 1, 4, SETTINGS)["metadata"]
    assert metadata["name"] == "one-extra-1-4"
    assert metadata["labels"] == {
        **OWNED["labels"],
        "team": "a",
        "espalier.dev/role": "extra",
        "espalier.dev/index": "1",
        "espalier.dev/attempt": "4",
    }
    assert metadata["annotations"]["note"] == "b"
    assert json.loads(metadata["annotations"]["espalier.dev/job"])["metadata"]["name"] == "one"


def test_autoscalers_leave_their_nodes_to_base_workers_that_do_not_move_unless_the_template_says_otherwise():
    def annotations(spec, role):
        return worker_pod(kube_job("one", spec), STATUS, role, 0, 0, SETTINGS)["metadata"]["annotations"]

    job = kube_job("one", {"minReplicas": 2, "maxReplicas": 4})
    workers = [(WorkerRole.EXTRA, 1), (WorkerRole.EXTRA, 0), (WorkerRole.BASE, 1), (WorkerRole.BASE, 0)]
    pods = [worker_pod(job, STATUS, role, index, 0, SETTINGS) for role, index in workers]
    costs = [int(pod["metadata"]["annotations"][DELETION_COST]) for pod in pods]
    assert costs == sorted(set(costs)), "the last extra worker is the cheapest to lose, the leader the dearest"
    moves = {"preemption": {"base": "Checkpoint"}}
    assert STAYS.items() <= annotations({}, WorkerRole.BASE).items()
    assert not STAYS.keys() & annotations({}, WorkerRole.EXTRA).keys()
    assert not STAYS.keys() & annotations(moves, WorkerRole.BASE).keys()
    name = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    given = template() | {"metadata": {"annotations": {name: "true"}}}
    assert annotations({"template": given}, WorkerRole.BASE)[name] == "true"


# ---- limits of Kubernetes


@pytest.mark.parametrize("role", [WorkerRole.BASE, WorkerRole.EXTRA])
def test_the_longest_names_fit(role):
    name = "a" * MAX_NAME_LENGTH
    pod = worker_pod(kube_job(name), STATUS, role, 9999, 10**6, SETTINGS)
    assert len(pod["spec"]["hostname"]) <= 63
    assert len(pod["spec"]["subdomain"]) <= 63
    assert len(pod["metadata"]["name"]) <= 253
    for made in (pod, *objects.owned_objects(kube_job(name))):
        assert all(len(value) <= 63 for value in made["metadata"]["labels"].values())
        assert len(made["metadata"]["name"]) <= 253
    assert len(objects.service(kube_job(name))["metadata"]["name"]) <= 63


def test_annotations_of_the_largest_job_fit_into_a_pod():
    options = {"text": "é" * 20_000, "more": "x" * 90_000}
    big = {"training": {"model": {"name": "digits", "options": options}}}
    job = kube_job("one", {**big, "template": template({"env": [{"name": "A", "value": "x" * 300_000}]})})
    pod = worker_pod(job, STATUS, WorkerRole.BASE, 0, 0, SETTINGS)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in pod["metadata"]["annotations"].items())
    assert 200_000 < size <= 256 * 1024


@pytest.mark.parametrize("where", ["options", "annotations"])
def test_a_job_too_large_for_annotations_is_refused_with_the_reason(where):
    spec = {"template": template()}
    if where == "options":
        spec["training"] = {"model": {"name": "digits", "options": {"text": "x" * 260_000}}}
    else:
        spec["template"]["metadata"] = {"annotations": {"note": "x" * 260_000}}
    parsed = parse_job(raw_job("one", spec), SETTINGS)
    assert not isinstance(parsed, KubeJob)
    (problem,) = parsed.problems
    assert problem.startswith("spec: has 26")
    assert "at most 250000 fit into a pod's annotations; shorten it" in problem


# ---- odd templates

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1e9, 1e9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
AFFINITY = ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
FIELDS = (
    *("volumes", "tolerations", "nodeSelector", "securityContext", "initContainers", "serviceAccount", "priority"),
    "imagePullSecrets",
)
OWN = ("env", "volumeMounts", "securityContext", "imagePullPolicy", "image", "command")


@st.composite
def odd_templates(draw: st.DrawFn):
    """A template with two odd fields at most, so that some are just odd enough to be built."""
    affinity = JSON
    for name in reversed(AFFINITY):
        affinity = st.dictionaries(st.just(name), affinity | JSON, max_size=1)
    entry = st.fixed_dictionaries({}, optional={"name": JSON, "mountPath": st.text(), "value": JSON})
    shapes = {**dict.fromkeys(FIELDS, JSON), "affinity": affinity}
    own = {**dict.fromkeys(OWN, JSON), **dict.fromkeys(OWN[:2], st.lists(entry, max_size=2) | JSON)}
    container = {field: draw(own[field]) for field in draw(st.sets(st.sampled_from(OWN), max_size=1))}
    container = {"image": draw(st.sampled_from(("mine", None))), **container}
    spec = {field: draw(shapes[field]) for field in draw(st.sets(st.sampled_from(sorted(shapes)), max_size=1))}
    metadata = draw(st.none() | st.fixed_dictionaries({}, optional={"labels": JSON, "annotations": JSON}))
    return {"metadata": metadata, **template(container, **spec)}


@given(odd_templates(), st.sampled_from((None, "", "a")))
def test_an_odd_template_is_refused_with_its_field_or_built(given_template, gpu_type):
    """The API server takes any template with a job; what cannot be built must be said, not raised."""
    settings = KubeSettings(trainer_image="ours:1", image_pull_secrets=("ours",))
    parsed = parse_job(raw_job("one", {"template": given_template}), settings)
    if isinstance(parsed, KubeJob):
        pod = worker_pod(parsed, STATUS, WorkerRole.BASE, 0, 0, settings, gpu_type)
        json.dumps(pod)
        objects.owned_objects(parsed)
        assert CONTRACT_MOUNT in pod["spec"]["containers"][0]["volumeMounts"]
    else:
        assert all(problem.startswith("spec.") for problem in parsed.problems), parsed.problems


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"spec": {"volumes": "x"}}, 'spec.template.spec.volumes: is "x" (text); must be a list'),
        (
            {"spec": {"nodeName": "mine"}},
            "spec.template.spec.nodeName: binds workers past the scheduler; remove it, and use nodeSelector",
        ),
        (
            {"spec": {"affinity": {"nodeAffinity": [3]}}},
            "spec.template.spec.affinity.nodeAffinity: is a list; must be a mapping",
        ),
        ({"spec": {"imagePullSecrets": {}}}, "spec.template.spec.imagePullSecrets: is a mapping; must be a list"),
        (
            {"spec": {"imagePullSecrets": ["mine"]}},
            "spec.template.spec.imagePullSecrets[0]: is text; must be a mapping",
        ),
        (
            {"metadata": {"labels": {"a": True}}},
            "spec.template.metadata.labels.a: is true (true or false); must be text",
        ),
        (
            {"container": {"env": [{"name": 3}]}},
            "spec.template.spec.containers[0].env[0].name: is a whole number; must be text",
        ),
        (
            {"container": {"resources": {"limits": {GPU: "0.5"}}}},
            "spec.template.spec.containers[0].resources.limits: has a limit of 0.5 nvidia.com/gpu; GPUs and other "
            "extended resources come in whole numbers; write 1 (or, as text, up to 7 digits)",
        ),
    ],
)
def test_problems_name_field_value_and_remedy(change, problem):
    given_template = template(change.get("container"), **change.get("spec", {}))
    given_template |= {"metadata": change["metadata"]} if "metadata" in change else {}
    parsed = parse_job(raw_job("one", {"template": given_template}), SETTINGS)
    assert parsed.problems == (problem,)


def test_limits_of_two_gpu_resources_are_refused_by_their_names():
    both = template({"resources": {"limits": {GPU: 1, "amd.com/gpu": 1}}})
    parsed = parse_job(raw_job("one", {"template": both}), KubeSettings(other_gpu_resources=("amd.com/gpu",)))
    problem = "has limits of nvidia.com/gpu and amd.com/gpu; a worker can use one of them"
    assert parsed.problems == (f"spec.template.spec.containers: {problem}",)
