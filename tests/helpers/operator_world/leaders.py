"""Scripted workers: a leader that starts, trains, reports, obeys and ends as its temper says; others that wait."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from espalier_core.files.documents import dumps
from espalier_core.types.job import ALLOCATION_ANNOTATION, REPORT_KEY
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_operator.job.view import utc
from espalier_operator.kube.objects import names
from operator_world.kube_objects import time_at

if TYPE_CHECKING:
    from operator_world.kubernetes import Kubernetes

_PAST = (TrainerPhase.COMPLETED, TrainerPhase.STOPPED, TrainerPhase.FAILED)
REPORT_SECONDS = 2.0
CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Temper:
    """How the leaders of one job behave."""

    start_up: float = 3.0
    """Seconds from the container's start to training."""
    evaluation: float = 2.0
    """Seconds of the evaluation at the end."""
    silent: bool = False
    """It knows nothing of us: no report, no obedience, and it ends after `lasts` seconds with code 0."""
    lasts: float = 50.0
    others_last: float = 1e18
    """Seconds after which other base workers end with code 0."""
    deaf: bool = False
    """It reports, but acknowledges nothing and obeys no demand to stop."""
    watches: bool = True
    """It watches its job; otherwise it reads the annotation of its pod."""
    farewell: float = 2.0
    """Seconds from SIGTERM to its end; what the grace period cuts off is killed."""
    hangs: bool = False
    """It says its last word and does not end."""


@dataclass(slots=True)
class Process:
    """The container of one worker."""

    key: str
    """Key of its pod."""
    uid: str
    job: str
    job_uid: str
    node: str
    leads: bool
    temper: Temper
    budget: float
    started_at: float
    used: float = 0.0
    index: int | None = None
    """Among the base workers; None: it is none."""
    resumed_at: float = 0.0
    """Budget seconds that were used when it started, by what the operator knew."""
    phase: TrainerPhase = TrainerPhase.STARTING
    reason: Reason | None = None
    acknowledged: int = 0
    code: int | None = None
    """Exit code, once it has ended."""
    evaluating_since: float | None = None
    ended_at: float | None = None
    _ends_at: float | None = field(default=None)
    _ends_with: tuple[TrainerPhase | None, Reason | None, int] = field(default=(None, None, 0))
    _killed_at: float | None = field(default=None)
    _spoke_at: float = field(default=-1e18)
    _saved_at: float = field(default=0.0)

    @classmethod
    def of(cls, world: Kubernetes, key: str, node: str) -> Process:
        """Return what a kubelet starts of a pod."""
        pod = world.pods[key]
        metadata = pod["metadata"]
        owner = next(iter(metadata.get("ownerReferences") or ()), None)
        job = f"{metadata['namespace']}/{owner['name']}" if owner else ""
        worker = names.worker_of(owner["name"], metadata["name"]) if owner else None
        process = cls(
            key=key,
            uid=metadata["uid"],
            job=job,
            job_uid=owner["uid"] if owner else "",
            node=node,
            # One that only claims to be a worker of the job was not made by an operator.
            leads=worker is not None and (str(worker[0]), worker[1]) == ("base", 0) and "annotations" in metadata,
            temper=world.tempers.get(job, Temper()),
            index=worker[1] if worker is not None and str(worker[0]) == "base" else None,
            budget=1e18,
            started_at=world.now,
        )
        if process.leads:
            document = json.loads(metadata["annotations"][ALLOCATION_ANNOTATION])
            process.budget = document["timeBudget"]["budgetSeconds"]
            process.resumed_at = document["timeBudget"]["usedSeconds"]
            process.used = max(process.resumed_at, world.checkpoints.get(process.job_uid, 0.0))
        return process

    def terminate(self, now: float, grace: float) -> None:
        """Do as on SIGTERM."""
        if self._killed_at is not None or self.code is not None:
            return
        self._killed_at = now + grace
        if not self.leads:
            self._leave(now, None, None, 0)
        elif self.temper.silent:
            self._leave(now, None, None, 143)
        elif self.phase is not TrainerPhase.STARTING:
            self._leave(now + self.temper.farewell, TrainerPhase.STOPPED, Reason.INTERRUPTED, 143)
        else:
            self._leave(now, None, None, 143)

    def crash(self, world: Kubernetes, code: int) -> None:
        """End at once, without a word; with one where the code (3) stands for it."""
        if code == 3:
            self.phase, self.reason = TrainerPhase.FAILED, Reason.LOSS_NOT_FINITE
            self._speak(world)
        self.code, self.ended_at = code, world.now

    def advance(self, world: Kubernetes, seconds: float) -> None:
        """Live through `seconds` that end now."""
        now = world.now
        if self.code is not None:
            return
        if self._killed_at is not None and now >= self._killed_at:
            self.code, self.ended_at = 137, now
            return
        if not self.leads:
            if self.index is not None and now - self.started_at >= self.temper.others_last * self.index:
                self._leave(now, None, None, 0)
            self._end_if_due(world)
            return
        if self.temper.silent:
            if now - self.started_at >= self.temper.lasts:
                self._leave(now, None, None, 0)
        else:
            self._train(world, seconds)
        self._end_if_due(world)

    def _train(self, world: Kubernetes, seconds: float) -> None:
        now = world.now
        if self.phase in _PAST:
            return
        if self.phase is TrainerPhase.STARTING:
            if now - self.started_at < self.temper.start_up:
                self._report(world)
                return
            self.phase = TrainerPhase.TRAINING
            self._speak(world)
            if self.used >= self.budget:  # it ends at its first step boundary, before a step
                self._evaluate(world, Reason.BUDGET_EXHAUSTED)
            return
        self.used += seconds
        if self.phase is TrainerPhase.TRAINING:
            if now >= self._saved_at + CHECKPOINT_SECONDS:
                world.checkpoints[self.job_uid], self._saved_at = self.used, now
            self._obey(world)
        self._report(world)

    def _obey(self, world: Kubernetes) -> None:
        generation, stop, self.budget = self._told(world)
        if self.used >= self.budget:
            self._evaluate(world, Reason.BUDGET_EXHAUSTED)
        elif self.temper.deaf:
            pass
        elif stop == Reason.GPU_BUDGET_EXHAUSTED:
            self._evaluate(world, Reason.GPU_BUDGET_EXHAUSTED)
        elif stop is not None:
            self._leave(world.now, TrainerPhase.STOPPED, Reason(stop), 143)
        elif generation > self.acknowledged:
            self.acknowledged = generation
            self._speak(world)

    def _evaluate(self, world: Kubernetes, reason: Reason) -> None:
        self.phase, self.evaluating_since = TrainerPhase.EVALUATING, world.now
        self._speak(world)
        self._leave(world.now + self.temper.evaluation, TrainerPhase.COMPLETED, reason, 0)

    def _told(self, world: Kubernetes) -> tuple[int, str | None, float]:
        """Return the generation, why it is to stop, and its time budget."""
        if self.temper.watches and world.is_ready(self.node):
            job = world.jobs.get(self.job)
            mine = job is not None and job["metadata"]["uid"] == self.job_uid
            status: dict[str, Any] = (job.get("status") if job is not None and mine else None) or {}
            stopping = status.get("scheduling", {}).get("stopping") or {}
            budget = float(job["spec"]["timeBudgetSeconds"]) if job is not None and mine else self.budget
            return status.get("allocation", {}).get("generation", 0), stopping.get("reason"), budget
        pod = world.pods.get(self.key)
        if pod is None or not world.is_ready(self.node):
            return self.acknowledged, None, self.budget
        document = json.loads(pod["metadata"]["annotations"][ALLOCATION_ANNOTATION])
        return document["allocation"]["generation"], document.get("stop"), document["timeBudget"]["budgetSeconds"]

    def _leave(self, at: float, phase: TrainerPhase | None, reason: Reason | None, code: int) -> None:
        if self._ends_at is None or at < self._ends_at:
            self._ends_at, self._ends_with = at, (phase, reason, code)

    def _end_if_due(self, world: Kubernetes) -> None:
        if self._ends_at is None or world.now < self._ends_at or self.phase in _PAST:
            return
        phase, self.reason, code = self._ends_with
        if phase is not None:
            self.phase = phase
            world.checkpoints[self.job_uid] = self.used
            self._speak(world)
        if not (self.temper.hangs and phase is not None and self._killed_at is None):
            self.code, self.ended_at = code, world.now

    def _report(self, world: Kubernetes) -> None:
        if world.now >= self._spoke_at + REPORT_SECONDS:
            self._speak(world)

    def _speak(self, world: Kubernetes) -> None:
        """Patch the report, as far as the API server can be reached and the ConfigMap is there.

        That of a later job of the same name refuses: the account that this one runs under went with its job.
        """
        self._spoke_at = world.now
        key = names.report_name(self.job)
        config_map = world.config_maps.get(key)
        if config_map is None or not world.is_ready(self.node):
            return
        if config_map["metadata"]["ownerReferences"][0]["uid"] != self.job_uid:
            return
        said = Report(
            job=self.job,
            incarnation=self.uid,
            acknowledged_generation=self.acknowledged,
            phase=self.phase,
            reason=self.reason,
            used_seconds=self.used,
            step=int(self.used * 10),
            updated_time=utc(world.now),
        )
        fields = [{"manager": "espalier-trainer", "time": time_at(world.now)}]
        metadata = {**config_map["metadata"], "managedFields": fields}
        world.config_maps[key] = {**config_map, "metadata": metadata, "data": {REPORT_KEY: dumps(said)}}
