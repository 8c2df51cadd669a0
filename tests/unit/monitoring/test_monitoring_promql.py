"""Names in queries, and where Prometheus finds pods."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from promql_names import names

CASES = {
    "up": ({"up": set()}, set()),
    'sum by (phase) (jobs{namespace="a", phase!~"b|c"})': ({"jobs": {"namespace", "phase"}}, {"phase"}),
    "histogram_quantile(0.99, sum by (le, verb) (rate(x_bucket[$__rate_interval]))) > 1e3": (
        {"x_bucket": set()},
        {"le", "verb"},
    ),
    "a unless max_over_time(a[30m] offset 30m) or increase(a[30m])": ({"a": set()}, set()),
    "time() - a > 90 and on (pod) b{x=\"{y}\", z='q'} == 1": ({"a": set(), "b": {"x", "z"}}, {"pod"}),
    'x{a="1"} / ignoring (b) group_left (c) x{d="$e"}': ({"x": {"a", "d"}}, {"b", "c"}),
    "absent(leader == 1)": ({"leader": set()}, set()),
}


@pytest.mark.parametrize("expression", CASES)
def test_names_are_found(expression: str) -> None:
    selected, grouped = CASES[expression]
    found = names(expression)
    assert {metric: set(labels) for metric, labels in found.selected.items()} == selected
    assert found.grouped == grouped


def test_a_selector_needs_a_name() -> None:
    with pytest.raises(ValueError, match="name the metric before it"):
        names('sum({job="x"})')


ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "hack" / "kind" / "monitoring"


@pytest.fixture(scope="module")
def discovery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pod_discovery", FOLDER / "prometheus.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_prometheus_takes_the_settings(discovery: ModuleType, promtool: Path, tmp_path: Path) -> None:
    settings = (FOLDER / "prometheus.yml").read_text()
    changed = discovery.with_http_discovery(settings, "127.0.0.1:9")
    assert "kubernetes_sd_configs" not in changed
    assert changed.count("http://127.0.0.1:9/") == settings.count("kubernetes_sd_configs")
    assert "http://127.0.0.1:9/espalier-system" in changed
    rules = ROOT / "charts" / "espalier" / "rules" / "espalier.yaml"
    (tmp_path / "prometheus.yml").write_text(changed.replace("/etc/prometheus/espalier.yaml", str(rules)))
    checked = subprocess.run(
        [promtool, "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, timeout=60
    )
    assert checked.returncode == 0, checked.stderr


def test_a_port_of_a_pod_is_a_target_with_the_labels_of_the_pod(discovery: ModuleType) -> None:
    pod = {
        "metadata": {"name": "digits-base-0", "namespace": "team", "labels": {"espalier.dev/job": "digits"}},
        "spec": {"containers": [{"ports": [{"name": "metrics", "containerPort": 9464}]}, {}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7"},
    }
    (target,) = discovery.targets(pod)
    assert target["targets"] == ["10.0.0.7:9464"]
    assert target["labels"] == {
        "__meta_kubernetes_namespace": "team",
        "__meta_kubernetes_pod_name": "digits-base-0",
        "__meta_kubernetes_pod_phase": "Running",
        "__meta_kubernetes_pod_label_espalier_dev_job": "digits",
        "__meta_kubernetes_pod_container_port_name": "metrics",
    }
    assert list(discovery.targets({**pod, "status": {"phase": "Pending"}})) == []
