"""The loop of plans, and its clock."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

import virtual_time
from espalier_operator.clock import SLEW, ScaledClock, WallClock
from espalier_operator.loop import BackendError, SchedulerLoop
from espalier_operator.model import JobTerms, Node
from espalier_operator.model.actions import Admit
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.policies.memory import PolicyMemory
from espalier_operator.policies.view import Elasticity
from operator_world.cluster import Cluster


@dataclass
class MemoryBackend:
    """A cluster that may refuse to be seen or changed."""

    cluster: Cluster = field(default_factory=Cluster)
    blind: int = 0
    stiff: int = 0
    seen: int = 0
    applied: list = field(default_factory=list)
    plans: list = field(default_factory=list)

    async def observe(self):
        self.seen += 1
        if self.blind:
            self.blind -= 1
            raise BackendError("the list failed")
        return self.cluster.snapshot()

    async def apply(self, action):
        if self.stiff:
            self.stiff -= 1
            raise BackendError("conflict")
        self.applied.append(action)
        self.cluster.apply(action)

    def planned(self, snapshot, plan):
        self.plans.append(plan)


class LoopClock:
    """The time of the event loop."""

    def now(self):
        return asyncio.get_running_loop().time()

    def wall_seconds(self, seconds):
        return seconds


@pytest.fixture
def backend():
    backend = MemoryBackend()
    backend.cluster.nodes["n"] = Node(name="n", gpu_type="a", allocatable=1)
    backend.cluster.submit("ns/one", JobTerms(min_replicas=1, max_replicas=1, time_budget_seconds=9))
    return backend


def loop_over(backend, **settings):
    return SchedulerLoop(backend, FairPolicy(), ScaledClock(), debounce_seconds=0.01, **settings)


@asynccontextmanager
async def running(loop):
    """Let the loop run meanwhile."""
    task = asyncio.create_task(loop.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_tick_applies_the_plan_and_the_next_finds_nothing(backend):
    loop = loop_over(backend)
    assert loop.last_tick_age() is None
    await loop.tick()
    await loop.tick()
    assert loop.last_tick_age() < 1
    assert backend.applied == [Admit(job="ns/one", gpu_type="a")]
    assert [len(plan.actions) for plan in backend.plans] == [1, 0]


async def test_a_world_that_cannot_be_seen_is_not_taken_for_an_empty_one(backend):
    backend.blind = 1
    loop = loop_over(backend)
    assert await loop.tick() == 1.0
    assert loop.last_tick_age() is None
    assert backend.plans == []
    await loop.tick()
    assert backend.applied == [Admit(job="ns/one", gpu_type="a")]


async def test_an_action_that_failed_is_planned_again(backend):
    backend.stiff = 1
    loop = loop_over(backend)
    assert await loop.tick() == 1.0, "soon, but not at once"
    await loop.tick()
    assert len(backend.applied) == 1


class Broken:
    """Raises as long as it is told to."""

    name, queue_order, elasticity = "broken", "by chance", Elasticity.FIXED
    fails = True

    def decide(self, view):
        if self.fails:
            raise KeyError("no such job")
        return FairPolicy().decide(view)


def test_a_policy_that_raises_is_replaced_until_it_decides_again(backend, caplog):
    """Its exception is logged once; what it remembers is kept for it."""
    policy = Broken()
    memory = PolicyMemory(policy.name)
    memory.keep({"kept": 1})

    async def story():
        loop = SchedulerLoop(backend, policy, ScaledClock(), debounce_seconds=0.01, memory=memory)
        await loop.tick()
        await loop.tick()
        assert memory.memory == {"kept": 1}
        policy.fails = False
        await loop.tick()

    with caplog.at_level(logging.INFO):
        asyncio.run(story())
    assert backend.applied == [Admit(job="ns/one", gpu_type="a")]
    assert [plan.fallback for plan in backend.plans] == ["it raised KeyError: 'no such job'"] * 2 + [""]
    assert [record.getMessage() for record in caplog.records] == [
        "policy broken cannot decide",
        "policy broken: fair decides in its place: it raised KeyError: 'no such job'",
        "policy broken decides again",
    ]
    assert caplog.records[0].exc_info is not None


def test_a_burst_of_changes_is_one_tick(backend):
    async def story():
        loop = loop_over(backend)
        async with running(loop):
            await asyncio.sleep(1)
            before = backend.seen
            for _ in range(50):
                loop.wake()
            await asyncio.sleep(1)
            assert backend.seen == before + 1

    virtual_time.run(story())


@pytest.mark.parametrize(("within", "ticks"), [(0.0, [1, 1]), (0.5, [0, 1]), (float("inf"), [0, 0])])
def test_news_is_planned_with_as_soon_as_the_backend_says(backend, within, ticks):
    async def story():
        glances = []

        def sync_figures():
            glances.append(asyncio.get_running_loop().time())
            return within

        loop = loop_over(backend, sync_figures=sync_figures)
        async with running(loop):
            await asyncio.sleep(1)
            begun, found = backend.seen, []
            loop.notice()
            for seconds in (0.2, 0.6):
                await asyncio.sleep(seconds)
                found.append(backend.seen - begun)
            loop.notice()
            loop.wake()
            await asyncio.sleep(0.1)
            assert backend.seen == begun + found[-1] + 1, "a wake-up needs no glance to be urgent"
        return found, len(glances)

    found, glances = virtual_time.run(story())
    assert found == ticks
    assert glances >= 2


def test_time_alone_wakes_the_loop(backend):
    """A resync, and before it the time that the plan named (here a job's pre-running deadline)."""
    backend.cluster.jobs.clear()
    terms = JobTerms(min_replicas=1, max_replicas=1, time_budget_seconds=9, pre_running_deadline_seconds=15)
    backend.cluster.submit("ns/one", terms)

    async def story():
        class Ticking(MemoryBackend):
            async def observe(self):
                self.cluster.now = asyncio.get_running_loop().time()
                return await super().observe()

        ticking = Ticking(cluster=backend.cluster)
        loop = SchedulerLoop(ticking, FairPolicy(), LoopClock(), debounce_seconds=0.01)
        async with running(loop):
            await asyncio.sleep(20)
        return [type(action).__name__ for action in ticking.applied]

    assert virtual_time.run(story()) == ["Admit", "Fail"]


async def test_a_bug_is_not_swallowed(backend):
    backend.cluster.jobs["ns/one"] = None
    with pytest.raises(AttributeError):
        await loop_over(backend).tick()


T0 = 1_800_000_000.0


class Machine:
    """A machine whose clock can be set."""

    def __init__(self) -> None:
        self.uptime = 100.0
        self.set_by = 0.0

    def wall(self) -> float:
        return T0 + self.uptime - 100 + self.set_by

    def clock(self) -> WallClock:
        return WallClock(self.wall, lambda: self.uptime)


def test_it_is_the_machine_s() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(10):
        machine.uptime += 7
        machine.set_by += 0.001  # as a time server adjusts it
        assert clock.now() == pytest.approx(machine.wall(), abs=1e-6)


@pytest.mark.parametrize("hours", [1, -1, 24 * 365])
def test_an_hour_does_not_pass_at_once(hours: int, caplog: pytest.LogCaptureFixture) -> None:
    """Budgets would be used up, and notices over."""
    machine = Machine()
    clock = machine.clock()
    machine.set_by = 3600.0 * hours
    before = clock.now()
    for _ in range(60):
        machine.uptime += 1
        clock.now()
    assert clock.now() - before == pytest.approx(60, abs=60 * SLEW + 1e-6)
    assert len(caplog.records) == 1
    assert f"was set by {3600 * hours:+d} s" in caplog.text
    if abs(hours) == 1:
        machine.uptime += 3600 / SLEW
        assert clock.now() == pytest.approx(machine.wall(), abs=1e-3), "in the end it is right"


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(-1e6, 1e6)), max_size=30))
def test_it_never_goes_back_whatever_happens_to_the_machine_s(steps: list[tuple[float, float]]) -> None:
    machine = Machine()
    clock = machine.clock()
    shown, begun = clock.now(), machine.uptime
    first = shown
    for passed, set_by in steps:
        machine.uptime += passed
        machine.set_by += set_by
        now = clock.now()
        assert now >= shown
        shown = now
    elapsed = machine.uptime - begun
    assert shown - first == pytest.approx(elapsed, abs=elapsed * SLEW + 1e-3)
