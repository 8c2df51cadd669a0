"""Exported figures of a run: for Prometheus, TensorBoard, Weights & Biases and MLflow.

The metrics follow from the trainer's events and the durations of its steps, and are scraped at a port. The others get
figures from the leader, by optimizer steps: `ESPALIER_LOG_TO` names one for any job; a user's script calls
`loop.log_to` with a target that it has opened itself.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prometheus_client import start_http_server

from espalier_core.metrics import Exporter, Metrics
from espalier_core.types import environment
from espalier_core.types.events import AdaptationFinished, AnyEvent, EpochFinished, TrainerFinished, TrainerStarted
from espalier_core.types.report import Report
from espalier_core.types.task import Score
from espalier_trainer.errors import TrainerError
from espalier_trainer.process.settings import SettingsError
from espalier_trainer.signals.report import INTERVAL_WALL_SECONDS, Reporter

logger = logging.getLogger(__name__)


@dataclass
class MeteredReporter:
    """A `Reporter` that counts the reports and events it passes on."""

    reporter: Reporter
    budget: Callable[[], float]
    """Returns the whole budget in seconds, which may change while the job trains."""
    metrics: Metrics = field(default_factory=lambda: Metrics(Exporter.TRAINER))

    def __post_init__(self) -> None:
        # They are scraped while data and checkpoint are loaded, when 0 would be wrong for them.
        for name in ("budget_left_seconds", "depth", "parameters"):
            self.metrics.set(f"espalier_trainer_{name}", math.nan)

    def publish(self, make: Callable[[], Report], *, urgent: bool = False) -> None:
        """Pass on the report."""
        self.reporter.publish(make, urgent=urgent)

    def record(self, event: AnyEvent) -> None:
        """Pass on and count the event."""
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
        """Record the wall seconds between the ends of two optimizer steps."""
        self.metrics.observe("espalier_trainer_step_seconds", seconds)

    def _size(self, depth: int, parameters: int) -> None:
        self.metrics.set("espalier_trainer_depth", depth)
        self.metrics.set("espalier_trainer_parameters", parameters)


@contextmanager
def served(metrics: Metrics, port: int) -> Iterator[None]:
    """Serve `metrics` on `port` of all addresses; where the port is unavailable, training continues without."""
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


Write = Callable[[Mapping[str, float], int], None]
"""Function that writes figures by name, for a number of steps."""

TENSORBOARD, WANDB, MLFLOW = "tensorboard", "wandb", "mlflow"
_EPOCH: Final = ("train_loss", "validation_loss", "learning_rate", "depth", "parameters")


def writer_of(target: Any) -> Write:
    """Return the function that writes figures to a `SummaryWriter`, a Weights & Biases run, or `mlflow`'s active run.

    Raises `TrainerError` for other targets.
    """
    if hasattr(target, "add_scalar"):

        def write(figures: Mapping[str, float], step: int) -> None:
            for name, value in figures.items():
                target.add_scalar(name, value, step)
            target.flush()

        return write
    if hasattr(target, "log_metrics"):  # queued, so that no step waits for a server
        return lambda figures, step: target.log_metrics(dict(figures), step=step, synchronous=False)
    if hasattr(target, "log"):
        return lambda figures, step: target.log(dict(figures), step=step)
    raise TrainerError(
        f"log_to: {type(target).__name__} has neither add_scalar (a SummaryWriter of TensorBoard) nor log (what "
        "wandb.init returns) nor log_metrics (the module mlflow); give one of these"
    )


def opened(name: str, folder: Path, job: str) -> Any:
    """Open the target that `ESPALIER_LOG_TO` names, in `folder`. Raises `SettingsError` where that is not possible."""
    try:
        if name == TENSORBOARD:
            from torch.utils.tensorboard import SummaryWriter

            return SummaryWriter(str(folder / TENSORBOARD))
        if name == WANDB:
            import wandb

            folder.mkdir(parents=True, exist_ok=True)
            mode: Any = os.environ.get("WANDB_MODE", "offline")
            return wandb.init(project="espalier", name=job, dir=str(folder), mode=mode)
        if name == MLFLOW:
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
            import mlflow

            folder.mkdir(parents=True, exist_ok=True)
            if not os.environ.get("MLFLOW_TRACKING_URI"):
                mlflow.set_tracking_uri(f"sqlite:///{folder.resolve() / MLFLOW}.db")
            try:
                mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "espalier"))
                mlflow.start_run(run_name=job)
            except mlflow.MlflowException as error:
                raise SettingsError(
                    f"{environment.LOG_TO} is {name!r}, and {mlflow.get_tracking_uri()} accepts no run: {error}; set "
                    "MLFLOW_TRACKING_URI to a server that runs, or to nothing for a file next to the checkpoints"
                ) from error
            return mlflow
    except ImportError as error:
        raise SettingsError(
            f"{environment.LOG_TO} is {name!r}, which is not installed ({error}); install espalier-trainer[{name}]"
        ) from error
    raise SettingsError(f"{environment.LOG_TO} is {name!r}; it must be {TENSORBOARD}, {WANDB} or {MLFLOW}")


@dataclass
class LoggedReporter:
    """A `Reporter` that also writes figures: those of a report every two seconds, those of events at once."""

    reporter: Reporter
    clock: Callable[[], float] = time.monotonic
    _writers: list[Write] = field(default_factory=list)
    _closing: list[Callable[[], object]] = field(default_factory=list)
    _wrote: float = -INTERVAL_WALL_SECONDS

    def add(self, target: Any, *, close: bool = False) -> None:
        """Write figures to `target` from now on; `close` it at the end. Raises `TrainerError` for other targets."""
        self._writers.append(writer_of(target))
        if close:
            names = ("finish", "end_run", "close")
            self._closing.append(next(getattr(target, name) for name in names if hasattr(target, name)))

    def publish(self, make: Callable[[], Report], *, urgent: bool = False) -> None:
        """Pass on the report, and write its figures."""
        self.reporter.publish(make, urgent=urgent)
        if self._writers and (urgent or self.clock() - self._wrote >= INTERVAL_WALL_SECONDS):
            self._wrote = self.clock()
            report = make()
            figures = {metric.name: metric.value for metric in report.metrics}
            self._write({**figures, "depth": report.depth, "parameters": report.parameters}, report.step)

    def record(self, event: AnyEvent) -> None:
        """Pass on the event, and write its figures."""
        self.reporter.record(event)
        match event:
            case EpochFinished():
                figures = {name: getattr(event, name) for name in _EPOCH}
                self._write(figures | _scored("validation", event.score), event.step)
            case TrainerFinished():
                loss = {} if event.test_loss is None else {"test_loss": event.test_loss}
                self._write(loss | _scored("test", event.score), event.step)
            case AdaptationFinished():
                self._wrote = -INTERVAL_WALL_SECONDS  # the next report has the new size

    def close(self) -> None:
        """Close the targets opened for the run."""
        for close in self._closing:
            try:
                close()
            except Exception as error:
                logger.warning("the last figures may not be logged: %s", error)

    def _write(self, figures: Mapping[str, float], step: int) -> None:
        for write in self._writers if figures else ():
            try:
                write(figures, step)
            except Exception as error:  # a third-party error, or a full disk: it does not end training
                logger.warning("figures of step %d were not logged: %s", step, error)


def _scored(split: str, score: Score | None) -> dict[str, float]:
    return {} if score is None else {f"{split}_{score.measure}": score.value}
