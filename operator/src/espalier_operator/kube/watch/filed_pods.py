"""The pods by the job that they claim as theirs, and those of others as the planner counts them. No I/O.

Anyone may delete a pod that has ended: a clean-up, the pod garbage collector, who takes its node away. A worker's end
would go with it. So what was last seen of a worker that had ended stays until its job has taken note of it.
"""

from __future__ import annotations

from dataclasses import replace

from espalier_operator.kube.objects.names import JobRef
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.state.workers import foreign_worker
from espalier_operator.model import Worker


class FiledPods:
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
