"""How trainers are scraped without the Prometheus operator: where the labels that name their job come from."""

from __future__ import annotations

import json
from typing import Final

_LABEL: Final = "__meta_kubernetes_pod_label_"

RELABELLING: Final[tuple[dict[str, object], ...]] = (
    {"source_labels": [f"{_LABEL}app_kubernetes_io_managed_by"], "regex": "espalier", "action": "keep"},
    {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": "metrics", "action": "keep"},
    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
    {"source_labels": [f"{_LABEL}espalier_dev_job"], "target_label": "job_name"},
)
"""`relabel_configs` of a scrape of pods: leaders alone, with the labels that dashboards look for."""


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
