"""What the leader and a worker send each other about a trial."""

from __future__ import annotations

from pydantic import Field, ValidationError

from espalier_core.base import Record
from espalier_core.types.advice import Action
from espalier_core.types.report import Arm
from espalier_trainer.optimizers.schedules import Moment


class Order(Record):
    """What one worker tries, one action after the other, each from the state that it holds."""

    trial: str
    """Unique for each trial."""
    actions: tuple[Action, ...] = Field(min_length=1)
    rates: tuple[float, ...]
    """Learning rates that the arms begin with, as `TrainingState.trial_rates` gives them."""
    ends: float = Field(ge=0, le=1)
    """The rate at the end of an arm, as a share of that at its beginning; it falls linearly."""
    seconds: float = Field(gt=0)
    """Wall time of each arm."""
    shares: tuple[float, ...] = Field(min_length=1)
    """The slices of an arm, ascending, as shares of the budget that was left; the last one ends with it."""
    seed: int
    """Of random choices in growth, the same as if the leader carried the action out."""
    keep: bool
    """Hold the state of the last arm at its end, for the case that it wins."""
    used_seconds: float = 0.0
    """Where the leader stood in its budget."""
    budget_seconds: float = 0.0
    pace: float = 1.0
    """Budget seconds of a second of wall time."""

    def moment(self, seconds: float) -> Moment:
        """Return where an arm stands in the budget after these seconds of wall time: where the job stands then."""
        return Moment(self.used_seconds + self.pace * seconds, self.budget_seconds)


class Result(Record):
    """What came of an order."""

    trial: str
    arms: tuple[Arm, ...]


def result_from(text: str) -> Result | None:
    """Read a result; None where it is none, as of a worker of another version."""
    try:
        return Result.model_validate_json(text)
    except ValidationError:
        return None
