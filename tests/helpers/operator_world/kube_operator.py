"""The operator's own code over a naive Kubernetes: its store, its jobs, its loop, its writer; only the client is ours.

It works when it is told to (`tick`), sees what it is shown (`see`), and may be killed before any call of the API
server; another one starts from the statuses alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from espalier_core.k8s import resources
from espalier_core.k8s.resources import Resource, key_of
from espalier_operator.kube.apply.writer import JobWriter
from espalier_operator.kube.backend import KubeBackend
from espalier_operator.kube.client import NotOwnedError
from espalier_operator.kube.metrics.exporter import OperatorMetrics
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.due import NEVER
from espalier_operator.kube.watch.store import Store
from espalier_operator.loop import BackendError, SchedulerLoop
from espalier_operator.model import Rules, Snapshot
from espalier_operator.model.actions import Plan
from espalier_operator.policies import Policy
from espalier_operator.policies.memory import RecentUse
from espalier_operator.policies.remote import Asking
from operator_world.kube_api import ConflictError, NotFoundError, owner_of
from operator_world.kube_objects import Raw
from operator_world.kubernetes import Kubernetes

KINDS: Final[Mapping[str, Resource]] = {
    "nodes": resources.NODES,
    "pods": resources.PODS,
    "jobs": resources.JOBS,
    "config_maps": resources.CONFIG_MAPS,
}


class KilledError(Exception):
    """The operator was killed before a call of the API server."""


class WorldClock:
    """The world's time."""

    def __init__(self, world: Kubernetes) -> None:
        """Show the time of `world`."""
        self._world = world

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self._world.now

    def wall_seconds(self, seconds: float) -> float:
        """Return a time that does not pass in a test, unless what is due is due already.

        The world's time stands still while the operator works; what comes due later, the world wakes it for.
        """
        return 1e6 if seconds > 0 else seconds


class Client:
    """What the writer asks of the API server, answered by the world."""

    def __init__(self, world: Kubernetes) -> None:
        """Nothing fails yet."""
        self._world = world
        self.calls = 0
        """Made, but for those that met what is there already."""
        self.calls_left: int | None = None
        """Calls until the operator is killed."""
        self.killed = False
        self.failing = 0
        """How many of the next calls fail."""
        self.unanswered = 0
        """How many of the next calls seem to fail, though they are done."""
        self.lease_lost = False
        """Nothing but a status is sent any more: that one was about to be, as the operator was frozen."""
        self.on_create: Callable[[Mapping[str, Any]], None] = lambda manifest: None
        self.broken: AssertionError | None = None
        """What `on_create` has raised first: the operator goes on with other jobs."""

    async def create(self, manifest: Mapping[str, Any], owner: str | None) -> Raw | None:
        """Make an object; one of `owner` that is there already is it."""
        if manifest["kind"] == "Event":
            return None  # they are for people
        try:
            self.on_create(manifest)
        except AssertionError as error:
            self.broken = self.broken or error
            raise
        key, objects = key_of(manifest), self._world.objects(manifest["kind"])
        if objects is None:
            await self._call(lambda: None)
            return dict(manifest)
        try:
            await self._call(lambda: self._world.create(manifest))
        except ConflictError:
            self.calls -= 1
            if owner is None:
                return None
        found = objects[key]
        if owner is not None and owner_of(found) != owner:
            raise NotOwnedError(f"{key} is somebody else's")
        return found

    async def put_status(
        self, resource: Resource, namespace: str, name: str, uid: str, version: str, status: Any
    ) -> Raw | None:
        """Put a job's status in place of the one that it has, if it has not changed since `version`."""
        key = f"{namespace}/{name}"
        self.lease_lost, was_lost = False, self.lease_lost
        try:
            return await self._change(key, "jobs", lambda key: self._world.put_status(key, uid, version, status))
        finally:
            self.lease_lost = was_lost

    async def patch(self, resource: Resource, namespace: str, name: str, uid: str, body: Any) -> Raw | None:
        """Annotate a pod, or a Workload."""
        annotations, kind = body["metadata"]["annotations"], "pods" if resource is resources.PODS else "workloads"
        return await self._change(f"{namespace}/{name}", kind, lambda key: self._world.annotate(key, uid, annotations))

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Raw | None:
        """Delete a job or a pod."""
        kind = resource.plural if resource is resources.WORKLOADS else _kind_of(resource)
        deletes = {"jobs": self._world.delete_job, "workloads": self._world.delete_workload}
        delete = deletes.get(kind, self._world.delete_pod)
        return await self._change(f"{namespace}/{name}", kind, lambda key: delete(key, uid))

    async def _change(self, key: str, kind: str, change: Callable[[str], None]) -> Raw | None:
        try:
            await self._call(lambda: change(key))
        except NotFoundError:
            return None
        found: Raw | None = getattr(self._world, kind).get(key)
        return {"kind": "Status"} if found is None else found

    async def _call(self, call: Callable[[], None]) -> None:
        if self.lease_lost:
            raise BackendError("this operator no longer holds the lease")
        await asyncio.sleep(0)
        if self.calls_left is not None:
            if self.calls_left == 0:
                self.killed = True
            if self.killed:
                await asyncio.Event().wait()  # for ever: it is dead
            self.calls_left -= 1
        self.calls += 1
        if self.failing:
            self.failing -= 1
            raise BackendError("the API server did not answer")
        call()
        if self.unanswered:
            self.unanswered -= 1
            raise BackendError("the API server did not answer")


def _kind_of(resource: Resource) -> str:
    return next(kind for kind, other in KINDS.items() if other is resource)


class LiveOperator:
    """One life of an operator, in the event loop of `runner`."""

    def __init__(
        self,
        world: Kubernetes,
        policy: Policy,
        settings: KubeSettings,
        rules: Rules,
        runner: asyncio.Runner,
        kinds: Mapping[str, Resource] = KINDS,
        asking: Asking | None = None,
    ) -> None:
        """Start: list everything, remember what the statuses say. `kinds` are those that the world has.

        `asking`: how the policy is asked, where that is not by itself.
        """
        self._world, self._runner, self._kinds = world, runner, kinds
        clock, metrics = WorldClock(world), OperatorMetrics()
        self.client = Client(world)
        self.store = Store(settings, clock.now)
        writer = JobWriter(self.client, self.store, settings, clock, metrics)
        recent_use = RecentUse(rules.fair_share_half_life_seconds)
        self.backend = KubeBackend(self.store, writer, settings, clock, rules, metrics.signals, self._wake, recent_use)
        self._loop = SchedulerLoop(
            self.backend, policy, clock, resync_seconds=1e9, wall=clock.now, observer=self, asking=asking
        )
        self._told = len(world.removed)
        """How many of the pods that are gone it has been told of."""
        self.view: dict[str, dict[str, Raw]] = {}
        """What is seen of the world, by kind; old until `see`."""
        self.woken = False
        """It asked for another tick at once."""
        self._has_nothing_to_plan = False
        self._nothing_until = -math.inf
        """Before that, nothing is planned again where there is no news."""
        self._wake_at: float | None = None
        """When the last plan becomes outdated without any news."""
        self._order: tuple[str, ...] = ()
        self._begins: dict[str, float] = {}
        """In which jobs were served in the last plan."""
        self._ticks, self.validates_every = 0, 1
        """After how many ticks all its jobs are validated."""
        self.due: float | None = None
        """When it is to tick again though nothing happens."""
        self.on_plan: Callable[[Snapshot, Plan], None] = lambda snapshot, plan: None
        for kind in (resources.PRIORITY_CLASSES, resources.QUEUES):
            if kind not in kinds.values():
                self.store.replace(kind, (), 1)
        self.see(*kinds)

    def see(self, *kinds: str) -> bool:
        """Bring the view of these kinds up to date; return whether anything had changed."""
        changed = False
        for kind in kinds:
            seen, there = self.view.get(kind), getattr(self._world, kind)
            same = seen is not None and seen.keys() == there.keys()
            changed |= not same or not all(map(_is_same, (seen or {}).values(), there.values()))
            self.view[kind] = dict(there)
            if kind == "pods":
                for pod in self._world.removed[self._told :]:
                    self.store.take(resources.PODS, "DELETED", pod)
                self._told = len(self._world.removed)
            self.store.replace(self._kinds[kind], there.values(), self._world.version)
        for key in self.store.reports.late():
            self.store.reports.read_late(key)
        if "pods" in kinds:
            self.store.doubtful.clear()
        return changed

    def tick(self) -> None:
        """Look, plan, remember, write, act: once. `KilledError` where that is its end."""
        self._runner.run(self._tick())
        self._has_ticked()

    def tick_beside(self, others: Collection[LiveOperator]) -> None:
        """Tick at the same time as others: their calls take turns. None of them is killed."""

        async def all_tick() -> None:
            await asyncio.gather(self._tick(), *(each._tick() for each in others))

        self._runner.run(all_tick())
        for each in (self, *others):
            each._has_ticked()

    def _has_ticked(self) -> None:
        if self.client.broken is not None:
            raise self.client.broken
        self._ticks += 1
        if self._ticks % self.validates_every == 0:
            for job in self.backend.jobs.values():
                job.validate()

    def sync_figures(self) -> float:
        """Look at what is new and write what needs no plan; return within how many seconds a plan must be made."""
        return self._runner.run(self._sync_figures())

    def wake(self) -> None:
        """Go on after it was frozen and has lost its Lease, by what it saw before; and end."""
        self.client.lease_lost, self.client.on_create = True, lambda manifest: None
        self.on_plan = lambda snapshot, plan: None
        self._runner.run(self._tick())
        self.close()

    def close(self) -> None:
        """End at once, whatever it is doing."""
        self._runner.run(self.backend.close(0.0))

    async def _tick(self) -> None:
        self.woken = False
        self.store.all_listed()
        self._has_nothing_to_plan = False
        if self._ticks % 2:  # a plan may find that a glance was first, or not
            # What the first one has written, pods that were due for example, is news to the second.
            within = min(await self._sync_figures(), await self._sync_figures())
            self._has_nothing_to_plan = within == NEVER and self._world.now < self._nothing_until
        wait = await self._loop.tick()
        await self._written()
        dues = [self._world.now + wait, self._wake_at, *(job.due_at for job in self.backend.jobs.values())]
        self.due = min(due for due in dues if due is not None)

    async def _sync_figures(self) -> float:
        within = self.backend.sync_figures()
        await self._written()
        return within

    async def _written(self) -> None:
        while not self.backend.queue.is_idle() and not self.client.killed:  # noqa: ASYNC110 - nothing tells of both
            await asyncio.sleep(0)
        if self.client.killed:
            await self.backend.close(0.0)
            raise KilledError

    def _wake(self) -> None:
        self.woken = True

    def ticked(self, plan: Plan, thought: float, took: float) -> None:
        """Hand on what was planned, before anything is written. A glance that asked for no plan was right."""
        # Waiting, and what was held lately, change the order by themselves, and the job that is first is to begin later
        # and later while one whose budget stands still holds GPUs: `SchedulerLoop` plans now and then because of that.
        order, self._order = self._order, tuple(share.job for share in plan.shares)
        begins, self._begins = self._begins, self._begins_of(plan)
        later = any(begins[job] != self._begins[job] for job in begins.keys() & self._begins.keys())
        is_news = self._order != order or later
        if self._has_nothing_to_plan and plan.actions and not is_news and self.client.broken is None:
            self.client.broken = AssertionError(f"a glance said that nothing is to be planned, but {plan.actions} is")
        self._wake_at = plan.wake_at
        due = math.inf if plan.wake_at is None else plan.wake_at
        self._nothing_until = self._world.now if plan.actions else due
        if self.backend.snapshot is not None:
            self.on_plan(self.backend.snapshot, plan)

    def _begins_of(self, plan: Plan) -> dict[str, float]:
        """Return when jobs that wait are to begin, while there is a job that has GPUs and whose budget stands still."""
        jobs = () if self.backend.snapshot is None else self.backend.snapshot.jobs
        if not any(job.admitted_at is not None and not job.finished and job.counted_until is None for job in jobs):
            return {}
        return {key: each.starts_by for key, each in plan.refusals.items() if each.starts_by is not None}

    def failed(self, what: str) -> None:
        """Take note that a tick failed: only what is unknown can be the cause, and that passes."""


def _is_same(one: Raw, other: Raw) -> bool:
    versions = (each["metadata"]["resourceVersion"] for each in (one, other))
    return one is other or next(versions) == next(versions)
