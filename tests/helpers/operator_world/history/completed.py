"""What has ended stays ended, though its pod goes or side-cars run on. Clause 9."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from espalier_core.types.reasons import Reason
from espalier_operator.kube.objects.names import worker_of
from espalier_operator.model import WorkerRole
from espalier_operator.model.actions import Plan, Requeue
from operator_world.history.demands import demand
from operator_world.history.seen import Seen, identity
from operator_world.history.world import SharedCluster
from operator_world.kube_api import is_over, node_of, owner_of
from operator_world.kube_objects import Raw
from operator_world.kubernetes import ended_at

JUDGED_SECONDS: Final = 5.0
"""By then the end of a worker is judged: no report of it is waited for any more."""


class Completed:
    """The workers of the programs of one operator that were done by themselves."""

    def __init__(self, world: SharedCluster) -> None:
        """Nobody has ended yet."""
        self._world = world

    def operator_ends(self) -> None:
        """Forget ends that nobody can know of any more: the operator has not recorded them, and the pods are gone."""
        there = {pod["metadata"]["uid"] for pod in self._world.pods.values()}
        for worker, uid in list(self._world.done.items()):
            if uid not in there and not self._world.is_recorded(worker):
                del self._world.done[worker]

    def creating(self, manifest: Mapping[str, Any], checked: Counter[str]) -> None:
        """No worker is made again that was done."""
        metadata, uid = manifest["metadata"], owner_of(dict(manifest))
        worker = worker_of(metadata["ownerReferences"][0]["name"], metadata["name"])
        if worker is not None and worker[0] is WorkerRole.BASE:
            checked["made again"] += worker[2] > 0
            demand((uid, worker[1]) not in self._world.done, 9, f"{metadata['name']} is made, and that worker was done")

    def saw(self, plan: Plan, checked: Counter[str]) -> None:
        """No program waits again for GPUs while all of its workers run that were not done."""
        for action in plan.actions:
            job = self._world.jobs.get(action.job)
            if job is None or not isinstance(action, Requeue) or action.reason is not Reason.GPU_LOST:
                continue
            if "program" in job["spec"]:
                checked["a program lost GPUs"] += 1
                uid, needed = job["metadata"]["uid"], range(job["spec"]["minReplicas"])
                lost = [each for each in needed if (uid, each) not in self._world.done and not self._runs(uid, each)]
                demand(bool(lost), 9, f"{action.job} is to wait again, and all of its workers run")

    def _runs(self, job: str, index: int) -> bool:
        """Return whether the pod of a base worker runs on a node that is heard of and has its GPUs."""
        for process in self._world.processes.values():
            pod = self._world.pods.get(process.key)
            if (process.job_uid, process.index) == (job, index) and process.code is None and pod is not None:
                known = pod["metadata"]["uid"] == process.uid and process.uid not in self._world.once_lost
                stays = "deletionTimestamp" not in pod["metadata"] and self._world.is_ready(process.node)
                if known and stays:
                    return True
        return False

    def judge(self, jobs: Iterable[Seen], checked: Counter[str]) -> None:
        """What was done is recorded, and nothing else; side-cars keep no GPU."""
        for job in jobs:
            uid, kept = job.raw["metadata"]["uid"], job.status.scheduling
            for index in kept.completed_workers:
                checked["completed workers"] += 1
                demand((uid, index) in self._world.ever_done, 9, f"{job.key}: worker {index} is not done")
            for worker in [each for each in self._world.done if each[0] == uid]:
                checked["done"] += 1
                if self._world.is_recorded(worker):
                    continue
                demand(kept.stopping is not None or not job.holds, 9, f"{job.key}: worker {worker[1]} was done")
                del self._world.done[worker]  # it ended as it was asked to
            for key, pod in self._world.pods.items():
                at = ended_at(pod)
                if identity(job.raw) != (pod["metadata"]["namespace"], owner_of(pod)) or at is None or is_over(pod):
                    continue
                late = self._world.now - at > JUDGED_SECONDS and self._world.is_ready(node_of(pod) or "")
                checked["side-cars run on"] += 1
                demand("deletionTimestamp" in pod["metadata"] or not late, 9, f"side-cars keep the GPUs of {key}")

    def woke(self, before: Mapping[str, Raw], known: Mapping[str, str], checked: Counter[str]) -> None:
        """A former leader writes no status over one that it has not seen; `known` are the versions that it has."""
        for key, job in before.items():
            after = self._world.jobs.get(key)
            if after is not None and known.get(key) != job["metadata"]["resourceVersion"]:
                checked["written by a former leader"] += 1
                demand(after is job, 9, f"{key}: a former leader has written its status")
