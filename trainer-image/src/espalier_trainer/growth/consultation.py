"""One consultation: steps 3 to 5 of the paper's Algorithm 1, and the record of its result.

The cost of a step depends on the number of places of an example at which the model's layers are applied (`places`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from math import prod

from torch import nn

from espalier_core.estimates.gains import ACCURACY_SCALE, LossScale
from espalier_core.estimates.trial_worth import TrialWorth
from espalier_core.growth import operation
from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.growth.block import ADD_BLOCK
from espalier_core.types.advice import Action, AdviceRequest, familiarity_by, offered
from espalier_core.types.advice import Progress as AdviceProgress
from espalier_core.types.allocation import Allocation
from espalier_core.types.job import AdaptationMode, AdaptationSpec, AdaptiveTrainingJob, Insertion, Trials
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Adaptation, AdaptationResult, Arm
from espalier_core.types.task import Task, accuracy_of, other_than_accuracy, score_in
from espalier_trainer.growth.advisor import Advisor, AdvisorDecision
from espalier_trainer.net2net.block.points import scalable_runs
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.net2net.trace.graph import Graph, Operation
from espalier_trainer.net2net.trace.tracing import trace
from espalier_trainer.signals.scheduler import Scheduler
from espalier_trainer.training.network import Network
from espalier_trainer.training.progress import RunProgress

MIN_CONSULTATION_WALL_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Consultation:
    """The result of a consultation."""

    network: Network
    """The grown network, or the unchanged one."""
    adaptation: Adaptation
    restart_schedule: bool
    problem: tuple[Reason, str] | None
    inexact: bool = False
    """Whether growth has changed the network's outputs."""
    restarted_at: float | None = None
    """Used seconds of the budget at which the schedule restarted; None for now."""

    @property
    def answered(self) -> bool:
        """Whether a decision was made: by the agent, or by a fallback that advises growth in its place."""
        away = self.problem is not None and self.problem[0] is Reason.AGENT_UNAVAILABLE
        return not away or self.adaptation.result is not AdaptationResult.DECLINED


@dataclass(frozen=True, slots=True)
class Advised:
    """Advice that is not carried out yet."""

    decision: AdvisorDecision
    allowed: tuple[Action, ...]
    """Actions that the advisor could choose from."""
    used_seconds: float
    """Used budget at the time of the request."""
    allocation: Allocation
    seconds: float
    """Wall seconds until the answer."""
    scale: LossScale = ACCURACY_SCALE
    """Relation of validation losses to gains."""
    worth: TrialWorth | None = None
    """Worth of the trial that `Auto` would choose; None where it was not asked for, or no trial is possible."""

    @property
    def outside(self) -> tuple[str, ...]:
        """What the policy has not learned from; empty if it knows the model and the moment, or cannot tell."""
        familiarity = self.decision.familiarity
        return () if familiarity is None or familiarity.known else familiarity.outside or ("this model",)

    @property
    def untried(self) -> str:
        """Why the advice was not tried first, though `Auto` allows it."""
        return "" if self.worth is None else f"not tried first: {self.worth}"

    def choosing(self, action: Action) -> Advised:
        """Return the advice with another action, which a trial found better than the advised one."""
        return replace(self, decision=replace(self.decision, action=action))

    def record(
        self, result: AdaptationResult, before: Network, after: Network, progress: RunProgress, message: str = ""
    ) -> Adaptation:
        """Return the record of the advice with its result."""
        decision, score = self.decision, score_in(progress.metrics, "validation")
        return Adaptation(
            decision_id=decision.id,
            time=datetime.now(UTC),
            used_seconds=self.used_seconds,
            trigger=self.allocation.reason,
            generation=self.allocation.generation,
            action=str(decision.action),
            source=decision.source,
            policy=decision.policy,
            probabilities=decision.probabilities,
            result=result,
            reason=decision.problem[0] if decision.problem else None,
            message=message,
            depth_before=before.depth,
            depth_after=after.depth,
            parameters_before=before.parameters,
            parameters_after=after.parameters,
            width_before=_width(before, decision.action, result),
            width_after=_width(after, decision.action, result),
            accuracy_before=accuracy_of(score),
            score_before=other_than_accuracy(score),
            outside=self.outside,
            seconds=self.seconds,
        )


@dataclass(frozen=True, slots=True)
class Adapter:
    """Asks the advisor and grows the network, as the job allows."""

    job: AdaptiveTrainingJob
    advisor: Advisor
    scheduler: Scheduler
    example_input: ExampleInput
    batch_size: Callable[[], int]
    """Returns the number of examples in a step, which may change: by goodput, or in a user's own loop."""
    restart_only: bool = False
    """Control for studies: advice to grow only restarts the learning-rate schedule."""
    clock: Callable[[], float] = time.monotonic
    seed: int = 0
    """Seed of random choices in growth."""
    loss: Callable[[nn.Module], float | None] = lambda _module: None
    """Returns the loss of a module on a fixed batch; None where it is unknown."""

    def may_grow(self, network: Network, progress: RunProgress, waiting: Set[Action] = frozenset()) -> bool:
        """Return whether any growth of the network may be advised that is not `waiting`."""
        found = network.architecture
        return found is not None and any(True for _ in _allowed(*self._limits(network, found, progress, waiting)))

    def _limits(
        self, network: Network, architecture: Architecture, progress: RunProgress, waiting: Set[Action]
    ) -> tuple[AdaptationSpec, Architecture, int, Set[Action], Task, Callable[[], Set[str]]]:
        """Return the arguments of `allowed_actions`."""
        spec, scalable = self.job.spec, partial(scalable_runs, network.module, self.example_input)
        return spec.adaptation, architecture, progress.parameters_before, waiting, spec.training.task, scalable

    def question(self, network: Network, progress: RunProgress, allocation: Allocation) -> AdviceRequest:
        """Return the request for advice on growth."""
        if network.architecture is None:
            raise ValueError("a network without a description cannot be advised on")
        return AdviceRequest(
            job=self.job.key,
            architecture=network.architecture,
            time_left_seconds=self.scheduler.time_left(),
            time_budget_seconds=self.scheduler.time_budget(),
            allocation=allocation,
            allowed_actions=allowed_actions(*self._limits(network, network.architecture, progress, network.waiting)),
            progress=AdviceProgress(
                epoch=progress.epoch,
                step=progress.step,
                adaptations=progress.consultations,
                metrics=progress.metric_tuple(),
                curve=progress.curve,
            ),
            places=known_places(network.module, self.example_input),
            batch_size=self.batch_size(),
            task=self.job.spec.training.task,
        )

    def ask(self, network: Network, progress: RunProgress, allocation: Allocation) -> Advised:
        """Request advice on growth."""
        spec = self.job.spec.adaptation
        began, used = self.clock(), self.scheduler.used_seconds()
        request = self.question(network, progress, allocation)
        # Waiting for the agent costs budget, so the wait is limited to the remaining budget.
        patience = max(
            MIN_CONSULTATION_WALL_SECONDS, min(spec.decision_timeout_seconds, self.scheduler.wall_time_left())
        )
        decision = self.advisor.advise(request, patience)
        familiarity = familiarity_by(decision.familiarity, request.task, bool(decision.gains))
        known = familiarity is None or familiarity.known
        decision = replace(decision, familiarity=familiarity, gains=decision.gains if known else {})
        scale = LossScale.of(request.task, progress.metrics)
        return Advised(decision, request.actions(), used, allocation, self.clock() - began, scale)

    def carried_out(
        self, asked: Advised, network: Network, progress: RunProgress, arms: Sequence[Arm] = ()
    ) -> Consultation:
        """Grow as advised, in mode Auto; `arms` are the arms of an earlier trial. Errors here never stop training."""
        spec, decision, began = self.job.spec.adaptation, asked.decision, self.clock()
        grown, result, message = self._carry_out(asked, network, tried=bool(arms))
        jumps = result is AdaptationResult.GROWN and not exact(decision.action, spec.described_insertion)
        summary = "; ".join(filter(None, (message, compared(arms) if arms else asked.untried)))
        adaptation = asked.record(result, network, grown, progress, summary).model_copy(
            update={
                "loss_before": _finite(self.loss(network.module)) if jumps else None,
                "loss_after": _finite(self.loss(grown.module)) if jumps else None,
                "arms": tuple(arms),
                "seconds": asked.seconds + self.clock() - began,
            }
        )
        wanted = decision.action.grows
        restart = (self.restart_only and wanted) or self.restarts(result)
        return Consultation(grown, adaptation, restart, decision.problem, inexact=jumps)

    def declined(self, asked: Advised, network: Network, progress: RunProgress, arms: Sequence[Arm]) -> Consultation:
        """Leave the network unchanged, since no arm of the trial is better."""
        adaptation = asked.record(AdaptationResult.DECLINED, network, network, progress).model_copy(
            update={"reason": Reason.TRIAL_NOT_BETTER, "arms": tuple(arms), "message": compared(arms)}
        )
        return Consultation(network, adaptation, restart_schedule=False, problem=asked.decision.problem)

    def taken_over(
        self,
        asked: Advised,
        action: Action,
        before: Network,
        after: Network,
        progress: RunProgress,
        arms: Sequence[Arm],
        parameters: int,
    ) -> Consultation:
        """Continue with a copy that has grown by `action` and trained on, the best arm of the trial.

        `parameters` is the number of parameters of `before`, whose module may have grown in place.
        """
        adaptation = asked.choosing(action).record(AdaptationResult.GROWN, before, after, progress, compared(arms))
        adaptation = adaptation.model_copy(update={"arms": tuple(arms), "parameters_before": parameters})
        restart = self.restarts(AdaptationResult.GROWN)
        return Consultation(after, adaptation, restart, asked.decision.problem, restarted_at=asked.used_seconds)

    def growth_seed(self, network: Network) -> int:
        """Return the seed of the next growth: different for each growth, equal if the same growth is repeated."""
        return (self.seed << 16) + len(network.history)

    def restarts(self, result: AdaptationResult) -> bool:
        """Return whether the schedule of the learning rate restarts after this result."""
        return result is AdaptationResult.GROWN and self.job.spec.training.schedule.restart_on_growth

    def _carry_out(self, asked: Advised, network: Network, *, tried: bool) -> tuple[Network, AdaptationResult, str]:
        decision = asked.decision
        problem = decision.problem[1] if decision.problem else ""
        follows = decision.action.grows and (tried or self.job.spec.adaptation.trials is not Trials.AUTO)
        if asked.outside and not follows:
            return network, AdaptationResult.UNKNOWN, f"not learned from: {', '.join(asked.outside)}"
        if not decision.action.grows:
            return network, AdaptationResult.DECLINED, problem
        if self.restart_only:
            return network, AdaptationResult.DRY_RUN, "control: only the learning-rate schedule restarts"
        if self.job.spec.adaptation.mode is AdaptationMode.DRY_RUN:
            return network, AdaptationResult.DRY_RUN, problem
        if self.scheduler.time_left() <= 0:
            return network, AdaptationResult.FAILED, "the time budget ran out while waiting for advice"
        try:
            seed = self.growth_seed(network)
            insertion = self.job.spec.adaptation.described_insertion
            grown = network.grown(decision.action, self.example_input, insertion, seed)
        except GrowthError as error:
            return network, AdaptationResult.FAILED, str(error)
        return grown, AdaptationResult.GROWN, problem


def compared(arms: Sequence[Arm]) -> str:
    """Describe the result of a trial."""
    losses = (f"{each.action} {f'{each.loss:.4g}' if each.loss is not None else each.message}" for each in arms)
    return f"validation loss when tried: {', '.join(losses)}"


def exact(action: Action, insertion: Insertion) -> bool:
    """Return whether a growth keeps the model's outputs in eval mode."""
    return action.kind != ADD_BLOCK.name or (action.insertion or insertion) is not Insertion.SCALED


def _finite(loss: float | None) -> float | None:
    """Return a loss that a report can hold: None if it is not finite."""
    return loss if loss is not None and math.isfinite(loss) else None


def _width(network: Network, action: Action, result: AdaptationResult) -> int | None:
    if result is not AdaptationResult.GROWN or network.architecture is None:
        return None
    return operation(action.kind).width(network.architecture, str(action.target))


def undone(adaptation: Adaptation, network: Network, message: str) -> Adaptation:
    """Return the record of an adaptation that was reverted."""
    return adaptation.model_copy(
        update={
            "result": AdaptationResult.FAILED,
            "message": message,
            "width_after": adaptation.width_before,
            "depth_after": network.depth,
            "parameters_after": network.parameters,
        }
    )


def allowed_actions(
    spec: AdaptationSpec,
    architecture: Architecture,
    started_with: int,
    waiting: Set[Action] = frozenset(),
    task: Task = Task.CLASSIFICATION,
    scalable: Callable[[], Set[str]] = frozenset,
) -> tuple[Action, ...] | None:
    """Return the actions that may be advised; None for all that the architecture offers, without a bound.

    `started_with` is the number of parameters of the starting model; `waiting` are growths that have to wait for an
    earlier one; `scalable` returns the runs of blocks that can be copied whole. `Nothing` is always allowed and not
    listed.
    """
    found = tuple(_allowed(spec, architecture, started_with, waiting, task, scalable))
    return None if _bound(spec, started_with) is None and found == offered(architecture) else found


def _allowed(
    spec: AdaptationSpec,
    architecture: Architecture,
    started_with: int,
    waiting: Set[Action],
    task: Task,
    scalable: Callable[[], Set[str]],
) -> Iterator[Action]:
    """Yield the actions of `allowed_actions`, each when it is asked for."""
    bound, ways = _bound(spec, started_with), spec.insertions(task)
    wanted = (action for action in offered(architecture) if action.kind in spec.actions and action not in waiting)
    for action in wanted if ways == (Insertion.EXACT,) else _in_all_ways(wanted, ways, cache(scalable)):
        if bound is None or action.carried_out(architecture).parameters <= bound:
            yield action


def _bound(spec: AdaptationSpec, started_with: int) -> int | None:
    """Return the maximum number of parameters; None: no bound."""
    if spec.max_parameters is not None:
        return spec.max_parameters
    return min((most * started_with for name in spec.actions if (most := operation(name).bound)), default=None)


def _in_all_ways(
    actions: Iterable[Action], ways: Sequence[Insertion], scalable: Callable[[], Set[str]]
) -> Iterator[Action]:
    """Yield the actions; those that insert blocks once for each way that their run allows."""
    for action in actions:
        if not operation(action.kind).inserts:
            yield action
            continue
        for way in ways:
            if len(ways) == 1 or not way.whole or action.target in scalable():
                yield action.model_copy(update={"insertion": way})


_CHANNELS = ("out_channels", "out_features", "num_features", "num_channels")


def places(model: nn.Module, example_input: ExampleInput) -> dict[str, int]:
    """Return, for each operation with weights, the number of places of an example it is applied at; see `step_seconds`.

    Raises `GrowthError` where the model cannot be run on the example.
    """
    return places_of(trace(model, example_input))


def known_places(model: nn.Module, example_input: ExampleInput) -> dict[str, int]:
    """Return `places`, or {} where the model cannot be run: then the cost of a growth is unknown."""
    try:
        return places(model, example_input)
    except GrowthError:
        return {}


def places_of(graph: Graph) -> dict[str, int]:
    """Return the places of the operations with weights of a traced model."""
    found = {}
    for name, read in graph.operations.items():
        if read.parameters:
            here = _places(read)
            if here is None:
                inputs = [graph.operations[one] for one in read.inputs]
                here = next((size for one in inputs if (size := _places(one)) is not None), 1)
            found[name] = here
    return found


def _places(operation: Operation) -> int | None:
    if operation.shape is None or len(operation.shape) < 2:
        return None
    channels = next((operation.attributes[key] for key in _CHANNELS if key in operation.attributes), None)
    width = channels if isinstance(channels, int) and channels > 0 else operation.shape[-1]
    return max(1, prod(operation.shape[1:]) // max(1, width))
