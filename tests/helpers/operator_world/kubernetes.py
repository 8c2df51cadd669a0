"""A Kubernetes so simple that it is evidently right: the naive API server, and who else acts on its objects.

A kube-scheduler, kubelets and controllers each act when they are called. Leaders are
`operator_world.leaders.Process`es.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import Final

from espalier_operator.job.view import utc
from operator_world.kube_api import GRACE_SECONDS, ApiObjects, gpus_of, is_over, node_of, owner_of
from operator_world.kube_objects import GPU, Raw, raw_node, time_at
from operator_world.leaders import Process, Temper

TYPE_LABEL = "nvidia.com/gpu.product"
SIDE_CAR: Final[Raw] = {"name": "proxy", "image": "proxy"}
"""What a webhook adds to pods. It runs until its pod is deleted."""
EVICTION_SECONDS = 300.0
"""After so long pods are evicted from a node that is not ready."""


class Kubernetes(ApiObjects):
    """All objects and all processes."""

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__()
        self.processes: dict[str, Process] = {}
        """By UID of their pod: what runs, also where no kubelet can say so."""
        self.checkpoints: dict[str, float] = {}
        """Budget seconds in the last checkpoint, by UID of the job."""
        self.tempers: dict[str, Temper] = {}
        """How the leaders of a job behave, by its key."""
        self.ran: dict[str, float] = defaultdict(float)
        """Seconds for which leaders' containers ran, by UID of their job."""
        self.ended: dict[str, int] = defaultdict(int)
        """Containers of base workers that have ended, by UID of their job."""
        self.done: dict[tuple[str, int], str] = {}
        """Base workers of programs, by UID of the job and index, that have ended with 0 by themselves, and the UIDs of
        their pods; but for those whose ends nobody can know of."""
        self.ever_done: set[tuple[str, int]] = set()
        """All that ever have."""
        self.once_lost: set[str] = set()
        """UIDs of pods whose node was not heard of for a time."""
        self.unable_to_pull: set[str] = set()
        """Nodes on which no image can be pulled; what runs there runs on."""
        self._unready_since: dict[str, float] = {}

    # ---- what happens to nodes and to other people's pods

    def add_node(self, name: str, gpus: int, gpu_type: str = "") -> None:
        """Add a node, ready at once."""
        self.nodes[name] = raw_node(name, gpus, gpu_type)

    def set_ready(self, name: str, ready: bool, *, well: bool = True) -> None:
        """Let a node be heard of again (and be well, or take no new pods), or no more; what runs on it runs on."""
        node = self.nodes[name]
        since = time_at(self._unready_since.get(name, self.now))
        conditions = [{"type": "Ready", "status": str(well) if ready else "Unknown", "lastTransitionTime": since}]
        self.nodes[name] = {**node, "status": {**node["status"], "conditions": conditions}}
        if ready:
            self._unready_since.pop(name, None)
        else:
            self._unready_since.setdefault(name, self.now)
            self.once_lost |= {pod["metadata"]["uid"] for pod in self.pods.values() if node_of(pod) == name}

    def remove_node(self, name: str) -> None:
        """Let a node be gone, and all that ran on it."""
        del self.nodes[name]
        self.unable_to_pull.discard(name)
        self._unready_since.pop(name, None)
        for pod in list(self.pods.values()):
            if node_of(pod) == name:
                self.once_lost.add(pod["metadata"]["uid"])
                self.processes.pop(pod["metadata"]["uid"], None)

    def add_foreign(self, name: str, gpus: int, gpu_type: str | None = None) -> None:
        """Add somebody else's pod, which waits for its GPUs and then holds them."""
        selector = {"nodeSelector": {TYPE_LABEL: gpu_type}} if gpu_type else {}
        containers = [{"name": "main", "resources": {"limits": {GPU: gpus}}}]
        metadata = {"namespace": "others", "name": name}
        self.create({"kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **selector}})

    def evict(self, key: str) -> None:
        """Let the kubelet end a pod for want of memory: it stays, failed."""
        self._end(key, 137, reason="Evicted", message="The node was low on resource: memory.")

    # ---- who acts by itself

    def schedule(self) -> None:
        """Bind pending pods to the first node that suits, in the order in which they were made."""
        for key, pod in list(self.pods.items()):
            if node_of(pod) or is_over(pod):
                continue
            for name in self.nodes:
                if self._suits(pod, name):
                    self.pods[key] = {**pod, "spec": {**pod["spec"], "nodeName": name}}
                    break

    def kubelets(self) -> None:
        """Let kubelets start what is bound to their nodes, end what is deleted, and say what has ended."""
        for key, pod in list(self.pods.items()):
            name = node_of(pod)
            if name is None or not self.is_ready(name) or is_over(pod):
                continue
            uid, deleting = pod["metadata"]["uid"], "deletionTimestamp" in pod["metadata"]
            process = self.processes.get(uid)
            if process is None:
                if deleting:
                    self.remove(key)
                elif ended_at(pod) is not None:
                    pass  # its side-cars run on
                elif pod["status"]["phase"] == "Pending":
                    self._start(key)
                else:
                    self._end(key, 137, container="ContainerStatusUnknown")  # it went with its node
            elif process.code is not None:
                self._end(key, process.code, process.ended_at)
                if process.code == 0 and not deleting and process.index is not None and self._is_program(process):
                    self.done[process.job_uid, process.index] = uid
                    self.ever_done.add((process.job_uid, process.index))
                if deleting:
                    self.remove(key)
            elif deleting:
                process.terminate(self.now, GRACE_SECONDS)
        for uid in list(self.processes):
            process = self.processes[uid]
            pod_is_there = process.key in self.pods and self.pods[process.key]["metadata"]["uid"] == uid
            if not pod_is_there and self.is_ready(process.node):
                del self.processes[uid]

    def controllers(self) -> None:
        """Collect what has no owner or no node any more, and evict from nodes that are not ready for long."""
        owners = {job["metadata"]["uid"] for job in self.jobs.values()}
        for owned in (self.config_maps, self.workloads):
            for key, each in list(owned.items()):
                if owner_of(each) not in (None, *owners):
                    del owned[key]
        for key, pod in list(self.pods.items()):
            owner, node = owner_of(pod), node_of(pod)
            if node is not None and node not in self.nodes:
                self.remove(key)
            elif owner is not None and owner not in owners:
                self.delete_pod(key)
            elif node is not None and self.now - self._unready_since.get(node, self.now) >= EVICTION_SECONDS:
                conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]
                self.pods[key] = {**pod, "status": {**pod["status"], "conditions": conditions}}
                self.delete_pod(key)

    def pass_time(self, seconds: float, step: float = 1.0) -> None:
        """Let time pass, and leaders train; kubelets keep up with their processes."""
        end = self.now + seconds
        while self.now < end:
            gone = min(step, end - self.now)
            self.now += gone
            for process in list(self.processes.values()):
                if process.code is None and process.leads:
                    self.ran[process.job_uid] += gone
                process.advance(self, gone)
            self.kubelets()

    # ---- reading

    def is_ready(self, node: str) -> bool:
        """Return whether the node is there and heard of."""
        found = self.nodes.get(node)
        return found is not None and found["status"]["conditions"][0]["status"] != "Unknown"

    def is_open(self, node: str) -> bool:
        """Return whether the node takes new pods."""
        found = self.nodes.get(node)
        well = found is not None and found["status"]["conditions"][0]["status"] == "True"
        return well and found is not None and not found["spec"].get("unschedulable")

    def free(self, node: str, resource: str = GPU) -> int:
        """Return the GPUs of a resource on a node that nobody holds."""
        held = sum(gpus_of(pod, resource) for pod in self.pods.values() if node_of(pod) == node and not is_over(pod))
        return int(self.nodes[node]["status"]["allocatable"].get(resource, 0)) - held

    def live_leaders(self, job_uid: str) -> list[Process]:
        """Return the leaders of a job that run, but for those whose node was lost or whose pod was taken by force."""
        found = []
        for process in self.processes.values():
            pod = self.pods.get(process.key)
            known = pod is not None and pod["metadata"]["uid"] == process.uid and process.uid not in self.once_lost
            if process.job_uid == job_uid and process.leads and process.code is None and known:
                found.append(process)
        return found

    def remove(self, key: str) -> None:
        """Let a pod be gone, and what runs in it where its kubelet hears of that."""
        pod = self.pods[key]
        super().remove(key)
        node = node_of(pod)
        if node is None or self.is_ready(node):
            self.processes.pop(pod["metadata"]["uid"], None)

    def is_recorded(self, worker: tuple[str, int]) -> bool:
        """Return whether a job's status says that a base worker was done, or it is over or gone."""
        job = next((job for job in self.jobs.values() if job["metadata"]["uid"] == worker[0]), None)
        status = {} if job is None else job.get("status", {})
        over = job is None or "completionTime" in status
        return over or worker[1] in status.get("scheduling", {}).get("completedWorkers", ())

    def delete_pod(self, key: str, uid: str | None = None, *, force: bool = False) -> None:
        """Delete a pod. Unless it is recorded, nobody can tell that one whose side-cars ran on was done before."""
        super().delete_pod(key, uid, force=force)
        if key in self.pods:
            for worker, done in list(self.done.items()):
                if done == self.pods[key]["metadata"]["uid"] and not self.is_recorded(worker):
                    del self.done[worker]

    # ---- within

    def _is_program(self, process: Process) -> bool:
        job = self.jobs.get(process.job)
        return job is not None and job["metadata"]["uid"] == process.job_uid and "program" in job["spec"]

    def _suits(self, pod: Raw, name: str) -> bool:
        node = self.nodes[name]
        labels = node["metadata"]["labels"]
        selector = pod["spec"].get("nodeSelector") or {}
        affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
        terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
        expressions = [each for term in terms for each in term.get("matchExpressions", ())]
        typeless = any(each["key"] == TYPE_LABEL for each in expressions)  # those that go are cordoned here
        fields = [field for term in terms for field in term.get("matchFields", ())]
        return (
            self.is_open(name)
            and all(name in field["values"] for field in fields)
            and all(labels.get(label) == value for label, value in selector.items())
            and not (typeless and TYPE_LABEL in labels)
            and self.free(name) >= gpus_of(pod)
        )

    def _start(self, key: str) -> None:
        pod = self.pods[key]
        node = node_of(pod)
        if node is None:
            return
        if node in self.unable_to_pull:
            self._wait_for_image(key)
            return
        running = {"running": {"startedAt": self._time()}}
        containers = [{"name": each["name"], "state": running} for each in pod["spec"]["containers"]]
        self.pods[key] = {**pod, "status": {**_claims(pod), "phase": "Running", "containerStatuses": containers}}
        self.processes[pod["metadata"]["uid"]] = Process.of(self, key, node)

    def _wait_for_image(self, key: str) -> None:
        pod = self.pods[key]
        if "containerStatuses" not in pod["status"]:  # nothing is news after that
            waiting = {"reason": "ImagePullBackOff", "message": "no answer of the registry"}
            containers = [{"name": trainer_of(pod), "state": {"waiting": waiting}}]
            self.pods[key] = {**pod, "status": {**pod["status"], "containerStatuses": containers}}

    def _end(self, key: str, code: int, at: float | None = None, *, container: str = "", **status: str) -> None:
        pod = self.pods[key]
        self.processes.pop(pod["metadata"]["uid"], None)
        if ended_at(pod) is not None:
            return
        self.ended[owner_of(pod) or ""] += "-base-" in key
        states = {each["name"]: each["state"] for each in pod["status"].get("containerStatuses", ())}
        name = trainer_of(pod)
        ended = {"exitCode": code, "finishedAt": self._time(at), **({"reason": container} if container else {})}
        states[name] = {"terminated": {**states.get(name, {}).get("running", {}), **ended}}
        containers = [{"name": each, "state": state} for each, state in sorted(states.items())]
        goes = status or container or "deletionTimestamp" in pod["metadata"]
        phase = "Running" if len(states) > 1 and not goes else "Failed" if code or status else "Succeeded"
        self.pods[key] = {**pod, "status": {**_claims(pod), "phase": phase, "containerStatuses": containers, **status}}

    def _time(self, at: float | None = None) -> str:
        return utc(self.now if at is None else at).isoformat()


def trainer_of(pod: Raw) -> str:
    """Return the name of the container of a pod that is no side-car."""
    return next(str(each["name"]) for each in pod["spec"]["containers"] if each["name"] != SIDE_CAR["name"])


def ended_at(pod: Raw) -> float | None:
    """Return when the container of a pod ended that is no side-car; None: it has not."""
    states = [each["state"] for each in pod["status"].get("containerStatuses", ()) if each["name"] == trainer_of(pod)]
    ends = [state["terminated"]["finishedAt"] for state in states if "terminated" in state]
    return datetime.fromisoformat(ends[0]).timestamp() if ends else None


def _claims(pod: Raw) -> Raw:
    """Return what the status of a pod says of its claims: that is not the kubelet's."""
    return {name: value for name, value in pod["status"].items() if name == "resourceClaimStatuses"}
