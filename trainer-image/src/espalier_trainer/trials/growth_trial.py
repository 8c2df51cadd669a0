"""A trial in its leader: the orders of the workers, their results, and the end of the trial."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from espalier_core.estimates.gains import SHARES
from espalier_core.types.advice import Action
from espalier_core.types.job import Trials
from espalier_core.types.report import Arm, Slice
from espalier_trainer.elastic.states import TrialRates
from espalier_trainer.growth.consultation import Advised
from espalier_trainer.optimizers.schedules import UNKNOWN, Moment
from espalier_trainer.training.network import Network
from espalier_trainer.trials import rules
from espalier_trainer.trials.rules import TrialOrder, result_from


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """The end of a trial."""

    arms: tuple[Arm, ...]
    best: Arm | None
    """The winning arm; None for a trial without a result, which decides nothing."""
    winner: str | None = None
    """Worker with the state of the best arm, for a race that a growth won; otherwise None."""
    why: str = ""
    """Reason why the trial has no result."""

    @property
    def grows(self) -> bool:
        """Whether a growth was better than the unchanged model."""
        return self.best is not None and self.best.action != str(Action.nothing())


@dataclass(frozen=True, slots=True)
class GrowthTrial:
    """A trial in progress."""

    asked: Advised
    """The advice on trial."""
    network: Network
    """The network from which all arms began."""
    orders: Mapping[str, TrialOrder]
    """Orders by worker."""
    replicas: int
    """Replicas of the allocation when the trial began: the job gives workers back from those that try."""
    seconds: float
    """Wall seconds of each arm."""
    until: float
    """Time by `clock` after which missing results are no longer awaited."""
    latest: float
    """Time by `clock` after which no growth is carried out: results may come in time, and an epoch end long after."""
    mode: Trials = Trials.CONFIRM
    """Evidence by which the arms are judged: a race of one worker is judged as `Confirm`."""
    clock: Callable[[], float] = field(default=time.monotonic)

    base: list[tuple[float, float]] = field(default_factory=list)
    """Times by `clock`, and validation losses of the base, from the beginning on."""
    gone: dict[str, Arm] = field(default_factory=dict)
    """Arms of a race that were stopped before the end, by worker."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """Actions on trial, in the order of the workers; `Nothing` last where the base is that arm."""
        tried = self._ordered
        return tried if Action.nothing() in tried else (*tried, Action.nothing())

    @property
    def _ordered(self) -> tuple[Action, ...]:
        return tuple(action for order in self.orders.values() for action in order.actions)

    def action(self, arm: Arm) -> Action:
        """Return the action of an arm."""
        return next(action for action in self.actions if str(action) == arm.action)

    @property
    def base_due(self) -> bool:
        """Whether the validation loss of the base must be measured, where that costs the job time.

        Only where the base is an arm: often enough to know the loss at the end of the slice, and once after that.
        """
        if not self.base or Action.nothing() in self._ordered:
            return False
        (began, _), (last, _) = self.base[0], self.base[-1]
        now, ends = self.clock(), began + self.seconds
        return last < ends and (now >= ends or now - last >= _INTERVAL * self.seconds)

    def base_measured(self, loss: float | None) -> None:
        """Record the current validation loss of the base."""
        if loss is not None:
            self.base.append((self.clock(), loss))

    def narrowed(self, reported: Mapping[str, str]) -> tuple[str, ...]:
        """Return the workers whose arm does not continue; `reported` is the progress of each worker, as text."""
        far = {worker: arms[-1] for worker, text in reported.items() if (arms := self._arms(worker, text))}
        nothing = next((worker for worker, order in self.orders.items() if _last(order) == _NOTHING), None)
        left = [worker for worker in self.orders if worker not in self.gone and worker != nothing]
        if any(worker not in far for worker in left) or (nothing is not None and nothing not in far):
            return ()
        shares = {one.share for worker in left for one in far[worker].slices}
        found: dict[str, float] = {}
        for share in sorted(shares):
            out = rules.behind(
                share,
                [far[worker] for worker in left if worker not in found],
                None if nothing is None else far[nothing],
                self.asked.decision.gains,
                self.asked.scale,
            )
            found |= {worker: share for worker in left if worker not in found and far[worker].action in out}
        for worker, share in found.items():
            message = f"others were ahead after {share:.0%}"
            self.gone[worker] = far[worker].model_copy(update={"loss": None, "message": message})
        return tuple(found)

    def verdict(self, results: Mapping[str, str], network: Network, replicas: int) -> TrialVerdict | None:
        """Return the end of the trial; None while it is in progress.

        `results` are texts of `rules.TrialResult`, by worker; `network` and `replicas` are the leader's current ones.
        """
        if network is not self.network:
            return TrialVerdict((), None, why="the model has changed meanwhile")
        # If a worker is taken back the others may suffice: only the arms that it alone tried are missing.
        arms = tuple(
            arm
            for worker in self.orders
            for arm in ((self.gone[worker],) if worker in self.gone else self._arms(worker, results.get(worker, "")))
        )
        if (base := self._base_arm()) is not None:
            arms = (*arms, base)
        complete = len(arms) == len(self.actions)
        if not complete and replicas >= self.replicas and self.clock() < self.until:
            return None
        best = rules.best(arms, self.mode, self.asked.decision.gains, self.asked.scale)
        if best is None or (not complete and not any(arm.action != _NOTHING for arm in arms)):
            reason = "workers on the trial were taken back" if replicas < self.replicas else "results are missing"
            return TrialVerdict(arms, None, why=reason)
        if best.action != _NOTHING and self.clock() >= self.latest:
            return TrialVerdict(arms, None, why=f"{best.action} won, and the epoch ended too late for it")
        holders = (worker for worker, order in self.orders.items() if order.keep and _last(order) == best.action)
        return TrialVerdict(arms, best, next(holders, None))

    def _arms(self, worker: str, text: str) -> tuple[Arm, ...]:
        result = result_from(text) if text else None
        return result.arms if result is not None and result.trial == self.orders[worker].trial else ()

    def _base_arm(self) -> Arm | None:
        """Return the arm of `Nothing`, with the base's loss at the end of the arms; None if it is tried."""
        if Action.nothing() in self._ordered or not self.base:
            return None
        if (loss := rules.interpolated(self.base, self.base[0][0] + self.seconds)) is None:
            return None
        at_end = Slice(share=SHARES[self.mode], loss=loss)
        return Arm(action=_NOTHING, loss=loss, seconds=self.seconds, slices=(at_end,), message="the base itself")


_NOTHING: Final = str(Action.nothing())
_INTERVAL: Final = 0.1
"""Interval of measuring the base, as a share of a slice."""


def _last(order: TrialOrder) -> str:
    return str(order.actions[-1])


@dataclass(frozen=True, slots=True)
class TrialConditions:
    """State of the job at the beginning of a trial."""

    mode: Trials
    workers: tuple[str, ...]
    """Extra workers, those that stay longest first."""
    replicas: int
    seconds_left: float
    """Wall seconds left."""
    rates: TrialRates
    seed: int
    base: int = 1
    """Number of workers that go on without the extra ones."""
    loss: float | None = None
    """Validation loss of the base; None if the base is not an arm."""
    moment: Moment = UNKNOWN
    """Position of the job in its budget."""
    confirms: bool = True
    """Whether a short trial shows anything of a growth: not if it takes time to unfold."""
    epoch: float = 0.0
    """Share of the remaining time that an epoch takes, at whose end results are read; 0 if that is not known."""


def weighed(asked: Advised, now: TrialConditions, workers: int) -> Advised:
    """Return advice with the worth of the trial that `Auto` would choose for it with so many extra workers."""
    decision = asked.decision
    growths = rules.ranked(decision.action, asked.allowed, decision.probabilities, decision.gains)
    races_base, task = now.base == 1 and now.loss is not None, asked.scale.task
    found = rules.worth(
        growths,
        decision.gains,
        task,
        workers,
        base=now.base,
        races_base=races_base,
        confirms=now.confirms,
        epoch=now.epoch,
    )
    return replace(asked, worth=found)


def begun(
    asked: Advised, network: Network, now: TrialConditions, clock: Callable[[], float] = time.monotonic
) -> GrowthTrial | None:
    """Return the trial of advice for `network`; None where there is nothing to try, or for `Auto` no trial pays."""
    decision, left, wanted, workers = asked.decision, now.seconds_left, now.mode, now.workers
    if wanted is Trials.AUTO:
        if asked.worth is None or not asked.worth.pays:
            return None
        wanted, workers = asked.worth.kind, workers[: asked.worth.workers]
    growths = rules.ranked(decision.action, asked.allowed, decision.probabilities, decision.gains)
    tried = rules.arms(wanted, growths, len(workers), base=1 if now.base == 1 and now.loss is not None else 0)
    keep, name = rules.keeps_winner(wanted, tried), uuid.uuid4().hex
    mode = Trials.RACE if keep else Trials.CONFIRM
    if not tried or left <= 0 or rules.read_at(mode, tried, now.epoch) >= rules.LATEST[mode]:
        return None
    seconds = SHARES[mode] * left
    shares = rules.slices(mode, sum(action.grows for actions in tried for action in actions))
    orders = {
        worker: TrialOrder(
            trial=name,
            actions=actions,
            rates=tuple(now.rates.grown if each.grows else now.rates.same for each in actions),
            ends=0.0 if not keep else 1 - SHARES[mode] if now.rates.linear else 1.0,
            seconds=seconds,
            shares=shares,
            seed=now.seed,
            keep=keep and actions[-1].grows,
            used_seconds=now.moment.used_seconds,
            budget_seconds=now.moment.budget_seconds,
            pace=now.moment.left / left,
        )
        for worker, actions in zip(workers, tried, strict=False)
    }
    began, latest = clock(), rules.LATEST[mode] * left
    until = began + min(rules.patience(seconds, tried), latest)
    trial = GrowthTrial(asked, network, orders, now.replicas, seconds, until, began + latest, mode, clock)
    trial.base_measured(now.loss)
    return trial
