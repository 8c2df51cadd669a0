"""The known state of the cluster, filled by lists and watch events, read by the backend. No I/O, no decisions.

Missing objects prove nothing until every kind has been listed, or while the lists are too old: then the state of the
cluster is unknown (`Store.unknown`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from espalier_core.k8s import resources
from espalier_core.k8s.resources import Raw, Resource, key_of, version_of
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.kueue import Flavor, Workload, parse_flavor, parse_workload, tolerating
from espalier_operator.kube.objects.limits import parse_quota
from espalier_operator.kube.objects.names import JobRef
from espalier_operator.kube.objects.nodes import parse_node
from espalier_operator.kube.objects.pods import (
    UNKNOWN,
    KnownPod,
    Load,
    Pod,
    Target,
    parse_eviction_request,
    parse_pod,
    read_pod,
)
from espalier_operator.kube.objects.queues import QueueObject, parse_queue_object
from espalier_operator.kube.reading import mapping
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch.devices import ClaimedDevices, Devices
from espalier_operator.kube.watch.indexer import Indexer, discard
from espalier_operator.kube.watch.jobs import JobInputs, JobObject, LastReports, PodIndex
from espalier_operator.kube.watch.nodes import NodeHealth, NodeUsage, UnreachablePods
from espalier_operator.model import NamespaceLimit, Node, Worker

Limits = tuple[NamespaceLimit, ...]
NAMESPACED: Final = (resources.JOBS, resources.CONFIG_MAPS)
"""Kinds that are watched only in the managed namespaces."""
CLUSTER_WIDE: Final = (resources.NODES, resources.PODS, resources.PRIORITY_CLASSES)
"""Kinds that are watched everywhere, as GPUs have no namespace."""
_LIMITING: Final = (resources.RESOURCE_QUOTAS, resources.LIMIT_RANGES, resources.CLAIMS, resources.EVICTION_REQUESTS)
"""Optional kinds that are watched only in the managed namespaces."""
OF_KUEUE: Final = (resources.RESOURCE_FLAVORS, resources.WORKLOADS)
CONSTRAINING: Final = (*_LIMITING, resources.VOLUMES, *resources.DEVICE_KINDS, *OF_KUEUE)
"""Kinds that limit where, how many and how long workers fit. Without the right to read them, refusals are left to
kube-scheduler and the API server."""


class Store:
    """One indexer for each kind, with the changed jobs and the pods of each job."""

    def __init__(
        self,
        settings: KubeSettings,
        time: Callable[[], float] = lambda: 0.0,
        changed: Callable[[], None] = lambda: None,
        doubted: Callable[[], None] = lambda: None,
    ) -> None:
        """Start empty. `time` is the clock of `received_at` and `listed_at`, in epoch seconds.

        `changed` is called after each change that may affect the plan, `doubted` when a pod becomes doubtful.
        """
        self._settings, self._time, self._tell, self._doubted = settings, time, changed, doubted
        self._others_changed = False
        """Something other than pods and reports of jobs has changed."""
        self.listed_at: float | None = None
        """Time of the last list of all kinds."""
        self.received_at: dict[str, float] = {}
        """Time of the last delivery by a list or a watch, by kind (plural)."""
        self.nodes: Indexer[Node] = Indexer(self._parse_node, self._node_changed)
        self.pods: Indexer[KnownPod] = Indexer(self._parse_pod, self._known_pod_changed)
        self.reports = LastReports(time, self._is_known, lambda job: self._mark(self._reported, job), changed)
        self.queue_objects: Indexer[QueueObject] = Indexer(lambda raw, _: parse_queue_object(raw), self._queue_changed)
        self.quotas: Indexer[Limits] = Indexer(lambda raw, _: parse_quota(raw) or None, self._quota_changed)
        self.flavors: Indexer[Flavor] = Indexer(lambda raw, _: parse_flavor(raw), self._flavor_changed)
        self.workloads: Indexer[Workload] = Indexer(
            lambda raw, _: parse_workload(raw, self._settings), self._workload_changed
        )
        """Kueue's Workloads that claim a job as their owner, and foreign ones that wait."""
        self.eviction_requests: Indexer[Target] = Indexer(
            lambda raw, _: parse_eviction_request(raw), self._eviction_changed
        )
        self._evictions_of = defaultdict[Target, set[str]](set)
        """Keys of the EvictionRequests of each pod."""
        self._workloads_of = defaultdict[JobRef, set[str]](set)
        self.devices = Devices(
            settings, self._devices_changed, self._see_claims, lambda template: self.inputs.template_changed(template)
        )
        """Devices of dynamic resource allocation."""
        self.inputs = JobInputs(settings, self.devices.templates.get, self._job_changed)
        self.jobs = self.inputs.jobs
        self._indexers: Mapping[Resource, Indexer[Any]] = {
            resources.NODES: self.nodes,
            resources.PODS: self.pods,
            resources.JOBS: self.jobs,
            resources.CONFIG_MAPS: self.reports.indexer,
            resources.PRIORITY_CLASSES: self.inputs.priorities,
            resources.QUEUES: self.queue_objects,
            resources.RESOURCE_QUOTAS: self.quotas,
            resources.LIMIT_RANGES: self.inputs.limit_ranges,
            resources.CLAIMS: self.inputs.claims,
            resources.VOLUMES: self.inputs.volumes,
            resources.RESOURCE_FLAVORS: self.flavors,
            resources.WORKLOADS: self.workloads,
            resources.EVICTION_REQUESTS: self.eviction_requests,
            **self.devices.indexers,
        }
        self._reach = NodeHealth()
        self._usage = NodeUsage(settings, self.nodes.get, self.devices.on, self._announce, time)
        self.planned_nodes = self._usage.planned_nodes
        self._filed = PodIndex()
        self.pods_by_job, self.foreign_workers = self._filed.by_job, self._filed.foreign_workers
        self._claimed = ClaimedDevices(settings, time, self.devices, self.pods, self.foreign_workers)
        self.doubtful: dict[str, tuple[Pod, int]] = {}
        """Our pods that are unwatched since a version, ended or gone, to be read again."""
        self.overwritten: set[str] = set()
        """UIDs of jobs whose status changed, by any writer."""
        self._changed, self._reported = set[str](), set[str]()
        self._by_uid: dict[str, JobObject] = {}

    # ---- updates

    def take(self, resource: Resource, event: str | None, raw: Raw) -> None:
        """Record a watch event."""
        self.received_at[resource.plural] = self._time()
        indexer = self._indexers[resource]
        key = key_of(raw)
        if event != "DELETED":
            indexer.put(raw)
            return
        if resource is resources.PODS:
            last, pod = parse_pod(raw, self._settings), (self.pods.get(key) or UNKNOWN).pod
            if last.owner is not None and last.done:
                indexer.put(raw)  # the last information on the end of its worker
            elif pod is not None and pod.owner is not None and pod.uid == last.uid:
                self.pods.change(key, KnownPod(pod, None))
                self.doubt(pod, version_of(raw))
                return
        indexer.drop(key, version_of(raw))

    def doubt(self, pod: Pod, version: int) -> None:
        """Mark one of our pods as doubtful: since `version` it is unwatched and may have ended."""
        self.doubtful[pod.key] = (pod, version)
        self._doubted()

    def replace(self, resource: Resource, items: Iterable[Raw], version: int, taken: Collection[str] = ()) -> None:
        """Record a list of all objects of a kind: `items`, and the keys of those `taken` already."""
        self.received_at[resource.plural] = self._time()
        self._indexers[resource].replace(items, version, taken)

    def count(self, resource: Resource) -> int:
        """Return the number of known objects of a kind."""
        return len(self._indexers[resource].mapping())

    def all_listed(self) -> None:
        """Record that all kinds have just been listed."""
        self.listed_at = self._time()

    def settle(self, pod: Pod, version: int, found: Raw | None) -> None:
        """Record the state of a pod that was doubtful as of `version`: `found`, or gone."""
        if self.doubtful.get(pod.key) == (pod, version):
            del self.doubtful[pod.key]
        if found is not None and found["metadata"]["uid"] == pod.uid:
            self.pods.put(found)
        else:
            self.pods.drop(pod.key, max(version, int(pod.resource_version)))

    # ---- queries

    def unknown(self) -> list[str]:
        """Return the required kinds that were never listed; optional kinds are listed before them."""
        needed = (item for item in self._indexers.items() if item[0] not in CONSTRAINING)
        return [resource.plural for resource, indexer in needed if indexer.listed_version is None]

    def has_news(self, uid: str) -> bool:
        """Return whether `take_changed` would return the job of this UID."""
        return uid in self._changed

    def take_changed(self) -> set[str]:
        """Return the UIDs of jobs whose object, pods or nodes have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def take_others_changed(self) -> bool:
        """Return whether anything other than pods and reports of existing jobs has changed since the last call."""
        changed, self._others_changed = self._others_changed, False
        return changed

    def forget(self, pods: Iterable[Pod]) -> None:
        """Drop pods that are gone and whose ends are recorded."""
        for pod in pods:
            self._filed.forget(pod)

    def take_reported(self) -> set[str]:
        """Return the UIDs of jobs whose leaders have reported since the last call."""
        reported, self._reported = self._reported, set()
        return reported

    def job(self, uid: str) -> JobObject | None:
        """Return the job of this UID."""
        return self._by_uid.get(uid)

    def versions_of_running_jobs(self) -> set[int]:
        """Return the known versions of jobs that have been admitted and have not ended."""
        jobs = (job for job in self.jobs.values() if mapping(job.status, "scheduling").get("admittedAt"))
        return {int(job.version) for job in jobs if not mapping(job.status).get("completionTime")}

    def workloads_of(self, job: JobRef) -> list[Workload]:
        """Return the Workloads of a job, without those of other names, which are not its own."""
        found = (self.workloads.get(key) for key in self._workloads_of.get(job, ()))
        own = (each for each in found if each is not None)
        name = partial(names.workload_name, job.name, job.uid)
        return [each for each in own if each.key == f"{job.namespace}/{name(each.extra)}"]

    def queued(self, running: Container[JobRef]) -> Iterator[Worker]:
        """Yield the pods of Workloads that Kueue has not admitted yet, except `running` jobs, which have their GPUs."""
        for workload in self.workloads.values():
            if workload.owner is None or workload.owner not in running:
                yield from tolerating(workload.waits, self.flavors.values())

    def pods_of(self, job: JobRef) -> Collection[Pod]:
        """Return the pods of a job."""
        return self.pods_by_job.get(job, {}).values()

    def misattributed(self) -> dict[str, int]:
        """Return the number of objects that claim a job of another namespace or name as theirs, by kind (plural).

        They are never counted as the job's.
        """
        pods = sum(len(pods) for ref, pods in self.pods_by_job.items() if self._is_forged(ref))
        reports = sum(self._is_forged(report.owner) for report in self.reports.indexer.values())
        return {resources.PODS.plural: pods, resources.CONFIG_MAPS.plural: reports}

    def _is_forged(self, claimed: JobRef) -> bool:
        job = self._by_uid.get(claimed.uid)
        return job is not None and job.ref != claimed

    def reach_of(self, pods: Iterable[Pod], now: float) -> UnreachablePods:
        """Return the `pods` affected by silent or missing nodes at `now`."""
        return self._reach.of(pods, self.nodes, now)

    # ---- parsing

    def _parse_node(self, raw: Raw, before: Node | None) -> Node:
        return parse_node(raw, self._settings)

    def _parse_pod(self, raw: Raw, before: KnownPod | None) -> KnownPod | None:
        known = read_pod(raw, self._settings, self.devices.claimed_by)
        if known is None or known.pod is None:
            return known
        pod, was = known.pod, (before or UNKNOWN).pod
        if was is not None and was.uid == pod.uid and was.done:
            by_itself = was.exit_code is not None and not (was.deleting or was.disrupted)
            pod = replace(pod, ended_first=was.ended_first or by_itself)
        if pod.owner is not None and (pod.key, pod.uid) in self._evictions_of:
            pod = replace(pod, asked_to_leave=True)
        return replace(known, pod=pod)

    # ---- consequences of changes

    def _job_changed(self, key: str, before: JobObject | None, after: JobObject | None) -> None:
        if before is not None and (after is None or after.uid != before.uid):
            self._by_uid.pop(before.uid, None)
            self._count_pods_of(before.ref)
            self._filed.forget_gone(before.ref)
            self.reports.forget(before.ref)
            self._news(before.ref)
        if after is None:
            return
        self._by_uid[after.uid] = after
        if before is None or before.uid != after.uid:
            self._count_pods_of(after.ref)
        if before is not None and before.parsed is after.parsed and before.deleting == after.deleting:
            if before.status != after.status:
                self.overwritten.add(after.uid)
            return
        self._news(after.ref)

    def _known_pod_changed(self, key: str, before: KnownPod | None, after: KnownPod | None) -> None:
        was, is_now = before or UNKNOWN, after or UNKNOWN
        if was.pod is not None or is_now.pod is not None:
            self._pod_changed(key, was.pod, is_now.pod)
        self._load_changed(key, was.load, is_now.load)

    def _pod_changed(self, key: str, before: Pod | None, after: Pod | None) -> None:
        ended = after is None and before is not None and before.done
        if ended and before is not None and before.owner is not None and self._is_known(before.owner):
            after = replace(before, gone=True)
        touched = self._filed.file(key, before, after)
        if touched is not None:
            for job in touched:
                self._news(job)
            if all(pod is None or (pod.owner is not None and self._is_known(pod.owner)) for pod in (before, after)):
                self._tell()
            else:
                self._announce()
        self._see_claims(self.devices.claims_of_pod.get(key, ()))

    def _announce(self) -> None:
        """Report a change beyond a job's own pods or report, which the next plan must include."""
        self._others_changed = True
        self._tell()

    def _load_changed(self, key: str, before: Load | None, after: Load | None) -> None:
        if before != after:
            self._count(key, after)
        if (before is None) != (after is None):
            self._see_claims(self.devices.claims_of_pod.get(key, ()))

    def _count_pods_of(self, job: JobRef) -> None:
        """Recount the loads of pods that claim a job, after it has become, or ceased to be, one of ours."""
        for key in self.pods_by_job.get(job, ()):
            self._count(key, (self.pods.get(key) or UNKNOWN).load)

    def _count(self, key: str, load: Load | None) -> None:
        if load is not None and load.owner is not None and self._is_known(load.owner):
            load = None
        self._usage.count(key, load)

    def _node_changed(self, key: str, before: Node | None, after: Node | None) -> None:
        if before == after:
            return
        self._usage.see(key)
        touched = self._reach.changed(key, before, after, len(self.nodes.mapping()))
        if touched:
            for owner, pods in self.pods_by_job.items():
                if any(pod.node in touched for pod in pods.values()):
                    self._mark(self._changed, owner)
        self._announce()

    def _queue_changed(self, key: str, before: QueueObject | None, after: QueueObject | None) -> None:
        # The parts that decide about jobs, and the generation in the status of a queue.
        if before is None or after is None or (before.queue, before.generation) != (after.queue, after.generation):
            self._announce()

    def _quota_changed(self, key: str, before: Limits | None, after: Limits | None) -> None:
        if before != after:
            self._announce()

    def _workload_changed(self, key: str, before: Workload | None, after: Workload | None) -> None:
        for each in (before, after):
            if each is not None and each.owner is not None:
                if each is before:
                    discard(self._workloads_of, each.owner, key)
                else:
                    self._workloads_of[each.owner].add(key)
                self._news(each.owner)
        if (before and before.waits) != (after and after.waits):
            self._announce()

    def _eviction_changed(self, key: str, before: Target | None, after: Target | None) -> None:
        if before is not None:
            discard(self._evictions_of, before, key)
        if after is not None:
            self._evictions_of[after].add(key)
        for target in filter(None, (before, after)):
            known = self.pods.get(target[0]) or UNKNOWN
            pod = known.pod
            if pod is not None and pod.owner is not None and pod.uid == target[1]:
                asked = replace(pod, asked_to_leave=target in self._evictions_of)
                self.pods.change(pod.key, replace(known, pod=asked))

    def _flavor_changed(self, key: str, before: Flavor | None, after: Flavor | None) -> None:
        if before != after:
            for workload in self.workloads.values():
                if workload.owner is not None and key in workload.flavors:
                    self._news(workload.owner)
            self._announce()

    def _devices_changed(self, nodes: Collection[str]) -> None:
        for node in nodes:
            self._usage.see(node)

    def _see_claims(self, claims: Collection[str]) -> None:
        if claims:
            self._claimed.count(claims)
            self._announce()

    def _news(self, job: JobRef) -> None:
        self._mark(self._changed, job)
        self._tell()

    def _mark(self, uids: set[str], job: JobRef) -> None:
        """Add the UID of a job, unless an object claims a job that is not its own."""
        if not self._is_forged(job):
            uids.add(job.uid)

    def _is_known(self, ref: JobRef) -> bool:
        job = self._by_uid.get(ref.uid)
        return job is not None and job.ref == ref


def optional_kinds(settings: KubeSettings) -> tuple[tuple[Resource, bool], ...]:
    """Return (kind, whether it is watched only in the managed namespaces) for kinds that an installation may lack.

    An installation by an earlier chart may lack the kinds, or the rights to read them. Each is watched by itself. The
    kinds of dynamic resource allocation, which many clusters lack, are watched only if the settings name a DeviceClass,
    Kueue's and EvictionRequests only if the settings enable them.
    """
    kinds = (resources.QUEUES, *CONSTRAINING)
    left_out = {*(() if settings.device_classes else resources.DEVICE_KINDS), *(() if settings.kueue else OF_KUEUE)}
    left_out |= set() if settings.eviction_requests else {resources.EVICTION_REQUESTS}
    watched = (kind for kind in kinds if kind not in left_out)
    return tuple((kind, kind in _LIMITING) for kind in watched)
