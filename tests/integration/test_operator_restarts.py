"""An operator that ends anywhere is followed by one that takes everything up where it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from apiserver import ApiServer
from fake_kubelet import FakeKubelet
from operators import InProcess, Jobs, make_extra_class
from trainers import Raw, Trainers

import sweeps

LIVES_AT_ONCE = 6
JOB = "life"


@pytest.fixture
def trainers(cluster: ApiServer, kubelet: FakeKubelet) -> Iterator[Trainers]:
    """Give leaders that fail once, as soon as an extra worker runs beside them, and complete the second time."""
    make_extra_class(cluster)

    def ends_when(job: Raw, pods: list[Raw]) -> int | None:
        running = {pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"}
        lent = job.get("status", {}).get("allocation", {}).get("replicas") == 2
        if not lent or not any("-extra-" in name for name in running):
            return None
        return 1 if f"{JOB}-base-0-0" in running else 0

    with Trainers(cluster) as trainers:
        trainers.ends_when = ends_when
        yield trainers


class Life:
    """A job from its birth to its end, on a node of its own, looked after by operators that may be killed."""

    def __init__(self, cluster: ApiServer, kubelet: FakeKubelet, trainers: Trainers) -> None:
        """Make its namespace and its node."""
        self._cluster, self._kubelet, self._trainers = cluster, kubelet, trainers
        with _ONE_AT_A_TIME:
            self.namespace = cluster.namespace()
        self._jobs = Jobs(cluster, self.namespace)
        self._type = f"type-{self.namespace}"
        kubelet.add_node(f"node-{self.namespace}", 2, gpu_type=self._type)

    def _operator(self, **options: Any) -> InProcess:
        return InProcess(self._cluster, watch_namespaces=(self.namespace,), persist_seconds=60.0, **options)

    def run(self, stop_at: int | None = None, *, answered: bool = True) -> tuple[dict[str, Any], list[str], bool]:
        """Live it, with the operator stopped at a call and followed by another.

        Return the final state, the calls of the first operator, and whether it was stopped.
        """
        spec = {"maxReplicas": 2, "preemption": {"cooldownSeconds": 0, "minRuntimeSeconds": 0}}
        with self._operator(stop_at=stop_at, answered=answered) as first:
            self._jobs.make(JOB, select={"nvidia.com/gpu.product": self._type}, **spec)
            self._kubelet.wait_for(f"{stop_at}: killed or over", lambda: first.killed.is_set() or self._is_over())
        if first.killed.is_set():
            with self._operator():
                self._kubelet.wait_for(f"{stop_at}: over after a restart", self._is_over)
        return self.state(), first.client.calls, first.killed.is_set()

    def _is_over(self) -> bool:
        job, pods = self._trainers.seen(self.namespace, JOB)
        phase = job.get("status", {}).get("phase")
        return phase in ("Complete", "Failed") and all(pod["status"]["phase"] != "Running" for pod in pods)

    def state(self) -> dict[str, Any]:
        """Return all that must be the same whenever an operator was killed: everything but times and UIDs."""
        job = self._jobs.get(JOB)
        status, uid = job["status"], job["metadata"]["uid"]
        kept = ("attempts", "extra", "extraGeneration", "failures", "trained", "lastFailure")
        objects = [
            (path, item["metadata"]["name"], [owner["uid"] == uid for owner in item["metadata"]["ownerReferences"]])
            for path in ("/api/v1/%s/services", "/api/v1/%s/configmaps", "/apis/rbac.authorization.k8s.io/v1/%s/roles")
            for item in self._cluster.request("GET", path % f"namespaces/{self.namespace}")["items"]
        ]
        pods = [pod for pod in self._kubelet.pods(self.namespace) if "deletionTimestamp" not in pod["metadata"]]
        return {
            "conditions": {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]},
            "phase": status["phase"],
            "allocation": status["allocation"],
            "counters": (status["restarts"], status["preemptions"], status["observedGeneration"], status["replicas"]),
            "scheduling": {name: status["scheduling"].get(name) for name in kept},
            "objects": objects,
            "pods": {pod["metadata"]["name"]: pod["status"]["phase"] for pod in pods},
            "made": self._check_history(),
        }

    def _check_history(self) -> list[str]:
        """Return the names of all pods that were ever made; what may never happen has not happened."""
        used = generation = 0.0
        made: dict[str, set[str]] = {}
        for item in list(self._trainers.history):
            if item["metadata"]["namespace"] != self.namespace:
                continue
            if item["kind"] == "Pod":
                made.setdefault(item["metadata"]["name"], set()).add(item["metadata"]["uid"])
            elif status := item.get("status"):
                assert status["timeBudget"]["usedSeconds"] >= used, "the budget was given back"
                assert status["allocation"]["generation"] >= generation, "a generation came twice"
                used, generation = status["timeBudget"]["usedSeconds"], status["allocation"]["generation"]
        assert all(len(uids) == 1 for uids in made.values()), f"a pod was made twice: {made}"
        return sorted(made)


_ONE_AT_A_TIME = threading.Lock()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_operator_killed_at_any_call_is_followed_by_one_that_ends_the_same(
    cluster: ApiServer, kubelet: FakeKubelet, trainers: Trainers
) -> None:
    """After each call that changes something, with its answer and without: the end is that of the undisturbed life.

    Operators that are killed in this process leave sockets open, which a process that ends does not.
    """
    wanted, calls, killed = Life(cluster, kubelet, trainers).run()
    assert not killed
    assert wanted["conditions"]["Complete"] == ("True", "BudgetExhausted")
    assert wanted["counters"][:2] == (1, 0), "its leader failed once"
    assert wanted["made"] == ["life-base-0-0", "life-base-0-1", "life-extra-0-2"]
    # An Event is for people: whether its answer came makes no difference to anything.
    moments = [(at, True) for at in range(1, len(calls) + 1)]
    moments += [(at, False) for at, call in enumerate(calls, start=1) if not call.endswith("/events")]

    def relive(moment: tuple[int, bool]) -> str:
        at, answered = moment
        state, done, killed = Life(cluster, kubelet, trainers).run(at, answered=answered)
        if state != wanted:
            differ = {name: (state[name], wanted[name]) for name in wanted if state[name] != wanted[name]}
            return f"killed at call {at} ({done[-1]}), answered: {answered}: {differ}"
        return "" if killed else "never killed"

    moments = sweeps.sample("lives with a killed operator", moments)
    with ThreadPoolExecutor(LIVES_AT_ONCE) as pool:
        results = list(pool.map(relive, moments))
    wrong = [result for result in results if result not in ("", "never killed")]
    assert not wrong, f"{len(wrong)} of {len(results)} lives ended otherwise:\n" + "\n".join(wrong)
    assert results.count("never killed") <= max(2, len(results) // 10), "the lives have got too few calls"
