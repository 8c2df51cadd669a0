"""What the Kubernetes backend promises, as checks of a world and of the statuses in it, each in the plainest way.

1.  Of each job one leader runs at most. Excepted are those whose node was lost, and those that somebody took away by
    force: nobody can know when they end.
2.  While nothing was lost, taken or hidden, nothing is created for which there is no GPU, nothing is given back but
    by notice, and no job waits again.
3.  Budgets never fall, never run faster than leaders run, and are never behind what a leader has reported.
4.  Generations rise by one with each change of an allocation; attempts, restarts and preemptions never fall, and are
    no more than what has happened.
5.  Only a decision changes what is granted, asked for, or demanded; no restart of the operator, no lost call. Leaders
    are told of extra workers once these run.
6.  Every job has conditions, each with a reason and a sentence.
7.  An end is final.
8.  What is over, or waits, holds nothing; when all is done no pod is left that is not wanted, and the leader knows
    its allocation.
9.  Left in peace every job ends, or waits for a reason that is true.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from espalier_core.types.job import ALLOCATION_ANNOTATION
from espalier_core.types.reasons import Reason
from espalier_core.types.status import ConditionStatus, ConditionType, JobStatus, parse_status
from espalier_operator.job.state import Timing
from espalier_operator.kube.objects.names import worker_of
from espalier_operator.model.actions import Plan, ReleaseExtra, Requeue
from operator_world.kube_api import gpus_of, is_over, node_of, owner_of
from operator_world.kube_objects import GPU, Raw
from operator_world.kubernetes import TYPE_LABEL, Kubernetes

_DECIDED = ("admitted_at", "gpu_type", "extra", "extra_generation", "reclaim", "granted_at", "changed_at", "stopping")
_MARGIN = 1e-3


class PromiseError(AssertionError):
    """A promise is broken; the message begins with its number."""


class Promises:
    """Watches over one world."""

    def __init__(self, world: Kubernetes) -> None:
        """Nothing has happened yet."""
        self._world = world
        self.calm = True
        """Nothing was lost, taken or hidden yet."""
        self.blind = 0.0
        """Seconds in which the operator ticked on while it saw an older world."""
        self._decisions: Counter[str] = Counter()
        self._last: dict[str, JobStatus] = {}
        self._over: dict[str, JobStatus] = {}
        self._checked: dict[str, Raw] = {}

    def planned(self, plan: Plan) -> None:
        """Take note of what is decided. 2."""
        for action in plan.actions:
            self._decisions[action.job] += 1
            lost = isinstance(action, ReleaseExtra | Requeue) and action.reason in (
                Reason.GPU_LOST,
                Reason.UNSCHEDULABLE,
            )
            # Workers of several GPUs may have to wait once more: the kube-scheduler packs otherwise than the planner.
            fungible = all(_gpus_per_worker(job) == 1 for job in self._world.jobs.values())
            _demand(not (lost and self.calm and fungible), 2, f"{action} though nothing was lost")

    def creating(self, manifest: Mapping[str, Any]) -> None:
        """Check what is about to be created. 2."""
        metadata = manifest["metadata"]
        if manifest["kind"] != "Pod" or f"{metadata['namespace']}/{metadata['name']}" in self._world.pods:
            return
        held = sum(gpus_of(pod) for pod in self._world.pods.values() if not is_over(pod))
        there = sum(_allocatable(node) for node in self._world.nodes.values())
        fits = held + gpus_of(dict(manifest)) <= there
        _demand(fits or not self.calm, 2, f"{metadata['name']} is created; {held} of {there} GPUs are held")

    def check(self) -> None:
        """Check all that holds at every moment: 1, and of each status that is news 3 to 7."""
        for key, job in self._world.jobs.items():
            uid = job["metadata"]["uid"]
            leaders = [process.key for process in self._world.live_leaders(uid)]
            _demand(len(leaders) <= 1, 1, f"{leaders} run at once")
            if self._checked.get(uid) is not job and (status := parse_status(job)) is not None:
                self._checked[uid] = job
                self._check_figures(key, uid, status, self._last.get(uid, JobStatus()))
                self._check_decisions(key, status, self._last.get(uid, JobStatus()))
                self._check_conditions(key, uid, status)
                self._last[uid] = status

    def check_quiet(self) -> None:
        """Check what holds when the operator saw all and did all. 8."""
        pods: dict[str, list[Raw]] = defaultdict(list)
        for pod in self._world.pods.values():
            if not is_over(pod) and "deletionTimestamp" not in pod["metadata"]:
                pods[owner_of(pod) or ""].append(pod)
        for key, job in self._world.jobs.items():
            status = parse_status(job) or JobStatus()
            kept, own = status.scheduling, pods[job["metadata"]["uid"]]
            if status.completion_time is not None or kept.admitted_at is None:
                _demand(not own, 8, f"{key} runs nothing and has {[pod['metadata']['name'] for pod in own]}")
                continue
            extra = 0
            for pod in own:
                worker = worker_of(job["metadata"]["name"], pod["metadata"]["name"])
                role, index, attempt = worker or ("", 0, 0)
                extra += role == "extra"
                old = role == "base" and attempt != kept.attempts[index]
                _demand(not old, 8, f"{pod['metadata']['name']} is of an earlier attempt")
                if (role, index) == ("base", 0):
                    told = json.loads(pod["metadata"]["annotations"][ALLOCATION_ANNOTATION])["allocation"]["generation"]
                    _demand(told == status.allocation.generation, 8, f"{key}: its leader was told generation {told}")
            _demand(extra <= kept.extra, 8, f"{key} has {extra} extra workers, {kept.extra} are lent")
            settled = kept.promised_until is None and kept.reclaim is None
            _demand(extra == kept.extra or not settled, 8, f"{key} has {extra} extra workers of {kept.extra}")

    def check_end(self) -> None:
        """Check that every job has ended or waits truly. 3, 9."""
        for key, job in self._world.jobs.items():
            status = parse_status(job)
            if status is None:
                raise PromiseError(f"9: {key} has no status")
            conditions = {condition.type: condition for condition in status.conditions}
            ends = [conditions.get(kind) for kind in (ConditionType.COMPLETE, ConditionType.FAILED)]
            ended = sum(end is not None and end.status is ConditionStatus.TRUE for end in ends)
            reported = self._world.reported[job["metadata"]["uid"]]
            used = status.time_budget.used_seconds
            ahead = used >= reported - _MARGIN or status.completion_time is not None  # its leader may take time to end
            _demand(ahead, 3, f"{key}: {used} s are counted of {reported} s that were reported")
            if status.completion_time is not None:
                _demand(ended == 1, 9, f"{key} has ended {ended} times")
            else:
                _demand(status.scheduling.admitted_at is None, 9, f"{key} never ends: {status.scheduling}")
                self._check_waiting(key, job, conditions[ConditionType.ADMITTED].reason)
        owners = {job["metadata"]["uid"] for job in self._world.jobs.values()}
        for key, pod in self._world.pods.items():
            node = node_of(pod)
            can_end = node is None or self._world.is_ready(node)
            _demand(owner_of(pod) in owners | {None} or not can_end, 8, f"{key} has no job any more")

    # ---- within

    def _check_figures(self, key: str, uid: str, now: JobStatus, before: JobStatus) -> None:
        used, ran = now.time_budget.used_seconds, self._world.ran[uid]
        _demand(used >= before.time_budget.used_seconds, 3, f"{key}: the budget fell")
        _demand(
            now.time_budget.gpu_seconds_used >= before.time_budget.gpu_seconds_used, 3, f"{key}: the GPU budget fell"
        )
        most = ran + self.blind + (_MARGIN if self.calm else Timing().quiet)
        _demand(used <= most, 3, f"{key}: {used} s are counted, leaders ran {ran} s and {self.blind} s were not seen")
        rise = now.allocation.generation - before.allocation.generation
        _demand(
            rise > 0 or now.allocation == before.allocation, 4, f"{key}: generation {rise:+} for another allocation"
        )
        attempts, earlier = now.scheduling.attempts, before.scheduling.attempts
        _demand(all(new >= old for new, old in zip(attempts, earlier, strict=False)), 4, f"{key}: attempts fell")
        _demand(now.restarts >= before.restarts, 4, f"{key}: restarts fell")
        _demand(now.preemptions >= before.preemptions, 4, f"{key}: preemptions fell")
        leaders, failures = self._world.leaders[uid], self._world.failures[uid]
        _demand(now.restarts <= leaders, 4, f"{key}: {now.restarts} restarts of {leaders} leaders")
        _demand(now.scheduling.failures <= failures, 4, f"{key}: {now.scheduling.failures} failures of {failures}")

    def _check_decisions(self, key: str, now: JobStatus, before: JobStatus) -> None:
        changed = [name for name in _DECIDED if getattr(now.scheduling, name) != getattr(before.scheduling, name)]
        if not changed and now.allocation == before.allocation:
            return
        decided = self._decisions.pop(key, 0)
        rise = now.allocation.generation - before.allocation.generation
        told = now.allocation.replicas - self._world.jobs[key]["spec"]["minReplicas"]
        news = max(0, told) if now.allocation.reason == Reason.EXTRA_GPUS_GRANTED else 0
        unseen = before.scheduling.extra  # told of in a status that could not be written before the next decision
        _demand(rise <= decided + max(news, unseen), 5, f"{key}: generation {rise:+} by {decided} decisions")
        _demand(decided > 0 or not changed, 5, f"{key}: {', '.join(changed)} changed, which nobody decided")
        if self.calm and rise and news:
            running = self._running_extra(key)
            _demand(running >= told, 5, f"{key}: its leader was told of {told} extra workers, and {running} run")

    def _running_extra(self, key: str) -> int:
        job = self._world.jobs[key]["metadata"]
        own = (pod for pod in self._world.pods.values() if owner_of(pod) == job["uid"])
        running = [pod["metadata"]["name"] for pod in own if pod["status"].get("phase") == "Running"]
        return sum((worker_of(job["name"], name) or ("",))[0] == "extra" for name in running)

    def _check_conditions(self, key: str, uid: str, now: JobStatus) -> None:
        _demand(bool(now.conditions), 6, f"{key} has no conditions")
        _demand(all(condition.message for condition in now.conditions), 6, f"{key}: a condition says nothing")
        over = self._over.get(uid)
        if over is not None:
            _demand(_told(now) == _told(over), 7, f"{key}: was {_told(over)}, is {_told(now)}")
            _demand(now.time_budget == over.time_budget, 7, f"{key}: its budget runs on")
        elif now.completion_time is not None:
            self._over[uid] = now

    def _check_waiting(self, key: str, job: Raw, reason: Reason) -> None:
        spec = job["spec"]
        if spec.get("suspend"):
            _demand(reason is Reason.SUSPENDED, 9, f"{key} is suspended and says {reason}")
            return
        pod_spec = spec["template"]["spec"]
        gpus = _gpus_per_worker(job)
        wanted = pod_spec.get("nodeSelector", {}).get(TYPE_LABEL)
        free: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for name, node in self._world.nodes.items():
            node_type = node["metadata"]["labels"].get(TYPE_LABEL, "")
            if self._world.is_open(name) and wanted in (None, node_type):
                free[node_type] += max(0, self._world.free(name)) // gpus
                sizes[node_type] += _allocatable(node) // gpus
        if reason is Reason.TOO_LARGE:
            _demand(
                max(sizes.values(), default=0) < spec["minReplicas"], 9, f"{key} is not too large for {dict(sizes)}"
            )
            return
        _demand(reason is Reason.NO_FREE_GPU, 9, f"{key} waits and says {reason}")
        foreign = any(not (owner_of(pod) or node_of(pod) or is_over(pod)) for pod in self._world.pods.values())
        others = any(
            other is not job and not other["spec"].get("suspend") and "completionTime" not in other.get("status", {})
            for other in self._world.jobs.values()
        )
        room = max(free.values(), default=0) >= spec["minReplicas"]
        _demand(not room or foreign or others, 9, f"{key} waits though there is room: {dict(free)}")


def _allocatable(node: Raw) -> int:
    return int(node["status"]["allocatable"][GPU])


def _gpus_per_worker(job: Raw) -> int:
    return int(job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU])


def _told(status: JobStatus) -> list[tuple[object, ...]]:
    return [(c.type, c.status, c.reason, c.message, c.last_transition_time) for c in status.conditions]


def _demand(holds: bool, number: int, message: str) -> None:
    if not holds:
        raise PromiseError(f"{number}: {message}")
