"""The pods and reports by the job that they claim as theirs, and the pods of others for the planner. No I/O.

Anyone may delete a pod that has ended: a clean-up, the pod garbage collector, who takes its node away. A worker's end
would go with it. So what was last seen of a worker that had ended stays until its job has taken note of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from espalier_core.k8s.resources import Raw
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.names import JobRef
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.reports import ReportObject, UnreadableReport, measures_more, read, report_object
from espalier_operator.kube.state.workers import foreign_worker
from espalier_operator.kube.watch.indexer import Indexer
from espalier_operator.model import Worker


class PodIndex:
    """Files each pod in one place."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.by_job: dict[JobRef, dict[str, Pod]] = {}
        """By the job that they claim as theirs, which need not exist: pods, by key; also those that are `gone`."""
        self.foreign_workers: dict[str, Worker] = {}
        """Pods of others, by key, and their ResourceClaims that hold devices, by name, as the planner counts them."""

    def file(self, key: str, before: Pod | None, after: Pod | None) -> list[JobRef] | None:
        """File a pod that has changed; return the jobs of which that is news, None where only its version is new."""
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
    """The indexer of report ConfigMaps, and what follows from them."""

    def __init__(
        self,
        time: Callable[[], float],
        is_known: Callable[[JobRef], bool],
        reported: Callable[[JobRef], None],
        announce: Callable[[], None],
    ) -> None:
        """Nothing is known yet. `is_known` tells whether a job is there, `reported` is called when its leader reports.

        `announce` is called when the planner may want to know.
        """
        self._time, self._is_known, self._reported, self._announce = time, is_known, reported, announce
        self.indexer: Indexer[ReportObject] = Indexer(lambda raw, _: self._parse(raw), self._changed)
        self._last: dict[JobRef, ReportObject] = {}
        """Of each job, and of jobs that are claimed and do not exist."""
        self._late: set[str] = set()
        """Keys of reports that are not read yet: their job reports too often, or is not known."""

    def of(self, job: JobRef) -> ReportObject | None:
        """Return the last report of the leader of a job."""
        return self._last.get(job)

    def is_there(self, job: JobRef) -> bool:
        """Return whether the ConfigMap is there into which the leader of a job reports; `of` outlives it."""
        found = self.indexer.get(f"{job.namespace}/{names.report_name(job.name)}")
        return found is not None and found.owner == job

    def late(self) -> list[str]:
        """Return the keys of reports for `read_late`."""
        return list(self._late)

    def read_late(self, key: str) -> None:
        """Read a report that was not read when it came, where its job is known and may report again."""
        found = self.indexer.get(key)
        if found is None or found.newer is None:
            self._late.discard(key)
        elif self._is_known(found.owner):
            known = read(found.newer, self._last.get(found.owner), self._time())
            if known.newer is None:
                self.indexer.change(key, known)

    def unread(self) -> dict[str, int]:
        """Return by reason (`UnreadableReport`) how many jobs have a newest report that is not read."""
        found = (report.unread for job, report in self._last.items() if self._is_known(job))
        counts = Counter(why for why in found if why is not None)
        return {str(why): counts[why] for why in UnreadableReport}

    def forget(self, job: JobRef) -> None:
        """Forget the last report of a job that is gone."""
        self._last.pop(job, None)

    def _parse(self, raw: Raw) -> ReportObject | None:
        """Read the report of a job that is there."""
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
            return  # of a job that is there the last report counts
        if after.newer is None:
            self._late.discard(key)
        else:
            self._late.add(key)
        known, self._last[after.owner] = self._last.get(after.owner), after
        if known is None or (known.text, known.problem) != (after.text, after.problem):
            self._reported(after.owner)
        if known is None or known.news != after.news or measures_more(known, after):
            self._announce()  # figures wait for the next plan: a thousand leaders report them every two seconds
