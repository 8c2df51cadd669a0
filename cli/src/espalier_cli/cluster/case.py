"""One job and its surroundings, the data of an explanation. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from espalier_cli.cluster.client import View
from espalier_core.k8s.jobs import Event, Job, job_of
from espalier_core.k8s.resources import CONFIG_MAPS, JOBS, PODS
from espalier_core.types.job import DEFAULT_CONTROLLER
from espalier_core.types.report import Report
from espalier_operator.kube.inspection import (
    JobRef,
    KubeSettings,
    Pod,
    names,
    parse_pod,
    parse_report,
    seen_by_operator,
)
from espalier_operator.model import JobFacts, Snapshot, WorkerRole
from espalier_operator.model.actions import Action, Plan
from espalier_operator.planner import plan_safely
from espalier_operator.policies.settings import configured


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The data for explaining one job."""

    job: Job
    now: float
    problems: tuple[str, ...] = ()
    """Reasons why its specification cannot be run."""
    report: Report | None = None
    leader: Pod | None = None
    """The newest pod of its leader, which may have ended."""
    snapshot: Snapshot | None = None
    """The scheduler's view; None if the person may not read the cluster."""
    facts: JobFacts | None = None
    """The scheduler's view of this job; None also if the job is over."""
    plan: Plan | None = None
    """The scheduler's next plan, for all jobs."""
    blind: str = ""
    """The part that could not be read, and why."""
    events: tuple[Event, ...] = field(default=())

    @property
    def decided(self) -> Action | None:
        """The scheduler's next action on the job."""
        actions = () if self.plan is None else self.plan.actions
        return next((action for action in actions if action.job == self.job.key), None)

    @property
    def leader_name(self) -> str:
        """The name of its leader's pod: the existing one, else the next one."""
        if self.leader is not None:
            return self.leader.name
        attempts = self.job.status.scheduling.attempts
        return names.pod_name(self.job.name, WorkerRole.BASE, 0, attempts[0] if attempts else 0)


def case_of(namespace: str, name: str, view: View, now: float, settings: KubeSettings) -> Case | None:
    """Return the case of a job, as its operator sees it, without its Events; None if the lists have no such job."""
    found = [raw for raw in view.lists[JOBS].items if _is(raw["metadata"], namespace, name)]
    if not found:
        return None
    job = job_of(found[0])
    report_name = names.report_name(name)
    reports = [raw for raw in view.lists[CONFIG_MAPS].items if _is(raw["metadata"], namespace, report_name)]
    pods = [parse_pod(raw, settings) for raw in view.lists[PODS].items if _is_worker(raw["metadata"], namespace, name)]
    ref = JobRef(namespace, name, job.uid)
    leaders = [pod for pod in pods if (pod.owner, pod.role, pod.index) == (ref, WorkerRole.BASE, 0)]
    leader = max(leaders, key=lambda pod: pod.attempt, default=None)
    report = parse_report(reports[0])[0] if reports else None
    if view.blind:
        return Case(job=job, now=now, report=report, leader=leader, blind=view.blind)
    controller = found[0]["spec"].get("controllerName", DEFAULT_CONTROLLER)
    seen = seen_by_operator(view.lists, now, replace(settings, controller_name=controller))
    made = plan_safely(seen.snapshot, configured(seen.snapshot.rules.policy), now)
    return Case(
        job=job,
        now=now,
        problems=seen.left_out.get(job.key, ()),
        report=report,
        leader=leader,
        snapshot=made.snapshot,
        facts=next((facts for facts in seen.snapshot.jobs if facts.key == job.key and not facts.finished), None),
        plan=made.plan,
    )


def _is(metadata: dict[str, str], namespace: str, name: str) -> bool:
    return metadata["name"] == name and metadata.get("namespace", "default") == namespace


def _is_worker(metadata: dict[str, dict[str, str] | str], namespace: str, job: str) -> bool:
    labels = metadata.get("labels") or {}
    return metadata.get("namespace") == namespace and isinstance(labels, dict) and labels.get(names.JOB_LABEL) == job
