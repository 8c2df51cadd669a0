"""Builds the objects of a job except its pods, as plain dicts. No client, no clock, no environment."""

from __future__ import annotations

import base64
from typing import Final

from espalier_core.types.job import API_VERSION, GROUP, KIND, PLURAL
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.objects.template import Manifest, without_nulls

KEY: Final = "key"
"""The key of a worker's Secret."""
METRICS_PORT: Final = 9464
"""Port on which the leader is scraped, unless the template uses it otherwise; the default of OpenTelemetry's
exporter."""
RENDEZVOUS_PORT: Final = 29400
"""Port on which the leader accepts the other workers, as in torchrun's rendezvous."""


def owned_objects(job: KubeJob, *, isolated: bool = False) -> tuple[Manifest, ...]:
    """Return all objects of `job` except its pods and its Secret, in the order of their creation.

    A program reads no job and writes no report, so its pods get no rights. `isolated`: workers that train together get
    a NetworkPolicy.
    """
    if job.terms.program:
        return (service(job), service_account(job))
    found = (service(job), report_config_map(job), service_account(job), role(job), role_binding(job))
    return (*found, network_policy(job)) if isolated and job.terms.trains_together else found


def worker_secret(job: KubeJob, key: bytes) -> Manifest:
    """Return the Secret with the key by which workers that train together prove that they belong to the job."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, names.secret_name(job.name, job.uid)),
        "type": "Opaque",
        "immutable": True,
        "data": {KEY: base64.b64encode(key).decode()},
    }


def network_policy(job: KubeJob) -> Manifest:
    """Return a NetworkPolicy that admits only the job's own pods to the ports on which workers train together.

    These are the port of the rendezvous, and any that gloo and NCCL choose. A pod selected by a policy admits nothing
    else, so the ports declared by the template's containers are opened to all, and so is the metrics port.
    """
    own = {"podSelector": {"matchLabels": {names.JOB_LABEL: job.name}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, names.network_policy_name(job.name)),
        "spec": {
            **own,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [own]}, {"ports": _open_ports(pod_spec(job))}],
        },
    }


def _open_ports(spec: Manifest) -> list[Manifest]:
    """Return the ports declared by the containers and the metrics port, without the port of the rendezvous."""
    found = {(METRICS_PORT, "TCP")}
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        given = container.get("ports") if isinstance(container, dict) else None
        for port in given if isinstance(given, list) else ():
            number = port.get("containerPort") if isinstance(port, dict) else None
            protocol = port.get("protocol") or "TCP" if isinstance(port, dict) else None
            if type(number) is int and 0 < number < 65536 and protocol in ("TCP", "UDP", "SCTP"):
                found.add((number, protocol))  # the API server refuses others, in the pod
    found.discard((RENDEZVOUS_PORT, "TCP"))
    return [{"port": number, "protocol": protocol} for number, protocol in sorted(found)]


def service(job: KubeJob) -> Manifest:
    """Return the headless Service under which workers find each other, even before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, job.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.JOB_LABEL: job.name},
        },
    }


def service_account(job: KubeJob) -> Manifest:
    """Return the account that the job's pods run under unless its template names another."""
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(job, names.account_name(job.name))}


def role(job: KubeJob) -> Manifest:
    """Return the Role of the job's pods: read their own job and write their own report, nothing else."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": metadata(job, names.account_name(job.name)),
        "rules": [
            {
                "apiGroups": [GROUP],
                "resources": [PLURAL],
                "resourceNames": [job.name],
                "verbs": ["get", "list", "watch"],
            },
            {
                "apiGroups": [""],
                "resources": ["configmaps"],
                "resourceNames": [names.report_name(job.name)],
                "verbs": ["get", "patch"],
            },
        ],
    }


def role_binding(job: KubeJob) -> Manifest:
    """Return the RoleBinding of the role to the account of the pods."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": metadata(job, names.account_name(job.name)),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": names.account_name(job.name)},
        "subjects": [{"kind": "ServiceAccount", "name": account(job, pod_spec(job)), "namespace": job.namespace}],
    }


def report_config_map(job: KubeJob) -> Manifest:
    """Return the ConfigMap that the leader patches its report into."""
    named = metadata(job, names.report_name(job.name))
    named["labels"][names.REPORT_LABEL] = "true"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named}


def owner_reference(job: KubeJob) -> Manifest:
    """Return an owner reference by which an object is deleted with its job, without blocking the job's deletion."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def metadata(job: KubeJob, name: str) -> Manifest:
    """Return the metadata of an object of `job`."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": names.labels(job.name),
        "ownerReferences": [owner_reference(job)],
    }


def given_spec(job: KubeJob) -> Manifest:
    """Return the template's pod spec as written, with nulls; empty where there is no template."""
    template = job.job.spec.template
    return {} if template is None else template.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


def pod_spec(job: KubeJob) -> Manifest:
    """Return a copy of the template's pod spec without nulls; with one container where there is no template."""
    template = job.job.spec.template
    if template is None:
        return {"containers": [{"name": "trainer"}]}
    spec: Manifest = without_nulls(given_spec(job))
    for container, model in zip(spec["containers"], template.spec.containers, strict=True):
        container["name"] = model.name
    return spec


def account(job: KubeJob, spec: Manifest) -> str:
    """Return the name of the ServiceAccount of pods with this spec."""
    return spec.get("serviceAccountName") or spec.get("serviceAccount") or names.account_name(job.name)
