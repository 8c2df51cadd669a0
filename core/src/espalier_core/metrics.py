"""Every metric that Espalier exports, by name: the source for docs, dashboards, alerts, and the exporters of the parts.

Names and units follow Prometheus' conventions (base units, `_total` for counters). No label names a pod or a decision,
so the number of series grows at most linearly with the number of existing jobs. The operator computes series with the
label `job_name` at each scrape, from the state of the scheduler; they disappear with their job.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""Content type of `Metrics.text`."""


class MetricType(StrEnum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Exporter(StrEnum):
    """The part that exports the metric."""

    OPERATOR = "operator"
    TRAINER = "trainer"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric: a family of series that differ in their labels."""

    name: str
    type: MetricType
    help: str
    """The counted or measured quantity."""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without +Inf."""
    exporter: Exporter
    group: str
    """Heading in the documentation."""

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series.

        A histogram of values that can be negative has no sum: the sum could fall, which Prometheus would take for a
        restart.
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
    "reason": "one of the reasons of the API (reasons.md)",
    "result": "for jobs `Complete` or `Failed`; "
    "for adaptations `Grown`, `Declined`, `Unknown`, `DryRun`, `Failed`, `Shrunk`, `Kept`, `Rewritten`, `Reverted`",
    "gpu_type": "value of the node label that distinguishes GPU types",
    "node": "the name of a node",
    "state": "use of a GPU: `base`, `extra`, `others`, `free`, `unavailable`",
    "role": "`base` for the workers that a job requested, `extra` for workers on lent GPUs",
    "outcome": "how a reclaim ended: `acknowledged`, `forced`, or `lost` if the GPUs disappeared first",
    "answer": "`answered`, `late`, `away`, `refused` (the file cannot be used, or not for this cluster), or `failed`",
    "stage": "the part of the process that is timed",
    "use": "of the next GPU: `Worker`, `Growth`, `Trial`, `Nothing`",
    "action": "kind of the action: `Deepen`, `Widen`, `Nothing`, `Distill` (after a reclaim), `Rewrite` and "
    "`ChannelsLast` (another computation of the same steps), `other`; "
    "for the scheduler, an action of the planner, such as `Admit`",
    "source": "who decided: `agent`, `fallback`, or `reclaim` (the rule of `onReclaim`), or `measurement` (of steps)",
    "choice": "a possible decision: `Nothing`, `Deepen` with the growth point, or `Widen` with the group",
    "chosen": "`yes` for the choice that was made, `no` for the others",
    "measure": "measure of the job's task: `accuracy`, `r2`, or `bits_per_character` (lower is better)",
    "metric": "name of the figure in the trainer's report, such as `validation_accuracy`",
    "verb": "verb of the request, as in RBAC",
    "resource": "resource of the API server, plural",
    "code": "HTTP status; `0` if there was no answer",
    "error": "what went wrong",
    "version": "version of the software, or of the policy",
    "policy": "name of the policy",
    "route": "path of the HTTP API",
    "record": "what is stored: `decision`, `outcome` or `shadow`",
    "agreed": "`yes` if the shadow policy gives the same answer, else `no`",
    "part": "part of a share: `share`, or `spare` for what the job may have in addition while nobody needs it",
    "split": "part of the data: `train`, `validation`",
}
"""The meaning of each label."""

_QUICK: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SIGNALS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_WAITS: Final = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
_STEPS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_CHANGES: Final = (-0.2, -0.1, -0.05, -0.02, -0.01, 0.0, 0.01, 0.02, 0.05, 0.1, 0.2)

JOB: Final = ("namespace", "job_name")


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
        (_G, "espalier_jobs", "Existing jobs, by phase.", (*_OWNER, "phase"), ()),
        (_G, "espalier_jobs_waiting", "Jobs without GPUs, by the reason why they wait.", (*_OWNER, "reason"), ()),
        (_C, "espalier_jobs_created_total", "Jobs whose first status was written.", _OWNER, ()),
        (_C, "espalier_jobs_finished_total", "Jobs that ended.", (*_OWNER, "result", "reason"), ()),
        (_C, "espalier_gpu_seconds_total", "GPU-seconds held by jobs in training.", (*_OWNER, "role"), ()),
        (_C, "espalier_restarts_total", "Restarts of leaders, for any reason.", _OWNER, ()),
        (_C, "espalier_preemptions_total", "Workers ended from outside without their job's consent.", _OWNER, ()),
    ),
    *_group(
        Exporter.OPERATOR,
        "One job",
        (_G, "espalier_job_info", "1 for each existing job.", (*JOB, "queue", "gpu_type", "phase"), ()),
        (_G, "espalier_job_time_budget_seconds", "Time budget of the job.", JOB, ()),
        (_C, "espalier_job_time_used_seconds_total", "Part of the time budget that the job has used.", JOB, ()),
        (_G, "espalier_job_gpus", "GPUs that the job was given.", (*JOB, "role"), ()),
        (_C, "espalier_job_gpu_seconds_total", "GPU-seconds that the job held while it trained.", (*JOB, "role"), ()),
        (_G, "espalier_job_waiting_seconds",
         "How long the job has waited for its base GPUs, this time, and why; no series while it is suspended.",
         (*JOB, "reason"), ()),
        (_C, "espalier_job_restarts_total", "Restarts of the job's leader.", JOB, ()),
        (_C, "espalier_job_preemptions_total",
         "Workers of the job that were ended from outside without its consent.", JOB, ()),
        (_C, "espalier_job_epochs_total", "Epochs that the job has finished.", JOB, ()),
        (_C, "espalier_job_steps_total",
         "Optimizer steps that the job has taken; no series of a program that has reported none.", JOB, ()),
        (_G, "espalier_job_done_ratio",
         "Part of its work that a program has done, as it reports; no series if it does not report this.", JOB, ()),
        (_G, "espalier_job_metric", "The latest figure that the job's trainer reported.", (*JOB, "metric"), ()),
        (_G, "espalier_job_workers",
         "Workers that train together, as the job's leader reports; no series if it trains alone.", JOB, ()),
        (_G, "espalier_job_policy_place",
         "The job's place in the order of the scheduling policy, from 1; no series if it has no share.", JOB, ()),
        (_G, "espalier_job_share_workers",
         "Workers that the scheduling policy gives the job, and more that it may have while they are spare.",
         (*JOB, "part", "gpu_type"), ()),
        (_G, "espalier_job_step_seconds",
         "Median duration of a step with the workers that the job trained with last, as its leader measures it.",
         JOB, ()),
        (_G, "espalier_job_gradient_noise_scale",
         "Batch size, in examples, beyond which a larger batch helps little; no series while it is not known.",
         JOB, ()),
        (_G, "espalier_job_expected_gain",
         "Gain in final accuracy that the job's agent expects from growing once more; no series while it is not known.",
         JOB, ()),
        (_G, "espalier_job_bid_ratio",
         "What the job bids for its next GPU: the expected gain per GPU-second, as a share of what it can still gain.",
         (*JOB, "use"), ()),
        (_G, "espalier_job_depth", "Layers of the job's model that have parameters.", JOB, ()),
        (_G, "espalier_job_parameters", "Trainable parameters of the job's model.", JOB, ()),
        (_C, "espalier_job_adaptations_total", "How often the job's model has grown.", JOB, ()),
        (_G, "espalier_job_decision_probability_ratio",
         "Probability of each choice in the last consultation; no series if a fallback decided.",
         (*JOB, "choice", "chosen"), ()),
    ),
    *_group(
        Exporter.OPERATOR,
        "Scheduler",
        (_H, "espalier_scheduler_tick_seconds", "Duration of a tick of the scheduler.", ("stage",), _QUICK),
        (_G, "espalier_scheduler_last_tick_timestamp_seconds", "Unix time at which the last tick ended.", (), ()),
        (_C, "espalier_scheduler_actions_total", "Decisions of the planner.", ("action", "reason"), ()),
        (_H, "espalier_queue_seconds", "Time from the creation of a job to its first GPUs.", ("queue",), _WAITS),
        (_H, "espalier_start_seconds", "Time from a job's first GPUs to the start of training.", ("queue",), _WAITS),
        (_G, "espalier_gpus", "GPUs of all nodes.", ("gpu_type", "state"), ()),
        (_G, "espalier_node_failed_jobs",
         "Jobs whose workers a node refused, ended, or failed at start lately, if it failed several.", ("node",), ()),
        (_G, "espalier_queue_gpus", "Base GPUs that jobs of the queue hold.", ("queue", "gpu_type"), ()),
        (_G, "espalier_queue_nominal_gpus", "Base GPUs of the queue's nominal quota.", ("queue", "gpu_type"), ()),
        (_G, "espalier_gpus_waited_for", "GPUs requested by jobs in the queue.", ("queue",), ()),
        (_C, "espalier_gpus_lent_total", "GPUs that were lent.", _OWNER, ()),
        (_C, "espalier_reclaims_total", "Lent GPUs that the scheduler took back.", (*_OWNER, "reason", "outcome"), ()),
        (_H, "espalier_reclaim_seconds", "Time from the notice of a reclaim to its end.", ("outcome",), _WAITS),
        (_H, "espalier_signal_seconds",
         "Time from the moment an extra worker is seen to run until its job knows of it.", ("stage",), _SIGNALS),
    ),
    *_group(
        Exporter.OPERATOR,
        "Adaptation",
        (_C, "espalier_adaptations_total",
         "Consultations, decisions after reclaims, and measurements of steps.",
         (*_OWNER, "action", "source", "result"), ()),
        (_C, "espalier_trials_total",
         "Consultations whose growth was tried on extra workers first, by result.", (*_OWNER, "result"), ()),
        (_C, "espalier_advice_problems_total",
         "Consultations that a fallback decided in place of the job's agent; those of jobs without one do not count.",
         (*_OWNER, "reason"), ()),
        (_H, "espalier_adaptation_seconds", "Duration of a consultation with its growth.", ("result",), _SIGNALS),
        (_H, "espalier_adaptation_accuracy_change_ratio",
         "Validation accuracy after the epoch that followed a growth, minus the accuracy before it; for other "
         "tasks, the change of the quality between 0 and 1 that agents learn from.", (), _CHANGES),
    ),
    *_group(
        Exporter.OPERATOR,
        "Operator",
        (_C, "espalier_api_requests_total",
         "Requests to the API server; each attempt counts.", ("verb", "resource", "code"), ()),
        (_H, "espalier_api_request_seconds", "Duration of a request to the API server.", ("verb",), _SIGNALS),
        (_G, "espalier_watch_age_seconds", "Time since a list or watch last returned something.", ("resource",), ()),
        (_G, "espalier_operator_misattributed_objects",
         "Pods and reports that name a job of another namespace, or of another name, as their owner; left out.",
         ("resource",), ()),
        (_G, "espalier_operator_unread_reports",
         "Jobs whose newest report is not read: TooLarge, Malformed, or TooFrequent (it is read a little later).",
         ("reason",), ()),
        (_C, "espalier_operator_errors_total", "Operations that failed and are retried.", ("error",), ()),
        (_G, "espalier_operator_leader", "1 if this replica is active, 0 if it waits.", (), ()),
        (_G, "espalier_scheduling_policy_info",
         "Always 1; the label is the scheduling policy with its settings.", ("policy",), ()),
        (_G, "espalier_scheduling_policy_ignored_wishes",
         "Parts of the policy's last decision that cannot be applied, such as unknown nodes; the log names them.",
         (), ()),
        (_G, "espalier_scheduling_policy_fallback",
         "1 while fair decides in place of a policy that raised, or of learned without an answer, else 0; see the log.",
         (), ()),
        (_C, "espalier_scheduling_policy_questions_total",
         "Times that the file of the policy learned was asked for a decision.", ("answer",), ()),
        (_H, "espalier_scheduling_policy_answer_seconds",
         "How long plans waited for an answer of the file of the policy learned.", (), _QUICK),
        (_G, "espalier_build_info", "Always 1; the label is the version of the operator.", ("version",), ()),
    ),
    *_group(
        Exporter.TRAINER,
        "Trainer",
        (_H, "espalier_trainer_step_seconds", "Time between the ends of two optimizer steps.", (), _STEPS),
        (_G, "espalier_trainer_loss", "The latest loss.", ("split",), ()),
        (_G, "espalier_trainer_accuracy_ratio", "The latest accuracy, of a classification.", ("split",), ()),
        (_G, "espalier_trainer_score", "The latest value of the measure of the job's task.", ("split", "measure"), ()),
        (_G, "espalier_trainer_budget_left_seconds", "Time budget that is left.", (), ()),
        (_G, "espalier_trainer_depth", "Layers with parameters.", (), ()),
        (_G, "espalier_trainer_parameters", "Trainable parameters.", (), ()),
        (_H, "espalier_trainer_adaptation_seconds",
         "Duration of a consultation with its growth.", ("result",), _SIGNALS),
        (_G, "espalier_trainer_step_gain_ratio",
         "Time of a step as the model's code computes it, divided by that of the other computation tried last.",
         ("action",), ()),
        (_C, "espalier_trainer_advice_problems_total", "Consultations that a fallback decided.", ("reason",), ()),
    ),
    *_group(
        Exporter.AGENT,
        "Agent",
        (_H, "espalier_agent_advice_seconds", "Time that the policy needs for one consultation.", (), _QUICK),
        (_C, "espalier_agent_advice_total", "Consultations answered.", ("action",), ()),
        (_C, "espalier_agent_unknown_layers_total", "Layers that the policy has never learned from.", (), ()),
        (_C, "espalier_agent_outcomes_total", "Decisions whose outcome was reported.", (), ()),
        (_C, "espalier_agent_records_total", "Records that the agent has stored for later learning.", ("record",), ()),
        (_C, "espalier_agent_records_lost_total",
         "Records that could not be stored; advice continues.", ("error",), ()),
        (_C, "espalier_agent_shadow_total", "Consultations that a shadow policy also answered.", ("agreed",), ()),
        (_C, "espalier_agent_policy_switches_total", "How often a policy replaced another.", (), ()),
        (_C, "espalier_agent_policy_refusals_total", "How often a new policy could not be used.", (), ()),
        (_C, "espalier_agent_requests_total", "HTTP requests answered.", ("route", "code"), ()),
        (_G, "espalier_agent_policy_info",
         "Always 1; the labels name the policy in service.", ("policy", "version"), ()),
    ),
)  # fmt: skip
"""All metrics, in the order of the documentation."""

_BY_NAME: Final = {family.name: family for family in FAMILIES}


def family(name: str) -> MetricFamily:
    """Return the metric of this name; raise `KeyError` if there is none."""
    return _BY_NAME[name]


class Metrics:
    """The metrics of one part, by the catalogue's names. Safe from several threads; a wrong name is a `KeyError`.

    Labels are given by value, in the catalogue's order.
    """

    def __init__(self, exporter: Exporter, without: Container[str] = ()) -> None:
        """Start from zero with all metrics of `exporter` except those named in `without`."""
        self.registry = CollectorRegistry()
        self.exposed = CollectorRegistry()
        """The registry that is scraped; `text` returns it."""
        self.exposed.register(_WithoutCreated(self.registry))
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for family in FAMILIES:
            if family.exporter is not exporter or family.name in without:
                continue
            name, about, labels = family.name, family.help, family.labels
            match family.type:
                case MetricType.COUNTER:
                    self._counters[name] = Counter(name, about, labels, registry=self.registry)
                case MetricType.GAUGE:
                    self._gauges[name] = Gauge(name, about, labels, registry=self.registry)
                case MetricType.HISTOGRAM:
                    made = Histogram(name, about, labels, buckets=family.buckets, registry=self.registry)
                    self._histograms[name] = made

    def count(self, name: str, *labels: str, amount: float = 1.0) -> None:
        """Increase a counter by `amount`."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        gauge = self._gauges[name]
        (gauge.labels(*labels) if labels else gauge).set(value)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add `value` to a histogram."""
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(value)

    def begin(self, name: str, *labels: str) -> None:
        """Show a series of a counter or histogram at zero, before anything was counted."""
        (self._counters.get(name) or self._histograms[name]).labels(*labels)

    def forget(self, name: str, *labels: str) -> None:
        """Remove a series; if it is used again, it starts at zero."""
        (self._counters.get(name) or self._histograms.get(name) or self._gauges[name]).remove(*labels)

    def is_counter(self, name: str) -> bool:
        """Return whether a metric of this part is a counter."""
        return name in self._counters

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.exposed)


class _WithoutCreated(Collector):
    """All of a registry except the creation times, a gauge that the library adds to each counter and histogram.

    Nobody reads these, and they would be a third of all series. The library's own switch is for the whole process,
    which may be a person's training script.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the other metrics."""
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
