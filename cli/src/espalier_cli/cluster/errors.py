"""What goes wrong between a person and a cluster: one line with the cause, then a hint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from espalier_cli.errors import InputError
from espalier_core.k8s.errors import ApiError, Call, InsecureError, RefusedError
from espalier_core.k8s.resources import JOBS, Resource


class ClusterError(InputError):
    """The cluster does not do what the person wants."""

    exit_code = 1


class ForbiddenError(ClusterError):
    """The person lacks a right; the message names it."""


class NotFoundError(ClusterError):
    """There is no such object."""

    exit_code = 2


@contextmanager
def for_a_person() -> Iterator[None]:
    """Turn an `ApiError` into a `ClusterError`."""
    try:
        yield
    except ApiError as error:
        raise cluster_error(error) from error


def cluster_error(error: ApiError) -> ClusterError:
    """Return what an error means to a person."""
    if isinstance(error, InsecureError):
        return ClusterError(str(error), "the kubeconfig's certificate-authority is not that server's")
    if not isinstance(error, RefusedError):
        hint = "is the cluster running? `kubectl cluster-info` asks the same" if error.status is None else ""
        return ClusterError(str(error), hint)
    status, call = error.status, error.call
    match status.code:
        case 401:
            return ClusterError(
                "the API server does not know who asks (401)",
                "the kubeconfig's user has no or expired credentials; log in to the cluster again",
            )
        case 403:
            return ForbiddenError(status.message, f"what is missing is the right to {_right(call)}")
        case 404 if not status.is_from_api and call.resource is JOBS:
            return ClusterError(
                f"the cluster does not know {_full_name(JOBS)}: Espalier is not installed in it",
                f"kubectl apply -f crds/{_full_name(JOBS)}.yaml, and then the operator",
            )
        case 404:
            return NotFoundError(status.message)
        case code:
            return ClusterError(f"the API server refuses ({code}): {status.message}")


def _right(call: Call) -> str:
    right = f"{call.verb} {_full_name(call.resource)}"
    if not call.resource.namespaced:
        return f"{right} in the cluster"
    if call.namespace is None:
        return f"{right} in all namespaces; -n NAMESPACE asks for one namespace only"
    return f"{right} in namespace {call.namespace}"


def _full_name(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural
