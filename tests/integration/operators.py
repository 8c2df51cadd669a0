"""The operator for tests: `InProcess` in a thread of its own, and `Killed`, a client that stops it at a chosen call."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from apiserver import JOBS, ApiServer
from connections import connections_closed
from fake_kubelet import PATIENCE, FakeKubelet
from trainers import Trainers

from espalier_core.k8s.errors import Call
from espalier_operator.kube.client import KubeClient, api_access
from espalier_operator.kube.process.operator import Operator
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Snapshot
from waiting import until

"""At most, for the connections of an operator that has ended to be closed."""
EXTRA_CLASS = "espalier-extra"
Raw = dict[str, Any]


def make_extra_class(server: ApiServer) -> None:
    """Make the PriorityClass of extra workers where it is missing."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    if EXTRA_CLASS not in {item["metadata"]["name"] for item in server.request("GET", path)["items"]}:
        server.request("POST", path, {"metadata": {"name": EXTRA_CLASS}, "value": 0, "preemptionPolicy": "Never"})


class CountingClient(KubeClient):
    """Counts calls that change something, and may stop the operator at one of them.

    `stop_at`: the number of the call (from 1) after which nothing more reaches the API server. `answered`: whether the
    operator still gets the answer of that call.
    """

    def __init__(self, api: Any, stop_at: int | None = None, answered: bool = True) -> None:
        """Count from 0."""
        super().__init__(api)
        self.calls: list[str] = []
        self.stop_at, self._answered = stop_at, answered
        self.on_stop: Callable[[], None] = lambda: None
        self._dead = False

    async def _send(self, call: Call) -> tuple[int, Mapping[str, str], bytes]:
        if self._dead:
            await asyncio.Event().wait()
        if call.method == "GET":
            return await super()._send(call)
        self.calls.append(f"{call.method} {call.path}")
        last = len(self.calls) == self.stop_at
        answer = await super()._send(call)
        if self._dead or last:
            self._dead = True
            self.on_stop()
            if not (last and self._answered):
                await asyncio.Event().wait()
        return answer


class InProcess:
    """An operator in a thread; a context manager that stops it in peace."""

    def __init__(
        self,
        server: ApiServer,
        *,
        kubeconfig: Path | None = None,
        stop_at: int | None = None,
        answered: bool = True,
        **settings: Any,
    ) -> None:
        """`settings` as `KubeSettings`; times are short unless they are given."""
        self._server, self._stop_at, self._answered = server, stop_at, answered
        self._kubeconfig = kubeconfig or server.kubeconfig
        quick = {"restart_seconds": 0.1, "resync_seconds": 20.0, "trainer_image": "trainer:dev"}
        self.settings = KubeSettings(**{**quick, **settings})
        self._thread = threading.Thread(target=self._run, name="operator")
        self._ready = threading.Event()
        self._trouble: BaseException | None = None
        self.killed = threading.Event()
        """Set when the client has stopped it."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        if error is None:
            self.check()

    def start(self) -> None:
        """Start it and return when it plans."""
        self._thread.start()
        self._ready.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while self.operator.store.listed_at is None and self._thread.is_alive():
            assert time.monotonic() < deadline, "the operator has not listed the cluster"
            time.sleep(0.01)
        self.check()

    def stop(self) -> None:
        """Ask it to end and wait until it has."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.operator.stop)
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive(), "the operator does not end"

    def kill(self) -> None:
        """End it at once: nothing more is written."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive(), "the operator does not end"

    def check(self) -> None:
        """Raise what it died of."""
        if self._trouble is not None:
            raise self._trouble

    @property
    def snapshot(self) -> Snapshot:
        """What it last planned by. One that has just listed the cluster may be about to plan for the first time."""

        def seen() -> Snapshot | None:
            self.check()
            return self.operator.snapshot

        found: Snapshot = until(seen, "the operator has planned nothing")
        return found

    def wake(self) -> None:
        """Let it tick."""
        self._loop.call_soon_threadsafe(self.operator.loop.wake)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._trouble = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with api_access(self._kubeconfig) as api:
            self.client = CountingClient(api, self._stop_at, self._answered)
            self.operator = Operator(self.client, api.configuration, self.settings)
            self._task = asyncio.create_task(self.operator.run())

            def stopped() -> None:
                self.killed.set()
                self._task.cancel()

            self.client.on_stop = stopped
            self._ready.set()
            await asyncio.wait([self._task])
        await connections_closed()
        self._task.result()


class Jobs:
    """The jobs of one namespace, for tests."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        """Look at `namespace`."""
        self.server, self.namespace = server, namespace
        self.path = f"{JOBS}/namespaces/{namespace}/adaptivetrainingjobs"

    def make(
        self,
        name: str,
        *,
        gpus: int = 1,
        select: Mapping[str, str] | None = None,
        pod: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> Raw:
        """Make a job of 100 budget seconds with workers of `gpus` GPUs; `pod` is added to its template's."""
        container = {"name": "trainer", "image": "trainer:dev", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
        pod = {"containers": [container], **(pod or {})}
        if select:
            pod["nodeSelector"] = dict(select)
        whole = {"timeBudgetSeconds": 100, "template": {"spec": pod}, **spec}
        head = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob", "metadata": {"name": name}}
        made: Raw = self.server.request("POST", self.path, {**head, "spec": whole})
        return made

    def get(self, name: str) -> Raw:
        """Return a job."""
        found: Raw = self.server.request("GET", f"{self.path}/{name}")
        return found

    def status(self, name: str) -> Raw:
        """Return its status, empty where there is none yet."""
        found: Raw = self.get(name).get("status", {})
        return found

    def change(self, name: str, **spec: Any) -> None:
        """Change its specification."""
        self.server.request("PATCH", f"{self.path}/{name}", {"spec": spec})

    def delete(self, name: str, **parameters: str) -> None:
        """Delete it."""
        self.server.request("DELETE", f"{self.path}/{name}", **parameters)

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        """Return (status, reason) of a condition, empty texts where there is none."""
        for entry in self.status(name).get("conditions", ()):
            if entry["type"] == kind:
                return entry["status"], entry["reason"]
        return "", ""

    def events(self, name: str) -> list[Raw]:
        """Return the Events about it."""
        found = self.server.request("GET", f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [event for event in found if event["involvedObject"]["name"] == name]


class World:
    """A namespace, nodes and pods that run, leaders that report, and operators: what most tests need.

    A context manager; operators that still run are stopped at its end, and none may have logged an error.
    """

    def __init__(self, server: ApiServer, kubelet: FakeKubelet, trainers: Trainers) -> None:
        """Make a namespace in it."""
        self.server, self.kubelet, self.trainers = server, kubelet, trainers
        self.jobs = Jobs(server, server.namespace())
        self.namespace = self.jobs.namespace
        self._operators: list[InProcess] = []
        self._errors = _Errors()

    def __enter__(self) -> Self:
        make_extra_class(self.server)
        logging.getLogger().addHandler(self._errors)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for operator in self._operators:
            operator.stop()
        logging.getLogger().removeHandler(self._errors)
        if error is None:
            for operator in self._operators:
                operator.check()
            assert not self._errors.lines, "an operator under test has no error to report"

    def operate(self, **settings: Any) -> InProcess:
        """Start an operator."""
        operator = InProcess(self.server, **settings)
        self._operators.append(operator)
        operator.start()
        return operator

    def until(self, what: str, holds: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """Wait until `holds` is true and return it."""
        return self.kubelet.wait_for(what, holds, seconds)

    def until_condition(self, job: str, kind: str, status: str, reason: str, seconds: float = PATIENCE) -> None:
        """Wait until a condition of a job has this status and reason."""
        try:
            self.until("", lambda: self.jobs.condition(job, kind) == (status, reason), seconds)
        except AssertionError:
            stands = self.jobs.status(job).get("conditions")
            raise AssertionError(f"{job}: {kind} is not {status}, {reason}; it stands so: {stands}") from None

    def until_lent(self, job: str) -> None:
        """Wait until a job has extra workers and its leader knows of all of them: they run."""
        self.until_condition(job, "ExtraGPUsGranted", "True", "ExtraGPUsGranted")

        def known() -> bool:
            status = self.jobs.status(job)
            return bool(status["allocation"]["replicas"] == status["replicas"])

        self.until(f"{job}: its leader knows of its extra workers", known)

    def until_event(self, job: str, *reasons: str) -> None:
        """Wait until a job has Events of these reasons: they come after the status that they tell of."""
        self.until(
            f"{job}: Events {reasons}",
            lambda: set(reasons) <= {event["reason"] for event in self.jobs.events(job)},
        )

    def pods(self, job: str) -> dict[str, Raw]:
        """Return the pods of a job by name."""
        found = self.kubelet.pods(self.namespace, f"espalier.dev/job={job}")
        return {pod["metadata"]["name"]: pod for pod in found}

    def running(self, job: str) -> list[str]:
        """Return the names of its pods that run and are not being ended."""
        return [
            name
            for name, pod in self.pods(job).items()
            if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        ]

    def make_foreign(self, name: str, gpus: int = 1, labels: Mapping[str, str] | None = None, **spec: Any) -> None:
        """Make a pod of somebody else's."""
        container = {"name": "other", "image": "other:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        body = {"metadata": {"name": name, "labels": labels or {}}, "spec": {"containers": [container], **spec}}
        self.server.request("POST", f"/api/v1/namespaces/{self.namespace}/pods", body)

    def make_quota(self, name: str, pods: str, *scopes: str, is_counted: bool = True) -> str:
        """Make a ResourceQuota of pods, of which none are used yet; return its path.

        One that the planner does not count is of a limit, which each pod then has.
        """
        path, unit = f"/api/v1/namespaces/{self.namespace}", "pods" if is_counted else "limits.cpu"
        hard = {unit: pods if is_counted else f"{pods}m"}
        if not is_counted:
            limits = {"limits": [{"type": "Container", "default": {"cpu": "1m"}}]}
            self.server.request("POST", f"{path}/limitranges", {"metadata": {"name": name}, "spec": limits})
        path = f"{path}/resourcequotas"
        self.server.request("POST", path, {"metadata": {"name": name}, "spec": {"hard": hard, "scopes": [*scopes]}})
        self.server.request("PATCH", f"{path}/{name}/status", {"status": {"hard": hard, "used": {unit: "0"}}})
        return f"{path}/{name}"

    def delete_pod(self, name: str) -> None:
        """Delete a pod."""
        self.server.request("DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{name}")


class _Errors(logging.Handler):
    """Collects what an operator logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("espalier_operator"):
            self.lines.append(self.format(record))
