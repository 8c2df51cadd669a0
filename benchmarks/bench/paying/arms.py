"""The arms: what a job makes of a GPU that comes and goes; what steps and pauses cost, and time that passes by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from pydantic import Field

from bench.runs import ShippedPolicy
from espalier_core.base import Record
from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import Action
from espalier_core.types.job import AdaptiveTrainingJob, ElasticBatch
from espalier_core.validation.reading import with_spec
from espalier_lab.virtual_run import ChargedScheduler
from espalier_lab.virtual_time import ReplicaChange, Scripted
from espalier_trainer.elastic import Team
from espalier_trainer.growth.advisor import Advisor

NEVER: Final = 1_000_000


class Arm(StrEnum):
    """What the job makes of the extra GPU."""

    ALONE = "small, base GPU only"
    ELASTIC = "small, elastic"
    SCRATCH = "deep from scratch, elastic"
    AGENT = "grown by the agent, elastic"
    FIXED = "grown at the first block, elastic"


@dataclass(frozen=True, slots=True)
class Timeline:
    """One more GPU from `come` to `gone`, in seconds of the budget."""

    come: float
    gone: float

    def arrivals(self) -> tuple[ReplicaChange, ...]:
        """Return it as the scheduler of a trainer takes it."""
        return (ReplicaChange(self.come, 2), ReplicaChange(self.gone, 1))


def timeline(share: float, length: float, budget: float) -> Timeline:
    """Return the timeline of a GPU that comes when `share` of the budget is used and stays for `length` of it.

    It is gone at 95 % of the budget at the latest.
    """
    return Timeline(share * budget, min(share + length, 0.95) * budget)


def job_of(job: AdaptiveTrainingJob, arm: Arm, policy: ElasticBatch) -> AdaptiveTrainingJob:
    """Return the job as this arm trains it; nothing is evaluated, averaged or saved on the way: it costs time."""
    return with_spec(
        job,
        adaptation={"mode": "Auto" if arm in (Arm.AGENT, Arm.FIXED) else "Off", "trials": "Off"},
        training={
            "evaluateEveryEpochs": NEVER,
            "elasticBatch": None if arm is Arm.ALONE else policy,
            "weightAveraging": 0.0,
        },
    )


def advisor_of(job: AdaptiveTrainingJob, arm: Arm, first: str) -> Advisor | None:
    """Return whom this arm asks; `first` is the name of the first growth point."""
    if arm is Arm.AGENT:
        return ShippedPolicy()
    if arm is Arm.FIXED:
        return Scripted((Action.deepen(first),) * job.spec.adaptation.max_adaptations, "always the first block")
    return None


class LayerCosts(Record):
    """Seconds a step: of the starting model, and more for each layer added at a growth point."""

    base: float = Field(gt=0)
    added: dict[str, float]

    def of(self, architecture: Architecture | None) -> float:
        """Return the seconds of a step of `architecture`."""
        history = architecture.growth_history if architecture else {}
        return self.base + sum(self.added.get(point, 0.0) * layers for point, layers in history.items())


class Costs(Record):
    """All that takes time."""

    one: LayerCosts
    """A step of one worker."""
    two: LayerCosts
    """A step of two workers that train together."""
    join_s: float = Field(ge=0)
    """The pause when a worker joins."""
    leave_s: float = Field(ge=0)
    growth_s: float = Field(ge=0)

    def ideal(self, share: float) -> Costs:
        """Return the costs if two workers cost nothing but their part of the work, `share` of a step of one."""
        return self.model_copy(
            update={
                "two": LayerCosts(
                    base=self.one.base * share, added={point: each * share for point, each in self.one.added.items()}
                ),
                "join_s": 0.0,
                "leave_s": 0.0,
            }
        )


@dataclass
class ElasticClock(ChargedScheduler):
    """Advances by the measured time of a step with the current number of workers, and by the pauses at changes."""

    joint_seconds: Callable[[Architecture | None], float] = field(kw_only=True)
    """A step of two workers."""
    team: TimedTeam | None = field(init=False, default=None)
    _joint: tuple[Architecture | None, float] | None = field(init=False, default=None)

    def step_finished(self, architecture: Architecture | None) -> None:
        """Move by the cost of one step of this architecture, by one worker or two."""
        if self.team is None or self.team.world == 1:
            super().step_finished(architecture)
            return
        if self._joint is None or self._joint[0] is not architecture:
            self._joint = (architecture, self.joint_seconds(architecture))
        self.charge(self._joint[1])


class TimedTeam(Team):
    """A team whose changes take virtual time, and come at the step boundary that is due however loaded the machine.

    It waits, in real time, for its extra worker before it trains: that worker's start is not part of the comparison.
    """

    def __init__(self, clock: ElasticClock, costs: Costs, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, listen_seconds=0.0, **options)
        self._virtual, self._costs = clock, costs
        self.growths = 0
        clock.team = self

    def update_members(self, replicas: int, *arguments: Any) -> None:
        """Take in or let go as `Team` does, at once."""
        before = self.world
        super().update_members(replicas, *arguments)
        if self.world > before:
            self._virtual.charge(self._costs.join_s)
        elif self.world < before:
            self._virtual.charge(self._costs.leave_s)

    def network_changed(self) -> None:
        """Record that the network is another."""
        super().network_changed()
        self.growths += 1
        self._virtual.charge(self._costs.growth_s)
