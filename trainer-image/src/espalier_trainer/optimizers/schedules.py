"""Learning-rate schedules: one small class each, a function of the position in the budget.

A schedule holds no clock. It returns the rate at a `Moment`, is notified when an epoch ends and when the model has
grown, and its state is plain JSON, so that a resumed job continues with the same rates.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch.optim import lr_scheduler

from espalier_core.types.job import ScheduleSpec
from espalier_trainer.errors import ScheduleError

logger = logging.getLogger(__name__)

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Moment:
    """Position of training in its budget, in seconds."""

    used_seconds: float
    budget_seconds: float

    @property
    def share(self) -> float:
        """Used share of the budget, 0 to 1."""
        return min(1.0, self.used_seconds / self.budget_seconds) if self.budget_seconds > 0 else 0.0

    @property
    def left(self) -> float:
        """Remaining seconds, never below zero."""
        return max(0.0, self.budget_seconds - self.used_seconds)


UNKNOWN: Final = Moment(0.0, 0.0)
"""Moment where the position does not matter."""


class Schedule(Protocol):
    """The learning rate of every step. By default it has no state, and ignores epochs and restarts."""

    def rate(self, moment: Moment) -> float:
        """Return the learning rate of a step at `moment`."""

    def epoch_finished(self, validation_loss: float | None) -> None:
        """Record the end of an epoch."""
        return

    def restart(self, moment: Moment) -> None:
        """Restart from the initial rate."""
        return

    def state(self) -> State:
        """Return the state for `load_state`, as JSON types."""
        return {}

    def load_state(self, state: State) -> None:
        """Continue from a saved state."""
        return


@dataclass
class BudgetLinear(Schedule):
    """Linear fall to 0 at the deadline: η(t) = η₀ (B - t) / (B - t₀), t₀ being 0 or the last restart.

    A job with a time budget knows its end. After a restart the rate is again 0 at the same deadline.
    """

    initial: float
    origin: float = 0.0

    def rate(self, moment: Moment) -> float:
        """Return η(t), between 0 and the initial rate."""
        span = moment.budget_seconds - self.origin
        return self.initial * min(1.0, moment.left / span) if span > 0 else 0.0

    def restart(self, moment: Moment) -> None:
        """Set t₀."""
        self.origin = moment.used_seconds

    def state(self) -> State:
        """Return t₀."""
        return {"origin": self.origin}

    def load_state(self, state: State) -> None:
        """Set t₀."""
        self.origin = float(state["origin"])


@dataclass
class Exponential(Schedule):
    """Lamelas 6.4: η = η₀ · decay^n, n being the epochs finished since the start or the last restart."""

    initial: float
    decay: float
    epochs: int = 0

    def rate(self, moment: Moment) -> float:
        """Return η₀ · decay^n."""
        return float(self.initial * self.decay**self.epochs)

    def epoch_finished(self, validation_loss: float | None) -> None:
        """Count the epoch."""
        self.epochs += 1

    def restart(self, moment: Moment) -> None:
        """Count from 0 again."""
        self.epochs = 0

    def state(self) -> State:
        """Return n."""
        return {"epochs": self.epochs}

    def load_state(self, state: State) -> None:
        """Set n."""
        self.epochs = int(state["epochs"])


@dataclass
class Warmup(Schedule):
    """Another schedule whose rate rises linearly from 0 in the first `share` of the budget and after a restart."""

    after: Schedule
    share: float
    origin: float = 0.0

    def rate(self, moment: Moment) -> float:
        """Return min(1, (t - t₀) / (share · B)) of the other schedule's rate."""
        risen = (moment.used_seconds - self.origin) / (self.share * moment.budget_seconds)
        return self.after.rate(moment) * min(1.0, max(0.0, risen))

    def epoch_finished(self, validation_loss: float | None) -> None:
        """Pass on the end of an epoch."""
        self.after.epoch_finished(validation_loss)

    def restart(self, moment: Moment) -> None:
        """Restart both schedules."""
        self.origin = moment.used_seconds
        self.after.restart(moment)

    def state(self) -> State:
        """Return t₀ and the other schedule's state."""
        return {"risen_from": self.origin, **self.after.state()}

    def load_state(self, state: State) -> None:
        """Set t₀ and the other schedule's state."""
        self.origin = float(state["risen_from"])
        self.after.load_state(state)


@dataclass(frozen=True)
class ConstantRate(Schedule):
    """A constant schedule: the initial rate."""

    initial: float

    def rate(self, moment: Moment) -> float:
        """Return the initial rate."""
        return self.initial


@dataclass
class TorchSchedule(Schedule):
    """A scheduler of `torch.optim.lr_scheduler`, stepped once an epoch, and rebuilt at a restart.

    It drives a separate optimizer with one dummy parameter: only the learning rate is used. Its state is the sequence
    of its steps (the validation losses, which `ReduceLROnPlateau` reads), replayed when training resumes.

    A scheduler that ends (`OneCycleLR` after `total_steps`) keeps its last rate: the number of epochs that fit into a
    time budget is unknown in advance, so that is no reason to end training.
    """

    name: str
    initial: float
    options: dict[str, Any]
    _losses: list[float | None] = field(init=False, default_factory=list)
    _optimizer: torch.optim.Optimizer = field(init=False)
    _scheduler: lr_scheduler.LRScheduler = field(init=False)
    _ended: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._build()
        # Some options fail only when first used: better now than at the end of the first epoch.
        with self._options_checked():
            self._step(1.0)
        self._build()

    def rate(self, moment: Moment) -> float:
        """Return the rate that the scheduler set."""
        return float(self._optimizer.param_groups[0]["lr"])

    def epoch_finished(self, validation_loss: float | None) -> None:
        """Step the scheduler."""
        self._losses.append(validation_loss)
        self._step(validation_loss)

    def restart(self, moment: Moment) -> None:
        """Rebuild the scheduler."""
        self._losses = []
        self._build()

    def state(self) -> State:
        """Return the losses at the ends of the epochs since the start or the last restart."""
        return {"losses": list(self._losses)}

    def load_state(self, state: State) -> None:
        """Rebuild the scheduler and repeat its steps."""
        self._losses = [None if loss is None else float(loss) for loss in state["losses"]]
        self._build()
        for loss in self._losses:
            self._step(loss)

    def _build(self) -> None:
        parameter = torch.nn.Parameter(torch.zeros(()))
        self._optimizer = torch.optim.SGD([parameter], lr=self.initial, momentum=0.9)
        self._ended = False
        kind = _scheduler_class(self.name)
        with self._options_checked():
            self._scheduler = kind(self._optimizer, **self.options)

    @contextmanager
    def _options_checked(self) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
            kind = _scheduler_class(self.name)
            signature = [name for name in inspect.signature(kind).parameters if name != "optimizer"]
            raise ScheduleError(
                f"training.schedule.options: torch:{self.name} does not take {self.options} ({error}); "
                f"its options: {', '.join(signature)}"
            ) from error

    def _step(self, validation_loss: float | None) -> None:
        if self._ended:
            return
        self._optimizer.step()  # torch warns where a scheduler is stepped before its optimizer
        try:
            if isinstance(self._scheduler, lr_scheduler.ReduceLROnPlateau):
                if validation_loss is not None:
                    self._scheduler.step(validation_loss)
                return
            with warnings.catch_warnings():
                # SequentialLR warns about its own steps.
                warnings.filterwarnings("ignore", "The epoch parameter in `scheduler.step", UserWarning)
                self._scheduler.step()
        except ValueError as error:
            if not self._losses:
                raise  # its first step: the options are wrong
            self._ended = True
            logger.warning("training.schedule: torch:%s has ended; keeping its last rate: %s", self.name, error)


def build_schedule(spec: ScheduleSpec, initial: float) -> Schedule:
    """Return the schedule of a job whose initial rate is `initial`; `ScheduleError` names field and remedy."""
    schedule = _named(spec, initial)
    return Warmup(schedule, spec.warmup) if spec.warmup else schedule


def _named(spec: ScheduleSpec, initial: float) -> Schedule:
    if spec.name == "BudgetLinear":
        return BudgetLinear(initial)
    if spec.name == "Exponential":
        return Exponential(initial, spec.decay)
    if spec.name == "Constant":
        return ConstantRate(initial)
    return TorchSchedule(spec.name.partition(":")[2], initial, dict(spec.options))


def _scheduler_class(name: str) -> Any:
    known = {
        key: value
        for key, value in vars(lr_scheduler).items()
        if inspect.isclass(value)
        and issubclass(value, lr_scheduler.LRScheduler)
        and value is not lr_scheduler.LRScheduler
        and not key.startswith("_")
    }
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean torch:{near[0]}?" if near else f"; there are {', '.join(sorted(known))}"
        raise ScheduleError(f"training.schedule.name: torch has no scheduler {name!r}{hint}")
    return known[name]
