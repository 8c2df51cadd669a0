"""The planner's invariants over random histories and random snapshots.

The machine plays arrivals, losses, clock steps, late acknowledgements and pods of others against a naive cluster and
checks every plan that is made on the way.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sweeps
from espalier_core.types.reasons import Reason
from espalier_operator.model import Ended, Node, Rules, Snapshot, WorkerRole
from espalier_operator.model.actions import Admit, GrantExtra, NoticeReclaim, Plan
from espalier_operator.model.constraints import ANYWHERE, Constraints, Taint
from espalier_operator.model.queues import QueueLimits, Quota
from espalier_operator.planner import plan
from espalier_operator.policies import Policy
from espalier_operator.policies.decisions import LendingOrder, decided
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.policies.gandiva import GandivaPolicy
from espalier_operator.policies.tiresias import LasPolicy
from operator_world.cluster import Cluster
from operator_world.invariants import check
from operator_world.strategies import CONSTRAINTS, GPU_TYPES, RACK_LABEL, RESOURCES, TAINTS, ZONES, terms
from operator_world.whims import WhimsicalPolicy

QUEUES = (
    QueueLimits(
        name="a", cohort="all", quotas=(Quota(gpu_type=GPU_TYPES[0], nominal=2, borrowing_limit=1), Quota(nominal=1))
    ),
    QueueLimits(name="b", cohort="all", max_priority=1, quotas=(Quota(gpu_type=GPU_TYPES[0], nominal=1),)),
    QueueLimits(name="c", quotas=(Quota(nominal=2),)),
)
GRANTS = (Admit, GrantExtra, NoticeReclaim)
POLICIES: tuple[Policy, ...] = (
    FairPolicy(),
    FairPolicy(),
    LasPolicy(thresholds=(20.0, 100.0), promote=2),
    GandivaPolicy(),
    WhimsicalPolicy(seed=1),
)


@seed(sweeps.SEED)
class PlannerMachine(RuleBasedStateMachine):
    """A cluster in which everything happens that may."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.cluster.rules = Rules(rack_label=RACK_LABEL)
        self.policy = POLICIES[0]
        self.serial = 0
        self.sizes: tuple[int, ...] = (1,)
        self.constraints: tuple[Constraints, ...] = (ANYWHERE,)

    @initialize(
        sizes=st.sampled_from(((1,), (1,), (1, 2, 4))),
        constraints=st.sampled_from(((ANYWHERE,), CONSTRAINTS)),
        queues=st.sampled_from(((), (), QUEUES)),
        gpu_limit=st.sampled_from((None, None, 3, 6)),
        policy=st.sampled_from(POLICIES),
        nodes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
        jobs=st.data(),
    )
    def begin(
        self,
        sizes: tuple[int, ...],
        constraints: tuple[Constraints, ...],
        queues: tuple[QueueLimits, ...],
        gpu_limit: int | None,
        policy: Policy,
        nodes: list[int],
        jobs: st.DataObject,
    ) -> None:
        self.sizes, self.constraints, self.cluster.queues, self.policy = sizes, constraints, queues, policy
        self.cluster.gpu_limit = gpu_limit
        for gpus in nodes:
            self.add_node(gpus, GPU_TYPES[0])
        for _ in range(2):
            self.submit(jobs)
        self.a_while_passes(1.0)
        self.a_while_passes(5.0)

    def tick(self) -> Plan:
        snapshot = self.cluster.snapshot()
        planned = plan(snapshot, self.policy, self.cluster.now)
        note(f"{self.cluster.now:g}: {[*planned.actions]}")
        unfinished = [job for job in snapshot.jobs if not job.finished]
        shares = decided(self.policy, snapshot, unfinished, self.cluster.now).shares
        types = {share.job: share.gpu_type for share in shares}
        check(snapshot, planned, self.cluster.now, preempts=not isinstance(self.policy, FairPolicy), types=types)
        self.cluster.carry_out(planned)
        return planned

    @rule()
    def tick_until_quiet(self) -> None:
        """Invariant 9: what a plan of grants leaves is planned to stay; what ends frees, and soon all is quiet."""
        planned = self.tick()
        again = self.tick()
        anywhere = self.sizes == (1,) and self.constraints == (ANYWHERE,)
        fungible = anywhere and all(worker.gpus == 1 for worker in self.cluster.workers.values())
        if fungible and all(isinstance(action, GRANTS) for action in planned.actions):
            assert again.actions == ()
        assert self.tick().actions == () or self.tick().actions == ()

    @precondition(lambda self: len(self.cluster.jobs) < 8)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        self.serial += 1
        wanted = data.draw(terms(self.sizes, self.constraints))
        wanted = replace(wanted, base_preemptible=data.draw(st.booleans()))
        if self.cluster.queues:
            name = data.draw(st.sampled_from(("a", "b", "b", "c", "none")))
            wanted = replace(wanted, queue=name, priority=min(wanted.priority, 1))
        self.cluster.submit(f"ns/job{self.serial}", wanted)

    @rule(seconds=st.sampled_from((1.0, 6.0, 15.0, 41.0)))
    def a_while_passes(self, seconds: float) -> None:
        """The scheduler ticks, and the world does what it was told."""
        self.tick()
        self.world_catches_up()
        self.pass_time(seconds)
        self.tick()

    @rule(seconds=st.sampled_from((0.05, 1.0, 7.0, 31.0)))
    def pass_time(self, seconds: float) -> None:
        self.cluster.pass_time(seconds)

    @rule(seconds=st.sampled_from((0.05, 4.0, 16.0)))
    def the_world_lags(self, seconds: float) -> None:
        """The scheduler ticks on while nothing that it did is to be seen yet."""
        self.tick()
        self.pass_time(seconds)
        self.tick()

    @rule()
    def world_catches_up(self) -> None:
        self.cluster.catch_up()

    @rule(step=st.sampled_from(("bury", "reveal", "bind", "start_leaders")))
    def world_moves(self, step: str) -> None:
        getattr(self.cluster, step)()

    @precondition(lambda self: len(self.cluster.nodes) < 5)
    @rule(
        gpus=st.integers(0, 4),
        gpu_type=st.sampled_from((GPU_TYPES[0], *GPU_TYPES)),
        labels=st.sampled_from(ZONES),
        taints=st.sampled_from(TAINTS),
        resources=st.sampled_from(RESOURCES),
    )
    def add_node(
        self,
        gpus: int,
        gpu_type: str,
        labels: Mapping[str, str] = ZONES[0],
        taints: tuple[Taint, ...] = (),
        resources: Mapping[str, int] = RESOURCES[0],
    ) -> None:
        self.serial += 1
        name = f"node{self.serial}"
        self.cluster.nodes[name] = Node(
            name=name, gpu_type=gpu_type, allocatable=gpus, labels=labels, taints=taints, resources=resources
        )

    @precondition(lambda self: self.cluster.nodes)
    @rule(
        data=st.data(),
        fate=st.sampled_from(("lost", "cordoned", "not ready", "well", "well", "departing", "departing", "shrinks")),
    )
    def node_changes(self, data: st.DataObject, fate: str) -> None:
        node = self.cluster.nodes[data.draw(st.sampled_from(sorted(self.cluster.nodes)))]
        if fate == "lost":
            self.cluster.lose_node(node.name)
            return
        if fate == "departing":
            going = data.draw(st.integers(0, node.allocatable))
            node = replace(node, departing=going, departs_at=self.cluster.now + 8 if going else None)
        elif fate == "shrinks":
            node = replace(node, allocatable=max(node.departing, node.allocatable - 1))
        else:
            node = replace(node, ready=fate != "not ready", schedulable=fate != "cordoned")
        self.cluster.nodes[node.name] = node

    @rule(gpus=st.integers(1, 3), gpu_type=st.sampled_from((None, *GPU_TYPES)), data=st.data())
    def foreign_comes(self, gpus: int, gpu_type: str | None, data: st.DataObject) -> None:
        self.cluster.foreign(gpus, gpu_type, data.draw(st.sampled_from(self.constraints)))

    @precondition(lambda self: self.cluster.workers)
    @rule(data=st.data(), asked=st.booleans())
    def worker_is_asked_to_leave(self, data: st.DataObject, asked: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.cluster.workers)))
        self.cluster.workers[name] = replace(self.cluster.workers[name], asked_to_leave=asked)

    @precondition(lambda self: self.cluster.workers)
    @rule(data=st.data())
    def worker_is_lost(self, data: st.DataObject) -> None:
        self.cluster.lose_worker(data.draw(st.sampled_from(sorted(self.cluster.workers))))

    @precondition(lambda self: self.cluster.jobs)
    @rule(data=st.data(), what=st.sampled_from(("ack", "ack", "ends", "fails", "suspend", "resume", "resume", "crash")))
    def job_does(self, data: st.DataObject, what: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.cluster.jobs)))
        job = self.cluster.jobs[key]
        if what == "ack":
            self.cluster.acknowledge(key)
        elif what in ("suspend", "resume"):
            self.cluster.change(key, terms=replace(job.terms, suspend=what == "suspend"))
        elif job.leader_running and not job.finished:
            if what == "crash":
                self.cluster.change(key, failures=job.failures + 1, leader_running=False, training=False)
            else:
                reason = Reason.BUDGET_EXHAUSTED if what == "ends" else Reason.LOSS_NOT_FINITE
                self.cluster.complete(key, Ended(reason=reason, failed=what == "fails"))

    @precondition(lambda self: self.cluster.jobs)
    @rule(data=st.data(), refuses=st.booleans())
    def kube_scheduler_refuses(self, data: st.DataObject, refuses: bool) -> None:
        """Or finds a node at last, for base workers that are not bound."""
        key = data.draw(st.sampled_from(sorted(self.cluster.jobs)))
        refuses = refuses and self.cluster.jobs[key].admitted_at is not None
        self.cluster.change(key, refused_since=self.cluster.now if refuses else None)

    @precondition(lambda self: self.cluster.jobs)
    @rule(data=st.data(), most=st.integers(0, 2), adapts=st.booleans())
    def author_changes_a_job(self, data: st.DataObject, most: int, adapts: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.cluster.jobs)))
        terms = self.cluster.jobs[key].terms
        terms = replace(terms, max_replicas=terms.min_replicas + most, adapts=adapts)
        self.cluster.change(key, terms=terms)

    @invariant()
    def raised_no_more_than_the_cooldown_allows(self) -> None:
        """Invariant 7, over the whole history."""
        for key, times in self.cluster.raised_at.items():
            cooldown = self.cluster.jobs[key].terms.cooldown_seconds
            assert all(later - earlier >= cooldown for earlier, later in itertools.pairwise(times))

    @invariant()
    def nothing_physical_is_overcommitted_by_us(self) -> None:
        """Invariant 1, as the cluster sees it: a node that never shrank holds no more than it has."""
        for node in self.cluster.nodes.values():
            held = sum(w.gpus for w in self.cluster.workers.values() if w.node == node.name)
            assert held <= max(node.allocatable, 8)

    def teardown(self) -> None:
        """Invariant 6: left alone with willing leaders, no job waits for base GPUs while enough are lent."""
        for _ in range(12):
            self.tick()
            for key in self.cluster.jobs:
                self.cluster.acknowledge(key)
            self.world_catches_up()
        for job in self.cluster.jobs.values():
            useful = job.terms.adapts or job.terms.trains_together
            allowed = job.terms.max_replicas - job.terms.min_replicas if useful else 0
            assert job.extra <= allowed or job.stopping is not None, "invariant 5: the rest is given back"
        refused = any(job.refused_since is not None or job.stopping is not None for job in self.cluster.jobs.values())
        if self.sizes != (1,) or self.cluster.promises or refused or self.cluster.queues or self.cluster.gpu_limit:
            return
        snapshot = self.cluster.snapshot()
        waiting = [
            job for job in snapshot.jobs if job.admitted_at is None and not job.finished and not job.terms.suspend
        ]
        waiting = [job for job in waiting if job.hold_until is None or job.hold_until <= self.cluster.now]
        unfinished = [job for job in snapshot.jobs if not job.finished]
        order = LendingOrder(decided(self.policy, snapshot, unfinished, self.cluster.now), unfinished)
        for job in order.sorted(waiting)[:1]:
            if job.terms.constraints.requests or order.waits(job):
                continue  # GPUs are not all that it lacks
            if order.gpu_type(job) is not None:
                continue  # it waits for that type, which it may not fit on while jobs stay there that never yield
            for gpu_type in GPU_TYPES if job.terms.gpu_type is None else (job.terms.gpu_type,):
                assert self.free_and_lent(snapshot, gpu_type, job.terms.constraints) < job.terms.min_replicas

    def free_and_lent(self, snapshot: Snapshot, gpu_type: str, constraints: Constraints) -> int:
        usable = {
            n.name: n
            for n in snapshot.nodes
            if n.gpu_type == gpu_type and n.ready and n.schedulable and n.admits(constraints)
        }
        base = {
            name: sum(w.gpus for w in snapshot.workers if w.node == name and w.role is not WorkerRole.EXTRA)
            for name in usable
        }
        total = sum(max(0, node.allocatable - node.departing - base[name]) for name, node in usable.items())
        waiting = [w for w in snapshot.workers if w.role is WorkerRole.FOREIGN and w.node is None]
        foreign = sum(w.gpus for w in waiting if any(node.admits(w.constraints) for node in usable.values()))
        return total - foreign


PlannerMachine.TestCase.settings = settings(
    max_examples=sweeps.size("plans of a simulated cluster", 1000),
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking a history takes minutes; its notes tell enough
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestPlanner = PlannerMachine.TestCase
