"""The dashboard of the agent: how fast it answers, what it advises, and what became of it."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from espalier_monitoring.boards import Board, Panel, Row, build
from espalier_monitoring.promql import quantiles, rises

_CHANGE: Final = "espalier_adaptation_accuracy_change_ratio"

_SERVICE: Final = Row(
    title="Service",
    panels=(
        Panel(
            title="Policy in service",
            about="Name and version. More than one: replicas are being replaced, or differ.",
            unit="short",
            queries=(("count by (policy, version) (espalier_agent_policy_info)", "{{policy}} {{version}}"),),
            single=True,
            names=True,
        ),
        Panel(
            title="Requests by route and code",
            about="HTTP requests a second; codes from 500 up are the agent's own errors, 422 is a question "
            "that it cannot read.",
            unit="reqps",
            queries=(
                (
                    "sum by (route, code) (rate(espalier_agent_requests_total[$__rate_interval]))",
                    "{{route}} {{code}}",
                ),
            ),
        ),
        Panel(
            title="Advice latency",
            about="Of making up its mind about one consultation, without the network.",
            unit="s",
            queries=quantiles("espalier_agent_advice_seconds"),
        ),
        Panel(
            title="Unknown layers",
            about="Layers that the policy has never learnt from, a second: it goes by their attributes.",
            unit="ops",
            queries=(("sum (rate(espalier_agent_unknown_layers_total[$__rate_interval]))", "layers"),),
        ),
    ),
)

_ADVICE: Final = Row(
    title="Advice",
    panels=(
        Panel(
            title="Advice by action",
            about="Consultations answered a second.",
            unit="ops",
            queries=(("sum by (action) (rate(espalier_agent_advice_total[$__rate_interval]))", "{{action}}"),),
            stacked=True,
        ),
        Panel(
            title="Decisions as jobs report them",
            about="By who decided, what, and what became of it, in each interval.",
            unit="short",
            queries=(
                (
                    rises("espalier_adaptations_total", "source, action, result"),
                    "{{source}} {{action}} {{result}}",
                ),
            ),
        ),
        Panel(
            title="Fallbacks by reason",
            about="Consultations that a fallback decided: the agent was not there in time, or its advice "
            "was not legal.",
            unit="short",
            queries=((rises("espalier_advice_problems_total", "reason"), "{{reason}}"),),
        ),
        Panel(
            title="Consultation and growth together",
            about="What an adaptation costs a job, by its result.",
            unit="s",
            queries=quantiles("espalier_adaptation_seconds", "result", rare=True),
        ),
    ),
)

_OUTCOMES: Final = Row(
    title="Outcomes",
    panels=(
        Panel(
            title="Accuracy change of growths",
            about="Validation accuracy after the epoch that followed a growth less that before it: the median, and the "
            "tenth that did worst and best. An epoch is short: what a growth is worth shows later.",
            unit="percentunit",
            queries=tuple(
                (f"histogram_quantile({share}, sum by (le) (rate({_CHANGE}_bucket[$__range])))", legend)
                for share, legend in ((0.1, "p10"), (0.5, "p50"), (0.9, "p90"))
            ),
            least=None,
        ),
        Panel(
            title="Growths that paid at once",
            about="Share of growths in the time shown after whose first epoch the accuracy was higher than before.",
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
            about="Decisions whose final accuracy came back, a second: what a later policy learns from.",
            unit="ops",
            queries=(("sum (rate(espalier_agent_outcomes_total[$__rate_interval]))", "outcomes"),),
        ),
    ),
)

_LEARNING: Final = Row(
    title="Learning goes on",
    panels=(
        Panel(
            title="Kept for learning",
            about="Decisions, outcomes and answers of a shadow that were stored, in each interval.",
            unit="short",
            queries=((rises("espalier_agent_records_total", "record"), "{{record}}"),),
        ),
        Panel(
            title="Not kept",
            about="What could not be stored, by what went wrong; advice goes on. Nothing: all is well.",
            unit="short",
            queries=((rises("espalier_agent_records_lost_total", "error"), "{{error}}"),),
        ),
        Panel(
            title="Does the shadow agree?",
            about="Consultations by whether the shadow would have said the same. Nothing: there is no shadow.",
            unit="short",
            queries=((rises("espalier_agent_shadow_total", "agreed"), "{{agreed}}"),),
        ),
        Panel(
            title="New policies",
            about="Those that took another's place, and those that could not be used, in each interval.",
            unit="short",
            queries=(
                (rises("espalier_agent_policy_switches_total"), "switched"),
                (rises("espalier_agent_policy_refusals_total"), "refused"),
            ),
        ),
    ),
)


def dashboard() -> Dashboard:
    """Return it."""
    return build(
        Board(
            uid="espalier-agent",
            title="Espalier: agent",
            about="How fast the agent answers, what it advises, when jobs do without it, and what came of it.",
            rows=(_SERVICE, _ADVICE, _OUTCOMES, _LEARNING),
        )
    )
