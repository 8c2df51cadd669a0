"""Whole lives of jobs under the operator's own code, over a naive Kubernetes in which everything happens that may.

Nodes come, go, fall silent and lose GPUs; other people's pods come; leaders train, obey, keep silent, crash and hang;
people submit, suspend and delete; calls fail; what the operator sees is old; and it is killed between any two calls.
After each step the numbered promises (`operator_world.kube_promises`) are checked, and at the end, left in
peace, every job comes to its end or says truly why it waits.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, currently_in_test_context, seed, settings
from hypothesis import note as note_example
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sweeps
from espalier_core.types.status import JobStatus, SchedulingStatus, parse_status
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.model import Rules, Snapshot
from espalier_operator.model.actions import Plan
from espalier_operator.policies.fair import FairPolicy
from operator_world.invariants import check
from operator_world.kube_api import is_over, node_of, owner_of
from operator_world.kube_objects import EPOCH, GPU, template
from operator_world.kube_operator import KINDS, KilledError, LiveOperator
from operator_world.kube_promises import PromiseError, Promises
from operator_world.kubernetes import Kubernetes
from operator_world.leaders import Temper

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


def note(message: str) -> None:
    """Tell what happens where a failing history is printed; a history that is written down needs no notes."""
    if currently_in_test_context():
        note_example(message)


LONG = 40
"""Calls that suffice for a status, five objects and the pods of each of four jobs: who never lives that long, never
makes the first pod."""


@seed(sweeps.SEED)
class LifeMachine(RuleBasedStateMachine):
    """A cluster, an operator, and all that may happen to them."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.world = Kubernetes()
        self.promises = Promises(self.world)
        self.serial = itertools.count(1)
        self.lives: Iterator[int | None] = itertools.repeat(None)
        """How many calls each operator can make before it is killed; None: as many as it likes."""
        self.seen_at: dict[str, float] = {}
        self.ticked_at = self.world.now
        self.begin_operator()

    def begin_operator(self) -> None:
        self.operator = LiveOperator(self.world, FairPolicy(), SETTINGS, RULES, self.runner)
        self.operator.on_plan = self.planned
        self.operator.client.on_create = self.creating
        self.operator.client.calls_left = next(self.lives)
        self.seen_at = dict.fromkeys(KINDS, self.world.now)

    def planned(self, snapshot: Snapshot, plan: Plan) -> None:
        if plan.actions:
            note(f"{self.world.now - EPOCH:g}: {[*plan.actions]}")
        check(snapshot, plan, self.world.now)
        self.promises.planned(plan)

    def creating(self, manifest: dict[str, Any]) -> None:
        if manifest["kind"] == "Pod":
            note(f"  create {manifest['metadata']['name']}")
        self.promises.creating(manifest)

    @invariant()
    def promises_are_kept(self) -> None:
        self.promises.check()

    # ---- how the operator works

    def see(self, *kinds: str) -> None:
        self.operator.see(*kinds)
        self.seen_at |= dict.fromkeys(kinds, self.world.now)

    def tick(self) -> bool:
        """Let the operator work once; return whether it lives. What it counts while it sees what is no more, is too
        much.
        """
        now, seen = self.world.now, min(self.seen_at.values())
        self.promises.blind += max(0.0, now - max(seen, self.ticked_at))
        self.ticked_at = now
        try:
            self.operator.tick()
        except KilledError:
            note("killed")
            self.begin_operator()
            return False
        return True

    def settle(self) -> None:
        """Let the operator see and do all that is to be done now, in as many lives as it needs."""
        for _ in range(100):
            self.see(*KINDS)
            calls, objects = self.operator.client.calls, self.objects()
            lives = self.tick()
            self.cluster_moves()
            self.promises.check()
            if lives and not self.operator.woken and self.operator.client.calls == calls and self.objects() == objects:
                # A status that was written without an answer is acted on when the write is tried again.
                if not any(job.writing.holds(self.world.now) for job in self.operator.backend.jobs.values()):
                    self.promises.check_quiet()
                return
        raise PromiseError("9: the operator comes to no rest")

    def objects(self) -> tuple[dict[str, Any], ...]:
        return tuple(dict(getattr(self.world, kind)) for kind in KINDS)

    def cluster_moves(self) -> None:
        self.world.controllers()
        self.world.schedule()
        self.world.kubelets()

    # ---- what happens

    @initialize(
        nodes=st.lists(st.tuples(st.integers(1, 4), st.sampled_from(TYPES)), min_size=1, max_size=3),
        lives=st.just([None]) | st.lists(st.integers(0, 8), min_size=1, max_size=3).map(lambda short: [*short, LONG]),
        seconds=st.sampled_from((0.0, 4.0, 20.0)),
        data=st.data(),
    )
    def begin(self, nodes: list[tuple[int, str]], lives: list[int | None], seconds: float, data: st.DataObject) -> None:
        for gpus, gpu_type in nodes:
            self.world.add_node(f"node{next(self.serial)}", gpus, gpu_type)
        self.lives = itertools.cycle(lives)
        self.operator.close()
        self.begin_operator()
        self.submit(data)
        self.submit(data)
        self.a_while_passes(seconds)

    @precondition(lambda self: len(self.world.jobs) < 4)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        name = f"job{next(self.serial)}"
        self.world.tempers[f"ns/{name}"] = data.draw(tempers)
        self.world.create_job(name, spec_of(data.draw))

    @rule(seconds=st.sampled_from((1.0, 4.0, 12.0, 31.0)))
    def a_while_passes(self, seconds: float) -> None:
        """All keep up: what the operator does is done, and seen."""
        end = self.world.now + seconds
        while self.world.now < end:
            self.settle()
            self.world.pass_time(min(2.0, end - self.world.now))
        self.settle()

    @rule()
    def the_operator_ticks(self) -> None:
        """On what it saw last, which may be old."""
        self.tick()

    @rule(kinds=st.sets(st.sampled_from(sorted(KINDS)), min_size=1))
    def the_operator_sees(self, kinds: set[str]) -> None:
        self.see(*sorted(kinds))
        self.promises.calm &= kinds == set(KINDS)

    @rule(step=st.sampled_from(("schedule", "kubelets", "controllers")))
    def the_cluster_moves(self, step: str) -> None:
        getattr(self.world, step)()

    @rule(seconds=st.sampled_from((0.2, 2.0, 9.0, 30.0)))
    def time_passes_unseen(self, seconds: float) -> None:
        self.promises.calm = False
        self.world.pass_time(seconds)

    @rule(calls=st.integers(0, 6), seconds=st.sampled_from((0.0, 0.0, 5.0, 40.0)), sees=st.booleans())
    def the_operator_is_killed(self, calls: int, seconds: float, sees: bool) -> None:
        """Before its call of this number, or after; the next one starts at once or later."""
        if sees:
            self.see(*KINDS)
        self.operator.client.calls_left = calls
        if self.tick():
            self.operator.close()
            self.begin_operator()
        if seconds:
            self.promises.calm = False
            self.cluster_moves()
            self.world.pass_time(seconds)
            self.operator.close()
            self.begin_operator()
            self.ticked_at = self.world.now

    @rule(failing=st.integers(0, 5), unanswered=st.integers(0, 3))
    def calls_fail(self, failing: int, unanswered: int) -> None:
        client = self.operator.client
        client.failing, client.unanswered = failing, unanswered
        self.tick()
        client.failing = client.unanswered = 0

    @precondition(lambda self: len(self.world.nodes) < 4)
    @rule(gpus=st.integers(0, 4), gpu_type=st.sampled_from(TYPES))
    def a_node_comes(self, gpus: int, gpu_type: str) -> None:
        self.world.add_node(f"node{next(self.serial)}", gpus, gpu_type)

    @precondition(lambda self: self.world.nodes)
    @rule(
        data=st.data(),
        fate=st.sampled_from(
            ("gone", "silent", "silent", "heard", "heard", "unwell", "cordoned", "open", "fewer", "no pulls", "pulls")
        ),
    )
    def a_node_changes(self, data: st.DataObject, fate: str) -> None:
        self.promises.calm = False
        name = data.draw(st.sampled_from(sorted(self.world.nodes)))
        match fate:
            case "gone":
                self.world.remove_node(name)
            case "silent" | "heard" | "unwell":
                self.world.set_ready(name, fate != "silent", well=fate != "unwell")
            case "cordoned" | "open":
                self.world.set_cordoned(name, fate == "cordoned")
            case "no pulls":
                self.world.unable_to_pull.add(name)
            case "pulls":
                self.world.unable_to_pull.discard(name)
            case "fewer":
                gpus = int(self.world.nodes[name]["status"]["allocatable"][GPU])
                self.world.set_gpus(name, max(0, gpus - 1))

    @rule(gpus=st.integers(1, 3), gpu_type=st.sampled_from((None, None, "a100")))
    def a_foreign_pod_comes(self, gpus: int, gpu_type: str | None) -> None:
        self.promises.calm = False
        self.world.add_foreign(f"foreign{next(self.serial)}", gpus, gpu_type)

    @precondition(lambda self: self.world.pods)
    @rule(data=st.data(), how=st.sampled_from(("delete", "delete", "force", "evict")), leader=st.booleans())
    def a_pod_is_ended(self, data: st.DataObject, how: str, leader: bool) -> None:
        self.promises.calm = False
        leaders = sorted(key for key in self.world.pods if "-base-0-" in key) if leader else []
        key = data.draw(st.sampled_from(leaders or sorted(self.world.pods)))
        note(f"{how} {key}")
        pod = self.world.pods[key]
        if how == "evict" and node_of(pod) and self.is_heard_of(pod) and not is_over(pod):
            self.world.evict(key)  # by its kubelet, which has to be there for that
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
            self.promises.calm = False
            self.world.create_job(key.removeprefix("ns/"), spec)

    # ---- left in peace

    def teardown(self) -> None:
        try:
            self.all_end()
        finally:
            self.operator.close()
            self.runner.close()

    def all_end(self) -> None:
        """Nothing bad happens any more; the operator is woken by news, and at the times that it named."""
        if self.world.now - EPOCH < 100:  # in some histories what fell silent stays so
            self.world.unable_to_pull.clear()
            for name in self.world.nodes:
                self.world.set_ready(name, True)
        end = self.world.now + PATIENCE
        self.settle()
        while True:
            while not self.is_settled() and self.world.now < end:
                self.wait_for_news(end)
                self.settle()
            self.world.pass_time(SETTINGS.persist_seconds)  # figures are written a little later
            self.settle()
            if self.is_settled() or self.world.now >= end:
                break  # else a place came free meanwhile, and one who waited for it has a life before it still
        self.promises.check_end()
        assert self.is_settled(), "9: something never ends"

    def wait_for_news(self, end: float) -> None:
        due = end if self.operator.due is None else self.operator.due
        while self.world.now < due:
            self.world.pass_time(max(0.1, min(due - self.world.now, 1.0)))
            if any(self.operator.view[kind] != getattr(self.world, kind) for kind in KINDS):
                return

    def is_settled(self) -> bool:
        """Whether every job has ended, or waits and nobody runs for whom it might wait, and not for a time to come."""
        statuses = [parse_status(job) or JobStatus() for job in self.world.jobs.values()]
        idle = all(s.completion_time is not None or self.may_start(s.scheduling) for s in statuses)
        held = [pod for pod in self.world.pods.values() if owner_of(pod) and not is_over(pod) and self.is_heard_of(pod)]
        return idle and not held

    def may_start(self, kept: SchedulingStatus) -> bool:
        """Whether a job waits, and is not held back."""
        until = kept.hold_until
        return kept.admitted_at is None and (until is None or until.timestamp() <= self.world.now)

    def is_heard_of(self, pod: dict[str, Any]) -> bool:
        """Whether the pod can end: one on a silent node cannot."""
        node = node_of(pod)
        return node is None or self.world.is_ready(node)


LifeMachine.TestCase.settings = settings(
    max_examples=sweeps.size("lives of simulated jobs", 100),
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking a history takes minutes; its notes tell enough
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestLife = LifeMachine.TestCase


def test_a_place_that_comes_free_when_all_are_idle_is_given_and_used() -> None:
    """Somebody else's pod is on its way out at the end: nothing of ours runs, and yet a life is still to come."""
    life = LifeMachine()
    life.world.add_node("node", gpus=2)
    life.world.add_foreign("foreign", gpus=2)
    life.cluster_moves()
    life.world.tempers["ns/job"] = Temper(silent=True, lasts=12.0)
    life.world.create_job(
        "job",
        {
            "timeBudgetSeconds": 40,
            "minReplicas": 1,
            "maxReplicas": 1,
            "template": template({"resources": {"limits": {GPU: 2}}}),
        },
    )
    life.a_while_passes(4.0)
    life.world.delete_pod("others/foreign")
    life.cluster_moves()
    assert "others/foreign" in life.world.pods, "it takes its time"
    assert life.is_settled(), "the job waits, and nobody runs"

    life.teardown()

    status = parse_status(life.world.jobs["ns/job"])
    assert status is not None
    assert status.completion_time is not None
    assert life.world.now < EPOCH + 60, "it ends when it is done, not when patience does"


ONE_GPU = {
    "timeBudgetSeconds": 40,
    "minReplicas": 1,
    "maxReplicas": 1,
    "template": template({"resources": {"limits": {GPU: 1}}}),
}


def test_a_job_that_is_gone_and_not_yet_seen_to_be_is_looked_at_again() -> None:
    """Its status cannot be written, and the operator does not fall silent about it."""
    life = LifeMachine()
    life.world.add_node("node", gpus=1)
    life.world.tempers["ns/job"] = Temper(lasts=1e9)
    life.world.create_job("job", ONE_GPU)
    life.see("jobs", "nodes")
    life.world.delete_job("ns/job")

    assert life.tick(), "the operator admits what it still sees"

    (job,) = life.operator.backend.jobs.values()
    assert job.state.active
    assert job.due_at is not None
    life.settle()
    assert not life.operator.backend.jobs
    life.teardown()


def test_a_status_that_was_written_without_an_answer_keeps_its_times() -> None:
    life = LifeMachine()
    life.world.create_job("job", ONE_GPU | {"suspend": True})
    life.see(*KINDS)
    life.operator.client.unanswered = 1
    life.tick()
    first = parse_status(life.world.jobs["ns/job"])
    life.world.pass_time(30.0)
    life.tick()
    assert first is not None
    assert first.conditions
    assert parse_status(life.world.jobs["ns/job"]) == first
    life.teardown()


def test_a_leader_that_cannot_be_pulled_again_gives_its_gpus_back_until_it_can() -> None:
    life = LifeMachine()
    life.promises.calm = False
    life.world.add_node("node", gpus=1)
    life.world.tempers["ns/job"] = Temper(start_up=2.0)
    life.world.create_job("job", ONE_GPU)
    life.a_while_passes(12.0)
    (leader,) = (process for process in life.world.processes.values() if process.leads)
    life.world.unable_to_pull.add("node")
    leader.crash(life.world, 1)
    life.a_while_passes(10.0)
    assert life.world.free("node") == 0, "it may still be pulled"
    life.a_while_passes(20.0)
    assert life.world.free("node") == 1

    life.world.unable_to_pull.clear()
    life.teardown()

    status = parse_status(life.world.jobs["ns/job"])
    assert status is not None
    assert [each.type for each in status.conditions if each.status == "True"][-1:] == ["Complete"]


def test_an_extra_worker_that_cannot_be_pulled_is_given_up() -> None:
    life = LifeMachine()
    life.promises.calm = False
    life.world.add_node("first", gpus=1)
    life.world.tempers["ns/job"] = Temper(start_up=2.0)
    notice = {"noticeSeconds": 3, "cooldownSeconds": 2, "minRuntimeSeconds": 2}
    life.world.create_job("job", {**ONE_GPU, "timeBudgetSeconds": 120, "maxReplicas": 2, "preemption": notice})
    life.a_while_passes(8.0)
    life.world.add_node("second", gpus=1)
    life.world.unable_to_pull.add("second")
    life.a_while_passes(4.0)
    assert life.world.free("second") == 0
    life.a_while_passes(20.0)
    assert life.world.free("second") == 1, "and it is lent no more for a while"
    status = parse_status(life.world.jobs["ns/job"])
    assert status is not None
    assert (status.preemptions, status.scheduling.extra) == (0, 0)
    life.teardown()
