"""Monitors and rules beside the definitions that the Prometheus operator ships."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from charts import CASES, Helm, Raw, of, one
from monitoring_crds import MonitoringSchemas, monitoring_crds

ON = {f"{name}.enabled": "true" for name in ("serviceMonitor", "podMonitor", "prometheusRule")}


@pytest.fixture(scope="module")
def schemas() -> MonitoringSchemas:
    """Give the schemas."""
    return MonitoringSchemas(monitoring_crds())


@pytest.mark.parametrize("files", CASES.values(), ids=CASES)
def test_the_prometheus_operators_schemas_take_all_of_it(
    helm: Helm, schemas: MonitoringSchemas, files: tuple[str, ...]
) -> None:
    rendered = helm.render(*files, sets=ON)
    found = [each for each in rendered if each["apiVersion"].startswith("monitoring.coreos.com/")]
    assert {each["kind"] for each in found} == schemas.kinds == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    refused = {f"{each['kind']}/{each['metadata']['name']}": schemas.refusal(each) for each in found}
    assert {name: said for name, said in refused.items() if said is not None} == {}


WRONG: dict[str, tuple[str, Callable[[Raw], Any], str]] = {
    "a field that is misspelt": ("ServiceMonitor", lambda spec: spec.update(endpoint=[]), "'endpoint' was unexpected"),
    "one deep within": (
        "ServiceMonitor",
        lambda spec: spec["endpoints"][0].update(honourLabels=True),
        "'honourLabels' was unexpected",
    ),
    "a span of time that is none": (
        "ServiceMonitor",
        lambda spec: spec["endpoints"][0].update(interval="15 s"),
        "'15 s' does not match",
    ),
    "a selector is missing": ("PodMonitor", lambda spec: spec.pop("selector"), "'selector' is a required property"),
    "older Prometheus' name of a field": (
        "PodMonitor",
        lambda spec: spec["podMetricsEndpoints"][0]["relabelings"][0].update(source_labels=["a"]),
        "'source_labels' was unexpected",
    ),
    "an alert without a condition": (
        "PrometheusRule",
        lambda spec: spec["groups"][0]["rules"][0].pop("expr"),
        "'expr' is a required property",
    ),
    "a number for a label": (
        "PrometheusRule",
        lambda spec: spec["groups"][0]["rules"][0]["labels"].update(severity=1),
        "1 is not of type 'string'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused(helm: Helm, schemas: MonitoringSchemas, case: str) -> None:
    kind, spoil, said = WRONG[case]
    names = {"ServiceMonitor": "espalier-operator", "PodMonitor": "espalier-trainers", "PrometheusRule": None}
    found = copy.deepcopy(one(helm.render("monitored"), kind, names[kind]))
    assert schemas.refusal(found) is None
    spoil(found["spec"])
    assert said in (schemas.refusal(found) or "")


@pytest.mark.parametrize(
    ("interval", "good"),
    [("15s", True), ("1m30s", True), ("1d", True), ("30s1m", False), ("15", False), ("15 s", False), ("", False)],
)
def test_an_interval_is_taken_by_the_values_where_it_is_by_the_definitions(
    helm: Helm, schemas: MonitoringSchemas, interval: str, good: bool
) -> None:
    """An empty one too, which says nothing, is refused."""
    for monitor, kind in (("serviceMonitor", "ServiceMonitor"), ("podMonitor", "PodMonitor")):
        sets = {monitor: json.dumps({"enabled": True, "interval": interval})}
        if good:
            found = of(helm.render(sets=sets), kind)
            assert [schemas.refusal(each) for each in found] == [None] * len(found)
        else:
            assert f"{monitor}.interval" in helm.refuses(sets=sets).replace("/", ".")
            (found, *_) = of(helm.render(sets={f"{monitor}.enabled": "true"}), kind)
            for each in found["spec"].get("endpoints") or found["spec"]["podMetricsEndpoints"]:
                each["interval"] = interval
            assert (schemas.refusal(found) is None) is (interval == "")
