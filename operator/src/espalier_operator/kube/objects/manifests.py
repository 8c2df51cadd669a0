"""Builds the objects of a job except its pods: a typed job in, plain dicts out. No client, no clock, no environment."""

from __future__ import annotations

from espalier_api.job import API_VERSION, GROUP, KIND, PLURAL
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.objects.template import Manifest, without_nulls


def owned_objects(job: KubeJob) -> tuple[Manifest, ...]:
    """Return all objects of `job` but its pods, in the order of their creation.

    A program reads no job and writes no report, so its pods get no rights.
    """
    if job.terms.program:
        return (service(job), service_account(job))
    return (service(job), report_config_map(job), service_account(job), role(job), role_binding(job))


def service(job: KubeJob) -> Manifest:
    """Return the headless Service under which workers find each other, before they are ready too."""
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
    """Return the rights of the job's pods: to see their own job, to write their own report, nothing else."""
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
    """Return what gives the role to the account that the pods run under."""
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
    """Return what makes the garbage collector remove an object with its job; it does not hold the job's deletion up."""
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


def pod_spec(job: KubeJob) -> Manifest:
    """Return the template's pod spec, a copy; with one container where there is no template."""
    template = job.job.spec.template
    if template is None:
        return {"containers": [{"name": "trainer"}]}
    spec: Manifest = without_nulls(template.spec.model_dump(mode="json", by_alias=True, exclude_unset=True))
    for container, model in zip(spec["containers"], template.spec.containers, strict=True):
        container["name"] = model.name
    return spec


def account(job: KubeJob, spec: Manifest) -> str:
    """Return the name of the ServiceAccount of pods with this spec."""
    return spec.get("serviceAccountName") or spec.get("serviceAccount") or names.account_name(job.name)
