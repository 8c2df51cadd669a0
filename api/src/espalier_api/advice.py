"""What a trainer asks the agent, what the agent answers, and what came of it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from espalier_api.allocation import Allocation
from espalier_api.architecture import Architecture
from espalier_api.base import Record
from espalier_api.report import Metric

MAX_DECISION_IDS: Final = 1000
"""In one report. A job decides a hundred times at most (`maxAdaptations`)."""
DecisionId = Annotated[str, Field(max_length=200)]
"""The agent's are UUIDs of 36 characters; another agent may have its own."""


class ActionKind(StrEnum):
    """The kinds of growth, and doing nothing."""

    DEEPEN = "Deepen"
    WIDEN = "Widen"
    NOTHING = "Nothing"


class Action(Record):
    """One thing that may be done to a model.

    Equation 1 of Lamelas, `{Deepen(l_1), ..., Deepen(l_n), Do Nothing}`, and beside it `Widen(g_1), ..., Widen(g_m)`.
    """

    kind: ActionKind
    target: str | None = None
    """The growth point's id for `Deepen`, the group's for `Widen`; absent for `Nothing`."""
    width: int | None = Field(default=None, ge=1)
    """Of `Widen` only: how many channels the group is to have; absent: twice as many as it has."""

    @model_validator(mode="after")
    def _target_fits_kind(self) -> Self:
        if (self.kind is ActionKind.NOTHING) != (self.target is None):
            raise ValueError(f"a {self.kind} action {'has no' if self.target else 'needs a'} target")
        if self.width is not None and self.kind is not ActionKind.WIDEN:
            raise ValueError(f"a {self.kind} action has no width")
        return self

    def __str__(self) -> str:
        if self.width is not None:
            return f"{self.kind}({self.target}, {self.width})"
        return "Nothing" if self.target is None else f"{self.kind}({self.target})"

    @classmethod
    def nothing(cls) -> Action:
        """Leave the model as it is."""
        return cls(kind=ActionKind.NOTHING)

    @classmethod
    def deepen(cls, point: str) -> Action:
        """Add a layer at growth point `point`."""
        return cls(kind=ActionKind.DEEPEN, target=point)

    @classmethod
    def widen(cls, group: str, width: int | None = None) -> Action:
        """Give `group` so many channels; without a width, twice as many as it has."""
        return cls(kind=ActionKind.WIDEN, target=group, width=width)

    def carried_out(self, architecture: Architecture) -> Architecture:
        """Return the description after this action; raises `GrowthError` where it cannot be carried out."""
        if self.target is None:
            return architecture
        if self.kind is ActionKind.DEEPEN:
            return architecture.deepen(self.target)
        return architecture.widen(self.target, self.new_width(architecture))

    def new_width(self, architecture: Architecture) -> int:
        """Return how many channels a `Widen` asks for; raises `GrowthError` where there is no such group."""
        if self.target is None or self.kind is not ActionKind.WIDEN:
            raise ValueError(f"{self} widens nothing")
        width = architecture.channel_group(self.target).width
        return 2 * width if self.width is None else self.width


class Progress(Record):
    """How far training has come when advice is asked for."""

    epoch: int = Field(default=0, ge=0)
    step: int = Field(default=0, ge=0)
    adaptations: int = Field(default=0, ge=0)
    """Consultations so far."""
    metrics: tuple[Metric, ...] = ()


class AdviceRequest(Record):
    """`POST /v1/advice`: the state of Lamelas 3.1 (model, time left, time budget), and what is allowed."""

    job: str
    architecture: Architecture
    time_left_seconds: float = Field(ge=0)
    time_budget_seconds: float = Field(gt=0)
    allocation: Allocation = Allocation()
    progress: Progress = Progress()
    allowed_actions: tuple[Action, ...] | None = None
    """What may be answered; absent: every growth point and every group of the architecture, and `Nothing`."""

    def actions(self) -> tuple[Action, ...]:
        """Return the allowed actions that the architecture offers.

        Growth points in their order, then groups in theirs (doubled, then to widths that were asked for), and `Nothing`
        always last.

        `Nothing` is allowed even when it is not listed: a trainer can always leave its model as it is.
        """
        allowed = None if self.allowed_actions is None else set(self.allowed_actions)
        offered = [Action.deepen(point.id) for point in self.architecture.growth_points]
        for group in self.architecture.channel_groups:
            offered.append(Action.widen(group.id))
            widths = {action.width for action in allowed or () if action.target == group.id}
            offered += (Action.widen(group.id, width) for width in sorted(filter(None, widths)) if group.accepts(width))
        return (*(a for a in offered if allowed is None or a in allowed), Action.nothing())


class PolicyVersion(Record):
    """Which policy answered."""

    name: str
    version: str


class ActionProbability(Record):
    """The probability that a policy gave one action."""

    action: Action
    probability: float = Field(ge=0, le=1)


class AdviceResponse(Record):
    """The answer to one consultation."""

    decision_id: DecisionId
    action: Action
    policy: PolicyVersion
    probabilities: tuple[ActionProbability, ...] = ()


class OutcomeReport(Record):
    """`POST /v1/outcomes`: how a job ended whose decisions the agent made."""

    job: str
    decision_ids: tuple[DecisionId, ...] = Field(max_length=MAX_DECISION_IDS)
    final_accuracy: float = Field(ge=0, le=1)
    time_budget_seconds: float = Field(gt=0)


class OutcomeReceipt(Record):
    """The answer to an `OutcomeReport`."""

    accepted: int = Field(ge=0)
    """How many decision ids were taken in."""
