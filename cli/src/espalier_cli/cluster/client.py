"""Reading from the API server of a kubeconfig's context: errors in a person's words, several reads at once.

`fetch` reads the lists that `espalier_operator.kube.snapshot` understands: what the scheduler sees.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from espalier_cli.errors import InputError
from espalier_core.k8s.errors import ApiError, Call, InsecureError, RefusedError, Retries
from espalier_core.k8s.resources import CONFIG_MAPS, JOBS, LEASES, NODES, PODS, PRIORITY_CLASSES, Listing, Raw, Resource
from espalier_operator.kube.inspection import KubeSettings, names, optional_kinds

if TYPE_CHECKING:
    from espalier_core.k8s.client import Client


RETRIES: Final = Retries(deadline=30.0, tries=3, first_wait=0.3)
CONNECT_SECONDS: Final = 5.0
DEEPEST: Final = 40_000
"""The API server stores what is nested ten thousand deep; a list with one such job in it is read all the same."""

T = TypeVar("T")
Lists = Mapping[Resource, Listing]


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


class Cluster:
    """Reads objects of one cluster. Safe to use from several threads."""

    def __init__(self, client: Client, namespace: str) -> None:
        """Read by `client`; `namespace` is the one of the kubeconfig's context."""
        self.client, self.namespace = client, namespace

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def now(self) -> float:
        """Return the time (epoch seconds) by the cluster's clock: times in statuses are of it, not of this machine."""
        return self.client.now()

    def get(self, resource: Resource, namespace: str | None, name: str) -> Raw:
        """Return one object; `NotFoundError` where there is none."""
        with for_a_person():
            return self.client.get(resource, namespace, name)

    def list_all(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        """Return all objects of `namespace` (None: of all) that the selectors choose."""
        with for_a_person():
            return self.client.list(resource, namespace, labels=labels, fields=fields)

    def at_once(self, *calls: Callable[[], T]) -> list[T]:
        """Return what `calls` return, made in parallel; the first error of any is raised."""
        with ThreadPoolExecutor(len(calls), thread_name_prefix="espalier-read") as pool:
            return [future.result() for future in [pool.submit(call) for call in calls]]


def connect(kubeconfig: Path | None, context: str | None) -> Cluster:
    """Return the cluster of `context` (default: the current one); nothing is asked of it yet.

    `InputError` where the kubeconfig (default: as kubectl finds it) is missing or cannot be used.
    """
    from espalier_core.k8s.client import Client, NoAccessError, api_of_context

    sys.setrecursionlimit(max(DEEPEST, sys.getrecursionlimit()))
    try:
        api, namespace = api_of_context(kubeconfig, context)
    except NoAccessError as error:
        raise InputError(str(error), error.hint) from error
    return Cluster(Client(api, RETRIES, CONNECT_SECONDS), namespace)


@dataclass(frozen=True, slots=True)
class View:
    """What a person may see of the cluster."""

    lists: Lists
    blind: str = ""
    """What could not be seen, and why; empty where everything was."""


def fetch(cluster: Cluster, settings: KubeSettings, namespace: str | None = None) -> Lists:
    """Return what a scheduler sees that looks after the jobs of `namespace` (None: of all).

    Pods and nodes are those of the whole cluster always: others' pods hold GPUs too. Pods that have ended hold none;
    workers that have ended still tell how.
    """
    optional: dict[Resource, str | None] = {PRIORITY_CLASSES: None}
    optional |= {kind: namespace if namespaced else None for kind, namespaced in optional_kinds(settings)}
    lease = names.lease_name(settings.controller_name)
    jobs, reports, live, workers, nodes, leases, *found = cluster.at_once(
        lambda: cluster.list_all(JOBS, namespace),
        lambda: cluster.list_all(CONFIG_MAPS, namespace, labels=names.REPORTS),
        lambda: cluster.list_all(PODS, fields=names.LIVE_PODS),
        lambda: cluster.list_all(PODS, namespace, labels=names.OWN_PODS),
        lambda: cluster.list_all(NODES),
        lambda: _unless_forbidden(lambda: cluster.list_all(LEASES, fields=f"metadata.name={lease}")),
        *(partial(_unless_forbidden, partial(cluster.list_all, kind, where)) for kind, where in optional.items()),
    )
    pods = Listing(items=(*live.items, *workers.items), version=min(live.version, workers.version))
    lists = {JOBS: jobs, CONFIG_MAPS: reports, PODS: pods, NODES: nodes}
    perhaps = {LEASES: leases, **dict(zip(optional, found, strict=True))}
    return {**lists, **{resource: listed for resource, listed in perhaps.items() if listed.version >= 0}}


def fetch_for_job(cluster: Cluster, settings: KubeSettings, namespace: str, name: str) -> View:
    """Return what a scheduler sees, or, for who may not look beyond `namespace`, the part that is about the job."""
    try:
        return View(fetch(cluster, settings))
    except ForbiddenError as error:
        of_job = f"{names.JOB_LABEL}={name}"
        job, reports, pods = cluster.at_once(
            lambda: Listing(items=[cluster.get(JOBS, namespace, name)], version=0),
            lambda: _unless_forbidden(lambda: cluster.list_all(CONFIG_MAPS, namespace, labels=of_job)),
            lambda: _unless_forbidden(lambda: cluster.list_all(PODS, namespace, labels=of_job)),
        )
        return View({JOBS: job, CONFIG_MAPS: reports, PODS: pods}, blind=error.hint or error.message)


def _unless_forbidden(call: Callable[[], Listing]) -> Listing:
    """Return an empty list of no version where the person may not look, or there is no such kind."""
    try:
        return call()
    except (ForbiddenError, NotFoundError):
        return Listing(items=(), version=-1)
