"""A look of the Kubernetes backend at one job, in one call."""

from __future__ import annotations

from collections.abc import Container, Iterable

from espalier_core.types.measurements import Measurements, merged
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report
from espalier_core.types.status import JobStatus
from espalier_operator.job import progress, view
from espalier_operator.job.conditions import Observed, status_of
from espalier_operator.job.state import JobState, Observation
from espalier_operator.job.view import Trouble, utc
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.workers import JobPods, observation_of, sort_pods, trouble_of
from espalier_operator.kube.watch.nodes import UnreachablePods
from espalier_operator.model import JobFacts

ONE_NODE = ("node",)


def observed(
    job: KubeJob,
    state: JobState,
    pods: Iterable[Pod] = (),
    report: Report | None = None,
    ready: Container[str] = ONE_NODE,
) -> Observation:
    """Return what is seen of the job's workers; those on other nodes than the `ready` ones are given up."""
    pods = list(pods)
    return observation_of(sort_pods(job, state, pods, lost_but_on(ready, pods)), report, _reported_at(report))


def lost_but_on(ready: Container[str], pods: Iterable[Pod]) -> UnreachablePods:
    """Return that the pods on other nodes than the `ready` ones are given up."""
    lost = (pod.uid for pod in pods if pod.node is not None and pod.node not in ready and not pod.ended)
    return UnreachablePods(lost=frozenset(lost))


def _reported_at(report: Report | None) -> float:
    return 0.0 if report is None else report.updated_time.timestamp()


def look(job: KubeJob, state: JobState, seen: Observation, now: float, settings: KubeSettings) -> JobState:
    """Return the state after a look."""
    return progress.look(state, seen, job.terms, now, settings.timing)


def facts_of(
    job: KubeJob,
    state: JobState,
    now: float,
    settings: KubeSettings,
    pods: JobPods | None = None,
    report: Report | None = None,
    rejected: Trouble | None = None,
) -> JobFacts:
    """Return what the planner reads of the job."""
    pods = JobPods() if pods is None else pods
    trouble = rejected or trouble_of(pods, trained=state.trained)
    return view.facts_of(
        job.key, state, observation_of(pods, report, _reported_at(report)), job.terms, now, settings.timing, trouble
    )


def status_at(
    job: KubeJob,
    state: JobState,
    now: float,
    settings: KubeSettings,
    pods: JobPods | None = None,
    report: Report | None = None,
    refusal: Reason | None = None,
    before: JobStatus | None = None,
) -> JobStatus:
    """Return the status that the operator writes."""
    facts = facts_of(job, state, now, settings, pods, report)
    known = Measurements() if before is None else before.measurements
    said = Observed(
        generation=job.generation,
        report=report,
        measured=None if report is None else merged(known, report.measurements),
        refusal=refusal,
        selector=names.selector(job.name),
    )
    return status_of(facts, state, said, before, utc(now))
