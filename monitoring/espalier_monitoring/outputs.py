"""All generated files, by their path in the project.

The page about metrics is generated from the catalogue, with a scrape configuration for trainers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from espalier_core.metrics import FAMILIES, LABELS, Exporter, MetricFamily
from espalier_monitoring import agent, fleet, job
from espalier_monitoring.alerts import rules_text
from espalier_monitoring.boards import board_text

DASHBOARDS: Final = "charts/espalier/dashboards"
RULES: Final = "charts/espalier/rules/espalier.yaml"
METRICS_PAGE: Final = "docs/reference/metrics.md"


BOARDS: Final = {"fleet": fleet.BOARD, "job": job.BOARD, "agent": agent.BOARD}
"""The dashboards, by the name of their file."""
_LABEL: Final = "__meta_kubernetes_pod_label_"

RELABELLING: Final[tuple[dict[str, object], ...]] = (
    {"source_labels": [f"{_LABEL}app_kubernetes_io_managed_by"], "regex": "espalier", "action": "keep"},
    {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": "metrics", "action": "keep"},
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": [f"{_LABEL}espalier_dev_job"], "target_label": "job_name"},
)
"""`relabel_configs` of a scrape of pods: leaders only, with the labels that dashboards use."""


def outputs() -> dict[str, str]:
    """Return the text of each file."""
    boards = {f"{DASHBOARDS}/{name}.json": board_text(board) for name, board in BOARDS.items()}
    return {**boards, RULES: rules_text(), METRICS_PAGE: metrics_page()}


def scrape_config_text() -> str:
    """Return the whole scrape configuration of trainers, in YAML."""
    lines = [
        "scrape_configs:",
        "  - job_name: espalier-trainers",
        "    kubernetes_sd_configs: [{role: pod}]",
        "    relabel_configs:",
    ]
    for rule in RELABELLING:
        values = ", ".join(f"{name}: {_value(value)}" for name, value in rule.items())
        lines.append(f"      - {{{values}}}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    return f"[{', '.join(value)}]" if isinstance(value, list) else json.dumps(value)


_SAYS = {
    Exporter.OPERATOR: (
        "The operator exports these on `/metrics` of the address that `--http` sets. Series with the label `job_name`, "
        "and all other series about the current state, are computed for each scrape and disappear with their object. "
        "Only the active operator exports them."
    ),
    Exporter.TRAINER: (
        "The leader of a job's workers exports these on port 9464. They do not name the job: the scrape configuration "
        "must add the labels `namespace` and `job_name`, from the pod. The chart's PodMonitor does so "
        "(`podMonitor.enabled`). Without the Prometheus operator, this scrape configuration does the same:\n\n"
        f"```yaml\n{scrape_config_text()}```"
    ),
    Exporter.AGENT: "Each replica of the agent exports these on `/metrics` of its HTTP address.",
}

_HEAD = """# Metrics

<!-- Written by `make dashboards` from core/src/espalier_core/metrics.py; change it there. -->

Names and units follow Prometheus' conventions: base units, `_total` for counters, `_ratio` for fractions of one. A
histogram `x` has the series `x_bucket`, `x_count` and `x_sum`; a histogram of values that can be negative has no
`x_sum`. No label names a pod or a decision, so the number of series grows at most with the number of existing jobs, and
falls when jobs are deleted.

Scrape with `honor_labels: true` (`honorLabels` of a ServiceMonitor or PodMonitor), because the label `namespace` is the
namespace of the job, not of the exporter. [Alerts](alerts.md) explains what to do when an alert fires.

The dashboards are built from these metrics. Without Grafana, you can draw them from a checkout of the project, with the
data of any Prometheus that has scraped Espalier: one image per dashboard, in Grafana's layout.

```sh
PYTHONPATH=monitoring .venv/bin/python -m espalier_monitoring draw --prometheus http://127.0.0.1:9090 --output DIR
```
"""


def metrics_page() -> str:
    """Return the page."""
    parts = [_HEAD]
    for exporter, of_exporter in groupby(FAMILIES, key=lambda each: each.exporter):
        parts.append(f"## {exporter.value.capitalize()}\n\n{_SAYS[exporter]}\n")
        for group, families in groupby(of_exporter, key=lambda each: each.group):
            if group.lower() != exporter.value:
                parts.append(f"### {group}\n")
            elif exporter is Exporter.OPERATOR:
                parts.append("### The operator itself\n")
            parts.append(_table(("Name", "Type", "Labels", "Meaning"), (_row(each) for each in families)))
    parts.append("## Labels\n")
    parts.append(_table(("Label", "Meaning"), ((f"`{name}`", says) for name, says in LABELS.items())))
    parts.append("## Buckets of histograms\n")
    parts.append(_table(("Name", "Upper bounds"), _buckets(FAMILIES)))
    return "\n".join(parts)


def _row(family: MetricFamily) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"`{family.name}`", family.type.value, labels, family.help


def _buckets(families: Iterable[MetricFamily]) -> Iterator[tuple[str, ...]]:
    for each in families:
        if each.buckets:
            yield f"`{each.name}`", ", ".join(f"{bound:g}" for bound in each.buckets)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines) + "\n"
