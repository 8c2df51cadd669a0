"""What queues, cohorts and ResourceQuotas allow: read from the objects of the world alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from operator_world.history.room import Room
from operator_world.history.seen import Seen
from operator_world.history.world import SharedCluster
from operator_world.kube_devices import QUOTA, RESOURCE

Holder = tuple[str, str, str | None]
"""`queue` or `cohort`, its name, and for which type of GPU its quota is."""


class Quotas:
    """The quotas of one world, and what is held of them."""

    def __init__(self, world: SharedCluster, room: Room) -> None:
        """Nothing is held yet."""
        self._world, self._room = world, room
        self._held: Counter[Holder] = Counter()

    def count_again(self, jobs: list[Seen]) -> None:
        """Take what queues hold as given."""
        self._held = self._held_by_queue(jobs)

    def exceeded(self, jobs: list[Seen]) -> Iterator[tuple[Holder, int, int, bool]]:
        """Yield each quota, what is held of it, its limit, and whether more is held than that and than before.

        Queues and cohorts hold no more than they may, or than they did when they might hold more.
        """
        held, before = self._held_by_queue(jobs), self._held
        self._held = held
        for key, limit in self._limits().items():
            yield key, held[key], limit, held[key] > max(limit, before[key])

    def allows(self, job: Seen, gpu_type: str, *, borrows: bool = True, beside: Seen | None = None) -> bool:
        """Return whether the queue of a waiting job may hold its GPUs in addition to what is held.

        `beside`: and to what is kept for this one, on GPUs of the same type.
        """
        queue = self._world.queues.get(job.spec.get("queue", "default"))
        if queue is None or not queue["spec"].get("quotas"):
            return True
        name, spec = queue["metadata"]["name"], queue["spec"]
        found = self._kind(spec, gpu_type)
        if found is None:
            return False
        kind, quota = found
        kept = beside.gpus if beside is not None and self.are_shared(job, beside) else 0
        own = kept if beside is not None and beside.spec.get("queue", "default") == name else 0
        over = self._held["queue", name, kind] + own + job.gpus - quota["nominal"]
        limit = quota.get("borrowingLimit") if spec.get("cohort") else 0
        if over > 0 and (not borrows or (limit is not None and over > limit)):
            return False
        members = [each["spec"] for each in self._world.queues.values() if each["spec"].get("cohort")]
        quotas = [self._own(each, kind) for each in members if each["cohort"] == spec.get("cohort")]
        whole = sum(each["nominal"] for each in quotas if each is not None)
        return not quotas or self._held["cohort", spec["cohort"], kind] + kept + job.gpus <= whole

    def owes(self, job: Seen, gpu_type: str, jobs: list[Seen]) -> bool:
        """Return whether other queues have borrowed what a waiting job needs of its own nominal quota.

        And whether enough of their jobs allow to be stopped, and have run for as long as they may.
        """
        queue = self._world.queues.get(job.spec.get("queue", "default"))
        found = None if queue is None else self._kind(queue["spec"], gpu_type)
        if queue is None or found is None or queue["spec"].get("cohort") is None:
            return False
        (kind, quota), name, cohort = found, queue["metadata"]["name"], queue["spec"]["cohort"]
        if self._held["queue", name, kind] + job.gpus > quota["nominal"]:
            return False
        over: Counter[str] = Counter()
        whole = 0
        for other, each in self._world.queues.items():
            own = self._own(each["spec"], kind) if each["spec"].get("cohort") == cohort else None
            whole += 0 if own is None else own["nominal"]
            over[other] = 0 if own is None else max(0, self._held["queue", other, kind] - own["nominal"])
        lacks = self._held["cohort", cohort, kind] + job.gpus - whole
        given = 0
        for holder in jobs:
            kept, terms = holder.status.scheduling, holder.spec["preemption"]
            lender = holder.spec.get("queue", "default")
            if not holder.holds or kept.stopping is not None or kept.admitted_at is None or kept.gpu_type != gpu_type:
                continue
            rested = self._world.now >= kept.admitted_at.timestamp() + terms["minRuntimeSeconds"]
            if rested and terms["base"] == "Checkpoint" and self._kind_of(lender, gpu_type) == kind:
                part = min(holder.gpus, over[lender])
                given, over[lender] = given + part, over[lender] - part
        return 0 < lacks <= given

    def are_shared(self, job: Seen, other: Seen) -> bool:
        """Return whether two jobs are of one queue or cohort."""
        mine, theirs = (self._world.queues.get(each.spec.get("queue", "default")) for each in (job, other))
        if mine is None or theirs is None:
            return False
        cohort = mine["spec"].get("cohort")
        return mine is theirs or (cohort is not None and cohort == theirs["spec"].get("cohort"))

    def has_just_borrowed(self, job: Seen, holder: Seen) -> bool:
        """Return whether a job of the same cohort allows to be stopped, but has not run for long enough."""
        at, terms = holder.status.scheduling.admitted_at, holder.spec["preemption"]
        if not holder.holds or at is None or terms["base"] != "Checkpoint" or not self.are_shared(job, holder):
            return False
        return self._world.now < at.timestamp() + terms["minRuntimeSeconds"]

    def namespace_fits(self, job: Seen, workers: int, jobs: list[Seen], *, later: bool = False) -> bool:
        """Return whether the ResourceQuota of its namespace has room for `workers` more of a job.

        `later`: once all extra workers in the namespace, and all that is being given back, have gone.
        """
        mine = [other for other in jobs if other.namespace == job.namespace]
        for resource in ("pods", "cpu", job.resource):
            room, each = self._world.room_in(job.namespace, limit_of(resource)), job.wants[resource]
            if room is None or not each:
                continue
            room -= sum(count * wants[resource] for wants, count in self._room.missing(mine))
            room -= self._room.unclaimed(mine) if resource == RESOURCE else 0
            room += sum(wants[resource] for wants in self._room.passing(mine)) if later else 0
            if room < workers * each:
                return False
        return True

    def _limits(self) -> dict[Holder, int]:
        most: dict[Holder, int] = {}
        for name, queue in self._world.queues.items():
            cohort = queue["spec"].get("cohort")
            for quota in queue["spec"].get("quotas", ()):
                kind = quota.get("gpuType")
                limit = quota.get("borrowingLimit") if cohort else 0
                if limit is not None:
                    most["queue", name, kind] = quota["nominal"] + limit
                if cohort:
                    most["cohort", cohort, kind] = most.get(("cohort", cohort, kind), 0) + quota["nominal"]
        return most

    def _held_by_queue(self, jobs: list[Seen]) -> Counter[Holder]:
        held: Counter[Holder] = Counter()
        for job in jobs:
            queue = self._world.queues.get(job.spec.get("queue", "default"))
            if job.holds and queue is not None:
                found = self._kind(queue["spec"], job.status.scheduling.gpu_type or "")
                if found is not None:
                    held["queue", queue["metadata"]["name"], found[0]] += job.gpus
                    if queue["spec"].get("cohort"):
                        held["cohort", queue["spec"]["cohort"], found[0]] += job.gpus
        return held

    @staticmethod
    def _kind(spec: Mapping[str, Any], gpu_type: str) -> tuple[str | None, Mapping[str, Any]] | None:
        """Return the quota of a queue that counts a type; None: it has none, or no quotas at all."""
        quotas = {quota.get("gpuType"): quota for quota in spec.get("quotas", ())}
        kind = gpu_type if gpu_type in quotas else None
        return (kind, quotas[kind]) if kind in quotas else None

    def _kind_of(self, name: str, gpu_type: str) -> str | None:
        queue = self._world.queues.get(name)
        found = None if queue is None else self._kind(queue["spec"], gpu_type)
        return "no quota" if found is None else found[0]

    @staticmethod
    def _own(spec: Mapping[str, Any], kind: str | None) -> Mapping[str, Any] | None:
        return next((each for each in spec.get("quotas", ()) if each.get("gpuType") == kind), None)


def limit_of(resource: str) -> str:
    """Return what a ResourceQuota calls what pods request, or claim, of a resource."""
    return {"pods": resource, RESOURCE: QUOTA}.get(resource, f"requests.{resource}")
