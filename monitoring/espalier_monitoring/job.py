"""The dashboard of one job: its budget, its accuracy and loss, the growth of its model, and its GPUs."""

from __future__ import annotations

from typing import Final

from espalier_core.types.report import WORKERS_METRIC
from espalier_monitoring.boards import Annotation, Board, Panel, Query, Row, apart, quantiles

_JOB: Final = 'namespace="$namespace", job_name="$job_name"'
_THIS: Final = f"{{{_JOB}}}"


def _of(metric: str) -> str:
    """Return a query for a figure of the job, from any operator that reports it."""
    return f"max (espalier_job_{metric}{_THIS})"


def _metric(matcher: str) -> Query:
    """Return a query for the reported figures whose names match."""
    return apart("max", "metric", f"espalier_job_metric{{{_JOB}, metric{matcher}}}")


def _chances(chosen: str, legend: str = "") -> Query:
    where = f'{{{_JOB}, chosen="{chosen}"}}'
    return apart("max", "choice", f"espalier_job_decision_probability_ratio{where}", legend)


_BUDGET: Final = Row(
    "Budget",
    Panel(
        title="Phase",
        about="`status.phase` of the job. If the panel is empty, the job is deleted or has no status yet.",
        queries=(apart("max", "phase", f"espalier_job_info{_THIS}"),),
        single=True,
        names=True,
        width=4,
    ),
    Panel(
        title="Budget used",
        about="Share of the time budget. Only time in training counts.",
        unit="percentunit",
        queries=((f"{_of('time_used_seconds_total')} / {_of('time_budget_seconds')}", "used"),),
        single=True,
        width=4,
    ),
    Panel(
        title="Waiting",
        about="How long the job has waited for its base GPUs, this time, and why. Empty while it has them or is "
        "suspended.",
        unit="s",
        queries=(apart("max", "reason", f"espalier_job_waiting_seconds{_THIS}"),),
        single=True,
        width=4,
    ),
    Panel(
        title="Time used of the budget",
        about="A flat line is a pause, a restart or a wait, which uses no budget.",
        unit="s",
        queries=((_of("time_used_seconds_total"), "used"), (_of("time_budget_seconds"), "budget")),
    ),
)

_LEARNING: Final = Row(
    "Learning",
    Panel(
        title="Accuracy",
        about="Reported figures whose names contain `accuracy`. Marks show when the model grew.",
        unit="percentunit",
        queries=(_metric('=~".*accuracy.*"'),),
    ),
    Panel(
        title="Loss",
        about="Reported figures whose names contain `loss`. A short rise after a mark comes from the new layer.",
        queries=(_metric('=~".*loss.*"'),),
        least=None,
    ),
    Panel(
        title="Other figures",
        about="All other figures that the trainer reports.",
        queries=(_metric(f'!~".*(accuracy|loss).*|{WORKERS_METRIC}"'),),
        least=None,
    ),
    Panel(
        title="Steps and epochs per minute",
        about="The rate of optimizer steps falls when the model grows, and rises with more workers.",
        unit="cpm",
        queries=(
            (f"60 * max (rate(espalier_job_steps_total{_THIS}[$__rate_interval]))", "steps"),
            (f"60 * max (rate(espalier_job_epochs_total{_THIS}[$__rate_interval]))", "epochs"),
        ),
    ),
    Panel(
        title="Duration of a step",
        about="Median of the newest steps with the workers that the job trained with last.",
        unit="s",
        queries=((_of("step_seconds"), "step"),),
    ),
    Panel(
        title="Gradient noise scale",
        about="Batch size, in examples, beyond which a larger batch helps little. It rises as the loss falls. Empty"
        " while the noise hides the gradient.",
        queries=((_of("gradient_noise_scale"), "examples"),),
    ),
)

_MODEL: Final = Row(
    "Model and workers",
    Panel(
        title="Expected gain",
        about="Final accuracy that growing once more would gain, as the agent expects it. 0 once the job may not grow"
        " any more. Empty where the agent does not say.",
        queries=((_of("expected_gain"), "accuracy"),),
    ),
    Panel(
        title="Bids for the next GPU",
        about="Expected gain by each use of one more GPU, per GPU-hour, as a share of what the job can still gain. The"
        " policy `value` lends to the highest bids. Empty until the job has been evaluated a few times.",
        unit="percentunit",
        queries=((f"3600 * max by (use) (espalier_job_bid_ratio{_THIS})", "{{use}}"),),
        least=None,
    ),
    Panel(
        title="Depth",
        about="Number of layers of the model that have parameters.",
        queries=((_of("depth"), "depth"), (_of("adaptations_total"), "times grown")),
        decimals=0,
    ),
    Panel(
        title="Parameters",
        about="Number of trainable parameters of the model.",
        queries=((_of("parameters"), "parameters"),),
    ),
    Panel(
        title="Decisions with probabilities",
        about="Probability that the policy gave to each choice in the last consultation, and the choice that was "
        "made. A policy that explores may make a choice that is not the most probable. Empty before the first"
        " consultation, and after a consultation that a fallback decided.",
        unit="percentunit",
        queries=(_chances("yes", "chosen: {{choice}}"), _chances("no")),
    ),
    Panel(
        title="GPUs",
        about="Base: GPUs that the job requested. Extra: GPUs that it was lent.",
        queries=(apart("max", "role", f"espalier_job_gpus{_THIS}"),),
        stacked=True,
        decimals=0,
    ),
    Panel(
        title="Workers that train together",
        about="As the leader reports them. An extra GPU trains from the moment its worker joins until it leaves. "
        "Empty for a job without elasticBatch, whose leader trains alone.",
        queries=((_of("workers"), "workers"),),
        decimals=0,
    ),
    Panel(
        title="GPU-seconds",
        about="GPU-seconds that the job held while it trained, base and extra.",
        unit="s",
        queries=(apart("max", "role", f"espalier_job_gpu_seconds_total{_THIS}"),),
        stacked=True,
    ),
    Panel(
        title="Restarts and preemptions",
        about="Starts of the leader after the first, and workers that were ended from outside.",
        queries=((_of("restarts_total"), "restarts"), (_of("preemptions_total"), "preemptions")),
        decimals=0,
    ),
)

_TRAINER: Final = Row(
    "Trainer",
    Panel(
        title="Step time",
        about="Time between the ends of two optimizer steps, as the trainer measures it. The panels of this row are"
        " scraped from the job's leader: they are empty if Prometheus does not scrape it, and end when it "
        "ends.",
        unit="s",
        queries=quantiles("espalier_trainer_step_seconds", selector=_THIS),
    ),
    Panel(
        title="Budget left by the trainer's clock",
        about="Time budget that is left. The trainer updates it at events: an epoch ends, the model grows.",
        unit="s",
        queries=((f"max (espalier_trainer_budget_left_seconds{_THIS})", "left"),),
    ),
    Panel(
        title="Loss by split",
        about="After each epoch. If the train loss falls while the validation loss rises, the model overfits.",
        queries=(apart("max", "split", f"espalier_trainer_loss{_THIS}"),),
        least=None,
    ),
    Panel(
        title="Accuracy by split",
        about="After each epoch.",
        unit="percentunit",
        queries=(apart("max", "split", f"espalier_trainer_accuracy_ratio{_THIS}"),),
    ),
)

BOARD: Final = Board(
    uid="espalier-job",
    title="Espalier: job",
    about="One job: its budget, its accuracy and loss, when its model grew, and its GPUs.",
    rows=(_BUDGET, _LEARNING, _MODEL, _TRAINER),
    variables=(
        ("namespace", "Namespace", "label_values(espalier_job_info, namespace)"),
        ("job_name", "Job", 'label_values(espalier_job_info{namespace="$namespace"}, job_name)'),
    ),
    marks=(
        Annotation("Growth", "The model grew", f"changes(espalier_job_adaptations_total{_THIS}[$__rate_interval]) > 0"),
    ),
)
