"""What a cluster's nodes, scheduler and garbage collector do, as far as the API shows it: `FakeKubelet`.

It runs beside a bare API server (`apiserver.ApiServer`) and continues over restarts of it:

- binds pending pods to nodes made by `add_node` that are ready, schedulable, match the pod's selector and have the
  GPUs free; says `Unschedulable` of the others, as kube-scheduler does (no priorities, no preemption);
- runs bound pods: Running with container statuses, until `end` ends them or they are deleted;
- ends a deleted pod and removes it;
- deletes what belongs (ownerReferences) to a job that is gone.

It runs in a thread of its own; all methods may be called from any other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import httpx
from apiserver import JOBS, ApiServer, ServerError
from connections import connections_aborted, json_lines

from waiting import PATIENCE, until

GPU = "nvidia.com/gpu"
SIGTERM_EXIT = 143
_RETRY_SECONDS = 0.1
_COLLECT_SECONDS = 0.25
_WATCH_SECONDS = 300
_PREPARED = "PodReadyToStartContainers"
_MOST_SECONDS = 0.2
"""Between two looks at what a test waits for; the first ones come sooner."""
_JOBS = f"{JOBS}/adaptivetrainingjobs"
_OWNED = (
    *("/api/v1/pods", "/api/v1/services", "/api/v1/serviceaccounts", "/api/v1/configmaps"),
    *("/apis/rbac.authorization.k8s.io/v1/roles", "/apis/rbac.authorization.k8s.io/v1/rolebindings"),
)
"""Kinds whose objects are collected when their job is gone; rolebindings before roles would do as well."""

Pod = dict[str, Any]
Node = dict[str, Any]


class FakeKubelet:
    """A context manager. Attributes may be changed while it runs; they are read at each pod's next event."""

    def __init__(self, server: ApiServer) -> None:
        """Not started yet: `with` starts and ends it."""
        self.hindrance: Callable[[Pod], tuple[str, str] | None] = lambda pod: None
        """Reason and message of an Event about what keeps a bound pod from starting; None: it starts."""
        self._server = server
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, Node] = {}
        self._jobs: dict[str, dict[str, Any]] = {}
        self._timers: set[asyncio.Task[None]] = set()
        self._busy: set[tuple[str, str]] = set()
        self._trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fake-kubelet")
        self._begun = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        if self._trouble is not None and error is None:
            raise self._trouble

    # ---- for tests: nodes

    def add_node(
        self,
        name: str,
        gpus: int,
        *,
        gpu_type: str = "",
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Make a ready node; `gpu_type` becomes its label `nvidia.com/gpu.product`."""
        names = {"kubernetes.io/hostname": name, **(labels or {})}
        if gpu_type:
            names["nvidia.com/gpu.product"] = gpu_type
        self._server.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": names}})
        # Made, it gets the taint that a controller would take away when the node is ready.
        self._server.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": list(taints) or None}})
        self.set_gpus(name, gpus)
        self.set_ready(name, True)

    def set_gpus(self, name: str, gpus: int) -> None:
        """Say how many GPUs a node has."""
        has = {GPU: str(gpus), "cpu": "64", "memory": "256Gi", "pods": "250"}
        status = {"capacity": has, "allocatable": has}
        self._server.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    def set_ready(self, name: str, ready: bool) -> None:
        """Make a node Ready or NotReady; pods of one that is not are left as they are."""
        condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Test"}
        now = _now()
        status = {"conditions": [condition | {"lastTransitionTime": now, "lastHeartbeatTime": now}]}
        self._server.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})

    def cordon(self, name: str, cordoned: bool = True) -> None:
        """Make a node unschedulable, or schedulable again."""
        self._server.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": cordoned or None}})

    # ---- for tests: pods

    def end(self, namespace: str, name: str, exit_code: int, message: str = "") -> None:
        """Let the containers of a pod end with `exit_code`: Succeeded for 0, else Failed. The pod stays."""
        pod = self._server.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        self._server.request("PATCH", f"{_path(pod)}/status", {"status": _ended(pod, exit_code, message)})

    def pods(self, namespace: str, selector: str = "") -> list[Pod]:
        """Return the pods of a namespace, by name."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        found = self._server.request("GET", path, **({"labelSelector": selector} if selector else {}))["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def wait_for(self, what: str, holds: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """Return the first true value of `holds`; `AssertionError` when there is none in time. Raises its trouble."""

        def asked() -> Any:
            value = holds()
            if not value and self._trouble is not None:
                raise self._trouble
            return value

        return until(asked, what, seconds, _MOST_SECONDS)

    def wait_running(self, namespace: str, name: str, seconds: float = PATIENCE) -> Pod:
        """Return the pod once it is Running."""

        def running() -> Pod | None:
            pods = [pod for pod in self.pods(namespace) if pod["metadata"]["name"] == name]
            return next((pod for pod in pods if pod.get("status", {}).get("phase") == "Running"), None)

        found: Pod = self.wait_for(f"pod {namespace}/{name} is Running", running, seconds)
        return found

    # ---- its thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._trouble = error
        finally:
            self._begun.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._doubt = asyncio.Event()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._begun.set()
        async with connections_aborted(), self._server.async_client(self._server.admin_token) as self._api:
            await self._work()

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow("/api/v1/nodes", self._nodes, self._on_node))
                group.create_task(self._follow("/api/v1/pods", self._pods, self._on_pod))
                group.create_task(self._follow(_JOBS, self._jobs, self._on_job))
                for kind in _OWNED[1:]:
                    group.create_task(self._follow(kind, {}, self._on_owned))
                group.create_task(self._collect())
        finally:
            timers = list(self._timers)
            for timer in timers:
                timer.cancel()
            await asyncio.gather(*timers, return_exceptions=True)

    async def _follow(self, path: str, seen: dict[str, Any], on_change: Callable[[dict[str, Any]], Any]) -> None:
        """Keep `seen` (by uid) as the server has it, for ever: list, watch, and again when the watch ends."""
        while True:
            try:
                async for kind, item in self._changes(path):
                    if kind == "LISTED":
                        uids = {each["metadata"]["uid"] for each in item}
                        gone = seen.keys() - uids
                        items = item
                    elif kind == "DELETED":
                        gone = {item["metadata"]["uid"]}
                        items = []
                    else:
                        gone = set()
                        items = [item]
                    for uid in gone:
                        seen.pop(uid, None)
                    if gone and seen is self._jobs:
                        self._doubt.set()
                    for each in items:
                        seen[each["metadata"]["uid"]] = each
                        await on_change(each)
                    if seen is self._nodes or seen is self._pods:
                        await self._schedule()
            except (httpx.HTTPError, _Again):
                await asyncio.sleep(_RETRY_SECONDS)

    async def _changes(self, path: str) -> AsyncIterator[tuple[str, Any]]:
        listed = await self._do("GET", path)
        if listed is None:  # the kind itself is gone, or not there yet
            yield "LISTED", []
            raise _Again(path)
        yield "LISTED", listed["items"]
        if (version := listed["metadata"].get("resourceVersion")) is None:  # the kind is about to go
            raise _Again(path)
        parameters = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(_WATCH_SECONDS)}
        async with self._api.stream("GET", path, params=parameters, timeout=httpx.Timeout(10, read=None)) as answer:
            async for event in json_lines(answer):
                if event["type"] == "ERROR":
                    raise _Again(event["object"].get("message", ""))
                yield event["type"], event["object"]

    async def _do(self, method: str, path: str, body: Any = None, **parameters: str) -> Any:
        """Do one request; None where the object is gone or has changed, `_Again` where the server is not ready."""
        headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        answer = await self._api.request(method, path, json=body, params=parameters, headers=headers)
        if answer.status_code in (404, 409):
            return None
        if answer.status_code == 429 or answer.status_code >= 500:
            raise _Again(answer.text)
        if answer.is_error:
            raise ServerError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    # ---- nodes and binding

    async def _on_node(self, node: Node) -> None:
        """Nothing but what `_schedule` does after each change."""

    async def _schedule(self) -> None:
        """Bind what can be bound."""
        for pod in [pod for pod in self._pods.values() if _waits(pod)]:
            node = next((node for node in self._nodes.values() if self._fits(pod, node)), None)
            if node is not None:
                name = node["metadata"]["name"]
                target = {"target": {"kind": "Node", "name": name}, "metadata": {"name": pod["metadata"]["name"]}}
                if await self._do("POST", f"{_path(pod)}/binding", target) is not None:
                    pod["spec"]["nodeName"] = name  # it holds its GPUs before the watch says so
            elif not any(each["type"] == "PodScheduled" for each in pod.get("status", {}).get("conditions", ())):
                message = f"0/{len(self._nodes)} nodes are available: Insufficient {GPU}."
                condition = _condition("PodScheduled", "False", reason="Unschedulable", message=message)
                await self._status(pod, {"conditions": [condition]})

    def _fits(self, pod: Pod, node: Node) -> bool:
        name, spec, labels = node["metadata"]["name"], node.get("spec", {}), node["metadata"].get("labels", {})
        taints = [taint for taint in spec.get("taints", ()) if not _tolerates(pod["spec"], taint)]
        if spec.get("unschedulable") or taints or not _is_ready(node) or not _selects(pod["spec"], name, labels):
            return False
        free = {name: int(count) for name, count in node["status"].get("allocatable", {}).items() if "/" in name}
        for other in self._pods.values():
            on_node = other["spec"].get("nodeName") == node["metadata"]["name"]
            if on_node and other.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                for name, count in _requests(other).items():
                    free[name] = free.get(name, 0) - count
        return all(free.get(name, 0) >= count for name, count in _requests(pod).items())

    # ---- pods

    async def _on_pod(self, pod: Pod) -> None:
        await self._on_owned(pod)
        node = pod["spec"].get("nodeName")
        ready = next((_is_ready(each) for each in self._nodes.values() if each["metadata"]["name"] == node), False)
        phase = pod.get("status", {}).get("phase", "Pending")
        if not node or not ready:
            return
        if "deletionTimestamp" in pod["metadata"]:
            self._later("stop", pod, self._stop)
        elif phase == "Pending":
            self._later("start", pod, self._start)

    def _later(self, what: str, pod: Pod, do: Callable[[Pod], Any]) -> None:
        """Do it once per pod, beside what else happens."""
        key = (what, pod["metadata"]["uid"])
        if key in self._busy:
            return
        self._busy.add(key)

        async def waited() -> None:
            while True:
                try:
                    await do(self._pods.get(pod["metadata"]["uid"], pod))
                    break
                except (httpx.HTTPError, _Again):  # the API server restarts
                    await asyncio.sleep(_RETRY_SECONDS)
            self._busy.discard(key)

        task = asyncio.create_task(waited())
        self._timers.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._timers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._trouble = error
            self._task.cancel()

    async def _start(self, pod: Pod) -> None:
        if "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase", "Pending") != "Pending":
            return
        if (hindrance := self.hindrance(pod)) is not None:
            await self._hinder(pod, *hindrance)
        statuses = _container_statuses(pod, {"running": {"startedAt": _now()}}, ready=True)
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        conditions = [_condition(kind, "True") for kind in kinds]
        status = {"phase": "Running", "startTime": _now(), "containerStatuses": statuses, "conditions": conditions}
        await self._status(pod, status)

    async def _hinder(self, pod: Pod, reason: str, message: str) -> None:
        """Say, as the kubelet does, that it has not prepared a pod; it tries again."""
        about = {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}
        name = f"{about['name']}.{about['uid']}.{abs(hash(message))}"
        if not any(each["type"] == _PREPARED for each in pod.get("status", {}).get("conditions", ())):
            conditions = [_condition("PodScheduled", "True"), _condition(_PREPARED, "False")]
            waiting = {"waiting": {"reason": "ContainerCreating"}}
            statuses = _container_statuses(pod, waiting, ready=False)
            await self._status(pod, {"containerStatuses": statuses, "conditions": conditions, "startTime": _now()})
        event = {
            "metadata": {"name": name},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
            **{"reason": reason, "message": message, "type": "Warning", "lastTimestamp": _now()},
            "source": {"component": "kubelet", "host": pod["spec"]["nodeName"]},
        }
        await self._do("POST", f"/api/v1/namespaces/{about['namespace']}/events", event)
        raise _Again(message)

    async def _stop(self, pod: Pod) -> None:
        if pod.get("status", {}).get("phase") == "Running":
            await self._status(pod, _ended(pod, SIGTERM_EXIT, ""))
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._do("DELETE", _path(pod), options)

    async def _status(self, pod: Pod, status: dict[str, Any]) -> None:
        await self._do("PATCH", f"{_path(pod)}/status", {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status})

    # ---- garbage

    async def _on_job(self, job: dict[str, Any]) -> None:
        """Nothing: only that one goes is of interest, and `_follow` says so."""

    async def _on_owned(self, item: dict[str, Any]) -> None:
        """Doubt whether its job is still there: it may have been made after that went, or seen before that."""
        owners = _owners(item)
        if owners and not self._jobs.keys() & owners:
            self._doubt.set()

    async def _collect(self) -> None:
        """On doubt, delete what belongs to jobs that are gone; each kind by itself, as pods hold GPUs."""
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            try:
                await asyncio.gather(*(self._collect_kind(kind) for kind in _OWNED))
            except (httpx.HTTPError, _Again):
                self._doubt.set()
            await asyncio.sleep(_COLLECT_SECONDS)

    async def _collect_kind(self, kind: str) -> None:
        owned = (await self._do("GET", kind))["items"]
        # Listed after what they own: an owner of something seen is seen, or is gone.
        listed = await self._do("GET", _JOBS) if owned else None
        jobs = [] if listed is None else listed["items"]  # their kind itself may be gone
        there = {job["metadata"]["uid"] for job in jobs}
        for item in owned:
            owners = _owners(item)
            if owners and not there & owners and "deletionTimestamp" not in item["metadata"]:
                options = {"preconditions": {"uid": item["metadata"]["uid"]}}
                await self._do("DELETE", _path(item, kind), options)


class _Again(Exception):  # noqa: N818
    """The server is not ready, or a watch is too old: what was wanted is to be done again."""


def _owners(item: dict[str, Any]) -> set[str]:
    """Return the uids of the jobs that own an object."""
    return {each["uid"] for each in item["metadata"].get("ownerReferences", ()) if _is_job(each)}


def _path(item: dict[str, Any], collection: str = "/api/v1/pods") -> str:
    group, _, plural = collection.rpartition("/")
    return f"{group}/namespaces/{item['metadata']['namespace']}/{plural}/{item['metadata']['name']}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(kind: str, status: str, **more: str) -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": _now(), **more}


def _is_ready(node: Node) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _is_job(owner: dict[str, Any]) -> bool:
    return owner["kind"] == "AdaptiveTrainingJob" and str(owner["apiVersion"]).startswith("espalier.dev/")


def _waits(pod: Pod) -> bool:
    spec, phase = pod["spec"], pod.get("status", {}).get("phase", "Pending")
    gone = "deletionTimestamp" in pod["metadata"]
    return not spec.get("nodeName") and not spec.get("schedulingGates") and phase == "Pending" and not gone


def _requests(pod: Pod) -> dict[str, int]:
    """Return what the containers ask of extended resources (those with a `/` in their name)."""
    total: dict[str, int] = {}
    for container in pod["spec"]["containers"]:
        limits = container.get("resources", {}).get("limits", {})
        for name, count in {**limits, **container.get("resources", {}).get("requests", {})}.items():
            if "/" in name:
                total[name] = total.get(name, 0) + int(count)
    return total


def _tolerates(spec: dict[str, Any], taint: dict[str, str]) -> bool:
    """Whether a toleration names the key of the taint."""
    repels = taint["effect"] in ("NoSchedule", "NoExecute")
    return not repels or taint["key"] in {toleration.get("key") for toleration in spec.get("tolerations", ())}


def _selects(spec: dict[str, Any], name: str, labels: dict[str, str]) -> bool:
    """Whether nodeSelector and the required node affinity allow the node `name` with these labels."""
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(
        _matches(term.get("matchExpressions", ()), labels)
        and _matches(term.get("matchFields", ()), {"metadata.name": name})
        for term in required["nodeSelectorTerms"]
    )


def _matches(expressions: Iterable[dict[str, Any]], labels: dict[str, str]) -> bool:
    for each in expressions:
        key, values = each["key"], each.get("values", ())
        holds = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not holds[each["operator"]]:
            return False
    return True


def _container_statuses(pod: Pod, state: dict[str, Any], *, ready: bool) -> list[dict[str, Any]]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "containerID": f"fake://{pod['metadata']['uid']}/{container['name']}",
            "ready": ready,
            "started": ready,
            "restartCount": 0,
            "state": state,
        }
        for container in pod["spec"]["containers"]
    ]


def _ended(pod: Pod, exit_code: int, message: str) -> dict[str, Any]:
    """Return the status of a pod whose containers ended with `exit_code`."""
    begun = pod.get("status", {}).get("startTime") or _now()
    reason = "Completed" if exit_code == 0 else "Error"
    terminated = {"exitCode": exit_code, "reason": reason, "startedAt": begun, "finishedAt": _now()}
    if message:
        terminated["message"] = message
    conditions = [_condition("PodScheduled", "True"), _condition("Ready", "False", reason="PodCompleted")]
    return {
        "phase": "Succeeded" if exit_code == 0 else "Failed",
        "containerStatuses": _container_statuses(pod, {"terminated": terminated}, ready=False),
        "conditions": conditions,
    }
