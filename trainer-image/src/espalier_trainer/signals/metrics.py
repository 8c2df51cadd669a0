"""The trainer's metrics, from its events and the durations of its steps, and the port on which they are scraped."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from prometheus_client import start_http_server

from espalier_core.metrics.catalogue import Exporter
from espalier_core.metrics.exporting import Metrics
from espalier_core.types.events import AdaptationFinished, AnyEvent, EpochFinished, TrainerFinished, TrainerStarted
from espalier_core.types.report import Report
from espalier_trainer.signals.report import Reporter

logger = logging.getLogger(__name__)


@dataclass
class MeteredReporter:
    """A `Reporter` that counts what it passes on."""

    reporter: Reporter
    budget: Callable[[], float]
    """Returns the whole budget in seconds, which may change while the job trains."""
    metrics: Metrics = field(default_factory=lambda: Metrics(Exporter.TRAINER))

    def __post_init__(self) -> None:
        # They are scraped while data and checkpoint are loaded: nothing left of the budget, and no layers, is not so.
        for name in ("budget_left_seconds", "depth", "parameters"):
            self.metrics.set(f"espalier_trainer_{name}", math.nan)

    def publish(self, make: Callable[[], Report], *, urgent: bool = False) -> None:
        """Pass the report on."""
        self.reporter.publish(make, urgent=urgent)

    def record(self, event: AnyEvent) -> None:
        """Pass the event on, and count it."""
        self.reporter.record(event)
        self.metrics.set("espalier_trainer_budget_left_seconds", max(0.0, self.budget() - event.used_seconds))
        match event:
            case TrainerStarted() | TrainerFinished():
                self._size(event.depth, event.parameters)
            case EpochFinished():
                self._size(event.depth, event.parameters)
                self.metrics.set("espalier_trainer_loss", event.train_loss, "train")
                self.metrics.set("espalier_trainer_loss", event.validation_loss, "validation")
                if event.validation_accuracy is not None:
                    self.metrics.set("espalier_trainer_accuracy_ratio", event.validation_accuracy, "validation")
                if event.score is not None:
                    self.metrics.set("espalier_trainer_score", event.score.value, "validation", event.score.measure)
            case AdaptationFinished(adaptation=adaptation):
                self._size(adaptation.depth_after, adaptation.parameters_after)
                self.metrics.observe("espalier_trainer_adaptation_seconds", adaptation.seconds, adaptation.result)
                before, after = adaptation.step_seconds_before, adaptation.step_seconds_after
                if before and after:
                    kind = adaptation.action.partition("(")[0]
                    self.metrics.set("espalier_trainer_step_gain_ratio", before / after, kind)
                if adaptation.advice_problem is not None:
                    self.metrics.count("espalier_trainer_advice_problems_total", adaptation.advice_problem)

    def step_took(self, seconds: float) -> None:
        """Take in the wall time between the ends of two optimizer steps."""
        self.metrics.observe("espalier_trainer_step_seconds", seconds)

    def _size(self, depth: int, parameters: int) -> None:
        self.metrics.set("espalier_trainer_depth", depth)
        self.metrics.set("espalier_trainer_parameters", parameters)


@contextmanager
def served(metrics: Metrics, port: int) -> Iterator[None]:
    """Let `metrics` be scraped on `port` of all addresses; where the port cannot be had training continues without."""
    try:
        server, thread = start_http_server(port, registry=metrics.exposed)
    except OSError as error:
        logger.warning("no metrics: cannot listen on port %d (%s)", port, error.strerror)
        yield
        return
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
