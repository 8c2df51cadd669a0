"""What statuses say, one after the other. Clause 10."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from espalier_core.types.job import ALLOCATION_ANNOTATION
from espalier_core.types.reasons import Reason
from espalier_core.types.status import JobStatus, parse_status
from espalier_operator.job.state import Timing
from espalier_operator.kube.objects.names import worker_of
from espalier_operator.model.actions import Plan
from operator_world.history.demands import demand
from operator_world.history.seen import Claimant, Seen, claimant, identity
from operator_world.history.world import SharedCluster
from operator_world.kube_api import is_over
from operator_world.kube_objects import Raw

_DECIDED: Final = ("gpu_type", "extra", "extra_generation", "reclaim", "granted_at", "changed_at", "stopping")


class Kept:
    """The figures and decisions that the statuses of one world keep, as its operators write them."""

    def __init__(self, world: SharedCluster) -> None:
        """Nothing is decided yet."""
        self._world = world
        self.blind = 0.0
        """Seconds in which an operator worked on by what it saw before."""
        self._decisions: Counter[str] = Counter()
        self._last: dict[str, JobStatus] = {}
        self._checked: dict[str, Raw] = {}

    def planned(self, plan: Plan) -> None:
        """Take note of what is decided."""
        self._decisions.update(action.job for action in plan.actions)

    def woke(self, before: Mapping[str, Raw]) -> None:
        """Pass over what a former leader has written: its successor overwrites it. `before` are jobs as they were."""
        for key, job in self._world.jobs.items():
            if before.get(key) is not job:
                self._checked[job["metadata"]["uid"]] = job

    def look(self) -> None:
        """Check each status that is news, and that no job has two leaders."""
        for key, job in self._world.jobs.items():
            uid = job["metadata"]["uid"]
            leaders = [process.key for process in self._world.live_leaders(uid)]
            demand(len(leaders) <= 1, 10, f"{leaders} run at once")
            if self._checked.get(uid) is not job and (status := parse_status(job)) is not None:
                self._checked[uid] = job
                before = self._last.get(uid, JobStatus())
                if before.completion_time is not None:
                    demand(_told(status) == _told(before), 10, f"{key}: was {_told(before)}, is {_told(status)}")
                self._check_figures(key, uid, status, before)
                self._check_decisions(key, job, status, before)
                said = [condition.message for condition in status.conditions]
                demand(bool(said) and all(said), 10, f"{key}: conditions say {said}")
                self._last[uid] = status

    def _check_figures(self, key: str, uid: str, now: JobStatus, before: JobStatus) -> None:
        figures = {
            "budget": (now.time_budget.used_seconds, before.time_budget.used_seconds),
            "GPU budget": (now.time_budget.gpu_seconds_used, before.time_budget.gpu_seconds_used),
            "generation": (now.allocation.generation, before.allocation.generation),
            "restarts": (now.restarts, before.restarts),
            "preemptions": (now.preemptions, before.preemptions),
            **{
                f"attempts of worker {index}": pair
                for index, pair in enumerate(zip(now.scheduling.attempts, before.scheduling.attempts, strict=False))
            },
        }
        for name, (new, old) in figures.items():
            demand(new >= old, 10, f"{key}: its {name} fell from {old} to {new}")
        used, ran = now.time_budget.used_seconds, self._world.ran[uid]
        most = ran + self.blind + Timing().quiet
        demand(used <= most, 10, f"{key}: {used} s are counted, leaders ran {ran} s and {self.blind} s were not seen")
        demand(now.restarts <= self._world.leaders[uid], 10, f"{key}: {now.restarts} restarts of fewer leaders")
        failures, ended = now.scheduling.failures, self._world.ended[uid]
        demand(failures <= ended, 10, f"{key}: {failures} failures are counted, {ended} containers ended")

    def _check_decisions(self, key: str, job: Raw, now: JobStatus, before: JobStatus) -> None:
        """Only a decision changes what is granted, asked for, or demanded: no restart of an operator, no lost call."""
        new, old = now.scheduling, before.scheduling
        changed = [name for name in _DECIDED if getattr(new, name) != getattr(old, name)]
        # The time at which it was admitted is later while gates hold its pods.
        changed += ["admitted_at"] if (new.admitted_at is None) != (old.admitted_at is None) else []
        rise = now.allocation.generation - before.allocation.generation
        demand(rise > 0 or now.allocation == before.allocation, 10, f"{key}: generation {rise:+}, another allocation")
        if not changed and not rise:
            return
        decided = self._decisions.pop(key, 0)
        told = now.allocation.replicas - job["spec"]["minReplicas"]
        news = max(0, told) if now.allocation.reason == Reason.EXTRA_GPUS_GRANTED else 0
        unseen = old.extra  # told of in a status that could not be written before the next decision
        demand(rise <= decided + max(news, unseen), 10, f"{key}: generation {rise:+} by {decided} decisions")
        demand(decided > 0 or not changed, 10, f"{key}: {', '.join(changed)} changed, which nobody decided")

    def judge(self, jobs: Iterable[Seen]) -> None:
        """Check at rest that pods are what statuses say, and that leaders were told of their allocation."""
        pods: dict[Claimant, list[Raw]] = defaultdict(list)
        for pod in self._world.pods.values():
            if not is_over(pod) and "deletionTimestamp" not in pod["metadata"]:
                pods[claimant(pod)].append(pod)
        for job in jobs:
            kept, own = job.status.scheduling, pods[identity(job.raw)]
            held = job.status.completion_time is None and kept.admitted_at is not None
            demand(held or not own, 10, f"{job.key} runs nothing and has {[pod['metadata']['name'] for pod in own]}")
            extra = 0
            for pod in own:
                worker = worker_of(job.raw["metadata"]["name"], pod["metadata"]["name"])
                role, index, attempt = worker or ("", 0, 0)
                extra += role == "extra"
                old = role == "base" and attempt != kept.attempts[index]
                demand(not old, 10, f"{pod['metadata']['name']} is of an earlier attempt")
                if (role, index) == ("base", 0):
                    told = json.loads(pod["metadata"]["annotations"][ALLOCATION_ANNOTATION])["allocation"]["generation"]
                    generation = job.status.allocation.generation
                    demand(told == generation, 10, f"{job.key}: leader was told generation {told} of {generation}")
            demand(not held or extra <= kept.extra, 10, f"{job.key} has {extra} extra workers, {kept.extra} are lent")


def _told(status: JobStatus) -> tuple[object, ...]:
    ends = [(c.type, c.status, c.reason, c.message, c.last_transition_time) for c in status.conditions]
    return ends, status.time_budget.used_seconds, status.time_budget.gpu_seconds_used
