"""The operator for tests: `InProcess`, in a thread of its own."""

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

from espalier_operator.kube.client import KubeClient, api_access
from espalier_operator.kube.process.operator import Operator
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Snapshot
from waiting import until

EXTRA_CLASS = "espalier-extra"
Raw = dict[str, Any]


def make_extra_class(server: ApiServer) -> None:
    """Make the PriorityClass of extra workers where it is missing."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    if EXTRA_CLASS not in {item["metadata"]["name"] for item in server.request("GET", path)["items"]}:
        server.request("POST", path, {"metadata": {"name": EXTRA_CLASS}, "value": 0, "preemptionPolicy": "Never"})


class InProcess:
    """An operator in a thread; a context manager that stops it in peace."""

    def __init__(self, server: ApiServer, *, kubeconfig: Path | None = None, **settings: Any) -> None:
        """`settings` as `KubeSettings`; times are short unless they are given."""
        self._kubeconfig = kubeconfig or server.kubeconfig
        quick = {"restart_seconds": 0.1, "resync_seconds": 20.0, "trainer_image": "trainer:dev"}
        self.settings = KubeSettings(**{**quick, **settings})
        self._thread = threading.Thread(target=self._run, name="operator")
        self._ready = threading.Event()
        self._trouble: BaseException | None = None

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
            self.client = KubeClient(api)
            self.operator = Operator(self.client, api.configuration, self.settings)
            self._task = asyncio.create_task(self.operator.run())
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

    def message(self, name: str, kind: str) -> str:
        """Return the message of a condition, which there must be."""
        return next(str(each["message"]) for each in self.status(name)["conditions"] if each["type"] == kind)

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
            f"{job}: Events {reasons}", lambda: set(reasons) <= {event["reason"] for event in self.jobs.events(job)}
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
