"""Names that jobs choose become values of labels: few, short, and readable, whatever a status has."""

from __future__ import annotations

import re
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from espalier_core.types.report import MAX_METRICS, MAX_PROBABILITIES, Adaptation, Metric
from espalier_core.types.status import JobStatus, TrainingStatus
from espalier_operator.kube.metrics.exporter import MOST_NAMES, OperatorMetrics
from espalier_operator.kube.metrics.measurements import Owner, measurements
from espalier_operator.kube.metrics.series import LiveJob
from espalier_operator.model import Snapshot
from operator_world.kube_objects import adaptation

NOW = 1_000.0
TEXTS = st.text(max_size=300) | st.text(max_size=4).map(lambda text: 80 * text)
NAMES = st.lists(TEXTS, max_size=6).flatmap(
    lambda few: st.integers(0, 150).map(lambda many: few + [f"n{i}" for i in range(many)])
)
VALUE = re.compile("[ -~]{0,253}")


def advised(action: str, choices: list[str], trigger: str) -> Adaptation:
    probabilities = dict.fromkeys(choices, 0.5)
    return adaptation(decision_id=trigger, trigger=trigger, action=action, policy=trigger, probabilities=probabilities)


def status(figures: list[str], made: list[Adaptation]) -> JobStatus:
    metrics = tuple(Metric(name=name, value=1) for name in figures)
    return JobStatus(training=TrainingStatus(metrics=metrics), adaptations=tuple(made))


def live(owner: Owner, named: JobStatus) -> LiveJob:
    return LiveJob(owner=owner, name="one", status=named, facts=None)


def scraped(metrics: OperatorMetrics) -> Counter[str]:
    """Return the number of samples by name; all labels have values as every reader of metrics can show them."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(metrics.text(leads=True).decode()):
        for sample in family.samples:
            found[sample.name] += 1
            assert all(VALUE.fullmatch(value) for value in sample.labels.values()), sample
    return found


@settings(max_examples=30)
@given(NAMES, st.lists(st.builds(advised, TEXTS, NAMES, TEXTS), max_size=2), TEXTS)
def test_whatever_a_job_names_its_labels_are_few_and_short(
    figures: list[str], made: list[Adaptation], queue: str
) -> None:
    """Also of what is counted, where each new value would be a series for ever."""
    owner = Owner(namespace="ns", queue=queue, base_gpus=1, gpus_per_worker=1, created_at=0.0)
    metrics, named = OperatorMetrics(lambda: NOW), status(figures, made)
    metrics.add(measurements(None, named, owner))
    metrics.look([live(owner, named)], Snapshot(taken_at=NOW), {}, {}, {})
    found = scraped(metrics)
    assert found["espalier_job_metric"] <= MAX_METRICS
    assert found["espalier_job_decision_probability_ratio"] <= MAX_PROBABILITIES
    assert found["espalier_adaptations_total"] <= 2


def test_new_names_with_each_report_do_not_make_new_series_without_end() -> None:
    """The first ones stay; a job of the same name that was made later chooses its own."""
    metrics, seen, made = OperatorMetrics(lambda: NOW), set[str](), set[str]()

    def look(owner: Owner, figures: list[str], choices: list[str]) -> None:
        named = status(figures, [advised("Nothing", choices, "t")])
        metrics.look([live(owner, named)], Snapshot(taken_at=NOW), {}, {}, {})
        for family in text_string_to_metric_families(metrics.text(leads=True).decode()):
            for sample in family.samples:
                if family.name == "espalier_job_metric":
                    seen.add(sample.labels["metric"])
                elif family.name == "espalier_job_decision_probability_ratio":
                    made.add(sample.labels["choice"])

    first = Owner(namespace="ns", queue="q", base_gpus=1, gpus_per_worker=1, created_at=0.0)
    for turn in range(20):
        look(first, ["loss", *(f"{turn}-{i}" for i in range(20))], [f"{turn}-{i}" for i in range(50)])
    assert len(seen) == MOST_NAMES["espalier_job_metric"]
    assert len(made) == MOST_NAMES["espalier_job_decision_probability_ratio"]
    seen.clear()
    look(first, ["loss", "new"], [])
    assert seen == {"loss"}
    look(Owner(namespace="ns", queue="q", base_gpus=1, gpus_per_worker=1, created_at=9.0), ["new"], [])
    assert seen == {"loss", "new"}
