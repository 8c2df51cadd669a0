"""What goes wrong between a person and a cluster: one line with the cause, then a hint."""

from __future__ import annotations

import json

from espalier_cli.errors import BadInput
from espalier_operator.kube.objects.resources import JOBS, Resource


class ClusterError(BadInput):
    """The cluster does not do what it was asked for."""

    exit_code = 1


class UnreachableError(ClusterError):
    """The API server does not answer, or not now: trying again may help."""


class ForbiddenError(ClusterError):
    """The person lacks a right; the message names it."""


class NotFoundError(ClusterError):
    """There is no such object."""

    exit_code = 2


class ExpiredError(ClusterError):
    """The API server has forgotten the moment from which it was to go on (410): everything is to be listed anew."""


def error_of(status: int, body: bytes, resource: Resource, verb: str, namespace: str | None) -> ClusterError:
    """Return what an answer of the API server other than success means."""
    try:
        said = json.loads(body)
        message = str(said["message"])
    except (ValueError, KeyError, TypeError):
        said, message = None, body.decode(errors="replace").strip() or f"status {status}"
    where = f"in namespace {namespace}" if namespace else "in all namespaces"
    match status:
        case 401:
            return ClusterError(
                "the API server does not know who asks (401)",
                "the kubeconfig's user has no or expired credentials; log in to the cluster again",
            )
        case 403:
            scope = where if resource.namespaced else "in the cluster"
            hint = f"what is missing is the right to {verb} {_full_name(resource)} {scope}"
            if resource.namespaced and namespace is None:
                hint += "; -n NAMESPACE asks for one namespace only"
            return ForbiddenError(message, hint)
        case 404 if said is None and resource is JOBS:
            return ClusterError(
                f"the cluster does not know {_full_name(resource)}: Espalier is not installed in it",
                "kubectl apply -f crds/adaptivetrainingjobs.espalier.dev.yaml, and then the operator",
            )
        case 404:
            return NotFoundError(message)
        case 410:
            return ExpiredError(message)
        case 429 | 500 | 502 | 503 | 504:
            return UnreachableError(f"the API server cannot answer now ({status}): {message}")
        case _:
            return ClusterError(f"the API server refuses ({status}): {message}")


def _full_name(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural
