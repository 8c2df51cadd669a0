"""What a trainer lets be scraped while it trains."""

from __future__ import annotations

import math
import socket
import urllib.request
from datetime import UTC, datetime

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from espalier_core.files.documents import write_document
from espalier_core.metrics import Exporter, Metrics
from espalier_core.types import environment
from espalier_core.types.advice import Action
from espalier_core.types.allocation import Allocation, AllocationDocument, TimeBudget
from espalier_core.types.events import AdaptationFinished, CheckpointSaved
from espalier_core.types.job import Fallback
from espalier_core.types.reasons import Reason
from espalier_core.types.report import AdaptationSource
from espalier_lab.virtual_time import Scripted
from espalier_trainer.growth.advisor import FallbackPolicy, NoAgent, WithFallback
from espalier_trainer.process.settings import SettingsError, TrainerSettings
from espalier_trainer.run.services import connect
from espalier_trainer.signals.metrics import MeteredReporter, served
from espalier_trainer.signals.report import MemoryReporter
from operator_world.kube_objects import adaptation
from ports import free_port
from waiting import PATIENCE


def samples_of(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples by name and label values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }


@pytest.mark.parametrize("agent", [True, False])
def test_a_run_is_in_its_metrics(run, make_job, agent):
    """With an agent that advises to grow, and with none, where the fallback decides."""
    metrics = Metrics(Exporter.TRAINER)
    took: list[float] = []
    advisor = (
        Scripted((Action.deepen("block0"),)) if agent else WithFallback(NoAgent(), FallbackPolicy(Fallback.HEURISTIC))
    )
    done = run(
        make_job(),
        advisor=advisor,
        up_at=0.1,
        wrap=lambda reporter: MeteredReporter(reporter, lambda: 0.4, metrics),
        step_took=took.append,
    )
    samples = samples_of(metrics.text().decode())
    result = done.result
    assert samples["espalier_trainer_depth",] == result.depth_after
    assert samples["espalier_trainer_parameters",] == result.parameters_after
    assert len(took) == result.steps - 1
    assert samples["espalier_trainer_accuracy_ratio", "validation"] == result.validation_accuracy
    assert samples["espalier_trainer_budget_left_seconds",] == 0
    counted = [value for (name, *_), value in samples.items() if name == "espalier_trainer_adaptation_seconds_count"]
    assert sum(counted) == len(result.adaptations)
    problems = samples.get(("espalier_trainer_advice_problems_total", "AgentUnavailable"), 0)
    assert problems == (0 if agent else len(result.adaptations))


@pytest.mark.parametrize(
    ("source", "reason", "problems"),
    [
        (AdaptationSource.FALLBACK, Reason.ACTIONS_UNKNOWN, {"ActionsUnknown": 1}),
        (AdaptationSource.RECLAIM, Reason.DISTILLED, {}),
        (AdaptationSource.AGENT, Reason.TRIAL_NOT_BETTER, {}),
    ],
)
def test_only_what_a_fallback_decided_is_a_problem_of_advice(source, reason, problems):
    """Rules after a reclaim, and trials of what the agent advised, have reasons, too."""
    reporter = MeteredReporter(MemoryReporter(), lambda: 60.0)
    made = adaptation(source=source, reason=reason)
    reporter.record(AdaptationFinished(time=made.time, used_seconds=5, adaptation=made))
    samples = samples_of(reporter.metrics.text().decode())
    assert {
        name[1]: value for name, value in samples.items() if name[0] == "espalier_trainer_advice_problems_total"
    } == problems


def test_before_training_nothing_is_reported_of_it():
    """Zeros would say that no budget is left, and that there is no model."""
    metrics = MeteredReporter(MemoryReporter(), lambda: 60.0).metrics
    samples = samples_of(metrics.text().decode())
    for name in ("budget_left_seconds", "depth", "parameters"):
        assert math.isnan(samples[f"espalier_trainer_{name}",])


def test_what_is_left_is_of_the_budget_that_the_job_has_now(make_job, tmp_path):
    """A job's `timeBudgetSeconds` may be changed while it trains: the scheduler's documents have the newest."""
    job, folder = make_job(timeBudgetSeconds=60), tmp_path / "checkpoints"
    names = {"JOB_FILE": "job.yaml", "ALLOCATION_FILE": "allocation.json", "CHECKPOINT_DIR": folder.name}
    variables = {getattr(environment, name): str(tmp_path / file) for name, file in names.items()}
    document = AllocationDocument(
        job=job.key, allocation=Allocation(generation=2, replicas=1), time_budget=TimeBudget(budget_seconds=100)
    )
    write_document(tmp_path / "allocation.json", document)
    with connect(TrainerSettings.from_environment(variables), job, lambda: False, torch.device("cpu"), 0) as services:
        assert isinstance(services.reporter, MeteredReporter)
        services.reporter.record(CheckpointSaved(time=datetime.now(UTC), used_seconds=30, path="", step=1, seconds=0))
        samples = samples_of(services.reporter.metrics.text().decode())
        assert samples["espalier_trainer_budget_left_seconds",] == 70


def test_they_are_served_until_training_ends(caplog):
    metrics = Metrics(Exporter.TRAINER)
    metrics.set("espalier_trainer_depth", 3)
    metrics.observe("espalier_trainer_step_seconds", 0.1)
    port = free_port()
    with served(metrics, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            samples = samples_of(answer.read().decode())
        assert samples["espalier_trainer_depth",] == 3
        assert samples["espalier_trainer_step_seconds_count",] == 1
        assert not [name for (name, *_) in samples if name.endswith("_created")], "these are in no catalogue"
        with served(metrics, port):
            assert f"no metrics: cannot listen on port {port}" in caplog.text
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("0.0.0.0", port))


@pytest.mark.parametrize("text", ["0", "65536", "-1", "http", "٣"])
def test_a_port_that_is_none_is_refused_by_name(text):
    with pytest.raises(SettingsError, match=r"ESPALIER_METRICS_PORT is '.*'; it must be a port, from 1 to 65535"):
        TrainerSettings.from_environment({environment.JOB_FILE: "job.yaml", environment.METRICS_PORT: text})
