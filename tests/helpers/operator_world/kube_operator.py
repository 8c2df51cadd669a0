"""An operator in twenty lines a part: the pure core of the Kubernetes backend driven over a naive Kubernetes.

It does what the real one does and nothing else: look, plan, remember, write the status, and only then act. Between any
two calls of the API server it may be killed; another one starts from the statuses alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from espalier_api.documents import loads
from espalier_api.report import Report
from espalier_api.signal import REPORT_KEY
from espalier_api.status import JobStatus
from espalier_operator.actions import Plan
from espalier_operator.facts import Node, Rules, Snapshot, Worker
from espalier_operator.job.conditions import Observed, status_of, status_of_invalid
from espalier_operator.job.progress import turning_points
from espalier_operator.job.state import JobState
from espalier_operator.job.status import state_of, utc
from espalier_operator.job.transitions import after
from espalier_operator.job.view import promise_of
from espalier_operator.kube.apply.steps import Annotate, CreatePod, DeleteJob, DeletePod, Step, steps
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.jobs import InvalidJob, KubeJob, parse_job, parse_status
from espalier_operator.kube.objects.manifests import owned_objects
from espalier_operator.kube.objects.nodes import parse_node
from espalier_operator.kube.objects.pods import Pod, parse_pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.managed_job import expires_at
from espalier_operator.kube.state.workers import (
    JobPods,
    foreign_worker,
    last_report,
    observation_of,
    sort_pods,
    workers_of,
)
from espalier_operator.plan import plan
from espalier_operator.policies import Policy
from operator_world.kube_api import ConflictError, NotFoundError, owner_of
from operator_world.kube_looks import facts_of, look
from operator_world.kube_objects import Raw
from operator_world.kubernetes import Kubernetes

KINDS: Final = ("nodes", "pods", "jobs", "config_maps")


class KilledError(Exception):
    """The operator was killed before a call of the API server."""


class UnreachableError(Exception):
    """The API server did not answer."""


class NaiveOperator:
    """One life of an operator."""

    def __init__(self, world: Kubernetes, policy: Policy, settings: KubeSettings, rules: Rules) -> None:
        """Start: list everything, remember what the statuses say."""
        self._world, self._policy, self._settings, self._rules = world, policy, settings, rules
        self.view: dict[str, dict[str, Raw]] = {}
        """What is seen of the world, by kind; old until `see`."""
        self.records: dict[str, JobState] = {}
        """By UID of the job."""
        self.written: dict[str, JobStatus] = {}
        self.said: dict[str, JobStatus] = {}
        """What was to be written last, whether or not that was answered: its times stand."""
        self.calls_left: int | None = None
        """Calls until it is killed."""
        self.failing = 0
        """So many of the next calls fail."""
        self.unanswered = 0
        """So many of the next calls seem to fail, though they are done."""
        self.calls = 0
        """Made in this life, but for those that met what is there already."""
        self.due: float | None = None
        """When it is to tick again though nothing happens."""
        self.on_plan: Callable[[Snapshot, Plan], None] = lambda snapshot, plan: None
        self.on_create: Callable[[Mapping[str, Any]], None] = lambda manifest: None
        self._known_nodes: set[str] = set()
        self._equipped: set[str] = set()
        self._written_at: dict[str, float] = {}
        self._reports: dict[str, Report] = {}
        self._parsed: dict[int, tuple[Raw, Any]] = {}
        self.see(*KINDS)

    def see(self, *kinds: str) -> None:
        """Bring the view of these kinds up to date."""
        for kind in kinds:
            self.view[kind] = dict(getattr(self._world, kind))

    def tick(self) -> Plan:
        """Look, plan, remember, write, act: once."""
        now = self._world.now
        nodes: list[Node] = [self._parse(raw, parse_node) for raw in self.view["nodes"].values()]
        pods: list[Pod] = [self._parse(raw, parse_pod) for raw in self.view["pods"].values()]
        jobs: dict[str, KubeJob] = {}
        invalid: list[InvalidJob] = []
        for raw in self.view["jobs"].values():
            job: KubeJob | InvalidJob = self._parse(raw, parse_job)
            if isinstance(job, KubeJob):
                jobs[job.key] = job
            else:
                invalid.append(job)
            self._meet(job, raw)
        self._known_nodes |= {node.name for node in nodes}
        ready = {node.name for node in nodes if node.ready}
        # Pods may be seen before the node that they are on.
        ready |= {pod.node for pod in pods if pod.node is not None and pod.node not in self._known_nodes}
        crews = {key: self._look(job, pods, ready, now) for key, job in jobs.items()}
        snapshot = self._snapshot(nodes, pods, jobs, crews, now)
        planned = plan(snapshot, self._policy, now)
        self.on_plan(snapshot, planned)
        for action in planned.actions:
            job = jobs[action.job]
            self.records[job.uid] = after(self.records[job.uid], action, job.terms, now, self._settings.timing)
        dues = [planned.wake_at]
        for key, job in jobs.items():
            refusal = planned.refusals.get(key)
            dues += self._flush(job, pods, ready, None if refusal is None else refusal.reason, now)
        for broken in invalid:
            self._flush_invalid(broken, now)
        self.due = min((due for due in dues if due is not None and due > now), default=None)
        return planned

    # ---- seeing

    def _parse(self, raw: Raw, parse: Callable[[Raw, KubeSettings], Any]) -> Any:
        known = self._parsed.get(id(raw))
        if known is None or known[0] is not raw:
            known = self._parsed[id(raw)] = raw, parse(raw, self._settings)
        return known[1]

    def _meet(self, job: KubeJob | InvalidJob, raw: Raw) -> None:
        if job.uid in self.records:
            return
        status = parse_status(raw)
        self.records[job.uid] = state_of(
            status, datetime.fromisoformat(raw["metadata"]["creationTimestamp"]).timestamp()
        )
        if status is not None:
            self.written[job.uid] = self.said[job.uid] = status
            self._written_at[job.uid] = self._world.now

    def _crew(self, job: KubeJob, pods: list[Pod], ready: set[str]) -> JobPods:
        for config_map in self.view["config_maps"].values():
            text = (config_map.get("data") or {}).get(REPORT_KEY)
            if text is not None and owner_of(config_map) == job.uid:
                found = self._parse(config_map, lambda raw, _: loads(raw["data"][REPORT_KEY], Report, "report"))
                self._reports[job.uid] = last_report(self.records[job.uid], self._reports.get(job.uid), found)
        return sort_pods(job, self.records[job.uid], pods, ready)

    def _look(self, job: KubeJob, pods: list[Pod], ready: set[str], now: float) -> JobPods:
        crew = self._crew(job, pods, ready)
        self.records[job.uid] = look(
            job, self.records[job.uid], observation_of(crew, self._reports.get(job.uid)), now, self._settings
        )
        return self._crew(job, pods, ready)

    def _snapshot(
        self, nodes: list[Node], pods: list[Pod], jobs: dict[str, KubeJob], crews: dict[str, JobPods], now: float
    ) -> Snapshot:
        ours = {job.uid for job in jobs.values()}
        workers: list[Worker] = [worker for pod in pods if pod.job_uid not in ours if (worker := foreign_worker(pod))]
        for key in jobs:
            workers += workers_of(key, crews[key])
        promises = [promise_of(job.key, self.records[job.uid]) for job in jobs.values()]
        return Snapshot(
            taken_at=now,
            nodes=tuple(nodes),
            workers=tuple(workers),
            promises=tuple(promise for promise in promises if promise is not None),
            jobs=tuple(
                facts_of(job, self.records[job.uid], now, self._settings, crews[key], self._reports.get(job.uid))
                for key, job in jobs.items()
            ),
            rules=self._rules,
        )

    # ---- writing and acting

    def _flush(self, job: KubeJob, pods: list[Pod], ready: set[str], refusal: Any, now: float) -> list[float | None]:
        record, crew = self.records[job.uid], self._crew(job, pods, ready)
        facts = facts_of(job, record, now, self._settings, crew, self._reports.get(job.uid))
        report = self._reports.get(job.uid)
        observed = Observed(
            generation=job.generation, report=report, refusal=refusal, selector=names.selector(job.name)
        )
        status = self.said[job.uid] = status_of(facts, record, observed, self.said.get(job.uid), utc(now))
        try:
            self._write(job.key, job.uid, status, now)
            for step in steps(job, record, crew, status, now, self._settings):
                self._do(job, step)
        except UnreachableError:
            return [now + 1.0]
        except NotFoundError:
            return []
        persist = self._written_at[job.uid] + self._settings.persist_seconds
        runs = record.admitted_at is not None and record.outcome is None
        return [
            expires_at(job, status),
            *turning_points(record, observation_of(crew, report), self._settings.timing),
            persist if runs else None,
        ]

    def _flush_invalid(self, job: InvalidJob, now: float) -> None:
        status = status_of_invalid(job.generation, job.problems, self.said.get(job.uid), utc(now))
        self.said[job.uid] = status
        try:
            self._write(job.key, job.uid, status, now)
        except (UnreachableError, NotFoundError):
            return

    def _write(self, key: str, uid: str, status: JobStatus, now: float) -> None:
        known = self.written.get(uid)
        early = now < self._written_at.get(uid, 0.0) + self._settings.persist_seconds
        if known == status or (early and known is not None and _solid(known) == _solid(status)):
            return
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        self._call(lambda: self._world.put_status(key, uid, body))
        self.written[uid], self._written_at[uid] = status, now

    def _do(self, job: KubeJob, step: Step) -> None:
        match step:
            case CreatePod():
                if job.uid not in self._equipped:
                    for manifest in owned_objects(job):
                        self._create(manifest)
                self._equipped.add(job.uid)
                self._create(step.manifest)
            case DeletePod(pod=pod):
                self._gone(lambda: self._world.delete_pod(pod.key, pod.uid))
            case Annotate(pod=pod, annotations=annotations):
                self._gone(lambda: self._world.annotate(pod.key, pod.uid, annotations))
            case DeleteJob():
                self._gone(lambda: self._world.delete_job(job.key, step.uid))

    def _create(self, manifest: Mapping[str, Any]) -> None:
        self.on_create(manifest)
        try:
            self._call(lambda: self._world.create(manifest))
        except ConflictError:
            self.calls -= 1  # it is there already, or one of an earlier job: its end will be seen

    def _gone(self, call: Callable[[], None]) -> None:
        try:
            self._call(call)
        except NotFoundError:
            return  # that is what was wanted

    def _call(self, call: Callable[[], None]) -> None:
        if self.calls_left is not None:
            if self.calls_left == 0:
                raise KilledError
            self.calls_left -= 1
        self.calls += 1
        if self.failing:
            self.failing -= 1
            raise UnreachableError
        call()
        if self.unanswered:
            self.unanswered -= 1
            raise UnreachableError


def _solid(status: JobStatus) -> JobStatus:
    """Return `status` without the figures that may be written later."""
    blank = JobStatus()
    return status.model_copy(
        update={
            "time_budget": blank.time_budget,
            "training": blank.training,
            "scheduling": status.scheduling.model_copy(update={"counted_until": None}),
        }
    )
