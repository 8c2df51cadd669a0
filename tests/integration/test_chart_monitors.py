"""The chart beside the Prometheus operator: an API server with that one's own definitions takes monitors and rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from apiserver import ApiServer
from charts import Helm, Raw
from releases import Release, installable, key

from tools import tool

PLURALS = {"ServiceMonitor": "servicemonitors", "PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}
NAMESPACES = ("team-a", "team-b", "monitoring")


@pytest.fixture(scope="module")
def monitored_server(chart_server: ApiServer) -> Iterator[ApiServer]:
    """Give an API server that knows the Prometheus operator's kinds, for the tests of this file."""
    chart_server.start()
    chart_server.install(
        tool("monitoring-crds", "no definitions of monitors to test with; hack/monitoring-crds gets them")
    )
    for name in NAMESPACES:
        if chart_server.api.get(f"/api/v1/namespaces/{name}").status_code == 404:
            chart_server.namespace(name)
    yield chart_server
    chart_server.uninstall(*(f"{plural}.monitoring.coreos.com" for plural in PLURALS.values()))


@pytest.fixture
def monitored(monitored_server: ApiServer, helm: Helm) -> Iterator[Release]:
    """Give a release to install there."""
    with installable(monitored_server, helm, monitored=True) as release:
        yield release


def monitors(objects: list[Raw]) -> list[Raw]:
    return [each for each in objects if each["kind"] in PLURALS]


def kept(ours: Any, theirs: Any) -> bool:
    """Return whether all of ours is there; the server adds defaults."""
    if isinstance(ours, dict):
        return isinstance(theirs, dict) and all(kept(value, theirs.get(name)) for name, value in ours.items())
    if isinstance(ours, list):
        return isinstance(theirs, list) and len(ours) == len(theirs) and all(map(kept, ours, theirs))
    return bool(ours == theirs)


def send(server: ApiServer, found: Raw) -> Any:
    """Send an object as a dry run; a field that the server does not know is an error."""
    name = {**found, "metadata": {**found["metadata"], "name": f"{found['metadata']['name']}-try"}}
    path = f"/apis/monitoring.coreos.com/v1/namespaces/{found['metadata']['namespace']}/{PLURALS[found['kind']]}"
    return server.request("POST", path, name, dryRun="All", fieldValidation="Strict")


@pytest.mark.parametrize("files", [("monitored",), ("full", "namespaced")], ids=" and ".join)
def test_the_server_takes_monitors_and_rules_and_drops_nothing_of_them(
    monitored: Release, files: tuple[str, ...]
) -> None:
    monitored.run("install", *files)
    installed = monitored.objects()
    assert {each["kind"] for each in monitors(installed)} == set(PLURALS)
    assert monitored.there(installed) == {key(each) for each in installed}
    for each in monitors(installed):
        where = f"/apis/monitoring.coreos.com/v1/namespaces/{each['metadata']['namespace']}/{PLURALS[each['kind']]}"
        there = monitored.server.request("GET", f"{where}/{each['metadata']['name']}")
        assert kept(each["spec"], there["spec"]), there
        send(monitored.server, each)


def test_they_go_where_they_are_switched_off(monitored: Release) -> None:
    monitored.run("install", "monitored")
    before = monitors(monitored.objects())
    assert monitored.there(before)
    monitored.run("upgrade", flags=["--reset-values"])
    assert monitored.there(before) == set()
