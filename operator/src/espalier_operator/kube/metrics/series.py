"""The series of the current state in `/metrics`. Pure: a snapshot and statuses in, series out.

They are computed for each scrape, so the series of a job disappear with it. A job chooses the names of its figures and
actions: their number, length and characters are limited here, whoever wrote them into its status.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from espalier_core.estimates.bids import next_bids
from espalier_core.types.reasons import Reason
from espalier_core.types.report import MAX_METRICS, MAX_NAME, MAX_PROBABILITIES, WORKERS_METRIC
from espalier_core.types.status import ConditionStatus, ConditionType, JobPhase, JobStatus
from espalier_operator.kube.metrics.measurements import Owner, gpu_seconds
from espalier_operator.kube.state.managed_job import ManagedJob
from espalier_operator.model import JobFacts, Snapshot, WorkerRole
from espalier_operator.model.queues import QueueUsage
from espalier_operator.policies.view import Share

SCRAPED: Final = (
    "espalier_jobs",
    "espalier_jobs_waiting",
    "espalier_job_info",
    "espalier_job_time_budget_seconds",
    "espalier_job_time_used_seconds_total",
    "espalier_job_gpus",
    "espalier_job_gpu_seconds_total",
    "espalier_job_waiting_seconds",
    "espalier_job_restarts_total",
    "espalier_job_preemptions_total",
    "espalier_job_epochs_total",
    "espalier_job_steps_total",
    "espalier_job_done_ratio",
    "espalier_job_metric",
    "espalier_job_workers",
    "espalier_job_policy_place",
    "espalier_job_share_workers",
    "espalier_job_step_seconds",
    "espalier_job_gradient_noise_scale",
    "espalier_job_expected_gain",
    "espalier_job_bid_ratio",
    "espalier_job_depth",
    "espalier_job_parameters",
    "espalier_job_adaptations_total",
    "espalier_job_decision_probability_ratio",
    "espalier_gpus",
    "espalier_node_failed_jobs",
    "espalier_queue_gpus",
    "espalier_queue_nominal_gpus",
    "espalier_gpus_waited_for",
    "espalier_watch_age_seconds",
    "espalier_operator_misattributed_objects",
    "espalier_operator_unread_reports",
)
"""Metrics that are made for each scrape; all others of the operator are counted at events."""

LONGEST_LABEL: Final = 253
"""Maximum characters of a label's value, as of a name in Kubernetes; the rest is cut off."""
_STRANGE: Final = re.compile("[^ -~]")
"""Characters that are not printable ASCII; a label's value has `_` for each."""

Series = dict[str, dict[tuple[str, ...], float]]
"""Values by metric and label values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJob:
    """One existing job."""

    owner: Owner
    name: str
    status: JobStatus
    facts: JobFacts | None
    """None if its specification cannot be run."""


def series_of(jobs: Iterable[LiveJob], snapshot: Snapshot | None, now: float, shares: Sequence[Share] = ()) -> Series:
    """Return all series at `now` (epoch seconds); without a snapshot nothing was planned yet, and there are none.

    `shares` are the policy's last decision.
    """
    made: defaultdict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    if snapshot is None:
        return made
    phases: Counter[tuple[str, ...]] = Counter()
    waiting: Counter[tuple[str, ...]] = Counter()
    waited_for: Counter[tuple[str, ...]] = Counter()
    for job in jobs:
        phases[job.owner.namespace, job.owner.queue, job.status.phase] += 1
        waiting_for = _waits_for(job)
        if waiting_for is not None:
            waiting[job.owner.namespace, job.owner.queue, waiting_for] += 1
            since = _waits_since(job.status)
            if since is not None:
                waited = max(0.0, now - since)
                made["espalier_job_waiting_seconds"][job.owner.namespace, job.name, waiting_for] = waited
            if job.facts is not None and not job.facts.terms.suspend:
                waited_for[job.owner.queue,] += job.facts.base_gpus
        for metric, values in _of_job(job).items():
            made[metric].update(values)
    made["espalier_jobs"] = dict(phases)
    made["espalier_jobs_waiting"] = dict(waiting)
    made["espalier_gpus_waited_for"] = dict(waited_for)
    made["espalier_gpus"] = gpus_of(snapshot)
    made["espalier_node_failed_jobs"] = {(each.node,): float(each.jobs) for each in snapshot.avoided}
    for place, share in enumerate(shares, 1):
        of_job = (*share.job.partition("/")[::2],)
        made["espalier_job_policy_place"][of_job] = place
        for part, workers in (("share", share.workers), ("spare", share.spare)):
            made["espalier_job_share_workers"][*of_job, part, share.gpu_type or ""] = workers
    for queue, gpu_type, nominal, held in QueueUsage(snapshot.queues, snapshot.held_claims()).usage():
        made["espalier_queue_gpus"][queue, gpu_type or ""] = held
        made["espalier_queue_nominal_gpus"][queue, gpu_type or ""] = nominal
    return {
        metric: {label_values(labels): value for labels, value in values.items()} for metric, values in made.items()
    }


def label_values(values: Iterable[str]) -> tuple[str, ...]:
    """Return label values cut to a form that every reader of metrics can show."""
    return tuple(
        value
        if len(value) <= LONGEST_LABEL and value.isascii() and value.isprintable()
        else _STRANGE.sub("_", value[:LONGEST_LABEL])
        for value in values
    )


def gpus_of(snapshot: Snapshot) -> dict[tuple[str, ...], float]:
    """Return the GPUs of all nodes by type and state; each is in one state.

    GPUs held on a node beyond its number count as held; on a node that takes no pods, GPUs that are not held are
    unavailable.
    """
    held: dict[str, Counter[str]] = defaultdict(Counter)
    states = {WorkerRole.BASE: "base", WorkerRole.EXTRA: "extra", WorkerRole.FOREIGN: "others"}
    for worker in snapshot.workers:
        if worker.node is not None:
            held[worker.node][states[worker.role]] += worker.gpus
    made: Counter[tuple[str, ...]] = Counter()
    for node in snapshot.nodes:
        if not node.allocatable and node.name not in held:
            continue
        for state, gpus in held[node.name].items():
            made[node.gpu_type, state] += gpus
        rest = max(0, node.allocatable - held[node.name].total())
        usable = snapshot.rules.takes_workers(node)
        made[node.gpu_type, "free"] += rest if usable else 0
        made[node.gpu_type, "unavailable"] += 0 if usable else rest
    return {labels: float(value) for labels, value in made.items()}


def _waits_for(job: LiveJob) -> Reason | None:
    """Return the reason for which the job has no GPUs; None where it has some, or is over."""
    if job.status.completion_time is not None or job.status.scheduling.admitted_at is not None:
        return None
    admitted = job.status.condition(ConditionType.ADMITTED)
    return None if admitted is None or admitted.status is ConditionStatus.TRUE else admitted.reason


def _waits_since(status: JobStatus) -> float | None:
    """Return when a job without GPUs last began to wait for them, in epoch seconds; None while it is suspended.

    It began to wait when it was created, lost its GPUs, or was resumed.
    """
    suspended = status.condition(ConditionType.SUSPENDED)
    if suspended is not None and suspended.status is ConditionStatus.TRUE:
        return None
    changed = (status.condition(ConditionType.ADMITTED), suspended)
    return max((one.last_transition_time.timestamp() for one in changed if one is not None), default=None)


def _first(named: Iterable[tuple[str, float]], most: int) -> dict[str, float]:
    return dict(itertools.islice(((name, value) for name, value in named if len(name) <= MAX_NAME), most))


def _of_job(job: LiveJob) -> Mapping[str, dict[tuple[str, ...], float]]:
    status, facts = job.status, job.facts
    place = (job.owner.namespace, job.name)
    budget = status.time_budget
    info = (*place, job.owner.queue, status.scheduling.gpu_type or "", status.phase)
    made: dict[str, dict[tuple[str, ...], float]] = {
        "espalier_job_info": {info: 1.0},
        "espalier_job_time_used_seconds_total": {place: budget.used_seconds},
        "espalier_job_restarts_total": {place: float(status.restarts)},
        "espalier_job_preemptions_total": {place: float(status.preemptions)},
        "espalier_job_adaptations_total": {place: float(status.adaptation_count)},
        "espalier_job_epochs_total": {place: float(status.training.epoch)},
    }
    if status.training.step or facts is None or not facts.terms.program:
        # A program need not report its steps: a 0 would look as if it hung before its first.
        made["espalier_job_steps_total"] = {place: float(status.training.step)}
    if status.training.done_percentage is not None:
        made["espalier_job_done_ratio"] = {place: status.training.done_percentage / 100}
    if status.training.depth:
        made["espalier_job_depth"] = {place: float(status.training.depth)}
        made["espalier_job_parameters"] = {place: float(status.training.parameters)}
    if status.measurements.speeds:
        made["espalier_job_step_seconds"] = {place: status.measurements.speeds[-1].step_seconds}
    gradient = status.measurements.gradient
    if gradient is not None and gradient.noise_scale is not None:
        made["espalier_job_gradient_noise_scale"] = {place: gradient.noise_scale}
    if status.measurements.growth is not None:
        made["espalier_job_expected_gain"] = {place: status.measurements.growth.gain}
    if facts is not None and status.measurements.bids:
        workers, gpus = facts.terms.min_replicas + facts.extra, max(1, facts.terms.gpus_per_worker)
        bids = next_bids(status.measurements.bids, workers)
        made["espalier_job_bid_ratio"] = {(*place, str(bid.use)): bid.rate / gpus for bid in bids}
    figures = _first(((figure.name, figure.value) for figure in status.training.metrics), MAX_METRICS)
    if WORKERS_METRIC in figures:
        made["espalier_job_workers"] = {place: 0.0 if status.completion_time else figures[WORKERS_METRIC]}
    made["espalier_job_metric"] = {(*place, name): value for name, value in figures.items()}
    if status.adaptations:
        last = status.adaptations[-1]
        made["espalier_job_decision_probability_ratio"] = {
            (*place, choice, "yes" if choice == last.action else "no"): probability
            for choice, probability in _first(last.probabilities.items(), MAX_PROBABILITIES).items()
        }
    if facts is not None:
        base = facts.base_gpus_held
        held = facts.gpus_held if status.phase not in (JobPhase.COMPLETE, JobPhase.FAILED) else 0
        made["espalier_job_time_budget_seconds"] = {place: facts.terms.time_budget_seconds}
        made["espalier_job_gpus"] = {
            (*place, "base"): float(min(base, held)),
            (*place, "extra"): float(max(0, held - base)),
        }
        seconds = gpu_seconds(status, job.owner.base_gpus)
        made["espalier_job_gpu_seconds_total"] = {(*place, role): value for role, value in seconds.items()}
    return made


def live(job: ManagedJob) -> LiveJob:
    """Return a job with its last written status."""
    status = job.written or JobStatus()
    return LiveJob(owner=owner(job), name=job.key.partition("/")[2], status=status, facts=job.facts)


def owner(job: ManagedJob) -> Owner:
    """Return the owner labels of a job."""
    namespace, terms = job.key.partition("/")[0], None if job.job is None else job.job.terms
    return Owner(
        namespace=namespace,
        queue="" if terms is None else terms.queue,
        base_gpus=0 if terms is None else terms.min_replicas * terms.gpus_per_worker,
        gpus_per_worker=0 if terms is None else terms.gpus_per_worker,
        created_at=job.object.created_at,
        has_agent=job.has_agent,
    )
