"""The command `espalier explain`: the state of a job, its cause, what would change it, and its results so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import click

from espalier_cli.cluster.case import Case, case_of
from espalier_cli.cluster.causes import particulars
from espalier_cli.cluster.client import fetch_for_job
from espalier_cli.cluster.decisions import described_share, says
from espalier_cli.cluster.options import (
    OF_OPERATOR,
    cluster_options,
    handle_of,
    job_argument,
    namespace_option,
    output_option,
    settings_options,
)
from espalier_cli.cluster.output import count, duration, of_type, print_data, print_heading
from espalier_cli.cluster.remedies import remedy_for
from espalier_cli.options import policy_option
from espalier_core.client.cluster import ClusterHandle
from espalier_core.estimates.bids import next_bids
from espalier_core.k8s.access import Cluster
from espalier_core.k8s.errors import ForbiddenError, NotFoundError
from espalier_core.k8s.jobs import Event, event_of, is_about, newest, phase, score_of, standing
from espalier_core.k8s.resources import EVENTS
from espalier_core.types.event_lines import progress_of
from espalier_core.types.explanation import Explanation, Section
from espalier_core.types.measurements import BidUse
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.report import BATCH_METRIC, RATE_FACTOR_METRIC, Adaptation, AdaptationSource
from espalier_operator.kube.inspection import AS_RECORDED, KubeSettings
from espalier_operator.model import JobFacts
from espalier_operator.policies.settings import configured
from espalier_operator.policies.value import worth_of

EVENTS_SHOWN = 10
ADAPTATIONS_SHOWN = 10


@click.command(epilog=OF_OPERATOR)
@job_argument
@namespace_option
@output_option("text", "json", "yaml")
@cluster_options
@settings_options
@policy_option("Scheduling policy for the explanation.  [default: the operator's]", None)
def explain(job: str, namespace: str | None, form: str, cluster: Cluster, settings: KubeSettings) -> None:
    """Explain the state of JOB, its reasons, and what would change it.

    The output also contains the remaining budgets, the GPUs and whether the job has acknowledged them, the advice of
    the agent with its results, and the latest Events.
    """
    found = explained(handle_of(job, namespace, cluster), settings)
    if form != "text":
        print_data(found.to_json(), form)
        return
    for number, section in enumerate(found.sections):
        if number:
            click.echo()
        print_heading(section.title)
        for line in section.lines:
            click.echo(f"  {line}")


def explained(handle: ClusterHandle, settings: KubeSettings | None = None) -> Explanation:
    """Explain a job of a cluster; `settings` are the operator's (default: as it has recorded them)."""
    cluster, settings = handle.cluster, settings or KubeSettings(policy=AS_RECORDED)
    try:
        view = fetch_for_job(cluster, settings, handle.namespace, handle.name)
        case = case_of(handle.namespace, handle.name, view, cluster.now(), settings)
    except NotFoundError:
        case = None
    if case is None:
        raise handle.not_found()
    case = replace(case, events=tuple(events_of(handle, case)))
    reason = standing(case.job).reason
    return Explanation(case.job.key, phase(case.job), None if reason is None else str(reason), tuple(explanation(case)))


def events_of(handle: ClusterHandle, case: Case) -> list[Event]:
    """Return the Events of the job, and warnings about its leader's pod; nothing if the user may not read Events."""
    uid, of_leader = "" if case.leader is None else case.leader.uid, f"involvedObject.name={case.leader_name}"
    try:
        own, pod = handle.cluster.at_once(
            lambda: list(handle.events()),
            lambda: [
                event_of(raw)
                for raw in handle.cluster.list_all(EVENTS, handle.namespace, fields=f"{of_leader},type=Warning").items
                if uid and is_about(raw, uid)
            ],
        )
    except ForbiddenError:
        return []
    return own + pod


def explanation(case: Case) -> list[Section]:
    """Return the sections of the explanation, the most important first; empty ones are left out."""
    sections = (
        Section("Where it stands", tuple(_standing(case))),
        Section("What would change it", tuple(_remedy(case))),
        Section("Time budget", tuple(_budget(case))),
        Section("GPUs", tuple(_allocation(case))),
        Section("Scheduling policy", tuple(_policy(case))),
        Section("Training", tuple(_training(case))),
        Section("Adaptations", tuple(_adaptations(case))),
        Section("Events", tuple(_events(case))),
    )
    return [section for section in sections if section.lines]


def _standing(case: Case) -> list[str]:
    job, why = case.job, standing(case.job)
    since = "" if why.since is None else f", for {duration(case.now - why.since)}"
    reason = "" if why.reason is None else f" {why.reason}:"
    lines = [f"{job.key} is {phase(job)}{since}.{reason} {why.message.rstrip('.')}."]
    return lines + particulars(case, why.reason)


def _remedy(case: Case) -> list[str]:
    job, reason = case.job, standing(case.job).reason
    lines = []
    if reason is not None:
        queue = str(job.spec.get("queue") or "default")
        program = job.spec.get("program") is not None
        remedy = remedy_for(
            reason, name=job.name, namespace=job.namespace, leader=case.leader_name, queue=queue, program=program
        )
        lines = [remedy.text, *(f"$ {command}" for command in remedy.commands)]
    if case.decided is not None and job.outcome is None:
        lines.append(f"As things are now, the scheduler's next decision is that it {says(case.decided, case.now)}.")
    if case.blind:
        lines.append(f"The cluster's GPUs could not be read: {case.blind}.")
    return lines


def _budget(case: Case) -> list[str]:
    job = case.job
    used = job.status.time_budget.used_seconds
    if case.facts is not None:
        used = max(used, case.facts.used_at(case.now))
    left = max(0.0, job.budget_seconds - used)
    if job.outcome is not None:
        lines = [f"It used {duration(used)} of {duration(job.budget_seconds)}."]
    else:
        lines = [f"{duration(left)} left of {duration(job.budget_seconds)}."]
        if case.facts is not None and not case.facts.training:
            lines[0] += " It is counted only while its leader trains."
    whole = job.spec.get("gpuSecondsBudget")
    if whole is not None:
        lines.append(f"{job.status.time_budget.gpu_seconds_used:.0f} of {whole:g} GPU-seconds used.")
    return lines


def _allocation(case: Case) -> list[str]:
    status = case.job.status
    allocation, kept = status.allocation, status.scheduling
    if not allocation.generation:
        return []
    direction = "" if allocation.direction == "none" else f", {allocation.direction}"
    text = (
        f"Allocation {allocation.generation}: {count(allocation.replicas, 'worker')}, {count(allocation.gpus, 'GPU')}"
        f"{of_type(kept.gpu_type)}{direction}{f', {allocation.reason}' if allocation.reason else ''}"
    )
    lines = [text + _acknowledgement(case)]
    if kept.extra:
        lines.append(f"{kept.extra} of the workers {'is' if kept.extra == 1 else 'are'} lent.")
    if kept.reclaim is not None:
        by = duration(kept.reclaim.deadline.timestamp() - case.now)
        lines.append(f"It is to be down to {count(kept.reclaim.extra, 'extra worker')} in {by}.")
    return lines


def _policy(case: Case) -> list[str]:
    if case.facts is None or case.snapshot is None or case.plan is None:
        return []
    text = case.snapshot.rules.policy
    return described_share(case.facts.key, case.plan, configured(text), text) + _bids(case.facts, case.snapshot.jobs)


def _bids(job: JobFacts, jobs: Iterable[JobFacts]) -> list[str]:
    """Describe what the job bids for its next GPU, and the highest bid of all jobs."""
    if not job.bids or job.finished:
        return []
    lines = []
    for bid in next_bids(job.bids, job.terms.min_replicas + job.extra):
        if bid.use is BidUse.NOTHING:
            continue
        hourly = 3600 / max(1.0, bid.seconds) / max(1, job.terms.gpus_per_worker)
        lines.append(
            f"For {_USES[bid.use]} it bids {hourly * bid.gain:.2%} of what it can still gain per GPU-hour "
            f"({hourly * bid.low:.2%} to {hourly * bid.high:.2%}), for {duration(bid.seconds)}."
        )
    lines = lines or ["The next GPU is worth nothing to it, so it bids for none."]
    best, highest = max(((_worth(other), other.key) for other in jobs if not other.finished), default=(0.0, job.key))
    if highest != job.key and best > _worth(job):
        lines.append(f"The highest bid, by weight and priority, is that of {highest}: {3600 * best:.2%} per GPU-hour.")
    elif best > 0:
        lines.append("No job bids more.")
    return lines


_USES: Final = {
    BidUse.WORKER: "another worker",
    BidUse.GROWTH: "a growth",
    BidUse.TRIAL: "a trial of growths",
}


def _worth(job: JobFacts) -> float:
    """Return the best bid of a job for its next GPU, by GPU-second and weight."""
    best = max((bid.rate for bid in next_bids(job.bids, job.terms.min_replicas + job.extra)), default=0.0)
    return worth_of(best, job.terms.priority, job.terms.gpus_per_worker)


def _acknowledgement(case: Case) -> str:
    if case.job.outcome is not None or case.job.status.scheduling.admitted_at is None:
        return "."
    if case.job.spec.get("program") is not None:
        return "."
    if case.report is None:
        return "; its leader has sent no report."
    generation = case.job.status.allocation.generation
    if case.report.acknowledged_generation >= generation:
        return "; acknowledged by its leader."
    return f"; its leader has acknowledged {case.report.acknowledged_generation} and not this one yet."


def _batch_size(case: Case) -> list[str]:
    """Describe the choice of the trainer of a job with `batch: Goodput`, and the noise behind it."""
    figures = {metric.name: metric.value for metric in case.job.status.training.metrics}
    if BATCH_METRIC not in figures:
        return []
    factor, noise = figures.get(RATE_FACTOR_METRIC, 1.0), case.job.status.measurements.gradient
    scale = "not known yet" if noise is None or noise.noise_scale is None else f"{noise.noise_scale:,.0f} examples"
    return [
        f"Batch size {figures[BATCH_METRIC]:,.0f}, chosen by goodput; learning rate times {factor:.2f}; "
        f"noise scale of the gradients {scale}."
    ]


def _training(case: Case) -> list[str]:
    status = case.job.status
    training = status.training
    lines = []
    if training.depth:
        score = score_of(case.job)
        reached = "" if score is None else f", {score}"
        when = ""
        if training.last_updated_time is not None and case.job.outcome is None:
            when = f"; reported {duration(case.now - training.last_updated_time.timestamp())} ago"
        lines.append(
            f"Epoch {training.epoch}, step {training.step:,}{reached}, depth {training.depth}, "
            f"{training.parameters:,} parameters{when}."
        )
        lines += _batch_size(case)
    elif case.job.spec.get("program") is not None:
        lines += _read_of_program(case)
    if status.restarts:
        taken = f", {status.preemptions} of them preempted" if status.preemptions else ""
        last = f"; the last time: {status.scheduling.last_failure}" if status.scheduling.last_failure else ""
        lines.append(f"Its leader was started again {count(status.restarts, 'time')}{taken}{last}.")
    if status.last_checkpoint_time is not None and case.job.outcome is None:
        age = duration(case.now - status.last_checkpoint_time.timestamp())
        lines.append(f"The last checkpoint is {age} old.")
    return lines


def _read_of_program(case: Case) -> list[str]:
    """Describe the values that were read from a program, and when."""
    training = case.job.status.training
    if training.last_updated_time is None:
        reads = (case.job.spec.get("program") or {}).get("progress")
        return ["It is a program; nothing was read of its progress yet."] if reads else []
    done = None if training.done_percentage is None else training.done_percentage / 100
    epoch = f"epoch {training.epoch}, " if training.epoch else ""
    when = duration(case.now - training.last_updated_time.timestamp())
    text = f"{epoch}{progress_of(training.step, done, training.metrics)}".removesuffix(", ")
    return [f"{text[:1].upper()}{text[1:]}{'' if case.job.outcome is not None else f'; read {when} ago'}."]


def _adaptations(case: Case) -> list[str]:
    found = case.job.status.adaptations
    lines = [adaptation_line(adaptation) for adaptation in found[-ADAPTATIONS_SHOWN:]]
    if len(found) > ADAPTATIONS_SHOWN:
        lines.insert(0, f"{count(len(found) - ADAPTATIONS_SHOWN, 'earlier one')} left out.")
    return lines


def adaptation_line(adaptation: Adaptation) -> str:
    """Describe the advice or attempt, the policy's certainty, and the result."""
    likely = sorted(adaptation.probabilities.items(), key=lambda item: -item[1])[:3]
    sure = f" ({', '.join(f'{action} {chance:.2f}' for action, chance in likely)})" if likely else ""
    verb = "tried" if adaptation.source is AdaptationSource.MEASUREMENT else "advised"
    when = f"At {duration(adaptation.used_seconds)}"
    text = f"{when}: {adaptation.decider} {verb} {adaptation.action}{sure}: {adaptation.outcome}"
    if adaptation.depth_after != adaptation.depth_before:
        text += (
            f", depth {adaptation.depth_before} -> {adaptation.depth_after}, parameters "
            f"{adaptation.parameters_before:,} -> {adaptation.parameters_after:,}"
        )
    if adaptation.before is not None and adaptation.after is not None:
        text += f", {adaptation.before} -> {adaptation.after.shown}"
    if adaptation.timed:
        text += f", {adaptation.timed}"
    text += f", in {duration(adaptation.seconds)}"
    if adaptation.reason is Reason.TRIAL_NOT_BETTER:
        text += f"; {SENTENCES[adaptation.reason]}"
    elif adaptation.reason is not None:
        text += f"; {adaptation.reason}, decided by the {adaptation.source}"
    return f"{text}{f' ({adaptation.message})' if adaptation.message else ''}."


def _events(case: Case) -> list[str]:
    lines = []
    for event in newest(case.events, EVENTS_SHOWN):
        about = "" if event.about == case.job.name else f" on {event.about}"
        often = f" ({event.times} times)" if event.times > 1 else ""
        mark = "warning: " if event.warning else ""
        lines.append(f"{duration(case.now - event.at)} ago{about}: {mark}{event.reason}: {event.message}{often}")
    return lines
