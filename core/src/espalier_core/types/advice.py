"""Requests of a trainer to the agent, the agent's answers, their outcomes, and the proof of the job in such a request.

The proof is a token that the operator mounts into the leader's pod. Kubernetes issues a token for an audience only to a
ServiceAccount of a namespace. So the holder of one for the audience of a job may run pods, or may create tokens, in the
namespace of the account.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from espalier_core.base import YEAR_SECONDS, Record
from espalier_core.growth import NOTHING, OPERATIONS, operation, operation_names, operations_of
from espalier_core.growth.architecture import Architecture, mixes
from espalier_core.growth.deepen import DEEPEN
from espalier_core.growth.widen import WIDEN
from espalier_core.types.adaptation import Insertion
from espalier_core.types.allocation import Allocation
from espalier_core.types.report import MAX_ARMS, MAX_OUTSIDE, Arm, Metric
from espalier_core.types.task import ACCURACY, Task

MAX_DECISION_IDS: Final = 1000
"""Maximum number in one report. A job makes at most a hundred decisions (`maxAdaptations`)."""
DecisionId = Annotated[str, Field(max_length=200)]
"""Maximum length. The agent uses UUIDs of 36 characters; another agent may use other ids."""

MAX_JOB: Final = 320
"""Maximum length of a job's name, in characters: `namespace/name` has at most 317."""
AUDIENCE: Final = "espalier-agent"
"""First part of the audience of a token; namespace, name and UID of the job follow, separated by `/`."""
TOKEN_SECONDS: Final = 3600
"""Lifetime of a token, in seconds. The kubelet replaces it when four fifths are over."""
MAX_TOKEN: Final = 8192
"""Maximum length of a token, in characters; those of Kubernetes have about 1200."""
_ACCOUNT: Final = "system:serviceaccount:"


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed; send `namespace/name` as the API server has it")
    return text


JobText = Annotated[str, Field(max_length=MAX_JOB), AfterValidator(_printable)]
"""The job's name in a request. Logs and the history contain it."""


def _growth_or_nothing(kind: str) -> str:
    return OPERATIONS.check(kind, NOTHING)


class Action(Record):
    """One change that a model allows.

    Equation 1 of Lamelas, `{Deepen(l_1), ..., Deepen(l_n), Do Nothing}`, and in addition `Widen(g_1), ..., Widen(g_m)`.
    """

    kind: Annotated[str, AfterValidator(_growth_or_nothing)]
    """A growth operation: `Deepen`, `Widen`, or one that a package adds; or `Nothing`."""
    target: str | None = None
    """The growth point's id for `Deepen`, the group's for `Widen`; absent for `Nothing`."""
    width: int | None = Field(default=None, ge=1)
    """For `Widen` only: the new number of channels of the group; if absent, twice the current number."""
    insertion: Insertion | None = None
    """For `AddBlock` only: how the blocks are inserted; if absent, exactly."""

    @model_validator(mode="after")
    def _target_fits_kind(self) -> Self:
        if self.grows != (self.target is not None):
            raise ValueError(f"a {self.kind} action {'needs a' if self.grows else 'has no'} target")
        if self.width is not None and not (self.grows and operation(self.kind).sized):
            raise ValueError(f"a {self.kind} action has no width")
        if self.insertion is not None and not (self.grows and operation(self.kind).inserts):
            raise ValueError(f"a {self.kind} action has no insertion")
        return self

    @property
    def grows(self) -> bool:
        """Whether it is any action but `Nothing`."""
        return self.kind != NOTHING

    def __str__(self) -> str:
        how = self.insertion if self.width is None else self.width
        if how is not None:
            return f"{self.kind}({self.target}, {how})"
        return "Nothing" if self.target is None else f"{self.kind}({self.target})"

    @classmethod
    def nothing(cls) -> Action:
        """Return the action that does not change the model."""
        return cls(kind=NOTHING)

    @classmethod
    def deepen(cls, point: str) -> Action:
        """Return the action that adds a layer at growth point `point`."""
        return cls(kind=DEEPEN.name, target=point)

    @classmethod
    def widen(cls, group: str, width: int | None = None) -> Action:
        """Return the action that gives `group` `width` channels; without a width, twice the current number."""
        return cls(kind=WIDEN.name, target=group, width=width)

    def carried_out(self, architecture: Architecture) -> Architecture:
        """Return the description after this action; raise `GrowthError` if it cannot be carried out."""
        if self.target is None:
            return architecture
        grown = operation(self.kind).grown(architecture, self.target, self.width)
        if self.insertion is not None and self.insertion.whole:
            run = architecture.block_point(self.target)
            for _ in range(run.length // len(run.copied) - 1):
                grown = operation(self.kind).grown(grown, self.target)
        return grown

    @property
    def plain(self) -> Action:
        """The same growth, without how it inserts blocks."""
        return self if self.insertion is None else self.model_copy(update={"insertion": None})

    def is_possible(self, architecture: Architecture) -> bool:
        """Return whether its target can have the width that the action names."""
        return self.width is None or operation(self.kind).takes(architecture, str(self.target), self.width)


def offered(architecture: Architecture) -> tuple[Action, ...]:
    """Return every growth that a description offers: operation by operation, each target in its order."""
    return tuple(
        Action(kind=each.name, target=target)
        for each in operations_of(architecture)
        for target in each.targets(architecture)
    )


@dataclass(frozen=True, slots=True)
class ActionColumns:
    """Numbers for the actions of several models: each operation's targets, in their order, and last `Nothing`.

    Without `insertions`, the first insertion listed for a run of blocks has the column of the run, the others none.
    """

    counts: Mapping[str, int]
    """Number of targets of each operation, by the operation's name."""
    insertions: tuple[Insertion, ...] = ()
    """Insertions with a column each for every target of an operation whose actions may name one."""

    @classmethod
    def over(cls, architectures: Iterable[Architecture]) -> ActionColumns:
        """Return columns for every action that one of the descriptions offers; growth points come first."""
        counts: dict[str, int] = {DEEPEN.name: 0}
        for architecture in architectures:
            for each in operations_of(architecture):
                counts[each.name] = max(counts.get(each.name, 0), len(each.targets(architecture)))
        order = [*filter(counts.__contains__, operation_names())]
        return cls({name: counts[name] for name in order})

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(len(self._ways(name)) * count for name, count in self.counts.items()) + 1

    def _ways(self, name: str) -> tuple[Insertion | None, ...]:
        return self.insertions if self.insertions and operation(name).inserts else (None,)

    def of(self, architecture: Architecture, actions: Iterable[Action]) -> list[int | None]:
        """Return the column of each action; None where there is none, as for an action that names a width."""
        columns: dict[tuple[str, str | None, Insertion | None], int] = {}
        first = 0
        for name, count in self.counts.items():
            ways = self._ways(name)
            for place, target in enumerate(operation(name).targets(architecture)[:count]):
                columns |= {(name, target, way): first + place * len(ways) + at for at, way in enumerate(ways)}
            first += count * len(ways)
        columns[NOTHING, None, None] = first
        found: list[int | None] = []
        for action in actions:
            way = action.insertion
            if action.grows and operation(action.kind).inserts:
                way = (way or Insertion.EXACT) if self.insertions else None
            column = None if action.width is not None else columns.get((action.kind, action.target, way))
            found.append(None if column in found else column)
        return found


class CurvePoint(Record):
    """An earlier evaluation."""

    share: float = Field(ge=0, le=1)
    """Share of the budget that was used."""
    validation_loss: float


MAX_CURVE: Final = 200
"""Maximum number of earlier evaluations in a request."""


class Progress(Record):
    """The progress of training at a request for advice."""

    epoch: int = Field(default=0, ge=0)
    step: int = Field(default=0, ge=0)
    adaptations: int = Field(default=0, ge=0)
    """Consultations so far."""
    metrics: tuple[Metric, ...] = ()
    curve: tuple[CurvePoint, ...] = Field(default=(), max_length=MAX_CURVE)
    """Earlier evaluations, ascending; empty where they are not known."""


class AdviceRequest(Record):
    """`POST /v1/advice`: the state of Lamelas 3.1 (model, time left, time budget), and the allowed actions."""

    job: JobText
    architecture: Architecture
    time_left_seconds: float = Field(ge=0, le=YEAR_SECONDS)
    time_budget_seconds: float = Field(gt=0, le=YEAR_SECONDS)
    allocation: Allocation = Allocation()
    progress: Progress = Progress()
    allowed_actions: tuple[Action, ...] | None = None
    """Allowed answers; if absent, everything that the architecture offers, and `Nothing`."""
    places: dict[str, Annotated[int, Field(ge=1, le=2**40)]] = Field(default_factory=dict)
    """Number of places of an example (pixels, tokens, or 1) at which each layer with weights is applied; the cost of a
    growth follows from it. Empty where it is not known."""
    batch_size: int | None = Field(default=None, ge=1, le=2**40)
    """Examples in a training step; absent where it is not known."""
    task: Task = Task.CLASSIFICATION
    """The task of the job, whose measure gains are in."""
    forecast: bool = False
    """Whether only the gain of a growth is asked for: the agent neither explores with the answer nor keeps it."""

    @field_validator("architecture")
    @classmethod
    def _known_operations(cls, architecture: Architecture) -> Architecture:
        # The trainer may lack a package that adds operations: it may be installed only where a model is trained alone.
        for name in architecture.targets or ():
            OPERATIONS.check(name)
        return architecture

    def actions(self) -> tuple[Action, ...]:
        """Return the allowed actions that the architecture offers.

        They come in the order of `offered`; after a target's own growth, those that were listed for it with a width,
        ascending, or with an insertion. `Nothing` is always last.

        `Nothing` is allowed even when it is not listed: a trainer can always keep its model.
        """
        allowed = None if self.allowed_actions is None else set(self.allowed_actions)
        listed = (one for one in self.allowed_actions or () if one.width is not None or one.insertion is not None)
        named = sorted(listed, key=lambda one: one.width or 0)
        found: list[Action] = []
        for growth in offered(self.architecture):
            found.append(growth)
            alike = (one for one in named if (one.kind, one.target) == (growth.kind, growth.target))
            found += (one for one in alike if one.is_possible(self.architecture))
        return (*(a for a in found if allowed is None or a in allowed), Action.nothing())

    def meant(self, answer: Action) -> Action | None:
        """Return the allowed action that an answer means, None if there is none.

        An answer that does not name an insertion means the first one that is allowed.
        """
        allowed = self.actions()
        return answer if answer in allowed else next((one for one in allowed if one.plain == answer), None)


HEURISTIC_MIN_LEFT: Final = 0.1
"""Share of the budget that must be left for the heuristic to deepen. On digits and cifar8 deepening the first block
gained at every moment that `make bench-pays` compares, with 15 % left still 0.082 ± 0.028 and 0.018 ± 0.004 (95 %, five
paired seeds); with 5 % left it was only 0.013 and 0.002 (three to five seeds)."""


def heuristic(request: AdviceRequest) -> Action:
    """Return the first layer to add that mixes places, else the first growth: the trainer's fallback `Heuristic`.

    Return `Nothing` when too little budget is left. Of the fixed rules that always grow, this one has the least regret
    on the corpora of growth (`docs/reports/study.md`).
    """
    actions = request.actions()
    if request.time_left_seconds < HEURISTIC_MIN_LEFT * request.time_budget_seconds:
        return Action.nothing()
    mixing = {point.id for point in request.architecture.growth_points if any(map(mixes, point.insertion))}
    deeper = (action for action in actions if action.kind == DEEPEN.name and action.target in mixing)
    return next(deeper, actions[0])


class PolicyVersion(Record):
    """The policy that answered."""

    name: str
    version: str


class ExpectedGain(Record):
    """Gain against doing nothing at the end, in the task's own measure: positive where the model gets better."""

    mean: float
    low: float
    """Lower end of the interval that contains four of five estimates."""
    high: float


class ActionProbability(Record):
    """The probability that a policy gave one action."""

    action: Action
    probability: float = Field(ge=0, le=1)
    gain: ExpectedGain | None = None
    """Absent for doing nothing, and where the policy does not estimate it."""


class Familiarity(Record):
    """Whether a policy has learned from models and moments like those of a request."""

    known: bool
    outside: tuple[Annotated[str, Field(max_length=MAX_OUTSIDE)], ...] = ()
    """What is outside, in words: `task LanguageModel`, or `log parameters 21.3, learned from 6.1 to 17.2`."""


def familiarity_by(said: Familiarity | None, task: Task, states_gains: bool) -> Familiarity | None:
    """Return what a policy says of its familiarity with a request.

    One that states gains, and cannot tell, has learned from classifiers alone: its gains are accuracies.
    """
    if said is None and states_gains and task is not Task.CLASSIFICATION:
        return Familiarity(known=False, outside=(f"task {task}",))
    return said


class AdviceResponse(Record):
    """The answer to one consultation."""

    decision_id: DecisionId
    action: Action
    policy: PolicyVersion
    probabilities: tuple[ActionProbability, ...] = ()
    familiarity: Familiarity | None = None
    """Absent where the policy cannot tell. Where the request is not known, its gains mean nothing."""


class TrialOutcome(Record):
    """The outcome of a decision that was tried on extra workers before anything was done."""

    decision_id: DecisionId
    action: Annotated[str, Field(max_length=300)]
    """The action that was carried out, as text, or `Nothing`: the trial decided, not the agent."""
    arms: tuple[Arm, ...] = Field(max_length=MAX_ARMS)


class OutcomeReport(Record):
    """`POST /v1/outcomes`: the final result of a job whose decisions the agent made."""

    job: JobText
    decision_ids: tuple[DecisionId, ...] = Field(max_length=MAX_DECISION_IDS)
    final_accuracy: float = Field(ge=0, le=1)
    """Final accuracy of a classification. For another task, its score as a number between 0 and 1, higher is better."""
    measure: Annotated[str, Field(max_length=64)] = ACCURACY.name
    """The measure by which the job is judged: `accuracy`, `r2` or `bits_per_character`."""
    time_budget_seconds: float = Field(gt=0, le=YEAR_SECONDS)
    trials: tuple[TrialOutcome, ...] = Field(default=(), max_length=MAX_DECISION_IDS)
    """Outcomes of the decisions that were tried."""


class OutcomeReceipt(Record):
    """The answer to an `OutcomeReport`."""

    accepted: int = Field(ge=0)
    """Number of decision ids that were accepted."""


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """The job that an audience names."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """`namespace/name`, as in requests to the agent."""
        return f"{self.namespace}/{self.name}"

    @property
    def audience(self) -> str:
        """The audience of a token that proves this job to the agent."""
        return self.audience_of(AUDIENCE)

    def audience_of(self, service: str) -> str:
        """Return the audience of a token that proves this job to a service."""
        return f"{service}/{self.namespace}/{self.name}/{self.uid}"

    @classmethod
    def of_audience(cls, audience: str) -> Self | None:
        """Return the job that `audience` names; None where it names none."""
        first, *rest = audience.split("/")
        return cls(*rest) if first == AUDIENCE and len(rest) == 3 and all(rest) else None


def namespace_of_account(username: str) -> str | None:
    """Return the namespace in `system:serviceaccount:NAMESPACE:NAME`; None for other users."""
    namespace, _, name = username.removeprefix(_ACCOUNT).partition(":")
    return namespace if username.startswith(_ACCOUNT) and namespace and name else None
