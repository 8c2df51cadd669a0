"""The local world behind the loop: turns jobs and GPUs into a snapshot, and actions into processes and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import singledispatchmethod

from espalier_api.allocation import Direction
from espalier_api.reasons import SENTENCES, Reason
from espalier_api.status import JobPhase
from espalier_operator.actions import (
    Action,
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
from espalier_operator.clock import Clock
from espalier_operator.facts import Node, Reclaim, Role, Rules, Snapshot, Stopping, Worker, WorkerState
from espalier_operator.job.budget import Leader
from espalier_operator.local.gpus import Gpus, Holder
from espalier_operator.local.job import LocalJob
from espalier_operator.local.records import LOCAL_GPU_TYPE, facts_of
from espalier_operator.local.timeline import Timeline
from espalier_operator.loop import BackendError

NODE = "local"


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
        submitted = [job for job in self.jobs.values() if job.submitted_at is not None]
        return Snapshot(
            taken_at=now,
            nodes=(node,),
            workers=tuple(worker for job in submitted for worker in self._workers(job)),
            jobs=tuple(facts_of(job, now) for job in submitted),
            rules=self._rules,
        )

    def _workers(self, job: LocalJob) -> list[Worker]:
        ending = job.finished or job.admitted_at is None
        running = WorkerState.PENDING if job.leader is Leader.ABSENT else WorkerState.RUNNING
        state = WorkerState.TERMINATING if ending else running
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
        """Say why jobs wait; hand the plan on."""
        for key, refusal in plan.refusals.items():
            job = self.jobs[key]
            if job.admitted_at is None and not job.finished:
                phase = JobPhase.SUSPENDED if refusal.reason is Reason.SUSPENDED else JobPhase.PENDING
                job.set_phase(phase, refusal.reason, SENTENCES[refusal.reason])
        self._on_planned(plan)

    # ---- doing

    async def apply(self, action: Action) -> None:
        """Carry `action` out; what it starts and ends is seen by the next `observe`."""
        self._apply(action, self.jobs[action.job])

    @singledispatchmethod
    def _apply(self, action: Action, job: LocalJob) -> None:
        raise NotImplementedError(f"the local backend does not know {type(action).__name__}")

    @_apply.register
    def _(self, action: Admit, job: LocalJob) -> None:
        job.admitted_at = self._clock.now()
        self.bind_base(job)
        job.allocate(job.terms.min_replicas, Direction.UP, action.reason, None)
        job.set_phase(JobPhase.STARTING, action.reason)

    @_apply.register
    def _(self, action: GrantExtra, job: LocalJob) -> None:
        for index in range(job.extra, action.extra):
            if not self.gpus.hold(Holder(job.key, Role.EXTRA, index), job.terms.gpus_per_worker):
                raise BackendError("a GPU went between planning and granting")
        job.extra = action.extra
        job.granted_at = job.changed_at = self._clock.now()
        job.allocate(job.terms.min_replicas + action.extra, Direction.UP, action.reason, None)

    @_apply.register
    def _(self, action: NoticeReclaim, job: LocalJob) -> None:
        job.reclaim = Reclaim(extra=action.extra, deadline=action.deadline, reason=action.reason)
        wall = self._clock.wall_seconds(max(0.0, action.deadline - self._clock.now()))
        job.allocate(job.terms.min_replicas + action.extra, Direction.DOWN, action.reason, wall)

    @_apply.register
    def _(self, action: ReleaseExtra, job: LocalJob) -> None:
        self._shrink(job, action.extra)
        job.reclaim = None
        job.changed_at = self._clock.now()
        if action.forced:
            job.preemptions += 1
            job.warn(action.reason, SENTENCES[action.reason])
        if job.allocation.replicas != job.terms.min_replicas + action.extra:
            job.allocate(job.terms.min_replicas + action.extra, Direction.DOWN, action.reason, None)

    @_apply.register
    def _(self, action: Stop, job: LocalJob) -> None:
        job.stopping = Stopping(reason=action.reason, deadline=action.deadline)
        job.write_allocation()

    @_apply.register
    def _(self, action: Requeue, job: LocalJob) -> None:
        job.admitted_at = job.stopping = job.reclaim = None
        job.trained = False
        self._shrink(job, 0)
        self._end_leader(job)
        if action.reason is Reason.GPU_LOST:
            job.preemptions += 1
        job.allocate(0, Direction.DOWN, action.reason, None)
        job.set_phase(JobPhase.PENDING, action.reason, SENTENCES[action.reason])

    @_apply.register
    def _(self, action: Finish, job: LocalJob) -> None:
        self._close(job, JobPhase.COMPLETE, action.reason, action.message)

    @_apply.register
    def _(self, action: Fail, job: LocalJob) -> None:
        self._close(job, JobPhase.FAILED, action.reason, action.message)

    def bind_base(self, job: LocalJob) -> bool:
        """Give an admitted job the base GPUs that it lacks; return whether it has all, so that it may start."""
        missing = [
            index
            for index in range(job.terms.min_replicas)
            if not self.gpus.hold(Holder(job.key, Role.BASE, index), job.terms.gpus_per_worker)
        ]
        return not missing

    def release_base(self, job: LocalJob) -> None:
        """Free the base GPUs of a job whose leader is gone and which is not to start again as things stand."""
        if job.process is None and (job.finished or job.admitted_at is None):
            for index in self.gpus.of(job.key, Role.BASE):
                self.gpus.release(Holder(job.key, Role.BASE, index))

    def lose(self, holder: Holder) -> None:
        """Take notice that the GPU of `holder` is physically gone: its leader dies with it."""
        job = self.jobs[holder.job]
        if holder.role is Role.EXTRA:
            self.gpus.renumber_extra(job.key)
        elif job.process is not None:
            job.process.kill()

    def _shrink(self, job: LocalJob, extra: int) -> None:
        for index in self.gpus.of(job.key, Role.EXTRA):
            if index >= extra:
                self.gpus.release(Holder(job.key, Role.EXTRA, index))
        job.extra = extra

    def _end_leader(self, job: LocalJob) -> None:
        if job.process is not None:
            job.process.terminate(self._stop_wall_seconds)

    def _close(self, job: LocalJob, phase: JobPhase, reason: Reason, message: str) -> None:
        self._shrink(job, 0)
        self._end_leader(job)
        job.reclaim = job.stopping = None
        job.set_phase(phase, reason, message or SENTENCES[reason])
        self.release_base(job)
