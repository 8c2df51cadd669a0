"""Whole lives of jobs over a naive Kubernetes in which everything happens that may.

Nodes come, go, fall silent and lose GPUs; other people's pods come; leaders train, obey, keep silent, crash and hang;
people submit, suspend and delete; calls fail; what the operator sees is old; and it is killed between any two calls.
After each step the numbered promises below are checked, and at the end, left in peace, every job comes to its end or
says truly why it waits.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from typing import Any

from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from espalier_api.reasons import Reason
from espalier_api.status import ConditionStatus, ConditionType, JobStatus
from espalier_operator.actions import Plan
from espalier_operator.facts import Rules, Snapshot
from espalier_operator.kube.jobs import parse_status
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.policies.priority import PriorityPolicy
from espalier_operator.testing.invariants import check
from espalier_operator.testing.kube_objects import GPU, template
from espalier_operator.testing.kube_operator import KINDS, KilledError, NaiveOperator
from espalier_operator.testing.kubernetes import Kubernetes, gpus_of, is_over, node_of, owner_of
from espalier_operator.testing.leaders import Temper

SETTINGS = KubeSettings(
    start_up_allowance_seconds=20,
    promise_seconds=15,
    pre_running_deadline_seconds=90,
    restart_seconds=1,
    max_restart_seconds=8,
    persist_seconds=5,
)
RULES = Rules(stop_grace_seconds=10)
TYPES = ("", "", "a100")
PATIENCE = 2500.0
"""Seconds in which all comes to rest once nothing bad happens any more."""


def spec_of(draw: Any) -> dict[str, Any]:
    """What a job asks for; budgets are short, so that lives are."""
    smallest = draw(st.sampled_from((1, 1, 1, 2)))
    gpus = draw(st.sampled_from((1, 1, 1, 2)))
    node_type = draw(st.sampled_from((None, None, None, "a100")))
    only_on = {"nodeSelector": {"nvidia.com/gpu.product": node_type}} if node_type else {}
    optional = {
        "gpuSecondsBudget": draw(st.sampled_from((None, None, None, 60))),
        "maxPreemptions": draw(st.sampled_from((None, None, None, 1))),
        "ttlSecondsAfterFinished": draw(st.sampled_from((None, None, None, 30))),
        "suspend": draw(st.sampled_from((None, None, None, True))),
    }
    return {
        "timeBudgetSeconds": draw(st.sampled_from((40, 40, 15, 120))),
        "minReplicas": smallest,
        "maxReplicas": smallest + draw(st.sampled_from((2, 1, 0))),
        "priority": draw(st.integers(0, 1)),
        "backoffLimit": draw(st.sampled_from((2, 3, 0))),
        "preemption": {
            "noticeSeconds": draw(st.sampled_from((3, 8))),
            "cooldownSeconds": draw(st.sampled_from((2, 10))),
            "minRuntimeSeconds": draw(st.sampled_from((2, 10))),
        },
        "template": template({"resources": {"limits": {GPU: gpus}}}, **only_on),
        **{name: value for name, value in optional.items() if value is not None},
    }


tempers = st.builds(
    Temper,
    start_up=st.sampled_from((2.0, 2.0, 30.0)),
    evaluation=st.sampled_from((1.0, 4.0)),
    silent=st.sampled_from((False,) * 5 + (True,)),
    lasts=st.sampled_from((12.0, 50.0, 1e9)),
    deaf=st.sampled_from((False,) * 5 + (True,)),
    watches=st.booleans(),
    farewell=st.sampled_from((1.0, 5.0, 60.0)),
    hangs=st.sampled_from((False,) * 5 + (True,)),
)


class LifeMachine(RuleBasedStateMachine):
    """A cluster, an operator, and all that may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Kubernetes()
        self.serial = itertools.count(1)
        self.calm = True
        """Nothing was lost, taken or hidden yet: then all that is created has its place."""
        self.last: dict[str, JobStatus] = {}
        """By UID of the job, as it was last seen."""
        self.over: dict[str, JobStatus] = {}
        self.forced: set[str] = set()
        """Pods that somebody deleted by force: their leaders may run on beside the next."""
        self.seen_at: dict[str, float] = {}
        self.ticked_at = self.world.now
        self.blind = 0.0
        """Seconds in which the operator ticked on while it saw an older world."""
        self.operator = self.begin_operator()

    def begin_operator(self) -> NaiveOperator:
        self.seen_at = dict.fromkeys(KINDS, self.world.now)
        operator = NaiveOperator(self.world, PriorityPolicy(), SETTINGS, RULES)
        operator.on_plan = self.check_plan
        operator.on_create = self.check_room
        return operator

    # ---- promises checked while the operator works

    def check_plan(self, snapshot: Snapshot, plan: Plan) -> None:
        """The planner's own invariants hold for what it is told; 6: every job has an action or a reason."""
        if plan.actions:
            note(f"{self.world.now - 1_800_000_000:g}: {[*plan.actions]}")
        check(snapshot, plan, self.world.now)

    def check_room(self, manifest: dict[str, Any]) -> None:
        """2: While nothing was lost, no pod is created for which there is no GPU."""
        metadata = manifest["metadata"]
        if manifest["kind"] != "Pod":
            return
        note(f"  create {metadata['name']}")
        if not self.calm or f"{metadata['namespace']}/{metadata['name']}" in self.world.pods:
            return
        held = sum(gpus_of(pod) for pod in self.world.pods.values() if not is_over(pod))
        there = sum(int(node["status"]["allocatable"][GPU]) for node in self.world.nodes.values())
        assert held + gpus_of(manifest) <= there, "2: created beyond what there is"

    @invariant()
    def one_leader(self) -> None:
        """1: Of each job one leader runs at most, but for those that end or whose node is not heard of."""
        for job in self.world.jobs.values():
            leaders = self.world.live_leaders(job["metadata"]["uid"])
            assert len(leaders) <= 1, f"1: leaders {[leader.key for leader in leaders]}"

    @invariant()
    def nodes_hold_what_they_have(self) -> None:
        for name in self.world.nodes:
            assert self.world.free(name) >= 0 or not self.calm

    @invariant()
    def statuses_are_true(self) -> None:
        """3 to 5 and 7, of every status as the API server has it."""
        for key, job in self.world.jobs.items():
            uid = job["metadata"]["uid"]
            status = parse_status(job)
            if status is None:
                continue
            ran = self.world.ran[uid]
            before = self.last.get(uid, JobStatus())
            used, gpus = status.time_budget.used_seconds, status.time_budget.gpu_seconds_used
            assert used >= before.time_budget.used_seconds, f"3: {key}: the budget fell"
            assert gpus >= before.time_budget.gpu_seconds_used, f"3: {key}: the GPU budget fell"
            most = ran + self.blind + 1e-3
            assert used <= most, f"3: {key}: {used} s are counted of {ran} s that leaders ran, {self.blind} s unseen"
            rise = status.allocation.generation - before.allocation.generation
            assert rise >= 0, f"4: {key}: the generation fell"
            if rise == 0:
                assert status.allocation == before.allocation, f"4: {key}: another allocation, the same generation"
            for figure in ("restarts", "preemptions"):
                assert getattr(status, figure) >= getattr(before, figure), f"4: {key}: {figure} fell"
            assert status.conditions, f"6: {key} has no conditions"
            assert all(condition.message for condition in status.conditions)
            if uid in self.over:
                assert told(status) == told(self.over[uid]), f"7: {key}: an end is final"
                assert status.time_budget == self.over[uid].time_budget
            elif status.completion_time is not None:
                self.over[uid] = status
            self.last[uid] = status

    # ---- what happens

    @initialize(
        nodes=st.lists(st.tuples(st.integers(1, 4), st.sampled_from(TYPES)), min_size=1, max_size=3), data=st.data()
    )
    def begin(self, nodes: list[tuple[int, str]], data: st.DataObject) -> None:
        for gpus, gpu_type in nodes:
            self.world.add_node(f"node{next(self.serial)}", gpus, gpu_type)
        self.submit(data)
        self.submit(data)
        self.a_while_passes(4.0)

    @precondition(lambda self: len(self.world.jobs) < 4)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        name = f"job{next(self.serial)}"
        self.world.tempers[f"ns/{name}"] = data.draw(tempers)
        self.world.create_job(name, spec_of(data.draw))

    def tick(self) -> None:
        """Let the operator work; what it counts while it sees what is no more is more than leaders ran."""
        now, seen = self.world.now, min(self.seen_at.values())
        self.blind += max(0.0, now - max(seen, self.ticked_at))
        self.ticked_at = now
        self.operator.tick()

    def see(self, *kinds: str) -> None:
        self.operator.see(*kinds)
        self.seen_at |= dict.fromkeys(kinds, self.world.now)

    def cluster_moves(self) -> None:
        self.world.controllers()
        self.world.schedule()
        self.world.kubelets()

    @rule(seconds=st.sampled_from((1.0, 4.0, 12.0, 31.0)))
    def a_while_passes(self, seconds: float) -> None:
        """All keep up: what the operator does is done, and seen."""
        end = self.world.now + seconds
        while self.world.now < end:
            self.settle()
            self.world.pass_time(min(2.0, end - self.world.now))
        self.settle()

    def settle(self) -> None:
        for _ in range(3):
            self.see(*KINDS)
            before = self.operator.calls
            self.tick()
            self.cluster_moves()
            if self.operator.calls == before:
                break

    @rule()
    def the_operator_ticks(self) -> None:
        """On what it saw last, which may be old."""
        self.tick()

    @rule(kinds=st.sets(st.sampled_from(KINDS), min_size=1))
    def the_operator_sees(self, kinds: set[str]) -> None:
        self.see(*sorted(kinds))
        self.calm = self.calm and kinds == set(KINDS)

    @rule(step=st.sampled_from(("schedule", "kubelets", "controllers")))
    def the_cluster_moves(self, step: str) -> None:
        getattr(self.world, step)()

    @rule(seconds=st.sampled_from((0.2, 2.0, 9.0, 30.0)))
    def time_passes_unseen(self, seconds: float) -> None:
        self.calm = False
        self.world.pass_time(seconds)

    @rule(calls=st.integers(0, 6), seconds=st.sampled_from((0.0, 0.0, 5.0, 40.0)), data=st.data())
    def the_operator_is_killed(self, calls: int, seconds: float, data: st.DataObject) -> None:
        """Before the call of this number, or idle; the next one starts at once or later."""
        self.operator.calls_left = calls
        try:
            if data.draw(st.booleans()):
                self.see(*KINDS)
            self.tick()
        except KilledError:
            note(f"killed before call {calls}")
        if seconds:
            self.world.pass_time(seconds)
            self.cluster_moves()
        self.operator = self.begin_operator()

    @rule(failing=st.integers(0, 5), unanswered=st.integers(0, 3))
    def calls_fail(self, failing: int, unanswered: int) -> None:
        self.operator.failing, self.operator.unanswered = failing, unanswered
        self.tick()
        self.operator.failing = self.operator.unanswered = 0

    @precondition(lambda self: len(self.world.nodes) < 4)
    @rule(gpus=st.integers(0, 4), gpu_type=st.sampled_from(TYPES))
    def a_node_comes(self, gpus: int, gpu_type: str) -> None:
        self.world.add_node(f"node{next(self.serial)}", gpus, gpu_type)

    @precondition(lambda self: self.world.nodes)
    @rule(
        data=st.data(),
        fate=st.sampled_from(("gone", "silent", "silent", "heard", "heard", "cordoned", "open", "fewer")),
    )
    def a_node_changes(self, data: st.DataObject, fate: str) -> None:
        self.calm = False
        name = data.draw(st.sampled_from(sorted(self.world.nodes)))
        match fate:
            case "gone":
                self.world.remove_node(name)
            case "silent" | "heard":
                self.world.set_ready(name, fate == "heard")
            case "cordoned" | "open":
                self.world.set_cordoned(name, fate == "cordoned")
            case "fewer":
                gpus = int(self.world.nodes[name]["status"]["allocatable"][GPU])
                self.world.set_gpus(name, max(0, gpus - 1))

    @rule(gpus=st.integers(1, 3), gpu_type=st.sampled_from((None, None, "a100")))
    def an_alien_comes(self, gpus: int, gpu_type: str | None) -> None:
        self.calm = False
        self.world.add_alien(f"alien{next(self.serial)}", gpus, gpu_type)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), how=st.sampled_from(("delete", "delete", "force", "evict")))
    def a_pod_is_ended(self, data: st.DataObject, how: str) -> None:
        self.calm = False
        key = data.draw(st.sampled_from(sorted(self.world.pods)))
        note(f"{how} {key}")
        if how == "evict" and node_of(self.world.pods[key]) and not is_over(self.world.pods[key]):
            self.world.evict(key)
        elif how != "evict":
            self.world.delete_pod(key, force=how == "force")

    @precondition(lambda self: any(process.code is None and process.leads for process in self.world.processes.values()))
    @rule(data=st.data(), code=st.sampled_from((1, 1, 2, 3, 137, 143)))
    def a_leader_ends(self, data: st.DataObject, code: int) -> None:
        running = {p.key: p for p in self.world.processes.values() if p.code is None and p.leads}
        process = running[data.draw(st.sampled_from(sorted(running)))]
        note(f"{process.key} ends with {code}")
        process.crash(self.world, code)

    @precondition(lambda self: self.world.jobs)
    @rule(data=st.data(), what=st.sampled_from(("suspend", "suspend", "resume", "resume", "delete", "recreate")))
    def a_person_acts(self, data: st.DataObject, what: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.jobs)))
        note(f"{what} {key}")
        if what in ("suspend", "resume"):
            self.world.change_spec(key, suspend=what == "suspend")
            return
        spec = self.world.jobs[key]["spec"]
        self.world.delete_job(key)
        if what == "recreate":
            self.calm = False
            self.world.create_job(key.removeprefix("ns/"), spec)

    # ---- left in peace

    def teardown(self) -> None:
        """Nothing bad happens any more; the operator is woken by events, and by the times that it names."""
        for name in self.world.nodes:
            self.world.set_ready(name, True)
        end = self.world.now + PATIENCE
        self.settle()
        while not self.is_settled() and self.world.now < end:
            due = self.operator.due if self.operator.due is not None else self.world.now + 30.0
            self.world.pass_time(max(0.1, min(due - self.world.now, 4.0)))
            self.settle()
            self.one_leader()
            self.statuses_are_true()
        for key, job in self.world.jobs.items():
            self.check_end(key, job)
        owners = {job["metadata"]["uid"] for job in self.world.jobs.values()}
        for key, pod in self.world.pods.items():
            assert owner_of(pod) in owners | {None}, f"5: {key} has no job any more"
        free = {name: self.world.free(name) for name in self.world.nodes}
        held: dict[str, int] = defaultdict(int)
        for pod in self.world.pods.values():
            if owner_of(pod) is not None and not is_over(pod):
                held[owner_of(pod) or ""] += gpus_of(pod)
        for job in self.world.jobs.values():
            status = parse_status(job) or JobStatus()
            uid = job["metadata"]["uid"]
            if status.completion_time is not None or status.scheduling.admitted_at is None:
                assert not held[uid], f"8: {job['metadata']['name']} holds GPUs though it has none: {free}"

    def is_settled(self) -> bool:
        """Whether every job has ended, or waits and nobody runs for whom it might wait."""
        statuses = [parse_status(job) or JobStatus() for job in self.world.jobs.values()]
        idle = all(s.completion_time is not None or s.scheduling.admitted_at is None for s in statuses)
        ours = [pod for pod in self.world.pods.values() if owner_of(pod) and not is_over(pod)]
        return idle and not ours and self.operator.tick().actions == ()

    def check_end(self, key: str, job: dict[str, Any]) -> None:
        """9: Every job has come to its end, or waits for a reason that is true."""
        status = parse_status(job)
        assert status is not None, f"9: {key} has no status"
        assert status.completion_time is not None or status.scheduling.admitted_at is None, f"9: {key} never ends"
        conditions = {condition.type: condition for condition in status.conditions}
        if status.completion_time is not None:
            ends = [conditions.get(ConditionType.COMPLETE), conditions.get(ConditionType.FAILED)]
            assert sum(end is not None and end.status is ConditionStatus.TRUE for end in ends) == 1
            return
        reason = conditions[ConditionType.ADMITTED].reason
        if job["spec"].get("suspend"):
            assert reason is Reason.SUSPENDED, f"9: {key} is suspended and says {reason}"
            return
        gpus = job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU]
        wanted = job["spec"]["template"]["spec"].get("nodeSelector", {}).get("nvidia.com/gpu.product")
        places: dict[str, int] = defaultdict(int)
        sizes: dict[str, int] = defaultdict(int)
        for name, node in self.world.nodes.items():
            node_type = node["metadata"]["labels"].get("nvidia.com/gpu.product", "")
            if wanted in (None, node_type) and not node["spec"].get("unschedulable"):
                places[node_type] += max(0, self.world.free(name)) // gpus
                sizes[node_type] += int(node["status"]["allocatable"][GPU]) // gpus
        needed = job["spec"]["minReplicas"]
        if reason is Reason.TOO_LARGE:
            assert max(sizes.values(), default=0) < needed, f"9: {key} would fit"
        else:
            assert reason is Reason.NO_FREE_GPU, f"9: {key} waits and says {reason}"
            others_wait = any(
                node_of(pod) is None and owner_of(pod) is None and not is_over(pod) for pod in self.world.pods.values()
            )
            before_it = any(
                other is not job
                and not other["spec"].get("suspend")
                and "completionTime" not in other.get("status", {})
                for other in self.world.jobs.values()
            )
            full = max(places.values(), default=0) < needed
            assert full or others_wait or before_it, f"9: {key} waits though there is room: {dict(places)}"


def told(status: JobStatus) -> list[tuple[Any, ...]]:
    """What the conditions say, and since when."""
    return [(c.type, c.status, c.reason, c.message, c.last_transition_time) for c in status.conditions]


LifeMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("LIFE_EXAMPLES", "60")),
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking a history takes minutes; its notes tell enough
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestLife = LifeMachine.TestCase
