"""Dashboards, rules and pages: true to the catalogue, well formed, and as `make dashboards` writes them."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from espalier_core.metrics import FAMILIES, JOB, LABELS, Exporter
from espalier_core.types.report import WORKERS_METRIC
from espalier_monitoring.alerts import ALERTS
from espalier_monitoring.outputs import BOARDS, DASHBOARDS, RELABELLING, RULES, outputs, scrape_config_text
from espalier_operator.kube.objects.manifests import METRICS_PORT
from espalier_operator.kube.objects.worker_pod import METRICS
from promql_names import expressions, names

ROOT = Path(__file__).parents[3]
SERIES = {series: family for family in FAMILIES for series in family.series}
GIVEN_BY_SCRAPE = {Exporter.OPERATOR: (), Exporter.TRAINER: JOB, Exporter.AGENT: ()}
"""Labels that an exporter does not know and the scrape configuration adds: a trainer's job, from its pod."""
OF_THE_SCRAPE = {"instance"}
"""Labels that Prometheus gives every series."""
NAMES = sorted(BOARDS)


def board(name: str) -> dict[str, Any]:
    """Return a dashboard as it is committed."""
    found: dict[str, Any] = json.loads((ROOT / DASHBOARDS / f"{name}.json").read_text())
    return found


def panels(name: str) -> list[dict[str, Any]]:
    """Return its panels without the headings of rows."""
    return [panel for panel in board(name)["panels"] if panel["type"] != "row"]


def all_expressions() -> list[tuple[str, str]]:
    """Return (where, PromQL) of everything."""
    of_boards = [each for made in BOARDS.values() for each in expressions(made)]
    return [*of_boards, *((alert.name, alert.expression) for alert in ALERTS)]


@pytest.mark.parametrize("path", outputs())
def test_what_is_committed_is_what_is_written(path: str) -> None:
    assert (ROOT / path).read_text() == outputs()[path], f"{path} is stale; run: make dashboards"


def test_nothing_else_lies_beside_what_is_written() -> None:
    """The chart takes every file of these folders."""
    there = {str(path.relative_to(ROOT)) for path in (ROOT / DASHBOARDS).iterdir()}
    there |= {str(path.relative_to(ROOT)) for path in (ROOT / RULES).parent.iterdir()}
    assert there == {path for path in outputs() if path.startswith("charts/")}


@pytest.mark.parametrize(("where", "expression"), all_expressions())
def test_every_metric_and_label_that_is_named_is_in_the_catalogue(where: str, expression: str) -> None:
    found = names(expression)
    assert found.selected, f"{where} names no metric"
    known: set[str] = set()
    for metric, labels in found.selected.items():
        assert metric in SERIES, f"{where} names {metric}, which nobody exports"
        of_metric = {*SERIES[metric].labels, *GIVEN_BY_SCRAPE[SERIES[metric].exporter]}
        of_metric |= {"le"} if metric.endswith("_bucket") else set()
        assert labels <= of_metric, f"{where}: {metric} has no label {', '.join(labels - of_metric)}"
        known |= of_metric
    assert found.grouped <= known, f"{where} groups by {found.grouped - known}, which none of its metrics has"


@pytest.mark.parametrize("name", NAMES)
def test_legends_name_labels_that_are_left(name: str) -> None:
    for panel in panels(name):
        for target in panel["targets"]:
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            left = names(target["expr"]).grouped - {"le"}
            assert used == left, f"{panel['title']}: its legend shows {used}, its series differ in {left}"


def test_texts_of_alerts_name_labels_that_are_left() -> None:
    for alert in ALERTS:
        used = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
        found = names(alert.expression)
        assert used <= found.grouped | (OF_THE_SCRAPE if not found.grouped else set()), alert.name


@pytest.mark.parametrize("name", NAMES)
def test_panels_have_numbers_places_and_words(name: str) -> None:
    whole = board(name)
    ids = [panel["id"] for panel in whole["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels(name):
        assert panel["title"], panel["id"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs), panel["title"]
    titles = [panel["title"] for panel in panels(name)]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", NAMES)
def test_panels_do_not_overlap(name: str) -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in board(name)["panels"]]
    for title, at in places:
        assert at["x"] + at["w"] <= 24, title
    for (one, a), (other, b) in itertools.combinations(places, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, f"{one} lies over {other}"


@pytest.mark.parametrize("name", NAMES)
def test_the_data_source_is_chosen_at_the_top_and_used_everywhere(name: str) -> None:
    whole = board(name)
    variable = whole["templating"]["list"][0]
    assert (variable["name"], variable["type"], variable["query"]) == ("datasource", "datasource", "prometheus")
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    users = [*panels(name), *whole["annotations"].get("list", ()), *whole["templating"]["list"][1:]]
    users += [target for panel in panels(name) for target in panel["targets"]]
    assert all(user["datasource"] == chosen for user in users)


@pytest.mark.parametrize("name", NAMES)
def test_variables_are_declared_before_they_are_used(name: str) -> None:
    whole = board(name)
    declared = {variable["name"] for variable in whole["templating"]["list"]}
    built_in = {"__rate_interval", "__range"}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(whole)))
    assert used <= declared | built_in
    assert declared <= used


def test_growth_is_marked_on_the_jobs_dashboard() -> None:
    (mark,) = board("job")["annotations"]["list"]
    assert "espalier_job_adaptations_total" in mark["expr"]
    assert (mark["enable"], mark["titleFormat"]) == (True, "The model grew")


def test_every_alert_has_a_severity_words_and_a_runbook() -> None:
    groups = YAML(typ="safe", pure=True).load((ROOT / RULES).read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == [alert.name for alert in ALERTS]
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    for rule, alert in zip(rules, ALERTS, strict=True):
        assert rule["expr"] == alert.expression
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"] == alert.summary
        assert rule["annotations"]["description"].endswith(".")
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        headings = re.findall(r"^## (\w+)$", (ROOT / page).read_text(), re.M)
        assert anchor in {heading.lower() for heading in headings}, f"{page} has no heading {alert.name}"


def test_the_runbook_tells_of_each_alert_what_it_means_and_what_to_do() -> None:
    text = (ROOT / "docs/reference/alerts.md").read_text()
    sections = dict(re.findall(r"^## (Espalier\w+)\n(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert list(sections) == [alert.name for alert in ALERTS], "one section each, in the order of the rules"
    for name, section in sections.items():
        for part in ("**Means**", "**Look at**", "**Do**", "**Why these numbers**"):
            assert part in section, f"{name} lacks {part}"


def test_labels_of_the_catalogue_are_explained() -> None:
    assert {label for family in FAMILIES for label in family.labels} == set(LABELS)


def test_trainers_are_scraped_as_their_dashboard_expects() -> None:
    """By the page's configuration and by the chart's PodMonitor, to which its operator gives `namespace`."""
    (scrape,) = YAML(typ="safe", pure=True).load(scrape_config_text())["scrape_configs"]
    assert scrape["relabel_configs"] == list(RELABELLING)
    given = {str(rule["target_label"]): rule["source_labels"] for rule in RELABELLING if "target_label" in rule}
    assert set(given) == set(GIVEN_BY_SCRAPE[Exporter.TRAINER])
    monitor = (ROOT / "charts/espalier/templates/monitors.yaml").read_text()
    relabelled = re.findall(r'"sourceLabels" \(list "(\w+)"\) "targetLabel" "(\w+)"', monitor)
    assert relabelled == [(given["job_name"][0], "job_name")]
    page = (ROOT / "docs/reference/metrics.md").read_text()
    assert f"```yaml\n{scrape_config_text()}```" in page
    assert f"on port {METRICS_PORT}" in page
    assert any(rule.get("regex") == METRICS for rule in RELABELLING)


def test_what_was_decided_is_on_the_jobs_dashboard() -> None:
    """With the probability of each choice, the chosen one apart."""
    (panel,) = [panel for panel in panels("job") if panel["title"] == "Decisions with probabilities"]
    asked = {target["legendFormat"]: target["expr"] for target in panel["targets"]}
    assert set(asked) == {"chosen: {{choice}}", "{{choice}}"}
    assert all("espalier_job_decision_probability_ratio" in expression for expression in asked.values())
    chosen, other = (re.findall(r'chosen="(\w+)"', asked[legend]) for legend in ("chosen: {{choice}}", "{{choice}}"))
    assert (chosen, other) == (["yes"], ["no"])


def test_workers_that_train_together_have_a_panel_of_their_own() -> None:
    """Beside that of the GPUs; the figure is not among the others that the trainer reports, too."""
    shown = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in panels("job")}
    (expression,) = shown["Workers that train together"]
    assert "espalier_job_workers{" in expression
    (others,) = shown["Other figures"]
    assert re.search(r'metric!~"([^"]+)"', others)[1].split("|")[-1] == WORKERS_METRIC  # type: ignore[index]
