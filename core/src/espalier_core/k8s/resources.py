"""The kinds of objects that Espalier reads and writes, their paths at an API server, and lists of them, page by page.

Pure: a client requests the `query` of `Pages`, and passes the answer to `take`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from espalier_core.types.environment import INCARNATION
from espalier_core.types.job import GROUP, KIND, PLURAL, VERSION
from espalier_core.types.queue import QUEUE_KIND, QUEUE_PLURAL

Raw = Mapping[str, Any]
"""An object as the API server sends it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object."""

    kind: str
    group: str
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path of an object, or of all; without `namespace`, the path for all namespaces."""
        parts = [self.root, "namespaces", namespace] if self.namespaced and namespace is not None else [self.root]
        return "/".join([*parts, *filter(None, (self.plural, name, subresource))])

    @property
    def root(self) -> str:
        """Return the path at which an API server lists its kinds of this group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def review(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object that requests a review of this kind, which has a group: the answer is in its status."""
        return {"apiVersion": f"{self.group}/{self.version}", "kind": self.kind, "spec": spec}


JOBS: Final = Resource(KIND, GROUP, VERSION, PLURAL)
QUEUES: Final = Resource(QUEUE_KIND, GROUP, VERSION, QUEUE_PLURAL, namespaced=False)
PODS: Final = Resource("Pod", "", "v1", "pods")
NODES: Final = Resource("Node", "", "v1", "nodes", namespaced=False)
CONFIG_MAPS: Final = Resource("ConfigMap", "", "v1", "configmaps")
PRIORITY_CLASSES: Final = Resource("PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses", namespaced=False)
RESOURCE_QUOTAS: Final = Resource("ResourceQuota", "", "v1", "resourcequotas")
LIMIT_RANGES: Final = Resource("LimitRange", "", "v1", "limitranges")
CLAIMS: Final = Resource("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims")
VOLUMES: Final = Resource("PersistentVolume", "", "v1", "persistentvolumes", namespaced=False)
DEVICE_CLASSES: Final = Resource("DeviceClass", "resource.k8s.io", "v1", "deviceclasses", namespaced=False)
RESOURCE_SLICES: Final = Resource("ResourceSlice", "resource.k8s.io", "v1", "resourceslices", namespaced=False)
RESOURCE_CLAIM_TEMPLATES: Final = Resource("ResourceClaimTemplate", "resource.k8s.io", "v1", "resourceclaimtemplates")
RESOURCE_CLAIMS: Final = Resource("ResourceClaim", "resource.k8s.io", "v1", "resourceclaims")
DEVICE_KINDS: Final = (DEVICE_CLASSES, RESOURCE_SLICES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS)
"""Kinds of dynamic resource allocation, as Kubernetes serves them from 1.34 on."""
WORKLOADS: Final = Resource("Workload", "kueue.x-k8s.io", "v1beta2", "workloads")
RESOURCE_FLAVORS: Final = Resource("ResourceFlavor", WORKLOADS.group, WORKLOADS.version, "resourceflavors", False)
EVICTION_REQUESTS: Final = Resource("EvictionRequest", "lifecycle.k8s.io", "v1alpha1", "evictionrequests")
"""Kubernetes' requests to end a pod in order (KEP 4563), in its namespace; alpha from 1.37 on."""
SERVICES: Final = Resource("Service", "", "v1", "services")
SERVICE_ACCOUNTS: Final = Resource("ServiceAccount", "", "v1", "serviceaccounts")
ROLES: Final = Resource("Role", "rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDINGS: Final = Resource("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings")
LEASES: Final = Resource("Lease", "coordination.k8s.io", "v1", "leases")
SECRETS: Final = Resource("Secret", "", "v1", "secrets")
NETWORK_POLICIES: Final = Resource("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies")
EVENTS: Final = Resource("Event", "", "v1", "events")
ACCESS_REVIEWS: Final = Resource(
    "SubjectAccessReview", "authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False
)
TOKEN_REVIEWS: Final = Resource("TokenReview", "authentication.k8s.io", "v1", "tokenreviews", namespaced=False)

JOB_LABEL: Final = f"{GROUP}/job"
ROLE_LABEL: Final = f"{GROUP}/role"
INDEX_LABEL: Final = f"{GROUP}/index"
ATTEMPT_LABEL: Final = f"{GROUP}/attempt"
"""Labels of workers' pods: job, `base` or `extra`, and the numbers at the end of their names."""

_MADE: Final = {
    each.kind: each
    for each in (
        PODS,
        CONFIG_MAPS,
        SERVICES,
        SERVICE_ACCOUNTS,
        ROLES,
        ROLE_BINDINGS,
        SECRETS,
        NETWORK_POLICIES,
        EVENTS,
        WORKLOADS,
    )
}
"""Kinds that the operator creates."""


def resource_of(manifest: Raw) -> Resource:
    """Return the kind of an object that the operator creates; raise `KeyError` for others."""
    return _MADE[manifest["kind"]]


def key_of(raw: Raw) -> str:
    """Return `namespace/name`, or the name alone if it is in no namespace."""
    metadata = raw["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def version_of(raw: Raw) -> int:
    """Return `metadata.resourceVersion` of an object or a list; larger is newer."""
    return int(raw["metadata"]["resourceVersion"])


def controller_of(raw: Raw) -> Mapping[str, str]:
    """Return the reference to the object that owns this one and controls it; empty if there is none."""
    for reference in raw["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            found: Mapping[str, str] = reference
            return found
    return {}


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of a kind that match selectors, and the version of this state."""

    items: Sequence[Raw]
    version: int


class Pages:
    """The pages of one list. They have one version, which an API server keeps for a few minutes.

    If it no longer has that version (410), one answer with everything replaces them: it cannot expire. client-go's
    pager does the same.
    """

    def __init__(
        self, size: int, labels: str = "", fields: str = "", keep: Callable[[Raw], Raw] = lambda raw: raw
    ) -> None:
        """Request `size` objects a page; `labels` and `fields` are selectors, `keep` returns the part to keep."""
        self._keep = keep
        self.query = selectors(labels, fields) | {"limit": str(size)}
        """Parameters of the next request."""
        self._items: list[Raw] = []

    def take(self, page: Raw) -> Listing | None:
        """Take a page; return the list if it was the last page, else None: request the next."""
        self._items += map(self._keep, page.get("items") or ())
        if token := page["metadata"].get("continue"):
            self.query["continue"] = token
            return None
        return Listing(self._items, version_of(page))

    def restart(self) -> bool:
        """Begin again after a version has expired, without pages; return False if there were none."""
        paged = self.query.pop("limit", None) is not None
        self.query.pop("continue", None)
        self._items = []
        return paged


def selectors(labels: str, fields: str) -> dict[str, str]:
    """Return the query for these selectors; an empty one is left out."""
    named = {"labelSelector": labels, "fieldSelector": fields}
    return {name: selector for name, selector in named.items() if selector}


def at(raw: Any, path: tuple[str, ...]) -> Any:
    """Return what is at `path`, None where nothing is. A field of another type than expected counts as absent."""
    for part in path:
        if not isinstance(raw, Mapping):
            return None
        raw = raw.get(part)
    return raw


def mapping(raw: Any, *path: str) -> Mapping[str, Any]:
    """Return the mapping at `path`, an empty one where there is none."""
    found = at(raw, path)
    return found if isinstance(found, Mapping) else {}


def entries(raw: Any, *path: str) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings in the list at `path`."""
    found = at(raw, path)
    if isinstance(found, list | tuple):
        yield from (entry for entry in found if isinstance(entry, Mapping))


def text(raw: Any, *path: str) -> str:
    """Return the text at `path`, an empty one where there is none."""
    found = at(raw, path)
    return found if isinstance(found, str) else ""


def trainer_of(spec: Raw) -> str:
    """Return the name of the container of a pod of `spec` that trains: the one that was given a worker's variables.

    Without one, the first. Admission webhooks put side-cars anywhere.
    """
    containers = list(entries(spec, "containers"))
    variables = ((each, text(entry, "name")) for each in containers for entry in entries(each, "env"))
    ours = [each for each, name in variables if name == INCARNATION]
    return next((text(each, "name") for each in (*ours, *containers)), "")
