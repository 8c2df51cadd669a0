"""What must hold whatever happens, judged from the objects of the world alone.

A history checks these whenever the operator has come to rest, that is: has seen all and has nothing left to do.

1.  *No over-allocation.* No pod of a worker is created for a node on which its GPUs are not free, and none waits for a
    node that will not have them (`creating`, `_pins_have_room`). The invariants of each plan say the same of what is
    granted (`operator_world.invariants`, 1 to 3).
2.  *No quota exceeded.* What the jobs of a queue, and of a cohort, hold never rises above what they may
    (`_queues_hold`), and no ResourceQuota ever refuses a pod that was created by an up-to-date view (`_refused`).
3.  *No GPU idle for more than a notice and a cooldown while somebody who fits waits.* A waiting job that fits beside
    all that is owed to others is started at once, unless that would delay one that was told by when it starts, or it
    gets within a notice and a cooldown what others give back (`_waits_truly`). A running job that may be lent a GPU is
    lent a free one that fits, within a notice and a cooldown (`_lent`).
4.  *No job waits without a true reason.* Each reason of `Admitted` is judged for itself (`_waits_truly`).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from espalier_api.reasons import Reason
from espalier_api.report import TrainerPhase
from espalier_api.status import JobPhase, JobStatus
from espalier_operator.actions import (
    Admit,
    Fail,
    Finish,
    GrantExtra,
    NoticeReclaim,
    Plan,
    ReleaseExtra,
    Requeue,
    Stop,
)
from espalier_operator.facts import Rules
from espalier_operator.kube.objects.jobs import parse_status
from espalier_operator.kube.objects.names import worker_of
from operator_world.history.seen import Seen, claimant, identity, times
from operator_world.history.world import SharedCluster
from operator_world.kube_api import is_over, node_of
from operator_world.kube_objects import GPU, Raw
from operator_world.kube_scheduler import allocatable_of, obstacle, pinned_to, requests_of
from operator_world.kubernetes import TYPE_LABEL

_QUOTA = (Reason.QUOTA_EXCEEDED, Reason.MIN_RUNTIME)
_BUSY = (Reason.NO_FREE_GPU, Reason.UNSCHEDULABLE, Reason.RESOURCE_QUOTA_EXCEEDED, *_QUOTA)
_GIVE_BACK = (NoticeReclaim, ReleaseExtra, Stop, Requeue, Finish, Fail)
_SLACK = 1e-6
_Holder = tuple[str, str, str | None]
"""`queue` or `cohort`, its name, and for which type of GPU its quota is."""


class ClauseError(AssertionError):
    """A clause is broken; the message begins with its number."""


class Clauses:
    """Watches over one world."""

    def __init__(self, world: SharedCluster, rules: Rules, patience: float) -> None:
        """Nothing has happened yet. `patience`: a notice and a cooldown, of those that jobs ask for the longest."""
        self._world, self._rules, self._patience = world, rules, patience
        self.plan = Plan(actions=(), refusals={}, wake_at=None)
        """The last one."""
        self.is_fresh = False
        """The operator has just seen all."""
        self.checked: Counter[str] = Counter()
        """How often each was judged."""
        self._parsed: dict[str, tuple[Raw, JobStatus]] = {}
        self._held: Counter[_Holder] = Counter()
        self._idle_since: dict[str, float] = {}
        """By job: since when it might be lent a GPU that is free."""
        self._waits_since: dict[str, float] = {}
        """By job: since when it waits for others to give GPUs back though it fits on other ones."""
        self._fits_now: set[str] = set()
        self._granted: set[str] = set()
        """Jobs that were granted GPUs since the last rest, by an up-to-date view."""

    # ---- while it works

    def planned(self, plan: Plan) -> None:
        """Take note of a plan."""
        self.plan = plan
        if self.is_fresh:
            self._granted |= {each.job for each in plan.actions if isinstance(each, Admit | GrantExtra)}

    def creating(self, manifest: Mapping[str, Any]) -> None:
        """Check a pod that is about to be created. 1."""
        metadata = manifest["metadata"]
        pod = dict(manifest)
        node = pinned_to(pod) if manifest["kind"] == "Pod" else None
        if not self.is_fresh or node is None or f"{metadata['namespace']}/{metadata['name']}" in self._world.pods:
            return
        if any(isinstance(each, _GIVE_BACK) for each in self.plan.actions):
            return  # it may get what others are about to give back: `_pins_have_room` judges that at rest
        self.checked["created for a node"] += 1
        free = self._world.free(node) if node in self._world.nodes else 0
        waiting = sum(requests_of(each)[GPU] for each in self._pending() if pinned_to(each) == node)
        free += self._leaving()[node] - waiting
        _demand(free >= requests_of(pod)[GPU], 1, f"{metadata['name']} is created for {node}, which has {free} GPUs")

    # ---- at rest

    def at_rest(self) -> None:
        """Check all that holds when the operator has seen and done all."""
        jobs = [*self._jobs()]
        self._pins_have_room()
        self._queues_hold(jobs)
        self._refused()
        owed, self._fits_now = [*self._owed(jobs)], set()
        for job in jobs:
            if job.waits:
                self._waits_truly(job, jobs, owed)
        self._waits_since = {key: since for key, since in self._waits_since.items() if key in self._fits_now}
        self._lent(jobs, owed)

    # ---- 1

    def _pins_have_room(self) -> None:
        pinned: Counter[str] = Counter()
        for pod in self._pending():
            if (node := pinned_to(pod)) is not None:
                pinned[node] += requests_of(pod)[GPU]
        leaving = self._leaving() if pinned else Counter[str]()
        for node, gpus in pinned.items():
            free = max(0, self._world.free(node)) if node in self._world.nodes else 0
            _demand(gpus <= free + leaving[node], 1, f"{gpus} GPUs of {node} are waited for: {free}, {leaving[node]}")

    def _leaving(self) -> Counter[str]:
        """Return by node the GPUs that are being given back."""
        found: Counter[str] = Counter()
        jobs = {identity(job.raw): job for job in self._jobs()}
        for pod in self._world.pods.values():
            node, owner = node_of(pod), jobs.get(claimant(pod))
            if node is None or is_over(pod):
                continue
            kept = None if owner is None else owner.status.scheduling
            worker = None if owner is None else worker_of(owner.key.partition("/")[2], pod["metadata"]["name"])
            goes = "deletionTimestamp" in pod["metadata"]
            if kept is not None and owner is not None:
                goes |= not owner.holds or kept.stopping is not None
                reclaimed = worker is not None and worker[0] == "extra" and kept.reclaim is not None
                goes |= reclaimed and worker is not None and kept.reclaim is not None
            found[node] += requests_of(pod)[GPU] if goes else 0
        return found

    # ---- 2

    def count_again(self) -> None:
        """Take what queues hold as given: what they may has just been changed."""
        self._held = self._held_by_queue([*self._jobs()])

    def _queues_hold(self, jobs: list[Seen]) -> None:
        """Queues and cohorts hold no more than they may, or than they did when they might hold more."""
        most: dict[_Holder, int] = {}
        for name, queue in self._world.queues.items():
            for quota in queue["spec"].get("quotas", ()):
                kind = quota.get("gpuType")
                cohort = queue["spec"].get("cohort")
                limit = quota.get("borrowingLimit") if cohort else 0
                if limit is not None:
                    most["queue", name, kind] = quota["nominal"] + limit
                if cohort:
                    most["cohort", cohort, kind] = most.get(("cohort", cohort, kind), 0) + quota["nominal"]
        held = self._held_by_queue(jobs)
        for key, limit in most.items():
            self.checked["quotas"] += 1
            _demand(held[key] <= max(limit, self._held[key]), 2, f"{key} holds {held[key]} GPUs of {limit}")
        self._held = held

    def _held_by_queue(self, jobs: list[Seen]) -> Counter[_Holder]:
        held: Counter[_Holder] = Counter()
        for job in jobs:
            queue = self._world.queues.get(job.spec.get("queue", "default"))
            if job.holds and queue is not None:
                found = self._kind(queue["spec"], job.status.scheduling.gpu_type or "")
                if found is not None:
                    held["queue", queue["metadata"]["name"], found[0]] += job.gpus
                    if queue["spec"].get("cohort"):
                        held["cohort", queue["spec"]["cohort"], found[0]] += job.gpus
        return held

    def _refused(self) -> None:
        """What was granted is not refused; what is made again may be, by a quota that has other uses by now."""
        refused = {re.sub(r"-(base|extra)-\d+(-\d+)?$", "", key) for key in self._world.over_quota}
        _demand(not refused & self._granted, 2, f"a ResourceQuota refuses pods of {refused & self._granted}")
        self.checked["granted"] += len(self._granted)
        self._world.over_quota, self._granted = [], set()

    @staticmethod
    def _kind(spec: Mapping[str, Any], gpu_type: str) -> tuple[str | None, Mapping[str, Any]] | None:
        """Return the quota of a queue that counts a type; None: it has none, or no quotas at all."""
        quotas = {quota.get("gpuType"): quota for quota in spec.get("quotas", ())}
        kind = gpu_type if gpu_type in quotas else None
        return (kind, quotas[kind]) if kind in quotas else None

    def _allows(self, job: Seen, gpu_type: str, *, borrows: bool = True) -> bool:
        """Return whether the queue of a waiting job may hold its GPUs in addition to what is held."""
        queue = self._world.queues.get(job.spec.get("queue", "default"))
        if queue is None or not queue["spec"].get("quotas"):
            return True
        name, spec = queue["metadata"]["name"], queue["spec"]
        found = self._kind(spec, gpu_type)
        if found is None:
            return False
        kind, quota = found
        over = self._held["queue", name, kind] + job.gpus - quota["nominal"]
        limit = quota.get("borrowingLimit") if spec.get("cohort") else 0
        if over > 0 and (not borrows or (limit is not None and over > limit)):
            return False
        members = [each["spec"] for each in self._world.queues.values() if each["spec"].get("cohort")]
        quotas = [self._own(each, kind) for each in members if each["cohort"] == spec.get("cohort")]
        whole = sum(each["nominal"] for each in quotas if each is not None)
        return not quotas or self._held["cohort", spec["cohort"], kind] + job.gpus <= whole

    @staticmethod
    def _own(spec: Mapping[str, Any], kind: str | None) -> Mapping[str, Any] | None:
        return next((each for each in spec.get("quotas", ()) if each.get("gpuType") == kind), None)

    # ---- 3 and 4

    def _waits_truly(self, job: Seen, jobs: list[Seen], owed: list[Counter[str]]) -> None:
        reason, spec, now = job.reason, job.spec, self._world.now
        self.checked[f"waits: {reason}"] += 1
        queues = self._world.queues
        queue = queues.get(spec.get("queue", "default"))
        if spec.get("suspend"):
            return _demand(reason is Reason.SUSPENDED, 4, f"{job.key} is suspended and says {reason}")
        limit = None if queue is None else queue["spec"].get("maxPriority")
        if queues and (queue is None or job.namespace not in queue["spec"].get("namespaces", (job.namespace,))):
            return _demand(reason is Reason.QUEUE_NOT_FOUND, 4, f"{job.key} has no queue and says {reason}")
        if limit is not None and spec.get("priority", 0) > limit:
            return _demand(reason is Reason.PRIORITY_TOO_HIGH, 4, f"{job.key} is above {limit} and says {reason}")
        if (held_until := job.status.scheduling.hold_until) is not None and held_until.timestamp() > now:
            return _demand(reason in (Reason.UNSCHEDULABLE, Reason.POD_REJECTED), 4, f"{job.key} says {reason}")
        large = {kind for kind in self._types() if self._size(job, kind, bare=True) >= job.base}
        sites = {kind for kind in self._types() if self._size(job, kind, bare=False) >= job.base}
        if not large:
            return _demand(reason is Reason.TOO_LARGE, 4, f"{job.key} is too large and says {reason}")
        if not sites:
            return _demand(reason is Reason.UNSCHEDULABLE, 4, f"{job.key} fits on no node and says {reason}")
        _demand(reason in _BUSY, 4, f"{job.key} might run and says {reason}")
        others = [each for each in jobs if each.waits and each.key != job.key and not each.spec.get("suspend")]
        allowed = {kind for kind in sites if self._allows(job, kind)}
        alike = [each for each in others if self._shares_quota(job, each)]
        if reason is Reason.MIN_RUNTIME:
            young = any(self._has_just_borrowed(job, each) for each in jobs)
            _demand(young, 4, f"{job.key} says {reason}, and nobody has just started")
        if reason in _QUOTA:
            return _demand(not allowed or bool(alike), 4, f"{job.key} waits for a quota that has room")
        if not allowed:
            return _demand(False, 4, f"{job.key} has no quota and says {reason}")
        near = [each for each in others if each.namespace == job.namespace]
        room = self._fits_namespace(job, job.base, jobs)
        if reason is Reason.RESOURCE_QUOTA_EXCEEDED:
            return _demand(not room or bool(near), 4, f"{job.key} waits for a ResourceQuota that has room")
        if alike or near:
            allowed = allowed if room else set()  # who is before it there may be kept a part
        _demand(room or bool(near), 4, f"{job.key} has no room in its namespace and says {reason}")
        fitting = [kind for kind in allowed if room and self._fits(job, kind, owed) >= job.base]
        if fitting and not self._is_after_another(job, others, allowed):
            told = self.plan.refusals.get(job.key)
            gets = told is not None and told.starts_by is None and any(self._leaving().values())  # others, in a notice
            waited = now - self._waits_since.setdefault(job.key, now) if gets else math.inf
            _demand(waited <= self._patience, 3, f"{job.key} waits ({reason}) though it fits on {fitting}")
            self._fits_now.add(job.key)
        return None

    def _is_after_another(self, job: Seen, others: list[Seen], allowed: set[str]) -> bool:
        """Return whether a start would delay one that was told by when it starts, or is to get what is reclaimed.

        Or one that waits for a quota that both need.
        """
        order = {share.job: place for place, share in enumerate(self.plan.shares)}
        borrows = not any(self._allows(job, kind, borrows=False) for kind in allowed)
        given = any(self._leaving().values())
        for other in others:
            refusal = self.plan.refusals.get(other.key)
            if refusal is None or refusal.reason not in _BUSY:
                continue
            if not borrows and order.get(other.key, 0) > order.get(job.key, 0):
                continue
            closed = refusal.reason in _QUOTA and self._shares_quota(job, other)
            closed |= refusal.reason is Reason.RESOURCE_QUOTA_EXCEEDED and other.namespace == job.namespace
            if closed or (given if refusal.starts_by is None else refusal.starts_by < self._ends_by(job) + _SLACK):
                return True
        return False

    def _ends_by(self, job: Seen) -> float:
        budget = float(job.spec["timeBudgetSeconds"])
        rest = budget + max(10.0, budget / 10) + self._rules.evaluation_seconds
        return self._world.now + self._rules.startup_seconds + rest - job.status.time_budget.used_seconds

    def _shares_quota(self, job: Seen, other: Seen) -> bool:
        mine, theirs = (self._world.queues.get(each.spec.get("queue", "default")) for each in (job, other))
        if mine is None or theirs is None:
            return False
        cohort = mine["spec"].get("cohort")
        return mine is theirs or (cohort is not None and cohort == theirs["spec"].get("cohort"))

    def _has_just_borrowed(self, job: Seen, holder: Seen) -> bool:
        """Return whether a job of the same cohort allows to be stopped, but has not run for long enough."""
        at, terms = holder.status.scheduling.admitted_at, holder.spec["preemption"]
        if not holder.holds or at is None or terms["base"] != "Checkpoint" or not self._shares_quota(job, holder):
            return False
        return self._world.now < at.timestamp() + terms["minRuntimeSeconds"]

    def _fits_namespace(self, job: Seen, workers: int, jobs: list[Seen]) -> bool:
        for resource, each in (("pods", 1), (f"requests.{GPU}", job.wants[GPU])):
            room = self._world.room_in(job.namespace, resource)
            if room is None:
                continue
            mine = [other for other in jobs if other.namespace == job.namespace]
            missing = sum(count * (1 if resource == "pods" else wants[GPU]) for wants, count in self._missing(mine))
            if room - missing < workers * each:
                return False
        return True

    def _lent(self, jobs: list[Seen], owed: list[Counter[str]]) -> None:
        """A running job that may have an extra worker gets a free GPU, within a notice and a cooldown."""
        idle: dict[str, float] = {}
        given = any(self._leaving().values())
        for job in jobs:
            if (
                not self._may_be_lent(job)
                or given
                or not self._fits_namespace(job, 1 + self._kept_beside(job, jobs), jobs)
            ):
                continue
            self.checked["might be lent"] += 1
            if self._fits(job, job.status.scheduling.gpu_type or "", owed) >= 1:
                idle[job.key] = self._idle_since.get(job.key, self._world.now)
                waited = self._world.now - idle[job.key]
                _demand(waited <= self._patience, 3, f"{job.key} is lent nothing for {waited:g} s, and a GPU is free")
        self._idle_since = idle

    def _kept_beside(self, job: Seen, jobs: list[Seen]) -> int:
        """Return for how many workers of a job its namespace keeps a quota for those that were told when they start."""
        told = {refusal.job for refusal in self.plan.refusals.values() if refusal.starts_by is not None}
        kept = sum(each.gpus for each in jobs if each.key in told and each.namespace == job.namespace)
        return max(-(-kept // job.wants[GPU]), kept)

    def _may_be_lent(self, job: Seen) -> bool:
        kept, now = job.status.scheduling, self._world.now
        temper = self._world.tempers.get(job.key)
        budget = float(job.spec["timeBudgetSeconds"])
        later = [at.timestamp() for at in (kept.hold_until, kept.lend_after) if at is not None]
        if kept.changed_at is not None:
            later.append(kept.changed_at.timestamp() + job.spec["preemption"]["cooldownSeconds"])
        return (
            job.holds
            and job.status.phase is JobPhase.RUNNING
            and self._is_heard_of(job)
            and temper is not None
            and not temper.silent
            and kept.extra < job.spec["maxReplicas"] - job.base
            and budget - job.status.time_budget.used_seconds > 0.1 * budget
            and "gpuSecondsBudget" not in job.spec
            and all(at <= now for at in later)
        )

    def _is_heard_of(self, job: Seen) -> bool:
        """Return whether the leader of a job trains on a node that reports."""
        leaders = self._world.live_leaders(job.raw["metadata"]["uid"])
        return any(self._world.is_ready(leader.node) and leader.phase is TrainerPhase.TRAINING for leader in leaders)

    # ---- what is there

    def _jobs(self) -> Iterator[Seen]:
        for key, raw in self._world.jobs.items():
            known = self._parsed.get(key)
            if known is None or known[0] is not raw:
                known = self._parsed[key] = raw, parse_status(raw) or JobStatus()
            yield Seen(key, raw, known[1])

    def _pending(self) -> Iterator[Raw]:
        """Yield the pods of workers that are not bound."""
        owners = set(map(identity, self._world.jobs.values()))
        for pod in self._world.pods.values():
            deleted = "deletionTimestamp" in pod["metadata"]
            if not node_of(pod) and not is_over(pod) and not deleted and claimant(pod) in owners:
                yield pod

    def _owed(self, jobs: list[Seen]) -> Iterator[Counter[str]]:
        """Yield what each worker requests that is owed GPUs and has none, and each pod of others that waits
        for what some node has.
        """
        for pod in self._world.pods.values():
            if not node_of(pod) and not is_over(pod) and requests_of(pod)[GPU] and self._fits_somewhere(pod):
                yield requests_of(pod)
        for wants, count in self._missing(jobs):
            for _ in range(count):
                yield wants

    def _fits_somewhere(self, pod: Raw) -> bool:
        """Return whether a node would take a pod if it were empty."""
        return any(
            obstacle(pod, node) is None and times(allocatable_of(node), requests_of(pod)) > 0
            for node in self._world.nodes.values()
        )

    def _missing(self, jobs: list[Seen]) -> Iterator[tuple[Counter[str], int]]:
        """Yield what workers request that are granted and not made, and how many are."""
        live: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for pod in self._world.pods.values():
            if not is_over(pod) and "deletionTimestamp" not in pod["metadata"]:
                live[claimant(pod)]["extra" if "-extra-" in pod["metadata"]["name"] else "base"] += 1
        for job in jobs:
            if job.holds:
                own, extra = live[identity(job.raw)], job.status.scheduling.extra
                yield job.wants, max(0, job.base - own["base"]) + max(0, extra - own["extra"])

    def _types(self) -> set[str]:
        return {self._world.type_of(name) for name in self._world.nodes if self._world.is_open(name)}

    def _nodes(self, job: Seen, gpu_type: str, *, bare: bool = False) -> Iterator[str]:
        """Yield the nodes of a type that take the workers of a job; `bare`: whatever its template asks."""
        selected = job.spec["template"]["spec"].get("nodeSelector", {}).get(TYPE_LABEL)
        for name, node in self._world.nodes.items():
            right = self._world.type_of(name) == gpu_type and selected in (None, gpu_type)
            if right and self._world.is_open(name) and (bare or obstacle(job.spec["template"], node) is None):
                yield name

    def _size(self, job: Seen, gpu_type: str, *, bare: bool) -> int:
        """Return how many workers of a job the nodes of a type would take if they were empty."""
        wants = {GPU: job.wants[GPU]} if bare else job.wants
        nodes = self._nodes(job, gpu_type, bare=bare)
        return sum(times(allocatable_of(self._world.nodes[name]), wants) for name in nodes)

    def _fits(self, job: Seen, gpu_type: str, owed: list[Counter[str]]) -> int:
        """Return how many workers of a job fit now, whatever nodes those take that are owed something."""
        held, wants = self._world.held(), job.wants
        room = 0
        for name in self._nodes(job, gpu_type):
            whole = allocatable_of(self._world.nodes[name])
            room += times({each: whole[each] - held[name][each] for each in whole}, wants)
        return room - sum(max(-(-each[name] // wants[name]) for name in wants) for each in owed)


def _demand(holds: bool, number: int, message: str) -> None:
    if not holds:
        raise ClauseError(f"clause {number}: {message}")
