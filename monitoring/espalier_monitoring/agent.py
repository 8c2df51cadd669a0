"""The dashboard of the agent: its latency, its advice, and the outcomes of the advice."""

from __future__ import annotations

from typing import Final

from espalier_monitoring.boards import Board, Panel, Row, apart, quantiles, rate, rises

_CHANGE: Final = "espalier_adaptation_accuracy_change_ratio"

_SERVICE: Final = Row(
    "Service",
    Panel(
        title="Policy in service",
        about="Name and version. If there is more than one, replicas are being replaced, or differ.",
        queries=(apart("count", "policy, version", "espalier_agent_policy_info"),),
        single=True,
        names=True,
    ),
    Panel(
        title="Requests by route and code",
        about="HTTP requests per second. Codes from 500 are errors of the agent; 422 is a request that it cannot read.",
        unit="reqps",
        queries=(rate("espalier_agent_requests_total", "route, code"),),
    ),
    Panel(
        title="Advice latency",
        about="Time that the policy needs for one consultation, without the network.",
        unit="s",
        queries=quantiles("espalier_agent_advice_seconds"),
    ),
    Panel(
        title="Unknown layers",
        about="Layers per second that the policy has never learned from. It embeds them by their attributes.",
        unit="ops",
        queries=(rate("espalier_agent_unknown_layers_total", legend="layers"),),
    ),
)

_ADVICE: Final = Row(
    "Advice",
    Panel(
        title="Advice by action",
        about="Consultations answered per second.",
        unit="ops",
        queries=(rate("espalier_agent_advice_total", "action"),),
        stacked=True,
    ),
    Panel(
        title="Decisions as jobs report them",
        about="In each interval: by source of the decision, action and result.",
        queries=(rises("espalier_adaptations_total", "source, action, result"),),
    ),
    Panel(
        title="Trials on extra workers",
        about="In each interval: growths that extra workers tried first, by what came of it.",
        queries=(rises("espalier_trials_total", "result"),),
    ),
    Panel(
        title="Fallbacks by reason",
        about="Consultations that a fallback decided in place of the job's agent: it did not answer in time, its "
        "advice was not legal, or its policy knows none of the allowed actions.",
        queries=(rises("espalier_advice_problems_total", "reason"),),
    ),
    Panel(
        title="Consultation and growth together",
        about="Time that an adaptation costs a job, by its result.",
        unit="s",
        queries=quantiles("espalier_adaptation_seconds", "result", rare=True),
    ),
)

_OUTCOMES: Final = Row(
    "Outcomes",
    Panel(
        title="Accuracy change of growths",
        about="Validation accuracy after the epoch that followed a growth, minus the accuracy before the growth: "
        "the median, and the 10th and 90th percentile. An epoch is short; the value of a growth shows later.",
        unit="percentunit",
        queries=tuple(
            (f"histogram_quantile({share}, sum by (le) (rate({_CHANGE}_bucket[$__range])))", legend)
            for share, legend in ((0.1, "p10"), (0.5, "p50"), (0.9, "p90"))
        ),
        least=None,
    ),
    Panel(
        title="Growths that paid off at once",
        about="Share of growths in the time range whose first epoch ended with a higher accuracy than before.",
        unit="percentunit",
        queries=(
            (
                f'1 - sum (increase({_CHANGE}_bucket{{le="0.0"}}[$__range])) '
                f"/ sum (increase({_CHANGE}_count[$__range]))",
                "share",
            ),
        ),
        single=True,
    ),
    Panel(
        title="Outcomes reported to the agent",
        about="Decisions per second whose final accuracy was reported. Later policies learn from them.",
        unit="ops",
        queries=(rate("espalier_agent_outcomes_total", legend="outcomes"),),
    ),
)

_LEARNING: Final = Row(
    "Learning from outcomes",
    Panel(
        title="Kept for learning",
        about="In each interval: decisions, outcomes and answers of a shadow policy that were stored.",
        queries=(rises("espalier_agent_records_total", "record"),),
    ),
    Panel(
        title="Not kept",
        about="Records that could not be stored, by error; advice continues. Empty: no record was lost.",
        queries=(rises("espalier_agent_records_lost_total", "error"),),
    ),
    Panel(
        title="Does the shadow agree?",
        about="Consultations by whether the shadow policy gives the same answer. Empty: there is no shadow policy.",
        queries=(rises("espalier_agent_shadow_total", "agreed"),),
    ),
    Panel(
        title="New policies",
        about="In each interval: policies that replaced another, and policies that could not be used.",
        queries=(
            rises("espalier_agent_policy_switches_total", legend="switched"),
            rises("espalier_agent_policy_refusals_total", legend="refused"),
        ),
    ),
)

BOARD: Final = Board(
    uid="espalier-agent",
    title="Espalier: agent",
    about="Latency of the agent, its advice, when jobs get none, and the outcomes.",
    rows=(_SERVICE, _ADVICE, _OUTCOMES, _LEARNING),
)
