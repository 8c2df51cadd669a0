"""The local backend as the loop needs it: jobs and GPUs become a snapshot, actions become processes and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from espalier_api.reasons import Reason
from espalier_operator.actions import Action, GrantExtra, Plan
from espalier_operator.clock import Clock
from espalier_operator.facts import Node, Role, Rules, Snapshot, Worker, WorkerState
from espalier_operator.job.budget import Leader
from espalier_operator.local.gpus import Gpus, Holder, Timeline
from espalier_operator.local.job import LocalJob
from espalier_operator.loop import BackendError

NODE: Final = "local"
LOCAL_GPU_TYPE: Final = "local"
"""A machine's GPUs are taken to be of one type."""


class LocalBackend:
    """Implements `espalier_operator.loop.Backend` over the jobs of one run."""

    def __init__(
        self,
        jobs: Mapping[str, LocalJob],
        gpus: Gpus,
        timeline: Timeline,
        clock: Clock,
        rules: Rules,
        *,
        stop_wall_seconds: float,
        on_planned: Callable[[Plan], None],
    ) -> None:
        """Join the parts; `jobs` by key."""
        self.jobs, self.gpus, self.timeline = jobs, gpus, timeline
        self._clock, self._rules = clock, rules
        self._stop_wall_seconds = stop_wall_seconds
        self._on_planned = on_planned

    # ---- seeing

    async def observe(self) -> Snapshot:
        """Return one node with all GPUs, and the submitted jobs with their workers."""
        now = self._clock.now()
        departing, goes_in = self.timeline.departing()
        node = Node(
            name=NODE,
            gpu_type=LOCAL_GPU_TYPE,
            allocatable=self.gpus.total,
            departing=min(departing, self.gpus.total),
            departs_at=None if goes_in is None else now + goes_in,
        )
        submitted = [job for job in self.jobs.values() if job.state.submitted_at is not None]
        return Snapshot(
            taken_at=now,
            nodes=(node,),
            workers=tuple(worker for job in submitted for worker in self._workers(job)),
            jobs=tuple(job.facts(now) for job in submitted),
            rules=self._rules,
        )

    def _workers(self, job: LocalJob) -> list[Worker]:
        running = WorkerState.PENDING if job.leader is Leader.ABSENT else WorkerState.RUNNING
        state = running if job.state.active else WorkerState.TERMINATING
        return [
            Worker(
                name=f"{job.name}-{role}-{index}",
                job=job.key,
                role=role,
                index=index,
                node=NODE,
                gpus=len(devices),
                state=state,
            )
            for role in (Role.BASE, Role.EXTRA)
            for index, devices in self.gpus.of(job.key, role).items()
        ]

    def planned(self, snapshot: Snapshot, plan: Plan) -> None:
        """Record why jobs wait; hand the plan on."""
        for key, refusal in plan.refusals.items():
            self.jobs[key].waits(refusal.reason, self._clock.now())
        self._on_planned(plan)

    # ---- doing

    async def apply(self, action: Action) -> None:
        """Carry `action` out; what it starts and ends is seen by the next `observe`."""
        job = self.jobs[action.job]
        if isinstance(action, GrantExtra):
            for index in range(job.state.extra, action.extra):
                if not self.gpus.hold(Holder(job.key, Role.EXTRA, index), job.terms.gpus_per_worker):
                    raise BackendError("a GPU went between planning and granting")
        job.act(action, self._clock.now())
        self.converge(job)

    def converge(self, job: LocalJob) -> bool:
        """Let GPUs and processes follow the job's state; return whether an active job has all its base GPUs."""
        for index in self.gpus.of(job.key, Role.EXTRA):
            if index >= job.state.extra:
                self.gpus.release(Holder(job.key, Role.EXTRA, index))
        if job.state.active:
            if job.terms.program and job.state.stopping is not None:
                job.end_program()
            base = (Holder(job.key, Role.BASE, index) for index in range(job.terms.min_replicas))
            missing = [holder for holder in base if not self.gpus.hold(holder, job.terms.gpus_per_worker)]
            return not missing
        if job.process is not None:
            job.process.terminate(self._stop_wall_seconds)
        else:  # the leader is gone, and is not started again as things stand
            for index in self.gpus.of(job.key, Role.BASE):
                self.gpus.release(Holder(job.key, Role.BASE, index))
        return False

    def lose(self, holder: Holder) -> None:
        """Take notice that the GPU of `holder` is physically gone: its leader dies with it."""
        job = self.jobs[holder.job]
        if holder.role is Role.EXTRA:
            self.gpus.renumber_extra(job.key)
        else:
            job.lose(Reason.GPU_LOST)
