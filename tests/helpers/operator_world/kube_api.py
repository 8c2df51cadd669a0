"""An API server so simple that it is evidently right: objects in dictionaries.

Objects are never changed in place, so that a view of them (a copy of the dictionary) stays what it was.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from espalier_core.types.job import API_VERSION, KIND
from espalier_operator.job.view import utc
from operator_world.kube_objects import EPOCH, GPU, Raw

GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL."""


class NotFoundError(Exception):
    """There is no such object, or it is another one of the same name."""


class ConflictError(Exception):
    """There is an object of that name already."""


class Objects(dict[str, Raw]):
    """Objects of a kind by key; each change gives an object a new version."""

    def __init__(self, versions: Iterator[int]) -> None:
        """Begin empty; `versions` are those of the whole API server."""
        super().__init__()
        self._versions = versions

    def __setitem__(self, key: str, raw: Raw) -> None:
        """Put an object, with a new version if it differs."""
        known = self.get(key)
        version = "" if known is None else known["metadata"]["resourceVersion"]
        if known != {**raw, "metadata": {**raw["metadata"], "resourceVersion": version}}:
            version = str(next(self._versions))
        super().__setitem__(key, {**raw, "metadata": {**raw["metadata"], "resourceVersion": version}})


class ApiObjects:
    """All objects, by key; `uid` of each is unique for ever."""

    def __init__(self) -> None:
        """Begin empty, at `EPOCH`."""
        self.now = EPOCH
        self._versions = itertools.count(1)
        self.nodes = Objects(self._versions)
        self.pods = Objects(self._versions)
        self.jobs = Objects(self._versions)
        self.config_maps = Objects(self._versions)
        self.workloads, self.flavors = Objects(self._versions), Objects(self._versions)
        """Those of Kueue."""
        self.removed: list[Raw] = []
        """Pods that are gone, as they were last, each with the version of its deletion: what a watch tells."""
        self.leaders: dict[str, int] = defaultdict(int)
        """Pods of leaders that were made, by UID of their job."""
        self._uids = itertools.count(1)

    def create_job(self, name: str, spec: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> None:
        """Make a job in namespace `ns`."""
        key = f"ns/{name}"
        if key in self.jobs:
            raise ConflictError(key)
        metadata = {"name": name, "namespace": "ns", **self._birth(), "generation": 1}
        metadata |= {"labels": dict(labels)} if labels else {}
        self.jobs[key] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": dict(spec)}

    def change_spec(self, key: str, **changes: Any) -> None:
        """Change fields of a job's specification."""
        job = self.jobs[key]
        metadata = {**job["metadata"], "generation": job["metadata"]["generation"] + 1}
        self.jobs[key] = {**job, "metadata": metadata, "spec": {**job["spec"], **changes}}

    def delete_job(self, key: str, uid: str | None = None) -> None:
        """Delete a job; what it owns goes when the garbage collector comes round."""
        self._find(self.jobs, key, uid)
        del self.jobs[key]

    def put_status(self, key: str, uid: str, version: str, status: Mapping[str, Any]) -> None:
        """Put `status` in place of a job's, which is the one of this version."""
        job = self._find(self.jobs, key, uid)
        if job["metadata"]["resourceVersion"] != version:
            raise NotFoundError(key)
        self.jobs[key] = {**job, "status": dict(status)}

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Make a pod or a ConfigMap; other kinds are taken and forgotten."""
        metadata = manifest["metadata"]
        key = f"{metadata['namespace']}/{metadata['name']}"
        there = self.objects(manifest["kind"])
        if there is None:
            return
        if key in there:
            raise ConflictError(key)
        born = {**manifest, "metadata": {**metadata, **self._birth()}}
        if manifest["kind"] == "Pod" and "-base-0-" in key:
            self.leaders[owner_of(born) or ""] += 1
        there[key] = {**born, "status": {"phase": "Pending"}} if manifest["kind"] == "Pod" else born

    def objects(self, kind: str) -> Objects | None:
        """Return the objects of a kind that is made by manifests; None where nobody looks at them."""
        return {"Pod": self.pods, "ConfigMap": self.config_maps, "Workload": self.workloads}.get(kind)

    @property
    def version(self) -> int:
        """The version of a list that is made now."""
        return next(self._versions)

    def annotate(self, key: str, uid: str, annotations: Mapping[str, str]) -> None:
        """Put annotations on a pod, or on a Workload."""
        there = self.pods if key in self.pods else self.workloads
        pod = self._find(there, key, uid)
        known = pod["metadata"].get("annotations") or {}
        there[key] = {**pod, "metadata": {**pod["metadata"], "annotations": {**known, **annotations}}}

    def delete_workload(self, key: str, uid: str | None = None) -> None:
        """Delete a Workload, which is gone at once."""
        self._find(self.workloads, key, uid)
        del self.workloads[key]

    def delete_pod(self, key: str, uid: str | None = None, *, force: bool = False) -> None:
        """Delete a pod: at once where nothing can run any more, else when its kubelet has seen to it."""
        pod = self._find(self.pods, key, uid)
        if force or not node_of(pod) or is_over(pod):
            self.remove(key)
        elif "deletionTimestamp" not in pod["metadata"]:
            at = utc(self.now + GRACE_SECONDS).isoformat()
            self.pods[key] = {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": at}}

    def remove(self, key: str) -> None:
        """Let a pod be gone."""
        pod = self.pods.pop(key)
        metadata = {**pod["metadata"], "resourceVersion": str(next(self._versions))}
        self.removed.append({**pod, "metadata": metadata})

    def _birth(self) -> dict[str, str]:
        return {"uid": f"u{next(self._uids)}", "creationTimestamp": utc(self.now).isoformat()}

    @staticmethod
    def _find(there: Mapping[str, Raw], key: str, uid: str | None) -> Raw:
        found = there.get(key)
        if found is None or uid not in (None, found["metadata"]["uid"]):
            raise NotFoundError(key)
        return found


def node_of(pod: Raw) -> str | None:
    """Return the name of the node that a pod is bound to."""
    name: str | None = pod["spec"].get("nodeName")
    return name


def owner_of(raw: Raw) -> str | None:
    """Return the UID of the job that owns an object."""
    references = raw["metadata"].get("ownerReferences")
    uid: str | None = references[0]["uid"] if references else None
    return uid


def is_over(pod: Raw) -> bool:
    """Return whether a pod holds nothing any more."""
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def gpus_of(pod: Raw, resource: str = GPU) -> int:
    """Return the GPUs of a resource that a pod wants or holds."""
    containers = pod["spec"]["containers"]
    return sum(int(entry.get("resources", {}).get("limits", {}).get(resource, 0)) for entry in containers)
