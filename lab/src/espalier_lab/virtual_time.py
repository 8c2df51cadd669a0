"""Virtual time and scripted advice: runs whose results depend on no load of the machine, for studies and tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import Action, AdviceRequest, OutcomeReport
from espalier_core.types.allocation import Allocation
from espalier_core.types.report import AdaptationSource
from espalier_trainer.growth.advisor import AdvisorDecision
from espalier_trainer.signals.scheduler import AllocationDirections, Scheduler


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """From `at_seconds` of the budget on, the job has `replicas` workers."""

    at_seconds: float
    replicas: int


@dataclass
class VirtualScheduler(Scheduler):
    """Virtual time: it advances only by `step_seconds(architecture)` at each step.

    A step costs its measured time; evaluation, advice and growth cost nothing.
    """

    budget_seconds: float
    step_seconds: Callable[[Architecture | None], float]
    arrivals: Sequence[ReplicaChange] = ()
    base: int = 1
    speedup: Callable[[int], float] = lambda replicas: 1.0
    """Returns the speed of a step with this number of replicas, relative to one; 1 if the others take no part."""
    _used: float = field(init=False, default=0.0)
    _asked: AllocationDirections = field(init=False)
    _cost: tuple[Architecture | None, float] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.budget_seconds <= 0:
            raise ValueError(f"budget of {self.budget_seconds} s; it must be more than 0")
        self._asked = AllocationDirections(self.base)

    def time_budget(self) -> float:
        """Return the budget in virtual seconds."""
        return self.budget_seconds

    def allocation(self) -> Allocation:
        """Return the allocation after the last arrival so far; its generation is the number of arrivals."""
        come = [arrival for arrival in self.arrivals if arrival.at_seconds <= self._used]
        replicas = come[-1].replicas if come else self.base
        allocation = Allocation(generation=len(come), replicas=replicas, gpus=replicas)
        return self._asked.direct(allocation)

    def base_replicas(self) -> int:
        """Return the number of guaranteed workers."""
        return self.base

    def start(self, used_seconds: float) -> None:
        """Start the clock at `used_seconds`."""
        self._used = used_seconds

    def used_seconds(self) -> float:
        """Return the used virtual seconds."""
        return self._used

    def wall_time_left(self) -> float:
        """Return infinity: virtual time does not pass by itself."""
        return math.inf

    def step_finished(self, architecture: Architecture | None) -> None:
        """Advance virtual time by the cost of one step of this architecture."""
        if self._cost is None or self._cost[0] is not architecture:
            self._cost = (architecture, self.step_seconds(architecture))
        self._used += self._cost[1] / self.speedup(self._asked.replicas)


@dataclass
class Scripted:
    """Advises a fixed sequence of actions, then nothing."""

    actions: tuple[Action, ...]
    name: str = "scripted"
    asked: list[AdviceRequest] = field(default_factory=list)
    outcomes: list[OutcomeReport] = field(default_factory=list)

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        """Return the next action, by the request's number of consultations."""
        index = request.progress.adaptations
        action = self.actions[index] if index < len(self.actions) else Action.nothing()
        self.asked.append(request)
        return AdvisorDecision(f"{self.name}-{index}", action, AdaptationSource.AGENT, self.name)

    def report_outcome(self, outcome: OutcomeReport) -> None:
        """Store the outcome."""
        self.outcomes.append(outcome)
