"""What the chart makes, beside Kubernetes' own schemas: those of the oldest release that it takes, and of the newest.

Strict ones: a field that Kubernetes does not know is an error, where an API server would drop it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
from charts import CASES, CHART, Helm, Raw, one, parse

MONITORING = "monitoring.coreos.com/v1"


def oldest() -> str:
    """Return the oldest release that the chart takes."""
    (chart,) = parse((CHART / "Chart.yaml").read_text())
    found = re.fullmatch(r">=(\d+\.\d+)\.0-0", chart["kubeVersion"])
    assert found, chart["kubeVersion"]
    return found[1]


VERSIONS = (oldest(), ".".join(kubernetes_validate.latest_version().split(".")[:2]))


def refusal(found: Raw, version: str) -> str | None:
    """Return what a release's schemas say of an object, None where they take it."""
    try:
        assert kubernetes_validate.validate(found, version, strict=True) == version, "by its own schemas"
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message}"
    return None


def test_the_oldest_and_the_newest_are_far_apart() -> None:
    first, last = (int(version.split(".")[1]) for version in VERSIONS)
    assert last - first >= 4


@pytest.mark.sweep("values of the chart")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("files", CASES.values(), ids=CASES)
def test_kubernetes_schemas_take_all_of_it(helm: Helm, files: tuple[str, ...], version: str) -> None:
    """All but what the Prometheus operator defines: that has schemas of its own."""
    rendered = helm.render(*files)
    own = [each for each in rendered if each["apiVersion"] != MONITORING]
    assert len(own) > len(rendered) - len(own)
    found = {f"{each['kind']}/{each['metadata']['name']}": refusal(each, version) for each in own}
    assert {name: said for name, said in found.items() if said is not None} == {}


def pod(deployment: Raw) -> Any:
    return deployment["spec"]["template"]["spec"]


WRONG: dict[str, tuple[str, Callable[[Raw], Any], str]] = {
    "a field that is misspelt": ("Deployment", lambda it: pod(it).update(enableServiceLink=False), "enableServiceLink"),
    "one deep within": ("Deployment", lambda it: pod(it)["containers"][0].update(resource={}), "resource"),
    "a text for a number": ("Deployment", lambda it: it["spec"].update(replicas="1"), "'1' is not of type"),
    "a map for a list": ("Deployment", lambda it: pod(it).update(tolerations={}), "tolerations"),
    "a number for a label": ("Service", lambda it: it["spec"]["selector"].update(a=1), "spec.selector.a"),
    "what is needed is missing": ("RoleBinding", lambda it: it.pop("roleRef"), "'roleRef' is a required property"),
    "a rule that is none": ("ClusterRole", lambda it: it["rules"][0].pop("verbs"), "'verbs' is a required property"),
    "an autoscaler of older times": (
        "HorizontalPodAutoscaler",
        lambda it: it["spec"].update(targetCPUUtilizationPercentage=75),
        "targetCPUUtilizationPercentage",
    ),
    "a peer that is none": (
        "NetworkPolicy",
        lambda it: it["spec"]["ingress"][0]["from"][0].update(podSelectors={}),
        "podSelectors",
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused(helm: Helm, case: str, version: str) -> None:
    kind, spoil, said = WRONG[case]
    names = {"Deployment": "gpus-agent", "NetworkPolicy": "gpus-agent", "Service": "gpus-agent"}
    names |= {"ClusterRole": "gpus-operator", "RoleBinding": "gpus-operator", "HorizontalPodAutoscaler": "gpus-agent"}
    found = copy.deepcopy(one(helm.render("full"), kind, names[kind]))
    assert refusal(found, version) is None
    spoil(found)
    assert said in (refusal(found, version) or "")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_field_too_many_is_refused_of_every_kind(helm: Helm, version: str) -> None:
    for each in helm.render("full", "namespaced"):
        if each["apiVersion"] != MONITORING:
            assert "surplus" in (refusal({**each, "surplus": 1}, version) or ""), each["kind"]
