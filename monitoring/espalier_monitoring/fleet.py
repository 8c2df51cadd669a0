"""The dashboard of the whole fleet: who has the GPUs, who waits and why, and how the operator does."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from espalier_monitoring.boards import Board, Panel, Row, build
from espalier_monitoring.promql import quantiles, rises

_GPUS: Final = Row(
    title="GPUs",
    panels=(
        Panel(
            title="GPUs by state",
            about="Each GPU of the cluster once: held by the workers that jobs asked for (base), lent to jobs (extra), "
            "held by pods of others, free, or on a node that takes no pods.",
            unit="short",
            queries=(("sum by (state) (espalier_gpus)", "{{state}}"),),
            decimals=0,
            stacked=True,
        ),
        Panel(
            title="GPUs that jobs in the queue ask for",
            about="By queue, and only base workers: what must become free before nobody waits.",
            unit="short",
            queries=(("sum by (queue) (espalier_gpus_waited_for)", "{{queue}}"),),
            decimals=0,
        ),
        Panel(
            title="GPUs in training",
            about="GPU-seconds a second of jobs in training, base and extra: what the GPUs above are really used for. "
            "Starting, waiting and pausing workers hold GPUs that are not in here.",
            unit="short",
            queries=(("sum by (role) (rate(espalier_gpu_seconds_total[$__rate_interval]))", "{{role}}"),),
            stacked=True,
        ),
        Panel(
            title="GPUs by type",
            about="All GPUs by the node label that tells types apart; a step down is a node that went.",
            unit="short",
            queries=(("sum by (gpu_type) (espalier_gpus)", "{{gpu_type}}"),),
            decimals=0,
            stacked=True,
        ),
    ),
)

_QUEUE: Final = Row(
    title="Jobs",
    panels=(
        Panel(
            title="Jobs by phase",
            about="Jobs that are there; finished ones count until they are deleted.",
            unit="short",
            queries=(("sum by (phase) (espalier_jobs)", "{{phase}}"),),
            decimals=0,
            stacked=True,
        ),
        Panel(
            title="Why jobs wait",
            about="Jobs without GPUs by the reason of their condition Admitted. `espalier explain JOB` says more.",
            unit="short",
            queries=(("sum by (reason) (espalier_jobs_waiting)", "{{reason}}"),),
            decimals=0,
            stacked=True,
        ),
        Panel(
            title="Jobs made and ended",
            about="In each interval, the ended ones by result and reason.",
            unit="short",
            queries=(
                (rises("espalier_jobs_created_total"), "made"),
                (
                    rises("espalier_jobs_finished_total", "result, reason"),
                    "{{result}} {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Time in the queue",
            about="From the making of a job to its first GPUs.",
            unit="s",
            queries=quantiles("espalier_queue_seconds", rare=True),
        ),
        Panel(
            title="Time to start",
            about="From a job's GPUs to its training: pulling images, starting pods, loading data.",
            unit="s",
            queries=quantiles("espalier_start_seconds", rare=True),
        ),
        Panel(
            title="Restarts and preemptions",
            about="Leaders that were started again, and workers that were ended from outside, in each interval.",
            unit="short",
            queries=(
                (rises("espalier_restarts_total"), "restarts"),
                (rises("espalier_preemptions_total"), "preemptions"),
            ),
        ),
    ),
)

_LENDING: Final = Row(
    title="Lending",
    panels=(
        Panel(
            title="GPUs lent",
            about="In each interval, by queue.",
            unit="short",
            queries=((rises("espalier_gpus_lent_total", "queue"), "{{queue}}"),),
        ),
        Panel(
            title="Reclaims by outcome",
            about="Acknowledged: the job gave the GPUs back in time. Forced: it did not, and its workers were ended. "
            "Lost: the GPUs were gone first.",
            unit="short",
            queries=(
                (
                    rises("espalier_reclaims_total", "outcome, reason"),
                    "{{outcome}} {{reason}}",
                ),
            ),
        ),
        Panel(
            title="Signal latency",
            about="Written: from the news of a free GPU to the job's status. Acknowledged: from there to the word of "
            "the job's leader that it knows, which comes at the end of an epoch.",
            unit="s",
            queries=quantiles("espalier_signal_seconds", "stage", rare=True),
        ),
        Panel(
            title="From notice to release",
            about="Of reclaims, by outcome; `spec.preemption.noticeSeconds` of a job bounds it.",
            unit="s",
            queries=quantiles("espalier_reclaim_seconds", "outcome", rare=True),
        ),
    ),
)

_OPERATOR: Final = Row(
    title="Operator",
    panels=(
        Panel(
            title="Leads",
            about="Operators that act. One is right; none means that nothing is scheduled.",
            unit="short",
            queries=(("sum (espalier_operator_leader)", "leading"),),
            single=True,
            width=4,
        ),
        Panel(
            title="Age of the last tick",
            about="The scheduler ticks at least every 30 s; after 90 s it counts as stuck and is started again.",
            unit="s",
            queries=(
                (
                    "time() - max (espalier_scheduler_last_tick_timestamp_seconds)",
                    "age",
                ),
            ),
            single=True,
            decimals=1,
            width=4,
        ),
        Panel(
            title="Version",
            about="Of each operator that answers.",
            unit="short",
            queries=(("count by (version) (espalier_build_info)", "{{version}}"),),
            single=True,
            names=True,
            width=4,
        ),
        Panel(
            title="Tick",
            about="Seconds of a look at everything with its plan: planning alone (plan), and with what was carried out "
            "(all).",
            unit="s",
            queries=quantiles("espalier_scheduler_tick_seconds", "stage"),
        ),
        Panel(
            title="Decisions",
            about="Actions of the planner a second, by kind and reason.",
            unit="ops",
            queries=(
                (
                    "sum by (action, reason) (rate(espalier_scheduler_actions_total[$__rate_interval]))",
                    "{{action}} {{reason}}",
                ),
            ),
        ),
        Panel(
            title="API requests by code",
            about="Requests to the API server a second; code 0 is no answer, 409 and 404 are part of ordinary work.",
            unit="reqps",
            queries=(("sum by (code) (rate(espalier_api_requests_total[$__rate_interval]))", "{{code}}"),),
            stacked=True,
        ),
        Panel(
            title="API requests by verb and resource",
            about="What the operator asks the API server for, a second.",
            unit="reqps",
            queries=(
                (
                    "sum by (verb, resource) (rate(espalier_api_requests_total[$__rate_interval]))",
                    "{{verb}} {{resource}}",
                ),
            ),
        ),
        Panel(
            title="Duration of API requests",
            about="By verb. What grows here is the API server's or the network's.",
            unit="s",
            queries=quantiles("espalier_api_request_seconds", "verb"),
        ),
        Panel(
            title="Errors",
            about="What failed and is tried again: writing a job's status, its objects, or an Event.",
            unit="ops",
            queries=(("sum by (error) (rate(espalier_operator_errors_total[$__rate_interval]))", "{{error}}"),),
        ),
        Panel(
            title="Age of what is known",
            about="Time since a list or watch last brought something. Everything is listed anew every five minutes, "
            "so more than a few of these is a watch that has gone deaf.",
            unit="s",
            queries=(("max by (resource) (espalier_watch_age_seconds)", "{{resource}}"),),
        ),
    ),
)


def dashboard() -> Dashboard:
    """Return it."""
    return build(
        Board(
            uid="espalier-fleet",
            title="Espalier: fleet",
            about="Who has the GPUs, which jobs wait and why, what was lent and given back, and how the operator does.",
            rows=(_GPUS, _QUEUE, _LENDING, _OPERATOR),
        )
    )
