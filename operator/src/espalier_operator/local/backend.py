"""The local backend as the loop needs it: jobs and GPUs become a snapshot, actions become processes and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from espalier_core.types import environment as names
from espalier_core.types.reasons import Reason
from espalier_operator.clock import Clock
from espalier_operator.job.progress import Leader
from espalier_operator.local.gpus import CUDA_DEVICES, Gpus, Holder, Timeline
from espalier_operator.local.job import LocalJob
from espalier_operator.local.settings import LocalSettings
from espalier_operator.local.workers import WorkerSpec
from espalier_operator.loop import BackendError
from espalier_operator.model import Node, Rules, Snapshot, Worker, WorkerRole, WorkerState
from espalier_operator.model.actions import Action, GrantExtra, Plan

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
        settings: LocalSettings,
        *,
        on_planned: Callable[[Plan], None],
    ) -> None:
        """Join the parts; `jobs` by key."""
        self.jobs, self.gpus, self.timeline = jobs, gpus, timeline
        self._clock, self._rules, self._settings = clock, rules, settings
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
            for role in (WorkerRole.BASE, WorkerRole.EXTRA)
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
                if not self.gpus.hold(Holder(job.key, WorkerRole.EXTRA, index), job.terms.gpus_per_worker):
                    raise BackendError("a GPU went between planning and granting")
        job.act(action, self._clock.now())
        self.converge(job)

    def converge(self, job: LocalJob) -> bool:
        """Let GPUs and processes follow the job's state; return whether an active job has all its base GPUs."""
        for index in self.gpus.of(job.key, WorkerRole.EXTRA):
            if index >= job.state.extra:
                self.gpus.release(Holder(job.key, WorkerRole.EXTRA, index))
        if job.state.active:
            template = job.job.spec.template
            if (
                job.terms.program
                and job.state.stopping is not None
                and job.process is not None
                and template is not None
            ):
                job.process.terminate(template.spec.grace_seconds)  # nobody but SIGTERM tells it
            completed = job.state.completed_workers
            for index in completed:
                self.gpus.release(Holder(job.key, WorkerRole.BASE, index))
            base = [
                Holder(job.key, WorkerRole.BASE, each)
                for each in range(job.terms.min_replicas)
                if each not in completed
            ]
            missing = [holder for holder in base if not self.gpus.hold(holder, job.terms.gpus_per_worker)]
            return not missing
        if job.process is not None:
            job.process.terminate(self._settings.stop_wall_seconds)
        else:  # the leader is gone, and is not started again as things stand
            for index in self.gpus.of(job.key, WorkerRole.BASE):
                self.gpus.release(Holder(job.key, WorkerRole.BASE, index))
        return False

    def start(self, job: LocalJob, now: float, agent_url: str | None) -> None:
        """Start the leader of a job that has its base GPUs."""
        variables = self._variables()
        if self._settings.devices:
            held = self.gpus.of(job.key, WorkerRole.BASE)
            # If each base worker has a process, the leader sees only its own devices, otherwise those of all.
            devices = [held[0]] if job.has_processes else held.values()
            variables[CUDA_DEVICES] = ",".join(device for own in devices for device in own)
        job.start(now, self._settings.trainer_command, agent_url, variables)

    def train_together(self, job: LocalJob, now: float) -> None:
        """Start and end the processes that train with the leader, according to the job's GPUs."""
        if not job.has_processes:
            return
        going_on = job.state.active and not job.state.ending
        wanted = [
            WorkerSpec(
                role,
                index,
                devices,
                bool(self._settings.devices),
                job.state.attempts[index] if role is WorkerRole.BASE else 0,
            )
            for role in (WorkerRole.BASE, WorkerRole.EXTRA)
            for index, devices in self.gpus.of(job.key, role).items()
            if going_on and (role, index) != (WorkerRole.BASE, 0)
        ]
        job.train_together(wanted, self._settings.trainer_command, self._variables(), now)

    def _variables(self) -> dict[str, str]:
        # What a trainer prints is in its log at once, and not lost where it is killed.
        variables = {names.TIME_SCALE: repr(self._settings.time_scale), "PYTHONUNBUFFERED": "1"}
        if self._settings.seed is not None:
            variables[names.SEED] = str(self._settings.seed)
        if self._settings.hide_devices:
            variables[CUDA_DEVICES] = ""
        return variables

    def lose(self, holder: Holder) -> None:
        """Take notice that the GPU of `holder` is physically gone: its leader dies with it."""
        job = self.jobs[holder.job]
        if holder.role is WorkerRole.EXTRA:
            self.gpus.renumber_extra(job.key)
        else:
            job.leading.lose(Reason.GPU_LOST)
