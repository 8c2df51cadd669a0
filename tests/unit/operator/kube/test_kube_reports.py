"""Reports of any size and rate: what the operator reads of them, and what of them a job and the metrics show."""

from __future__ import annotations

from typing import Any

import pytest

from espalier_core.files.documents import dumps
from espalier_core.k8s import resources
from espalier_core.types.measurements import Measurements, Speed
from espalier_core.types.report import MAX_REPORT_BYTES, Report, TrainerPhase
from espalier_operator.kube import reports
from espalier_operator.kube.objects.names import JobRef
from espalier_operator.kube.reports import READS_AT_ONCE, TOO_LARGE
from espalier_operator.kube.watch.store import Store
from operator_world.kube_known import Known
from operator_world.kube_objects import kube_job, raw_job, raw_report, report

ONE = JobRef("ns", "one", "uid-1")
loads = reports.loads


class Desk(Known):
    """A store with a count of the texts that are parsed and of the plans that are wanted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(changed=self._plan)
        self.parsed = self.plans = 0
        monkeypatch.setattr(reports, "loads", self._loads)

    def _plan(self) -> None:
        self.plans += 1

    def _loads(self, text: str, model: type[Report], source: str) -> Report:
        self.parsed += 1
        return loads(text, model, source)

    def say(self, text: str, **metadata: Any) -> None:
        raw = raw_report(kube_job(), report("leader"))
        changed = {"metadata": {**raw["metadata"], **metadata}, "data": {"report.json": text}}
        self.take(resources.CONFIG_MAPS, {**raw, **changed})

    def read_late(self) -> None:
        for key in self.store.reports.late():
            self.store.reports.read_late(key)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


def unread(store: Store) -> dict[str, int]:
    """The reasons for which reports are not read."""
    return {why: jobs for why, jobs in store.reports.unread().items() if jobs}


def said(step: int, phase: TrainerPhase = TrainerPhase.TRAINING, **facts: Any) -> str:
    return dumps(report("leader", phase, step=step, **facts))


def test_a_report_that_is_too_large_is_not_parsed_and_is_counted(desk: Desk) -> None:
    desk.take(resources.JOBS, raw_job())
    desk.say(said(1))
    desk.say(said(2, message="x" * MAX_REPORT_BYTES))
    assert desk.parsed == 1
    found = desk.store.reports.of(ONE)
    assert (found.report, found.text, found.problem) == (None, None, TOO_LARGE)
    assert unread(desk.store) == {"TooLarge": 1}
    desk.say(said(3))
    assert desk.parsed == 2
    assert unread(desk.store) == {}


def test_bytes_count_and_not_characters(desk: Desk) -> None:
    desk.take(resources.JOBS, raw_job())
    desk.say("é" * (MAX_REPORT_BYTES // 2 + 1))
    assert (desk.parsed, unread(desk.store)) == (0, {"TooLarge": 1})
    desk.say("é" * (MAX_REPORT_BYTES // 2))
    assert (desk.parsed, unread(desk.store)) == (1, {"Malformed": 1})


def test_the_same_text_is_read_once(desk: Desk) -> None:
    """Of a list at each resync, or of a change of labels."""
    desk.take(resources.JOBS, raw_job())
    for label in range(5):
        desk.say(said(1), labels={"espalier.dev/report": "true", "mine": str(label)})
    assert desk.parsed == 1


@pytest.mark.parametrize("event", ["MODIFIED", "DELETED"])
def test_a_flood_of_reports_is_read_at_a_limited_rate_and_the_newest_counts(desk: Desk, event: str) -> None:
    """Each with news, which asks for a plan; also where the ConfigMap is deleted and made again each time."""
    desk.take(resources.JOBS, raw_job())
    desk.plans = 0
    phases = (TrainerPhase.TRAINING, TrainerPhase.EVALUATING)
    for step in range(1, 1001):
        if event == "DELETED":
            desk.take(resources.CONFIG_MAPS, raw_report(kube_job(), report("leader")), event)
        desk.say(said(step, phases[step % 2]))
        desk.now += 0.01
    assert desk.parsed <= READS_AT_ONCE + 10
    assert desk.plans <= READS_AT_ONCE + 10
    assert unread(desk.store) == {"TooFrequent": 1}
    desk.now += 1
    desk.read_late()
    found = desk.store.reports.of(ONE)
    assert found.report.step == 1000
    assert (unread(desk.store), desk.store.reports.late()) == ({}, [])


def test_a_report_of_no_job_is_not_parsed_until_there_is_one(desk: Desk) -> None:
    desk.say(said(1))
    desk.read_late()
    assert desk.parsed == 0
    assert unread(desk.store) == {}
    desk.take(resources.JOBS, raw_job())
    desk.store.take_reported()
    desk.read_late()
    found = desk.store.reports.of(ONE)
    assert (desk.parsed, found.report.step, desk.store.take_reported()) == (1, 1, {"uid-1"})


@pytest.mark.parametrize("data", [None, [], "x", {"report.json": None}, {"report.json": 5}, {"report.json": ["x"]}])
def test_data_of_any_type_is_no_report(desk: Desk, data: Any) -> None:
    desk.take(resources.JOBS, raw_job())
    desk.take(resources.CONFIG_MAPS, {**raw_report(kube_job(), report("leader")), "data": data})
    found = desk.store.reports.of(ONE)
    assert (found.report, found.problem) == (None, "")


def test_only_the_first_measurement_of_a_configuration_asks_for_a_plan(desk: Desk) -> None:
    """A policy may decide otherwise then; figures that move a little wait for the next plan."""

    def speed(workers: int, seconds: float) -> Speed:
        same = {"nodes": 1, "batch_size": 8, "parameters": 10, "steps": 20, "sync_seconds": 0.0}
        return Speed(workers=workers, step_seconds=seconds, **same)

    desk.take(resources.JOBS, raw_job())

    def plans_after(*speeds: Speed) -> int:
        before = desk.plans
        desk.say(dumps(report("leader", measurements=Measurements(speeds=speeds))))
        return desk.plans - before

    assert plans_after() == 1, "its first report"
    assert plans_after(speed(1, 2.0)) == 1
    assert plans_after(speed(1, 1.0)) == 0
    assert plans_after(speed(1, 1.0), speed(2, 0.6)) == 1
    assert plans_after(speed(2, 0.6), speed(1, 1.1)) == 0, "one that it has measured before"
