"""The scheduler's view of a cluster, read from its API server and parsed by `espalier_operator.kube.snapshot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from espalier_core.k8s.access import Cluster
from espalier_core.k8s.errors import ForbiddenError, NotFoundError
from espalier_core.k8s.resources import CONFIG_MAPS, JOBS, LEASES, NODES, PODS, PRIORITY_CLASSES, Listing, Resource
from espalier_operator.kube.inspection import KubeSettings, names, optional_kinds

Lists = Mapping[Resource, Listing]


@dataclass(frozen=True, slots=True)
class View:
    """The part of the cluster that a person may read."""

    lists: Lists
    blind: str = ""
    """The part that could not be read, and why; empty if everything was read."""


def fetch(cluster: Cluster, settings: KubeSettings, namespace: str | None = None) -> Lists:
    """Return the view of a scheduler for the jobs of `namespace` (None: of all).

    Pods and nodes are always read from the whole cluster: others' pods hold GPUs too. Pods that have ended hold none;
    ended workers still have their result.
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
    """Return the scheduler's view; if the person may not read beyond `namespace`, only the part about the job."""
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
    """Return an empty list without a version if the person may not read it, or if the kind is not served."""
    try:
        return call()
    except (ForbiddenError, NotFoundError):
        return Listing(items=(), version=-1)
