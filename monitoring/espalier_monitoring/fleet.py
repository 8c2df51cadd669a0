"""The dashboard of the whole fleet: holders of GPUs, jobs that wait, and the state of the operator."""

from __future__ import annotations

from typing import Final

from espalier_monitoring.boards import Board, Panel, Row, apart, named, quantiles, rate, rises

_GPUS: Final = Row(
    "GPUs",
    Panel(
        title="GPUs by state",
        about="Counts each GPU of the cluster once: held by base workers of jobs (base), lent to jobs (extra), held"
        " by other pods, free, or on a node that accepts no pods.",
        queries=(apart("sum", "state", "espalier_gpus"),),
        decimals=0,
        stacked=True,
    ),
    Panel(
        title="GPUs requested by jobs in the queue",
        about="By queue, base workers only: the GPUs that must become free until no job waits.",
        queries=(apart("sum", "queue", "espalier_gpus_waited_for"),),
        decimals=0,
    ),
    Panel(
        title="GPUs of queues",
        about="Base GPUs that the jobs of each queue hold, and its nominal quota (of all types together). A queue above"
        " its quota has borrowed GPUs of its cohort.",
        queries=(
            apart("sum", "queue", "espalier_queue_gpus"),
            apart("sum", "queue", "espalier_queue_nominal_gpus", "{{queue}}, nominal"),
        ),
        decimals=0,
    ),
    Panel(
        title="GPUs in training",
        about="GPU-seconds per second of jobs in training, base and extra: how many of the GPUs above are really in"
        " use. Workers that start, wait or pause hold GPUs that are not counted here. A mean of two minutes: leaders"
        " report every few seconds, so that in less more would seem to be used than there are.",
        queries=(apart("sum", "role", "rate(espalier_gpu_seconds_total[2m])"),),
        stacked=True,
    ),
    Panel(
        title="GPUs by type",
        about="All GPUs by the node label that distinguishes types, `no type` without it. A step down is a node that"
        " has left.",
        queries=(apart("sum", "gpu_type", named("espalier_gpus", "gpu_type", "no type")),),
        decimals=0,
        stacked=True,
    ),
)

_QUEUE: Final = Row(
    "Jobs",
    Panel(
        title="Jobs by phase",
        about="All existing jobs. Finished jobs count until they are deleted.",
        queries=(apart("sum", "phase", "espalier_jobs"),),
        decimals=0,
        stacked=True,
    ),
    Panel(
        title="Why jobs wait",
        about="Jobs without GPUs, by the reason of their condition Admitted. For details: `espalier explain JOB`.",
        queries=(apart("sum", "reason", "espalier_jobs_waiting"),),
        decimals=0,
        stacked=True,
    ),
    Panel(
        title="Jobs created and ended",
        about="In each interval; ended jobs by result and reason.",
        queries=(
            rises("espalier_jobs_created_total", legend="created"),
            rises("espalier_jobs_finished_total", "result, reason"),
        ),
    ),
    Panel(
        title="Time in the queue",
        about="From the creation of a job to its first GPUs.",
        unit="s",
        queries=quantiles("espalier_queue_seconds", rare=True),
    ),
    Panel(
        title="Time to start",
        about="From a job's first GPUs to the start of training: pulling images, starting pods, loading data.",
        unit="s",
        queries=quantiles("espalier_start_seconds", rare=True),
    ),
    Panel(
        title="Restarts and preemptions",
        about="In each interval: leaders that were restarted, and workers that were ended from outside.",
        queries=(
            rises("espalier_restarts_total", legend="restarts"),
            rises("espalier_preemptions_total", legend="preemptions"),
        ),
    ),
)

_LENDING: Final = Row(
    "Lending",
    Panel(
        title="GPUs lent",
        about="In each interval, by queue.",
        queries=(rises("espalier_gpus_lent_total", "queue"),),
    ),
    Panel(
        title="Reclaims by outcome",
        about="Acknowledged: the job gave the GPUs back in time. Forced: it did not, and its workers were ended. "
        "Lost: the GPUs disappeared first.",
        queries=(rises("espalier_reclaims_total", "outcome, reason"),),
    ),
    Panel(
        title="Signal latency",
        about="Written: from the moment a GPU is seen free to the write of the job's status. Acknowledged: from "
        "there to the acknowledgement by the job's leader, which it sends at its next step.",
        unit="s",
        queries=quantiles("espalier_signal_seconds", "stage", rare=True),
    ),
    Panel(
        title="From notice to release",
        about="Duration of reclaims by outcome; `spec.preemption.noticeSeconds` of the job limits it.",
        unit="s",
        queries=quantiles("espalier_reclaim_seconds", "outcome", rare=True),
    ),
)

_OPERATOR: Final = Row(
    "Operator",
    Panel(
        title="Active operators",
        about="Operators that hold the Lease. One is normal. Zero means that nothing is scheduled.",
        queries=(("sum (espalier_operator_leader)", "leading"),),
        single=True,
        width=4,
    ),
    Panel(
        title="Age of the last tick",
        about="The scheduler ticks at least every 30 s. After 90 s it counts as stuck and is restarted.",
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
        about="Version of each operator that is scraped.",
        queries=(apart("count", "version", "espalier_build_info"),),
        single=True,
        names=True,
        width=4,
    ),
    Panel(
        title="Tick",
        about="Duration of a tick: planning alone (plan), and planning with the execution of the plan (all).",
        unit="s",
        queries=quantiles("espalier_scheduler_tick_seconds", "stage"),
    ),
    Panel(
        title="Decisions",
        about="Actions of the planner per second, by kind and reason.",
        unit="ops",
        queries=(rate("espalier_scheduler_actions_total", "action, reason"),),
    ),
    Panel(
        title="API requests by code",
        about="Requests to the API server per second. Code 0 means no answer; 409 and 404 are part of normal "
        "operation.",
        unit="reqps",
        queries=(rate("espalier_api_requests_total", "code"),),
        stacked=True,
    ),
    Panel(
        title="API requests by verb and resource",
        about="Requests to the API server per second, by verb and resource.",
        unit="reqps",
        queries=(rate("espalier_api_requests_total", "verb, resource"),),
    ),
    Panel(
        title="Duration of API requests",
        about="By verb. If it rises, the cause is the API server or the network.",
        unit="s",
        queries=quantiles("espalier_api_request_seconds", "verb"),
    ),
    Panel(
        title="Errors",
        about="Operations that failed and are retried: writing a job's status, its objects, or an Event.",
        unit="ops",
        queries=(rate("espalier_operator_errors_total", "error"),),
    ),
    Panel(
        title="Age of the operator's data",
        about="Time since a list or watch last returned something. Everything is listed every five minutes, so an "
        "age of several times that means that a watch no longer receives events.",
        unit="s",
        queries=(apart("max", "resource", "espalier_watch_age_seconds"),),
    ),
)

BOARD: Final = Board(
    uid="espalier-fleet",
    title="Espalier: fleet",
    about="Who holds the GPUs, which jobs wait and why, what was lent and given back, and the state of the operator.",
    rows=(_GPUS, _QUEUE, _LENDING, _OPERATOR),
)
