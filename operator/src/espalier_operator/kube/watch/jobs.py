"""The jobs, the inputs of their parsing, and the pods and reports that claim to be theirs. No I/O.

A job is parsed again when one of its PriorityClasses, LimitRanges, volumes or ResourceClaimTemplates changes.

Anyone may delete an ended pod: a clean-up, the pod garbage collector, the removal of its node. The worker's end would
be lost with it. So the last state of an ended worker is kept until its job has recorded the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from espalier_core.k8s.resources import Raw, key_of
from espalier_core.types.job import DEFAULT_CONTROLLER
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.devices import DeviceRequest, templates_of
from espalier_operator.kube.objects.jobs import InvalidJob, KubeJob, class_of, parse_job
from espalier_operator.kube.objects.limits import Defaults, largest, parse_limit_range
from espalier_operator.kube.objects.names import JobRef
from espalier_operator.kube.objects.nodes import Terms, affinity_of, claims_of, volume_of
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.reading import mapping, text
from espalier_operator.kube.reading import time as time_of
from espalier_operator.kube.reports import ReportObject, UnreadableReport, measures_more, read, report_object
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.workers import foreign_worker
from espalier_operator.kube.watch.indexer import Indexer, discard
from espalier_operator.model import Worker

T = TypeVar("T")


class PodIndex:
    """Keeps each pod in one place."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.by_job: dict[JobRef, dict[str, Pod]] = {}
        """Pods, including `gone` ones, by the job that they claim, which need not exist, and by key."""
        self.foreign_workers: dict[str, Worker] = {}
        """Foreign pods by key, and foreign ResourceClaims that hold devices by name, as workers for the planner."""

    def file(self, key: str, before: Pod | None, after: Pod | None) -> list[JobRef] | None:
        """Store a changed pod; return the jobs that it affects, None where only its version is new."""
        if (
            before is not None
            and after is not None
            and before == replace(after, resource_version=before.resource_version)
        ):
            self._put(key, after)
            return None
        touched = []
        if before is not None and before.owner is not None and (after is None or after.owner != before.owner):
            pods = self.by_job[before.owner]
            pods.pop(key, None)
            if not pods:
                del self.by_job[before.owner]
            touched.append(before.owner)
        if after is None or after.owner is not None:
            self.foreign_workers.pop(key, None)
        if after is not None:
            self._put(key, after)
            if after.owner is not None:
                touched.append(after.owner)
        return touched

    def forget(self, pod: Pod) -> None:
        """Drop a pod that is gone."""
        pods = self.by_job.get(pod.owner, {}) if pod.owner is not None else {}
        if pods.get(pod.key) is pod:
            self.file(pod.key, pod, None)

    def forget_gone(self, job: JobRef) -> None:
        """Drop the pods of a job that are gone."""
        for pod in [pod for pod in self.by_job.get(job, {}).values() if pod.gone]:
            self.forget(pod)

    def _put(self, key: str, pod: Pod) -> None:
        if pod.owner is not None:
            self.by_job.setdefault(pod.owner, {})[key] = pod
        elif (worker := foreign_worker(pod)) is not None:
            self.foreign_workers[key] = worker
        else:
            self.foreign_workers.pop(key, None)


class LastReports:
    """The indexer of report ConfigMaps, and the last report of each job."""

    def __init__(
        self,
        time: Callable[[], float],
        is_known: Callable[[JobRef], bool],
        reported: Callable[[JobRef], None],
        announce: Callable[[], None],
    ) -> None:
        """Take `is_known`, whether a job exists, and `reported`, called when its leader reports; nothing is known yet.

        `announce` is called for changes that may affect the plan.
        """
        self._time, self._is_known, self._reported, self._announce = time, is_known, reported, announce
        self.indexer: Indexer[ReportObject] = Indexer(lambda raw, _: self._parse(raw), self._changed)
        self._last: dict[JobRef, ReportObject] = {}
        """Last report of each job, including claimed jobs that do not exist."""
        self._late: set[str] = set()
        """Keys of unread reports, whose job reports too often or is unknown."""

    def of(self, job: JobRef) -> ReportObject | None:
        """Return the last report of the leader of a job."""
        return self._last.get(job)

    def is_there(self, job: JobRef) -> bool:
        """Return whether the report ConfigMap of a job exists; `of` may outlive it."""
        found = self.indexer.get(f"{job.namespace}/{names.report_name(job.name)}")
        return found is not None and found.owner == job

    def late(self) -> list[str]:
        """Return the keys of reports for `read_late`."""
        return list(self._late)

    def read_late(self, key: str) -> None:
        """Read a report that was not read on arrival, if its job is known and may report again."""
        found = self.indexer.get(key)
        if found is None or found.newer is None:
            self._late.discard(key)
        elif self._is_known(found.owner):
            known = read(found.newer, self._last.get(found.owner), self._time())
            if known.newer is None:
                self.indexer.change(key, known)

    def unread(self) -> dict[str, int]:
        """Return the number of jobs whose newest report is not read, by reason (`UnreadableReport`)."""
        found = (report.unread for job, report in self._last.items() if self._is_known(job))
        counts = Counter(why for why in found if why is not None)
        return {str(why): counts[why] for why in UnreadableReport}

    def forget(self, job: JobRef) -> None:
        """Drop the last report of a job that is gone."""
        self._last.pop(job, None)

    def _parse(self, raw: Raw) -> ReportObject | None:
        """Read the report of an existing job."""
        found = report_object(raw, self._time())
        if found is None:
            return None
        if not self._is_known(found.owner):
            return replace(found, text=None, too_large=False, newer=found)
        return read(found, self._last.get(found.owner), self._time())

    def _changed(self, key: str, before: ReportObject | None, after: ReportObject | None) -> None:
        is_other = before is not None and (after is None or after.owner != before.owner)
        if before is not None and is_other and not self._is_known(before.owner):
            self._last.pop(before.owner, None)
        if after is None:
            if before is not None and before.newer is not None and before.owner in self._last:
                self._last[before.owner] = replace(before, newer=None)
            return  # an existing job keeps its last report
        if after.newer is None:
            self._late.discard(key)
        else:
            self._late.add(key)
        known, self._last[after.owner] = self._last.get(after.owner), after
        if known is None or (known.text, known.problem) != (after.text, after.problem):
            self._reported(after.owner)
        if known is None or known.news != after.news or measures_more(known, after):
            self._announce()  # figures wait for the next plan: a thousand leaders report them every two seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObject:
    """A parsed job object."""

    key: str
    uid: str
    generation: int
    version: str
    """Its `metadata.resourceVersion`, which includes its status."""
    deleting: bool
    orphans: bool
    """Its deletion must leave its dependents (`kubectl delete --cascade=orphan`)."""
    parsed: KubeJob | InvalidJob
    raw: Raw
    """The object without its status."""
    status: Mapping[str, Any] | None

    @property
    def ref(self) -> JobRef:
        """The reference by which its objects name their owner."""
        namespace, _, name = self.key.partition("/")
        return JobRef(namespace, name, self.uid)

    @property
    def created_at(self) -> float:
        """Time of its creation, in epoch seconds."""
        return time_of(self.raw, "metadata", "creationTimestamp") or 0.0


def job_object(
    raw: Raw, before: JobObject | None, settings: KubeSettings, parse: Callable[[Raw], KubeJob | InvalidJob]
) -> JobObject | None:
    """Return a job of this operator, None for another's; `parse` reads its specification if it differs from `before`'s.

    Workers of another operator's jobs count as foreign pods.
    """
    if (text(raw, "spec", "controllerName") or DEFAULT_CONTROLLER) != settings.controller_name:
        return None
    metadata = raw["metadata"]
    generation, deleting = int(metadata["generation"]), "deletionTimestamp" in metadata
    version = str(metadata["resourceVersion"])
    orphans = deleting and "orphan" in (metadata.get("finalizers") or ())
    same_labels = before is not None and before.raw["metadata"].get("labels") == metadata.get("labels")
    if before is not None and before.uid == metadata["uid"] and before.generation == generation and same_labels:
        return replace(before, version=version, deleting=deleting, orphans=orphans, status=raw.get("status"))
    kept = {key: value for key, value in raw.items() if key != "status"}
    kept["metadata"] = {key: value for key, value in metadata.items() if key != "managedFields"}
    return JobObject(
        key=key_of(raw),
        uid=metadata["uid"],
        generation=generation,
        version=version,
        deleting=deleting,
        orphans=orphans,
        parsed=parse(kept),
        raw=kept,
        status=raw.get("status"),
    )


class _Namespaced(Generic[T]):
    """The values of an indexer by namespace."""

    def __init__(self) -> None:
        self._found = defaultdict[str, dict[str, T]](dict)

    def note(self, key: str, value: T | None) -> None:
        """Record the value of an object; None: it is gone."""
        namespace = key.partition("/")[0]
        if value is not None:
            self._found[namespace][key] = value
        elif self._found[namespace].pop(key, None) is not None and not self._found[namespace]:
            del self._found[namespace]

    def of(self, namespace: str) -> list[T]:
        """Return the values of a namespace."""
        return list(self._found.get(namespace, {}).values())


class JobInputs:
    """Indexers of jobs and of the inputs of their parsing."""

    def __init__(
        self,
        settings: KubeSettings,
        template: Callable[[str], DeviceRequest | None],
        job_changed: Callable[[str, JobObject | None, JobObject | None], None],
    ) -> None:
        """Take `template`, the look-up of a ResourceClaimTemplate by key, and the indexer's `job_changed`."""
        self._settings, self._template, self._told = settings, template, job_changed
        self.jobs: Indexer[JobObject] = Indexer(self._parse_job, self._job_changed)
        self.priorities: Indexer[int] = Indexer(lambda raw, _: int(raw["value"]), self._priority_changed)
        self.limit_ranges: Indexer[Defaults] = Indexer(lambda raw, _: parse_limit_range(raw), self._defaults_changed)
        """LimitRanges with defaults for containers."""
        self.claims: Indexer[str] = Indexer(lambda raw, _: volume_of(raw), self._claim_changed)
        """The volume to which each claim is bound."""
        self.volumes: Indexer[Terms] = Indexer(lambda raw, _: affinity_of(raw), self._volume_changed)
        """The node affinity of volumes that have one."""
        self._jobs_in, self._defaults = _Namespaced[JobObject](), _Namespaced[Defaults]()
        self._claims_of = defaultdict[str, set[str]](set)
        """Keys of the claims bound to each volume."""

    def template_changed(self, template: str) -> None:
        """Parse the jobs again whose pods claim devices by a ResourceClaimTemplate, given by key."""
        namespace, _, name = template.partition("/")
        for job in self._jobs_in.of(namespace):
            named = templates_of(mapping(job.raw, "spec", "template", "spec"))
            if any(each == name for _, _, each in named):
                self._reread(job)

    def _parse_job(self, raw: Raw, before: JobObject | None) -> JobObject | None:
        return job_object(raw, before, self._settings, self._parsed)

    def _parsed(self, raw: Raw) -> KubeJob | InvalidJob:
        defaults = self._defaults_in(text(raw, "metadata", "namespace"))
        classes = None if self.priorities.listed_version is None else self.priorities.mapping()  # None: unknown yet
        return parse_job(raw, self._settings, classes, self._affinity_of, self._template, defaults)

    def _affinity_of(self, claim: str) -> Terms | None:
        """Return the node affinity of the volume of a claim, given by key."""
        volume = self.claims.get(claim)
        return None if volume is None else self.volumes.get(volume)

    def _defaults_in(self, namespace: str) -> Defaults:
        """Return the default requests of containers in a namespace."""
        return largest(self._defaults.of(namespace))

    def _job_changed(self, key: str, before: JobObject | None, after: JobObject | None) -> None:
        self._jobs_in.note(key, after)
        self._told(key, before, after)

    def _defaults_changed(self, key: str, before: Defaults | None, after: Defaults | None) -> None:
        self._defaults.note(key, after)
        if before != after:
            for job in self._jobs_in.of(key.partition("/")[0]):
                self._reread(job)

    def _priority_changed(self, key: str, before: int | None, after: int | None) -> None:
        if before != after:
            for job in list(self.jobs.values()):
                if key in (class_of(job.raw), self._settings.extra_priority_class):
                    self._reread(job)

    def _claim_changed(self, key: str, before: str | None, after: str | None) -> None:
        if before == after:
            return
        if before is not None:
            discard(self._claims_of, before, key)
        if after is not None:
            self._claims_of[after].add(key)
        if before in self.volumes.mapping() or after in self.volumes.mapping():
            self._reread_jobs_with({key})

    def _volume_changed(self, key: str, before: Terms | None, after: Terms | None) -> None:
        if before != after:
            self._reread_jobs_with(self._claims_of.get(key, ()))

    def _reread_jobs_with(self, claims: Collection[str]) -> None:
        """Parse the jobs again whose pods mount one of `claims`, given by key."""
        for namespace in {claim.partition("/")[0] for claim in claims}:
            for job in self._jobs_in.of(namespace):
                mounted = claims_of(mapping(job.raw, "spec", "template", "spec"))
                if any(f"{namespace}/{claim}" in claims for claim in mounted):
                    self._reread(job)

    def _reread(self, job: JobObject) -> None:
        self.jobs.change(job.key, replace(job, parsed=self._parsed(job.raw)))
