"""Jobs whose quota Kueue has: admitted, placed by their flavor, evicted, released; and Kueue away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sweeps
from espalier_core.k8s.errors import Status
from espalier_core.types.reasons import Reason
from espalier_core.types.status import Condition, ConditionType, JobPhase, JobStatus, parse_status
from espalier_operator.kube.client import ApiRefusalError
from espalier_operator.kube.objects.kueue import boost_of
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Rules
from espalier_operator.policies.fair import FairPolicy
from operator_world.kube_api import is_over, owner_of
from operator_world.kube_objects import GPU, Raw, template
from operator_world.kube_operator import LiveOperator
from operator_world.kubernetes import Kubernetes
from operator_world.kueue import KINDS_WITH_KUEUE, Kueue
from operator_world.leaders import Temper

SETTINGS = KubeSettings(kueue=True, start_up_allowance_seconds=20, promise_seconds=15, persist_seconds=5)
QUEUE = {"kueue.x-k8s.io/queue-name": "queue"}
SPEC = {
    "timeBudgetSeconds": 1000,
    "minReplicas": 1,
    "maxReplicas": 1,
    "preemption": {"noticeSeconds": 8, "cooldownSeconds": 2, "minRuntimeSeconds": 2},
    "template": template(),
}


class Life:
    """A cluster, a Kueue and an operator."""

    def __init__(self, runner: asyncio.Runner, settings: KubeSettings = SETTINGS) -> None:
        self.world, self._runner, self._settings = Kubernetes(), runner, settings
        self.kueue = Kueue(self.world)
        self.operator = self.next_operator()
        self.on_step: Callable[[], None] = lambda: None

    def offer(self, gpus: int, quota: int) -> None:
        """Add a node with so many GPUs, of which Kueue's quota allows some."""
        self.world.add_node("node", gpus=gpus)
        self.kueue.add_flavor("any", gpus=quota)

    def next_operator(self) -> LiveOperator:
        rules = Rules(stop_grace_seconds=10)
        return LiveOperator(self.world, FairPolicy(), self._settings, rules, self._runner, KINDS_WITH_KUEUE)

    def restart_operator(self) -> None:
        self.operator.close()
        self.operator = self.next_operator()

    def submit(self, name: str = "job", labels: Mapping[str, str] = QUEUE, **spec: Any) -> None:
        self.world.tempers[f"ns/{name}"] = Temper(start_up=2.0, evaluation=1.0, lasts=1e9, farewell=1.0)
        self.world.create_job(name, {**SPEC, **spec}, labels)

    def live(self, seconds: float) -> None:
        """Let time pass while everybody works."""
        until = self.world.now + seconds
        while self.world.now < until:
            for _ in range(4):
                self.kueue.act()
                self.operator.see(*KINDS_WITH_KUEUE)
                self.operator.tick()
                self.world.controllers()
                self.world.schedule()
                self.world.kubelets()
                self.on_step()
            self.world.pass_time(1.0)

    def until(self, happens: Callable[[], bool], seconds: float = 120) -> None:
        """Let time pass until something has happened."""
        until = self.world.now + seconds
        while not happens():
            assert self.world.now < until, json.dumps([self.world.jobs, self.world.workloads], indent=1, default=str)
            self.live(1)

    def status(self, name: str = "job") -> JobStatus:
        found = parse_status(self.world.jobs[f"ns/{name}"])
        return found or JobStatus()

    def admitted(self, name: str = "job") -> Condition:
        found = self.status(name).condition(ConditionType.ADMITTED)
        assert found is not None
        return found

    def workload(self, name: str = "job") -> str:
        """Return the key of a job's Workload."""
        (key,) = (key for key in self.world.workloads if key.startswith(f"ns/{name}-base-"))
        return key

    def pods(self, role: str = "base", name: str = "job") -> list[Raw]:
        own = (pod for key, pod in self.world.pods.items() if key.startswith(f"ns/{name}-{role}-"))
        return [pod for pod in own if not is_over(pod)]

    def runs(self, name: str = "job") -> bool:
        return self.status(name).phase is JobPhase.RUNNING


@pytest.fixture
def life() -> Iterator[Life]:
    with asyncio.Runner() as runner:
        one = Life(runner)
        yield one
        one.operator.close()


def test_a_job_waits_for_kueue_and_says_what_kueue_says(life: Life) -> None:
    life.offer(gpus=4, quota=1)
    life.submit(minReplicas=2, maxReplicas=2)
    life.live(10)

    assert life.pods() == [], "GPUs are free, but the quota is for one"
    assert life.status().phase is JobPhase.PENDING
    assert life.admitted().reason is Reason.WAITING_FOR_KUEUE
    assert life.admitted().message == f"couldn't assign flavors to pod set main: insufficient unused quota for {GPU}"
    workload = life.world.workloads[life.workload()]
    assert workload["apiVersion"] == "kueue.x-k8s.io/v1beta2"
    assert workload["metadata"]["ownerReferences"][0]["uid"] == life.world.jobs["ns/job"]["metadata"]["uid"]
    (pod_set,) = workload["spec"]["podSets"]
    assert (workload["spec"]["queueName"], pod_set["count"]) == ("queue", 2)
    assert pod_set["template"]["spec"]["containers"] == [{"name": "trainer", "resources": {"limits": {GPU: 1}}}]

    life.kueue.quota["any"] = 2
    life.until(life.runs)
    assert len(life.pods()) == 2


def test_a_job_without_the_label_has_no_workload(life: Life) -> None:
    life.world.add_node("node", gpus=1)
    life.submit(labels={})
    life.until(life.runs)
    assert life.world.workloads == {}


def test_pods_go_where_the_flavor_says(life: Life) -> None:
    """By the planner too: it chooses no other nodes, and says so where these are taken."""
    life.world.add_node("other", gpus=4)
    for name, gpus in (("mine", 1), ("mine-too", 1)):
        life.world.add_node(name, gpus=gpus)
        node = life.world.nodes[name]
        life.world.nodes[name] = {**node, "metadata": {**node["metadata"], "labels": {"pool": "reserved"}}}
    toleration = {"key": "reserved", "operator": "Exists"}
    life.kueue.add_flavor("reserved", 4, {"pool": "reserved"}, [toleration])
    life.submit(maxReplicas=3)
    life.until(lambda: life.runs() and len(life.pods("extra")) == 1)
    for pod in life.pods() + life.pods("extra"):
        assert pod["spec"]["nodeName"].startswith("mine")
        assert pod["spec"]["nodeSelector"]["pool"] == "reserved"
        assert toleration in pod["spec"]["tolerations"]
    life.live(20)
    assert len(life.pods("extra")) == 1, "none is lent on nodes that are not of its flavor"


def test_an_evicted_job_saves_a_checkpoint_and_gives_its_quota_back_only_then(life: Life) -> None:
    life.offer(gpus=1, quota=1)
    life.submit(preemption={**SPEC["preemption"], "base": "Checkpoint"})
    life.until(life.runs)
    life.live(20)
    used, uid = life.status().time_budget.used_seconds, life.world.jobs["ns/job"]["metadata"]["uid"]
    stranger = life.kueue.add_stranger("stranger", priority=1)
    first = life.world.workloads[life.workload()]["metadata"]["uid"]

    def quota_is_held_by_pods() -> None:
        there = {each["metadata"]["uid"] for each in life.world.workloads.values()}
        assert first in there or not life.pods(), "its quota is given back before its pod has gone"

    life.on_step = quota_is_held_by_pods
    life.kueue.evict(life.workload())
    life.until(lambda: life.kueue.holds(stranger, "Admitted"), 60)

    assert life.world.checkpoints[uid] >= used, "nothing is lost"
    assert life.admitted().reason is Reason.WAITING_FOR_KUEUE
    assert "insufficient unused quota" in life.admitted().message
    assert life.status().scheduling.last_failure == "Preempted to accommodate a workload"
    life.on_step = lambda: None
    life.world.delete_workload(stranger)
    life.until(life.runs)
    assert life.status().time_budget.used_seconds >= used
    assert life.status().preemptions == 0


def test_a_job_that_is_suspended_or_over_holds_no_quota(life: Life) -> None:
    life.offer(gpus=2, quota=2)
    life.submit()
    life.submit("short", timeBudgetSeconds=10)
    life.until(lambda: life.runs() and life.status("short").phase is JobPhase.COMPLETE)
    life.live(5)
    assert [*life.world.workloads] == [life.workload()]

    life.world.change_spec("ns/job", suspend=True)
    life.until(lambda: not life.world.workloads)
    assert life.admitted().reason is Reason.SUSPENDED
    life.live(10)
    assert life.world.workloads == {}
    life.world.change_spec("ns/job", suspend=False)
    life.until(life.runs)


@pytest.mark.parametrize("restarts", [False, True])
def test_while_kueue_is_away_what_runs_runs_on(life: Life, restarts: bool) -> None:
    """Also if somebody has deleted its Workload: it is made again, and only Kueue's word counts."""
    life.offer(gpus=2, quota=1)
    life.submit()
    life.until(life.runs)
    pods = [pod["metadata"]["uid"] for pod in life.pods()]
    life.kueue.away = True
    life.world.delete_workload(life.workload())
    if restarts:
        life.restart_operator()
    life.submit("late")
    life.live(60)

    assert [pod["metadata"]["uid"] for pod in life.pods()] == pods
    assert not life.pods(name="late")
    assert life.admitted("late").reason is Reason.WAITING_FOR_KUEUE
    assert "Kueue has not looked at its Workload" in life.admitted("late").message
    life.kueue.away = False
    life.live(10)
    assert [pod["metadata"]["uid"] for pod in life.pods()] == pods
    assert life.kueue.holds(life.workload(), "Admitted"), "it is the first again"


@pytest.mark.parametrize(("code", "said"), [(404, "Kueue is away, or too old"), (403, "may not create workloads")])
def test_a_workload_that_cannot_be_made_is_the_reason(life: Life, code: int, said: str) -> None:
    def creating(manifest: Mapping[str, Any]) -> None:
        if manifest["kind"] == "Workload":
            raise ApiRefusalError("create workloads", Status(code, "NotFound", "may not create workloads"))

    life.world.add_node("node", gpus=1)
    life.operator.client.on_create = creating
    life.submit()
    life.live(10)
    assert life.admitted().reason is Reason.WAITING_FOR_KUEUE
    assert said in life.admitted().message
    assert not life.pods()
    life.operator.client.on_create = lambda manifest: None
    life.kueue.add_flavor("any", gpus=1)
    life.until(life.runs)


def test_a_workload_that_was_deactivated_stays_so(life: Life) -> None:
    life.offer(gpus=1, quota=1)
    life.submit()
    life.until(life.runs)
    life.kueue.deactivate(life.workload())
    life.until(lambda: not life.pods())
    life.live(20)
    assert life.kueue.free("any") == 1, "its quota is given back"
    assert life.world.workloads[life.workload()]["spec"]["active"] is False
    assert "deactivated" in life.admitted().message
    workload = life.world.workloads[life.workload()]
    life.world.workloads[life.workload()] = {**workload, "spec": {**workload["spec"], "active": True}}
    life.until(life.runs)


def test_a_job_that_asks_for_more_asks_kueue_again(life: Life) -> None:
    """While it waits, and while it runs: it never uses more than it was admitted for, but for a notice."""
    life.offer(gpus=4, quota=2)
    life.submit(minReplicas=3, maxReplicas=3)
    life.live(5)
    life.world.change_spec("ns/job", minReplicas=1, maxReplicas=1)
    life.until(life.runs)
    life.world.change_spec("ns/job", minReplicas=3, maxReplicas=3)
    most: list[int] = []
    life.on_step = lambda: most.append(len(life.pods()))
    life.until(lambda: life.admitted().reason is Reason.WAITING_FOR_KUEUE)
    assert max(most) == 1
    life.kueue.quota["any"] = 3
    life.until(lambda: life.runs() and len(life.pods()) == 3)


_NO_PLACE = 'couldn\'t assign flavors to pod set main: topology "default" allows to fit only 1 out of 2 pod(s)'


def test_lent_gpus_are_given_back_for_a_workload_that_waits(life: Life) -> None:
    """Of all its pods, or of none: where it could not run anyway, GPUs stay lent. And none are lent as it waits."""
    life.offer(gpus=3, quota=1)
    life.submit(maxReplicas=3)
    life.until(lambda: life.runs() and life.status().scheduling.extra == 2)
    life.kueue.away = True  # its topology-aware scheduling is not simulated
    too_large = life.kueue.add_stranger("large", count=3)
    life.kueue.say(too_large, "QuotaReserved", False, _NO_PLACE, "Pending")
    life.live(20)
    assert life.status().scheduling.extra == 2
    life.world.delete_workload(too_large)

    waits = life.kueue.add_stranger("waits", count=2)
    life.kueue.say(waits, "QuotaReserved", False, _NO_PLACE, "Pending")
    life.until(lambda: life.status().scheduling.extra == 0)
    assert life.status().preemptions == 0, "with notice"
    life.live(20)
    assert life.status().scheduling.extra == 0
    life.world.delete_workload(waits)
    life.until(lambda: life.status().scheduling.extra == 2)


@pytest.mark.parametrize(
    ("reason", "message", "active"),
    [
        ("Inadmissible", "LocalQueue queue doesn't exist", True),
        ("Pending", "insufficient quota: request (9) > maximum capacity (4)", True),
        ("Pending", "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu", True),
        ("Pending", "", False),
    ],
)
def test_nothing_is_given_back_for_a_workload_that_would_not_be_admitted_by_it(
    life: Life, reason: str, message: str, active: bool
) -> None:
    life.offer(gpus=2, quota=1)
    life.submit(maxReplicas=2)
    life.until(lambda: life.status().scheduling.extra == 1)
    life.kueue.away = True
    never = life.kueue.add_stranger("never", active=active)
    life.kueue.say(never, "QuotaReserved", False, message, reason)
    life.live(20)
    assert life.status().scheduling.extra == 1


@pytest.fixture
def admitting_extras() -> Iterator[Life]:
    with asyncio.Runner() as runner:
        one = Life(runner, replace(SETTINGS, kueue_extra_workers=True))
        yield one
        one.operator.close()


def test_extra_workers_are_lent_as_far_as_kueue_admits_them_and_given_back_one_by_one(admitting_extras: Life) -> None:
    life = admitting_extras
    life.offer(gpus=4, quota=3)
    life.submit(maxReplicas=4)
    most: list[int] = []
    life.on_step = lambda: most.append(len(life.pods("extra")) + len(life.pods()))
    life.until(lambda: life.status().scheduling.extra == 2)
    life.live(10)
    extras = [key for key in life.world.workloads if "-extra-" in key and life.kueue.holds(key, "Admitted")]
    assert len(extras) == len(life.pods("extra")) == 2
    assert len(life.world.workloads) == 4, "one waits for quota, as there is a free GPU"
    assert max(most) == 3
    assert all(life.world.workloads[key]["spec"]["priority"] == -(2**31) for key in extras)

    life.kueue.evict(extras[0])
    life.until(lambda: extras[0] not in life.world.workloads)
    assert life.status().preemptions == 0, "with notice"
    life.until(lambda: life.status().scheduling.extra == 2)

    stranger = life.kueue.add_stranger("stranger", count=2, priority=-5)
    life.until(lambda: life.kueue.holds(stranger, "Admitted"))
    assert life.runs()
    life.world.change_spec("ns/job", suspend=True)
    life.until(lambda: [*life.world.workloads] == [stranger])


def test_extra_workers_stay_while_kueue_is_away(admitting_extras: Life) -> None:
    life = admitting_extras
    life.offer(gpus=2, quota=2)
    life.submit(maxReplicas=2)
    life.until(lambda: life.status().scheduling.extra == 1)
    life.kueue.away = True
    for key in [*life.world.workloads]:
        life.world.delete_workload(key)
    life.restart_operator()
    life.live(30)
    assert life.status().scheduling.extra == 1
    life.kueue.away = False
    life.live(5)
    assert all(life.kueue.holds(key, "Admitted") for key in life.world.workloads)
    assert len(life.world.workloads) == 2


def test_kueue_hears_what_a_running_job_would_lose() -> None:
    with asyncio.Runner() as runner:
        life = Life(runner, replace(SETTINGS, kueue_priority_boost=True))
        life.offer(gpus=1, quota=1)
        life.submit(timeBudgetSeconds=1e5)
        life.until(life.runs)

        def boosts() -> int:
            annotations = life.world.workloads[life.workload()]["metadata"]["annotations"]
            return int(annotations.get("kueue.x-k8s.io/priority-boost", 0))

        assert boosts() == 0
        life.until(lambda: boosts() > 0, 300)
        life.world.change_spec("ns/job", suspend=True)
        life.until(lambda: not life.world.workloads)
        life.operator.close()


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_who_loses_more_is_boosted_no_less(one: float, other: float) -> None:
    assert 0 <= boost_of(min(one, other)) <= boost_of(max(one, other)) <= 9
    assert [boost_of(minutes * 60) for minutes in (0, 0.9, 1, 2, 4, 256, 1e4)] == [0, 0, 1, 2, 3, 9, 9]


def test_a_job_that_loses_its_label_is_kueues_until_it_waits(life: Life) -> None:
    life.offer(gpus=2, quota=1)
    life.submit()
    life.submit("waits")
    life.until(life.runs)
    for key, job in [*life.world.jobs.items()]:
        life.world.jobs[key] = {**job, "metadata": {**job["metadata"], "labels": {}}}
    life.until(lambda: life.runs("waits") and [*life.world.workloads] == [life.workload()])
    life.kueue.evict(life.workload())
    life.until(lambda: not life.world.workloads)
    life.until(life.runs)
    assert life.status().restarts + life.status().preemptions == 0


EVENTS = (
    "submit",
    "evict",
    "delete",
    "deactivate",
    "activate",
    "away",
    "back",
    "kill",
    "suspend",
    "resume",
    "stranger",
)


@settings(max_examples=sweeps.examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 9), st.integers(0, 12)), max_size=12), st.booleans())
def test_whatever_kueue_does_no_pod_has_gpus_against_its_word_and_in_peace_all_run(
    events: list[tuple[str, int, int]], extras: bool
) -> None:
    with asyncio.Runner() as runner:
        life = Life(runner, replace(SETTINGS, kueue_extra_workers=extras))
        life.offer(gpus=4, quota=3)

        def creating(manifest: Mapping[str, Any]) -> None:
            if manifest["kind"] == "Pod" and "-base-" in manifest["metadata"]["name"]:
                owner = manifest["metadata"]["ownerReferences"][0]["uid"]
                own = [key for key in life.world.workloads if key.endswith(f"-base-{owner}")]
                assert not any(is_refused(life.kueue, key) for key in own)

        def no_quota_is_used_that_was_given_back() -> None:
            for pod in life.world.pods.values():
                owner = owner_of(pod)
                own = [key for key in life.world.workloads if key.endswith(f"-base-{owner}")]
                if is_over(pod) or "-base-" not in pod["metadata"]["name"] or not own:
                    continue
                job = next((each for each in life.world.jobs.values() if each["metadata"]["uid"] == owner), {})
                ends = job["status"]["scheduling"].get("stopping") or "deletionTimestamp" in pod["metadata"]
                assert ends or not life.kueue.is_pending(own[0])

        life.operator.client.on_create = creating
        life.on_step = no_quota_is_used_that_was_given_back
        life.submit("job0", maxReplicas=2)
        for number, (event, which, seconds) in enumerate(events):
            workloads, jobs = sorted(life.world.workloads), sorted(life.world.jobs)
            workload = workloads[which % len(workloads)] if workloads else None
            match event:
                case "submit" if len(jobs) < 3:
                    life.submit(f"job{number + 1}", maxReplicas=1 + which % 3)
                case "evict" if workload and life.kueue.holds(workload, "QuotaReserved"):
                    life.kueue.evict(workload)
                case "delete" if workload:
                    life.world.delete_workload(workload)
                case "deactivate" if workload:
                    life.kueue.deactivate(workload)
                case "activate":
                    life.kueue.activate()
                case "away" | "back":
                    life.kueue.away = event == "away"
                case "kill":
                    life.restart_operator()
                    life.operator.client.on_create = creating
                case "suspend" | "resume":
                    life.world.change_spec(jobs[which % len(jobs)], suspend=event == "suspend")
                case "stranger":
                    life.kueue.add_stranger(f"stranger{number}", priority=which - 5)
            life.live(seconds)
        life.kueue.away = False
        life.kueue.quota["any"] = 99
        for key in life.world.jobs:
            life.world.change_spec(key, suspend=False)
        for _ in range(6):
            life.kueue.activate()
            life.live(10)
        life.until(lambda: all(life.runs(key.removeprefix("ns/")) for key in life.world.jobs), 600)
        life.operator.close()


def is_refused(kueue: Kueue, key: str) -> bool:
    """Return whether Kueue has said that a Workload may not have its quota."""
    return kueue.is_pending(key) or kueue.holds(key, "Evicted")
