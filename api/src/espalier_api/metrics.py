"""Every metric that Espalier exports, by name: for those who export them, and for docs, dashboards and alerts.

Names and units are Prometheus' own conventions (base units, `_total` for counters). No label names a pod or a
decision, so series grow linearly with live jobs at most; the operator's with the label `job_name` are made when they
are scraped, from what the scheduler sees, and go with their job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricType(StrEnum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Exporter(StrEnum):
    """Whose `/metrics` has it."""

    OPERATOR = "operator"
    TRAINER = "trainer"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric: a family of series that differ in their labels."""

    name: str
    type: MetricType
    help: str
    """What it counts or measures, for a person."""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without +Inf."""
    exporter: Exporter
    group: str
    """Heading that it stands under."""

    @property
    def series(self) -> tuple[str, ...]:
        """The names under which samples are found.

        A histogram of what may be negative has no sum: it could fall, and Prometheus would take that for a restart.
        """
        if self.type is not MetricType.HISTOGRAM:
            return (self.name,)
        suffixes = ("_bucket", "_count") if self.buckets[0] < 0 else ("_bucket", "_count", "_sum")
        return tuple(f"{self.name}{suffix}" for suffix in suffixes)


LABELS: Final = {
    "namespace": "the job's namespace",
    "job_name": "the job's name (`job` is Prometheus' own label)",
    "queue": "`spec.queue` of the job",
    "phase": "`status.phase` of the job",
    "reason": "a reason of the API; see the reference of reasons",
    "result": "`Complete` or `Failed` of jobs; "
    "of adaptations `Grown`, `Declined`, `DryRun`, `Failed`, `Shrunk`, `Kept`",
    "gpu_type": "value of the node label that tells GPU types apart",
    "state": "what becomes of a GPU: `base`, `extra`, `others`, `free`, `unavailable`",
    "role": "`base` for the workers that a job asked for, `extra` for those on lent GPUs",
    "outcome": "how a reclaim ended: `acknowledged`, `forced`, or `lost` where the GPUs were gone first",
    "stage": "the part of what is timed",
    "action": "kind of the action: `Deepen`, `Widen`, `Nothing`, `Distill` (after a reclaim), `other`; "
    "of the scheduler the planner's, such as `Admit`",
    "source": "who decided: `agent`, `fallback`, or `reclaim` (the rule of `onReclaim`)",
    "choice": "what could be decided: `Nothing`, `Deepen` with the growth point, or `Widen` with the group",
    "chosen": "`yes` for the one choice that was decided on, `no` for the others",
    "metric": "name that the trainer gives the figure, such as `validation_accuracy`",
    "verb": "verb of the request, as in RBAC",
    "resource": "resource of the API server, plural",
    "code": "HTTP status; `0` where no answer came",
    "error": "what went wrong",
    "version": "version of the software, or of the policy",
    "policy": "name of the policy",
    "route": "path of the HTTP API",
    "record": "what is stored: `decision`, `outcome` or `shadow`",
    "agreed": "`yes` where the shadow would have said the same, else `no`",
    "split": "part of the data: `train`, `validation`",
}
"""What each label says."""

_QUICK: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SIGNALS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WAITS: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
_STEPS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_CHANGES: Final = (-0.2, -0.1, -0.05, -0.02, -0.01, 0.0, 0.01, 0.02, 0.05, 0.1, 0.2)

JOB: Final = ("namespace", "job_name")

GIVEN_BY_SCRAPE: Final = {Exporter.OPERATOR: (), Exporter.TRAINER: JOB, Exporter.AGENT: ()}
"""Labels that an exporter does not know and whoever scrapes it adds: a trainer's job, from its pod."""


def _group(
    exporter: Exporter, group: str, *rows: tuple[MetricType, str, str, tuple[str, ...], tuple[float, ...]]
) -> Iterator[MetricFamily]:
    for kind, name, text, labels, buckets in rows:
        yield MetricFamily(
            name=name, type=kind, help=text, labels=labels, buckets=buckets, exporter=exporter, group=group
        )


_C, _G, _H = MetricType.COUNTER, MetricType.GAUGE, MetricType.HISTOGRAM
_OWNER: Final = ("namespace", "queue")

FAMILIES: Final = (
    *_group(
        Exporter.OPERATOR,
        "Jobs",
        (_G, "espalier_jobs", "Jobs that are there, by phase.", (*_OWNER, "phase"), ()),
        (_G, "espalier_jobs_waiting", "Jobs without GPUs, by what they wait for.", (*_OWNER, "reason"), ()),
        (_C, "espalier_jobs_created_total", "Jobs whose first status was written.", _OWNER, ()),
        (_C, "espalier_jobs_finished_total", "Jobs that ended.", (*_OWNER, "result", "reason"), ()),
        (_C, "espalier_gpu_seconds_total", "GPU-seconds held by jobs in training.", (*_OWNER, "role"), ()),
        (_C, "espalier_restarts_total", "Leaders started again, for whatever reason.", _OWNER, ()),
        (_C, "espalier_preemptions_total", "Workers ended from outside without their job's consent.", _OWNER, ()),
    ),
    *_group(
        Exporter.OPERATOR,
        "One job",
        (_G, "espalier_job_info", "1 for each job that is there.", (*JOB, "queue", "gpu_type", "phase"), ()),
        (_G, "espalier_job_time_budget_seconds", "Its time budget.", JOB, ()),
        (_C, "espalier_job_time_used_seconds_total", "What it has used of its time budget.", JOB, ()),
        (_G, "espalier_job_gpus", "GPUs that it was given.", (*JOB, "role"), ()),
        (_C, "espalier_job_gpu_seconds_total", "GPU-seconds that it held while it trained.", (*JOB, "role"), ()),
        (_G, "espalier_job_waiting_seconds", "How long it has waited for GPUs, and why.", (*JOB, "reason"), ()),
        (_C, "espalier_job_restarts_total", "Starts of its leader after the first.", JOB, ()),
        (_C, "espalier_job_preemptions_total", "Its workers ended from outside without its consent.", JOB, ()),
        (_C, "espalier_job_epochs_total", "Epochs that it finished.", JOB, ()),
        (_C, "espalier_job_steps_total", "Optimizer steps that it took.", JOB, ()),
        (_G, "espalier_job_metric", "The latest figure that its trainer reported.", (*JOB, "metric"), ()),
        (
            _G,
            "espalier_job_workers",
            "Workers that train together, as its leader reports; none where they do not.",
            JOB,
            (),
        ),
        (_G, "espalier_job_depth", "Layers with parameters of its model.", JOB, ()),
        (_G, "espalier_job_parameters", "Trainable parameters of its model.", JOB, ()),
        (_C, "espalier_job_adaptations_total", "Times that its model has grown.", JOB, ()),
        (
            _G,
            "espalier_job_decision_probability_ratio",
            "Probability that the policy gave each choice in the last consultation; none where a fallback decided.",
            (*JOB, "choice", "chosen"),
            (),
        ),
    ),
    *_group(
        Exporter.OPERATOR,
        "Scheduler",
        (_H, "espalier_scheduler_tick_seconds", "One look at everything with its plan.", ("stage",), _QUICK),
        (_G, "espalier_scheduler_last_tick_timestamp_seconds", "When the last tick ended, Unix time.", (), ()),
        (_C, "espalier_scheduler_actions_total", "Decisions of the planner.", ("action", "reason"), ()),
        (_H, "espalier_queue_seconds", "From the making of a job to its first GPUs.", ("queue",), _WAITS),
        (_H, "espalier_start_seconds", "From a job's GPUs to its training.", ("queue",), _WAITS),
        (_G, "espalier_gpus", "GPUs of all nodes.", ("gpu_type", "state"), ()),
        (_G, "espalier_gpus_waited_for", "GPUs that jobs in the queue ask for.", ("queue",), ()),
        (_C, "espalier_gpus_lent_total", "GPUs that were lent.", _OWNER, ()),
        (
            _C,
            "espalier_reclaims_total",
            "Lendings that were ended by the scheduler.",
            (*_OWNER, "reason", "outcome"),
            (),
        ),
        (_H, "espalier_reclaim_seconds", "From a reclaim's notice to its end.", ("outcome",), _WAITS),
        (_H, "espalier_signal_seconds", "From a GPU seen free until a job knows that it has it.", ("stage",), _SIGNALS),
    ),
    *_group(
        Exporter.OPERATOR,
        "Adaptation",
        (
            _C,
            "espalier_adaptations_total",
            "Consultations, and decisions after reclaims.",
            (*_OWNER, "action", "source", "result"),
            (),
        ),
        (_C, "espalier_advice_problems_total", "Consultations that a fallback decided.", (*_OWNER, "reason"), ()),
        (_H, "espalier_adaptation_seconds", "Consultation and growth together.", ("result",), _SIGNALS),
        (
            _H,
            "espalier_adaptation_accuracy_change_ratio",
            "Validation accuracy after the epoch that followed a growth, less that before it.",
            (),
            _CHANGES,
        ),
    ),
    *_group(
        Exporter.OPERATOR,
        "Operator",
        (
            _C,
            "espalier_api_requests_total",
            "Requests to the API server, tries counted.",
            ("verb", "resource", "code"),
            (),
        ),
        (_H, "espalier_api_request_seconds", "Duration of a request to the API server.", ("verb",), _SIGNALS),
        (_G, "espalier_watch_age_seconds", "Time since a list or watch last brought something.", ("resource",), ()),
        (_C, "espalier_operator_errors_total", "What failed and is tried again.", ("error",), ()),
        (_G, "espalier_operator_leader", "1 where this replica acts, 0 where it waits.", (), ()),
        (_G, "espalier_build_info", "1, with the version of the operator.", ("version",), ()),
    ),
    *_group(
        Exporter.TRAINER,
        "Trainer",
        (_H, "espalier_trainer_step_seconds", "Between the ends of two optimizer steps.", (), _STEPS),
        (_G, "espalier_trainer_loss", "The latest loss.", ("split",), ()),
        (_G, "espalier_trainer_accuracy_ratio", "The latest accuracy.", ("split",), ()),
        (_G, "espalier_trainer_budget_left_seconds", "What is left of the time budget.", (), ()),
        (_G, "espalier_trainer_depth", "Layers with parameters.", (), ()),
        (_G, "espalier_trainer_parameters", "Trainable parameters.", (), ()),
        (_H, "espalier_trainer_adaptation_seconds", "Consultation and growth together.", ("result",), _SIGNALS),
        (_C, "espalier_trainer_advice_problems_total", "Consultations that a fallback decided.", ("reason",), ()),
    ),
    *_group(
        Exporter.AGENT,
        "Agent",
        (_H, "espalier_agent_advice_seconds", "Making up its mind about one consultation.", (), _QUICK),
        (_C, "espalier_agent_advice_total", "Consultations answered.", ("action",), ()),
        (_C, "espalier_agent_unknown_layers_total", "Layers that the policy has never learnt from.", (), ()),
        (_C, "espalier_agent_outcomes_total", "Decisions whose outcome was reported.", (), ()),
        (_C, "espalier_agent_records_total", "What the agent has stored for later learning.", ("record",), ()),
        (_C, "espalier_agent_records_lost_total", "What could not be stored; advice goes on.", ("error",), ()),
        (_C, "espalier_agent_shadow_total", "Consultations that a shadow answered as well.", ("agreed",), ()),
        (_C, "espalier_agent_policy_switches_total", "Policies that took another's place.", (), ()),
        (_C, "espalier_agent_policy_refusals_total", "New policies that could not be used.", (), ()),
        (_C, "espalier_agent_requests_total", "HTTP requests answered.", ("route", "code"), ()),
        (_G, "espalier_agent_policy_info", "1, with the policy in service.", ("policy", "version"), ()),
    ),
)
"""All of them, in the order in which they are documented."""

_BY_NAME: Final = {family.name: family for family in FAMILIES}


def family(name: str) -> MetricFamily:
    """Return the metric of this name; `KeyError` where there is none."""
    return _BY_NAME[name]
