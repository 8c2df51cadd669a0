"""Webhooks that change any field of our pods: what the API server gives back is counted, told and waited for."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_core.types.status import ConditionType, parse_status
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Rules, Snapshot
from espalier_operator.model.actions import Plan
from espalier_operator.policies.fair import FairPolicy
from operator_world.kube_api import gpus_of, is_over, node_of, owner_of
from operator_world.kube_objects import GPU, Raw, template
from operator_world.kube_operator import KINDS, LiveOperator
from operator_world.kubernetes import SIDE_CAR, Kubernetes
from operator_world.leaders import Temper

SETTINGS = KubeSettings(start_up_allowance_seconds=20, promise_seconds=15, persist_seconds=5)
SPEC = {
    "timeBudgetSeconds": 1000,
    "minReplicas": 2,
    "maxReplicas": 2,
    "preRunningDeadlineSeconds": 30,
    "program": {},
    "template": template({"command": ["sh"]}),
}
Change = Callable[[Raw], None]


def _gpus(count: int) -> Change:
    def change(pod: Raw) -> None:
        pod["spec"]["containers"][0]["resources"] = {"limits": {GPU: count}, "requests": {GPU: count}}

    return change


def _puts(place: str, **fields: Any) -> Change:
    def change(pod: Raw) -> None:
        pod[place] = {**pod[place], **fields}

    return change


def _container(at: int, container: Raw) -> Change:
    return lambda pod: pod["spec"]["containers"].insert(at, dict(container))  # other changes may change it


def _drops(place: str, field: str) -> Change:
    def change(pod: Raw) -> None:
        pod[place].pop(field, None)

    return change


CHANGES: dict[str, Change] = {
    "gate": _puts("spec", schedulingGates=[{"name": "example.com/quota"}]),
    "no GPU": _gpus(0),
    "two GPUs": _gpus(2),
    "five GPUs": _gpus(5),
    "side-car first": _container(0, SIDE_CAR),
    "side-car last": _container(9, SIDE_CAR),
    "side-car with a GPU": _container(9, {**SIDE_CAR, "resources": {"limits": {GPU: 1}}}),
    "labels": _puts("metadata", labels={"changed": "yes"}),
    "finalizer": _puts("metadata", finalizers=["example.com/held"]),
    "elsewhere": _puts("spec", nodeSelector={"disk": "tape"}),
    "affinity gone": _drops("spec", "affinity"),
    "tolerations": _puts("spec", tolerations=[{"operator": "Exists"}]),
    "scheduler": _puts("spec", schedulerName="other"),
    "priority": _puts("spec", priorityClassName="other", priority=-7, preemptionPolicy="Never"),
    "init container": _puts("spec", initContainers=[{"name": "init", "image": "proxy"}]),
    "bound": _puts("spec", nodeName="b"),
    "restarts": _puts("spec", restartPolicy="Always", terminationGracePeriodSeconds=0),
}
NO_PLACE = {"elsewhere"}
"""Changes after which a pod is bound to no node."""


class World(Kubernetes):
    """A cluster whose webhook changes the pods of jobs, in turn, and lets their gates be removed later."""

    def __init__(self, changes: list[list[str]], opens_after: float) -> None:
        super().__init__()
        self._changes, self._opens_after = iter(changes), opens_after
        self.complete_for = 0.0
        """Seconds for which all base workers have run."""
        self.held: dict[str, float] = {}

    def create(self, manifest: Mapping[str, Any]) -> None:
        pod = copy.deepcopy(dict(manifest))
        if manifest["kind"] == "Pod" and owner_of(pod):
            for name in next(self._changes, ()):
                event(name)
                CHANGES[name](pod)
            if node_of(pod):  # the API server takes no pod that is bound and gated
                pod["spec"].pop("schedulingGates", None)
            self.held[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = self.now + self._opens_after
        super().create(pod)

    def open_gates(self) -> None:
        for key, pod in list(self.pods.items()):
            if "schedulingGates" in pod["spec"] and self.now >= self.held[key]:
                spec = {name: each for name, each in pod["spec"].items() if name != "schedulingGates"}
                self.pods[key] = {**pod, "spec": spec}

    def run(self) -> int:
        """Return how many base workers run."""
        return sum(process.code is None and process.index is not None for process in self.processes.values())

    def _suits(self, pod: Raw, name: str) -> bool:
        return "schedulingGates" not in pod["spec"] and super()._suits(pod, name)


class Life:
    """That cluster and an operator, which is judged whenever it has planned or worked."""

    def __init__(self, runner: asyncio.Runner, changes: list[list[str]], opens_after: float) -> None:
        self.world = World(changes, opens_after)
        self.unplaced = any(NO_PLACE & {*each} for each in changes)
        """Some of its pods may fit nowhere, and that is the reason to tell."""
        for name in ("a", "b"):
            self.world.add_node(name, 16)  # room for both pods, whatever was added to them
        self.world.tempers["ns/job"] = Temper(silent=True, lasts=1e9)
        self.world.create_job("job", SPEC)
        self.operator = LiveOperator(self.world, FairPolicy(), SETTINGS, Rules(), runner, KINDS)
        self.operator.on_plan = self._judge_counts

    def live(self, seconds: int) -> None:
        for _ in range(seconds):
            for _ in range(3):
                self.operator.see(*KINDS)
                self.operator.tick()
                self.world.open_gates()
                self.world.controllers()
                self.world.schedule()
                self.world.kubelets()
            self._judge_status()
            self.world.complete_for += self.world.run() == 2
            self.world.pass_time(1.0)

    def condition(self, kind: ConditionType) -> Any:
        status = parse_status(self.world.jobs["ns/job"])
        return None if status is None else status.condition(kind)

    def _judge_counts(self, snapshot: Snapshot, plan: Plan) -> None:
        seen: Counter[str] = Counter()
        for worker in snapshot.workers:
            if worker.node is not None:
                seen[worker.node] += worker.gpus
        there: Counter[str] = Counter()
        for pod in self.operator.view["pods"].values():
            if (node := node_of(pod)) is not None and not is_over(pod):
                there[node] += gpus_of(pod)
        assert +seen == +there

    def _judge_status(self) -> None:
        status = parse_status(self.world.jobs["ns/job"])
        if status is None:
            return
        assert (status.time_budget.used_seconds or 0) <= self.world.complete_for + 2, "the budget runs alone"
        running, pods = self.condition(ConditionType.RUNNING), list(self.operator.view["pods"].values())
        if running is not None and running.status == "True":
            assert self.world.complete_for or self.world.run() == 2, "it does not run"
        if running is not None and not self.unplaced:
            gated = any("schedulingGates" in pod["spec"] for pod in pods)
            assert (running.reason == Reason.SCHEDULING_GATED) == gated, running


drawn = st.lists(st.lists(st.sampled_from(sorted(CHANGES)), max_size=3, unique=True), min_size=2, max_size=4)


@settings(max_examples=25)
@given(drawn, st.sampled_from((0.0, 5.0, 40.0)))
def test_no_change_of_pods_leads_to_a_wrong_count_a_false_reason_or_a_budget_that_runs_alone(
    changes: list[list[str]], opens_after: float
) -> None:
    with asyncio.Runner() as runner:
        life = Life(runner, changes, opens_after)
        life.live(60)
        if not life.unplaced:
            condition = life.condition(ConditionType.RUNNING)
            assert condition.status == "True", condition
        life.operator.close()
