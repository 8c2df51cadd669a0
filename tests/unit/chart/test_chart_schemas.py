"""What the chart makes, beside Kubernetes' own schemas: those of the oldest release that it takes, and of the newest.

Strict ones: a field that Kubernetes does not know is an error, where an API server would drop it.
"""

from __future__ import annotations

import re

import kubernetes_validate
import pytest
from charts import CASES, CHART, Helm, Raw, parse

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


@pytest.mark.parametrize("version", VERSIONS)
def test_a_field_too_many_is_refused_of_every_kind(helm: Helm, version: str) -> None:
    for each in helm.render("full", "namespaced"):
        if each["apiVersion"] != MONITORING:
            assert "surplus" in (refusal({**each, "surplus": 1}, version) or ""), each["kind"]
