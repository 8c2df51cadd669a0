"""The operator's view of one job: its state, its pods, its leader's report, and the resulting status.

The state is read from the job's status when the job is first seen. From then on the state in memory is authoritative,
and the status is written from it. No I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from espalier_core.types.advice import JobIdentity
from espalier_core.types.allocation import SignalTrace
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.status import JobStatus, parse_status
from espalier_operator.job import progress
from espalier_operator.job.conditions import Observed, status_of, status_of_invalid
from espalier_operator.job.state import JobState, Observation
from espalier_operator.job.transitions import after
from espalier_operator.job.view import Trouble, facts_of, held_by, memory_of, promise_of, state_of, utc
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.events import StartTrouble, told
from espalier_operator.kube.objects.jobs import InvalidJob, KubeJob, assigned_to
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.due import (
    FigurePace,
    FlushPriority,
    PendingChanges,
    PlanInputs,
    WorkItem,
    expires_at,
    solid,
)
from espalier_operator.kube.state.progress import LastReport, Poster, ProgramProgress, ProgressSource, source_of
from espalier_operator.kube.state.remnants import remnant_of, suspended_as_asked
from espalier_operator.kube.state.workers import (
    JobPods,
    extra_runs_by,
    gates_of_extra,
    observation_of,
    sort_pods,
    trouble_of,
    workers_of,
)
from espalier_operator.kube.state.workloads import JobWorkloads
from espalier_operator.kube.watch.jobs import JobObject
from espalier_operator.kube.watch.store import Store
from espalier_operator.model import NOWHERE, JobFacts, Placement, Promise, Worker
from espalier_operator.model.actions import Action, Admit, GrantExtra, Requeue


class ManagedJob(WorkItem):
    """One job. Times are epoch seconds."""

    def __init__(
        self, seen: JobObject, store: Store, settings: KubeSettings, now: float, pace: FigurePace | None = None
    ) -> None:
        """Resume from the job's status. Raises `ValueError` where it cannot be read."""
        found, pace = parse_status({"status": seen.status}), pace or FigurePace(settings.persist_seconds)
        super().__init__(found, seen.status, now, pace)
        self.ref, self.key, self.uid = seen.ref, seen.key, seen.uid
        """The owner reference of its objects, `namespace/name`, and `metadata.uid`."""
        self._store, self._settings, self._timing = store, settings, settings.timing
        self.state: JobState = state_of(self.written, seen.created_at)
        self.job: KubeJob | None = None
        """The parsed job; None while its specification cannot be run."""
        self.problems: InvalidJob | None = None
        self.pods = JobPods()
        self._waiting: list[Pod] = []
        """Pods that their nodes have not started yet, without the troubles from Events."""
        self._start_troubles: dict[str, StartTrouble] = {}
        """Troubles of such pods from Events, by UID."""
        self._given_up_at: float | None = None
        """Time at which the next of its pods is given up with its node."""
        self.seen = Observation()
        self.report = LastReport(seen.key, self.written)
        self.program = ProgramProgress(self.written)
        """Progress read from it, if it is a program."""
        self.refusal: Reason | None = None
        """Reason for which the last plan granted it no (more) GPUs."""
        self.wished = 0
        """Number of extra workers requested from Kueue beyond those that it is lent."""
        self.rejected: Trouble | None = None
        """The API server's last refusal of its base workers' pods; None: they were accepted."""
        self.extra_rejected: Trouble | None = None
        """The same for its extra workers since the last loan."""
        self.kueue = JobWorkloads(seen.ref, store, settings)
        """The Workloads by which Kueue admits it."""
        self._parsed: KubeJob | None = None
        """The job without Kueue's assignment."""
        self.complaints: dict[Reason, str] = {}
        """The last message for people that is in no condition, by reason."""
        self.equipped: int | None = None
        """The generation for which this operator has created its objects other than pods."""
        self.facts: JobFacts | None = None
        """The planner's facts; None while its specification cannot be run, and before the first observation."""
        self.workers: tuple[Worker, ...] = ()
        self.promise: Promise | None = None
        self.placement = NOWHERE
        """The last plan's nodes for workers that must be created."""
        self.looked_at = now
        self.update(seen)

    def update(self, seen: JobObject) -> None:
        """Update from the job's object."""
        self.object = seen
        if isinstance(seen.parsed, KubeJob):
            if self._parsed is not seen.parsed:
                self.mark_dirty(PendingChanges.PODS, FlushPriority.CHANGES)
                self.making.succeeded()  # a refused pod may be accepted now
                self.rejected = None
                if self.job is not None and self.state.admitted_at is None:
                    self.state = replace(self.state, hold_until=None)
            self._parsed, self.problems = seen.parsed, None
            self.kueue.asked_by(seen.parsed)
            self.job = assigned_to(seen.parsed, None if self.job is None else self.job.assigned, self._settings)
            if self.state.admitted_at is not None:
                self.state = self.state.with_workers(self.job.terms.min_replicas)
        elif self.problems is not seen.parsed:
            self._parsed, self.problems = None, seen.parsed
            self.mark_dirty(PendingChanges.PODS, FlushPriority.CHANGES)
            if self.state.admitted_at is None and self.state.outcome is None:
                self.job, self.facts = None, None  # a job that runs or is over keeps its last good specification
            elif self.job is not None:
                self.job = suspended_as_asked(self.job, seen.raw)
            elif self.written is not None:
                created_at = seen.created_at
                self.job = remnant_of(seen.parsed, seen.raw, self.written, self.state, created_at, self._settings)

    @property
    def is_remnant(self) -> bool:
        """Whether it is known only from its status."""
        return self.job is not None and self.job.is_remnant

    @property
    def lacks_report(self) -> bool:
        """Whether it runs without the ConfigMap of its report, which may have been deleted."""
        runs = self.state.active and self.job is not None and not (self.is_remnant or self.job.terms.program)
        return runs and not self._store.reports.is_there(self.ref)

    @property
    def has_agent(self) -> bool:
        """Whether an agent decides how it grows."""
        return self.job is not None and self.job.job.spec.adaptation.agent_url(self._settings.agent_url) is not None

    def validate(self) -> None:
        """Raise `ValueError` if its fields contradict each other. Expensive: for tests."""
        if self.job is None and (self.facts is not None or self.state.active):
            raise ValueError(f"{self.key}: it is planned for, or runs, without a specification")
        if self.state.extra and not self.state.active:
            raise ValueError(f"{self.key}: it is lent GPUs and does not run")
        if len(self.state.attempts) != len(self.state.incarnations):
            raise ValueError(f"{self.key}: {self.state.attempts} attempts of {self.state.incarnations}")
        if self.due is FlushPriority.NOTHING and not self.news and self.state.active and self.due_at is None:
            raise ValueError(f"{self.key}: it runs and nobody will look at it again")
        if self.due is FlushPriority.NOTHING and not self.writing.failures and self.job is not None:
            now, written = memory_of(self.state, self.job.terms), self.written or JobStatus()
            if (now.allocation, solid(now).scheduling) != (written.allocation, solid(written).scheduling):
                raise ValueError(f"{self.key}: {now} is not due, and {written} is written")

    # ---- observation

    def look(self, now: float) -> None:
        """Update state and facts to `now`. Without changes only time has passed, and the facts stay as they are."""
        self.come_due(now)
        if self.job is None:
            return
        if self._given_up_at is not None and now >= self._given_up_at:
            self.mark_dirty(PendingChanges.PODS)
        self.observe(now)
        if self.news is PendingChanges.NONE and self.facts is not None:
            if now < self.looked_at:  # a clock that was set back gives no budget back
                self.facts = self.facts.counted(self.looked_at, since=now)
            self.looked_at = now
            return
        before, trained = self.state, self.facts is not None and self.facts.training
        self._count(now)
        if (self.state.attempts, self.state.incarnations) != (before.attempts, before.incarnations):
            self.mark_dirty(PendingChanges.PODS)
            self.observe(now)
        if self.is_remnant:
            self._give_up_remnant(now)
        if self._lacks_specification:
            self._wait_for_specification()
            return
        self.facts = self._facts()
        self.workers = tuple(workers_of(self.key, self.pods, self.state))
        self.promise = promise_of(self.key, self.state)
        self.news = PendingChanges.NONE
        if trained != self.facts.training or before.blames != self.state.blames or before.essence != self.state.essence:
            self.mark_dirty(PendingChanges.NONE, FlushPriority.CHANGES)
        elif not self.state.active and before.used_seconds != self.state.used_seconds:
            # The last leader's late report; active jobs are due anyway.
            self.mark_dirty(PendingChanges.NONE, FlushPriority.FIGURES)

    def plan_inputs(self) -> PlanInputs:
        """Return the parts that plans depend on."""
        return PlanInputs(state=self.state, facts=self.facts, workers=self.workers)

    def observe(self, now: float) -> None:
        """Read its report and sort its pods again where they have changed."""
        if self.job is None:
            return
        if self._store.has_news(self.uid):
            self.news |= PendingChanges.PODS
        if self.news is PendingChanges.NONE:
            return
        reports = PendingChanges.REPORT in self.news and not self.job.terms.program
        if reports and self.report.read(self._store.reports.of(self.ref), self.state):
            self.mark_dirty(PendingChanges.NONE, FlushPriority.CHANGES)
        if PendingChanges.PODS in self.news:
            assigned = self.kueue.assigned(self.job.assigned, active=self.state.active)
            if assigned != self.job.assigned and self._parsed is not None:
                self.job = assigned_to(self._parsed, assigned, self._settings)
            pods = self._told(self._store.pods_of(self.ref))
            reach = self._store.reach_of(pods, now)
            self.pods = sort_pods(self.job, self.state, pods, reach)
            self._store.forget(self.pods.recorded)
            if self.pods.extra and (
                self.extra_rejected is None or self.extra_rejected.reason is Reason.SCHEDULING_GATED
            ):
                self.extra_rejected = gates_of_extra(self.pods)
            self._given_up_at = reach.next_at
        if self.news & (PendingChanges.PODS | PendingChanges.REPORT):
            program = self.job.terms.program
            unread = program and self.program.is_unread(self.source())
            seen = observation_of(
                self.pods,
                self.report.last,
                self.report.changed_at,
                self.rejected,
                self.extra_rejected,
                program=program,
                unread=unread,
            ).after(self.seen)
            if self.facts is not None and seen.extra_bound != self.seen.extra_bound:
                self._count_up()  # up to now, the previously bound workers are charged
            self.seen = seen
            self.news = PendingChanges.FACTS

    def miss_workload(self, why: str) -> None:
        """Record the reason for which its Workload cannot be created; empty: it was created."""
        if why != self.kueue.missing:
            self.kueue.missing = why
            self.mark_dirty(PendingChanges.FACTS, FlushPriority.CHANGES)

    def act(self, action: Action) -> None:
        """Apply a decision to the state. The budgets are first counted up to the last observation."""
        if self.job is not None:
            self._count_up()
            self.state = after(self.state, action, self.job.terms, self.looked_at, self._timing)
            if isinstance(action, Admit | GrantExtra) or not self.state.active:
                self.making.succeeded()  # a grant is tried at once
            if isinstance(action, Admit):
                self.rejected = None
            if isinstance(action, GrantExtra):
                self.extra_rejected = None
            self.mark_dirty(PendingChanges.PODS, FlushPriority.CHANGES)

    def refuse(self, reason: Reason | None, workers: int = 0) -> None:
        """Record the reason for which it got no (more) GPUs, and the number of extra workers to request from Kueue."""
        if (reason, workers) != (self.refusal, self.wished):
            self.refusal, self.wished = reason, workers
            self.mark_dirty(PendingChanges.NONE, FlushPriority.CHANGES)

    def place(self, placement: Placement) -> None:
        """Record the nodes of workers that must be created."""
        if placement is not self.placement and placement != self.placement:
            self.placement = placement
            self.mark_dirty(PendingChanges.NONE, FlushPriority.CHANGES)

    def reject(self, trouble: Trouble | None) -> None:
        """Record the API server's refusal of its pods; None: it accepts them."""
        if trouble != self.rejected:
            self.rejected = trouble
            self.mark_dirty(PendingChanges.PODS, FlushPriority.CHANGES)

    def reject_extra(self, trouble: Trouble | None) -> None:
        """Record the API server's refusal of an extra worker's pod; None: it accepts it."""
        if trouble != self.extra_rejected:
            self.extra_rejected = trouble
            self.mark_dirty(PendingChanges.PODS, FlushPriority.CHANGES)

    # ---- status and due times

    def status(self, now: float) -> JobStatus:
        """Return the status for the current state, with the figures of the last observation."""
        wall = utc(now)
        if self.job is None:
            problems = () if self.problems is None else self.problems.problems
            return status_of_invalid(self.object.generation, problems, self.sent, wall)
        self._count_up()
        self.observe(now)
        observed = Observed(
            generation=self.job.generation,
            report=self.report.shown,
            measured=self.report.measured,
            refusal=self.refusal,
            reading=self.program.reading,
            read_at=self.program.read_at,
            selector=names.selector(self.job.name),
            policy=self._settings.policy,
        )
        found = self._traced(status_of(self._facts(), self.state, observed, self.sent, wall))
        if self.problems is not None and self._lacks_specification:
            return status_of_invalid(self.object.generation, self.problems.problems, found, wall)
        return found

    def _traced(self, status: JobStatus) -> JobStatus:
        """Return `status` with the name of the trace of its allocation, if the allocation is traced, as it grows."""
        told_of_more = status.allocation.reason == Reason.EXTRA_GPUS_GRANTED
        if self._settings.traces_endpoint is None or not told_of_more:
            return status
        traceparent = SignalTrace.of(self.uid, status.allocation.generation).traceparent
        allocation = status.allocation.model_copy(update={"traceparent": traceparent})
        return status.model_copy(update={"allocation": allocation})

    def plan_ahead(self, status: JobStatus, now: float) -> None:
        """Set the next time of an observation or flush without any event; `status` is the current one."""
        times = [self._given_up_at or 0.0, *progress.turning_points(self.state, self.seen, self._timing)]
        if self.job is not None:
            times.append((self.state.outcome and expires_at(self.job, status)) or 0.0)
            starts = (extra_runs_by(pod, self.job, self.state, self._timing) for pod in self.pods.extra)
            times += [time for time in starts if time is not None]
        self.plan_due(status, now, times, changes=self.state.active)

    def source(self) -> ProgressSource | None:
        """Return the source from which to read its progress now, if it is a program."""
        if self.job is None or self.state.outcome is not None:
            return None
        return source_of(self.job, self.pods.leader)

    def take_reading(self, source: ProgressSource, values: Mapping[str, float] | None, now: float) -> None:
        """Record values read at `source`. After the last ones of an ended program, its end is judged."""
        changed = source.leader.done or self.program.is_forbidden != (values is None)
        self.program.take(source, values, now)
        self.mark_dirty(
            PendingChanges.PODS if source.leader.done else PendingChanges.FACTS,
            FlushPriority.CHANGES if changed else FlushPriority.NOTHING,
        )

    def poster(self) -> Poster | None:
        """Return the leader that may post its progress now, if it is a program."""
        leader = self.pods.leader
        if self.job is None or not self.job.terms.program or leader is None or self.state.outcome is not None:
            return None
        return Poster(job=JobIdentity(self.job.namespace, self.job.name, self.uid), pod=leader.uid)

    def take_post(self, values: Mapping[str, float], now: float) -> None:
        """Record values posted by its leader."""
        program = None if self.job is None else self.job.job.spec.program
        spec = None if program is None else program.progress
        self.program.read(values, None if spec is None else spec.steps, now)
        self.mark_dirty(PendingChanges.FACTS, FlushPriority.NOTHING)

    def waiting_pods(self) -> list[Pod]:
        """Return its pods that their nodes have not started yet."""
        return self._waiting if self.state.active else []

    def take_start_trouble(self, pod: str, trouble: StartTrouble | None) -> bool:
        """Record the trouble for which a node does not start one of its pods; return whether it is new."""
        if self._start_troubles.get(pod) == trouble:
            return False
        self._start_troubles.pop(pod, None)
        if trouble is not None:
            self._start_troubles[pod] = trouble
        self.mark_dirty(PendingChanges.PODS, FlushPriority.CHANGES)
        return True

    # ---- internal

    def _told(self, pods: Collection[Pod]) -> list[Pod]:
        """Return its pods; waiting ones have their troubles from Events."""
        self._waiting = [pod for pod in pods if pod.awaits_node]
        known, there = self._start_troubles, {pod.uid for pod in self._waiting}
        self._start_troubles = known = {uid: trouble for uid, trouble in known.items() if uid in there}
        return [told(pod, known[pod.uid]) if pod.uid in known else pod for pod in pods]

    def _give_up_remnant(self, now: float) -> None:
        """Requeue a job for which no pod can be made as soon as it has lost a base worker."""
        missing = () if self.job is None else self.state.incarnations[: self.job.terms.min_replicas]
        complete = all(uid or index in self.state.completed_workers for index, uid in enumerate(missing))
        if self.state.active and not self.state.ending and not complete:
            message = self.state.last_failure or SENTENCES[Reason.INVALID_SPEC]
            self.act(Requeue(job=self.key, reason=Reason.INVALID_SPEC, message=message))
            self.observe(now)

    @property
    def _lacks_specification(self) -> bool:
        """Whether it waits with an invalid specification, so that it is not started by the last good one."""
        return self.problems is not None and self.state.admitted_at is None and self.state.outcome is None

    def _wait_for_specification(self) -> None:
        """Leave the plan; drop the last terms once that is written and all pods have ended."""
        self.facts, self.workers, self.promise, self.news = None, (), None, PendingChanges.NONE
        written = self.written is not None and self.written.scheduling.admitted_at is None
        pods = (*self.pods.base, *self.pods.extra, *self.pods.rest)
        if written and all(pod is None or pod.ended for pod in pods):
            self.job = None

    def _count(self, now: float) -> None:
        if self.job is not None:
            self.state = progress.look(self.state, self.seen, self.job.terms, now, self._timing)
            self.looked_at = now

    def _count_up(self) -> None:
        """Count the figures up to the last observation, if it updated only the facts."""
        if self.state.counted_until != self.looked_at:
            self._count(self.looked_at)

    def _facts(self) -> JobFacts:
        if self.job is None:
            raise ValueError(f"{self.key} has no specification that can be run")
        trouble = self.rejected or trouble_of(self.pods, trained=self.state.trained) or held_by(self.state)
        terms, now, timing = self.job.terms, self.looked_at, self._timing
        done = self.program.done if terms.program else None
        troubles, measured = (trouble, self.extra_rejected), self.report.measured
        admission = self.kueue.admission(self.state.extra, active=self.state.active)
        return facts_of(self.key, self.state, self.seen, terms, now, timing, *troubles, measured, done, admission)
