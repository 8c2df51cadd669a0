"""The page about metrics, made of the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from espalier_api.metrics import FAMILIES, LABELS, Exporter, MetricFamily
from espalier_monitoring.scraping import scrape_config_text

_SAYS = {
    Exporter.OPERATOR: (
        "Exported by the operator on `/metrics` of the address that `--http` gives. Series with the label `job_name`, "
        "and all others that tell what is there now, are made for each scrape and go with what they are about; only "
        "the operator that leads has them."
    ),
    Exporter.TRAINER: (
        "Exported by the leader of a job's workers on port 9464. It does not say which job it is: the labels "
        "`namespace` and `job_name` are given by whoever scrapes it, from its pod. The chart's PodMonitor does so "
        "(`podMonitor.enabled`); without the Prometheus operator this does the same:\n\n"
        f"```yaml\n{scrape_config_text()}```"
    ),
    Exporter.AGENT: "Exported by each replica of the agent on `/metrics` of its HTTP address.",
}

_HEAD = """# Metrics

<!-- Written by `make dashboards` from api/src/espalier_api/metrics.py; change it there. -->

Names and units are Prometheus' own conventions: base units, `_total` for counters, `_ratio` for parts of one.
A histogram `x` is found as `x_bucket`, `x_count` and `x_sum`; one of what may be negative has no `x_sum`.
No label names a pod or a decision: series grow with live jobs at most, and fall again when jobs are deleted.

Scrape with `honor_labels: true` (`honorLabels` of a ServiceMonitor or PodMonitor): the label `namespace` is the job's,
not that of whoever exports it. What to do when an alert fires is in [alerts](alerts.md).

The dashboards are made of these. Without Grafana, a checkout of the project draws them from any Prometheus that has
scraped Espalier: one picture each, laid out as Grafana does it.

```console
$ PYTHONPATH=monitoring .venv/bin/python -m espalier_monitoring draw --prometheus http://127.0.0.1:9090 --output DIR
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
            parts.append(_table(("Name", "Type", "Labels", "What"), (_row(each) for each in families)))
    parts.append("## Labels\n")
    parts.append(_table(("Label", "What it says"), ((f"`{name}`", says) for name, says in LABELS.items())))
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
