"""A trial in the worker that leads: who tries what, what has come of it, and when it is over."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from espalier_api.advice import Action
from espalier_api.job import Trials
from espalier_api.report import Arm
from espalier_api.trials import SHARES
from espalier_trainer.adapting import Asked
from espalier_trainer.network import Network
from espalier_trainer.trials import rules
from espalier_trainer.trials.orders import Order, result_from


@dataclass(frozen=True, slots=True)
class Verdict:
    """A trial that is over."""

    arms: tuple[Arm, ...]
    best: Arm | None
    """None where it did not come to a result: then nothing was decided."""
    winner: str | None = None
    """The worker that holds the state of the best arm, of a race that a growth won."""
    why: str = ""
    """Why it did not come to a result."""

    @property
    def grows(self) -> bool:
        """Whether a growth was better than the model as it is."""
        return self.best is not None and self.best.action != str(Action.nothing())


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial in progress."""

    asked: Asked
    """The advice that is tried."""
    network: Network
    """The network that all arms began with."""
    orders: Mapping[str, Order]
    """By worker."""
    replicas: int
    """Of the allocation when it began: the job gives workers back from those that try."""
    seconds: float
    """Wall time of each arm."""
    until: float
    """By `clock`: when missing results are no longer waited for."""
    manner: Trials = Trials.CONFIRM
    """By which evidence the arms are judged: a race of one worker tries as `Confirm` does."""
    clock: Callable[[], float] = field(default=time.monotonic)

    @property
    def actions(self) -> tuple[Action, ...]:
        """What is tried, in the order of the workers."""
        return tuple(action for order in self.orders.values() for action in order.actions)

    def action(self, arm: Arm) -> Action:
        """Return the action of an arm."""
        return next(action for action in self.actions if str(action) == arm.action)

    def verdict(self, results: Mapping[str, str], network: Network, replicas: int) -> Verdict | None:
        """Return how it ended, None while it is in progress.

        `results` are texts of `orders.Result`, by worker; `network` and `replicas` are the leader's now.
        """
        if network is not self.network:
            return Verdict((), None, why="the model has changed meanwhile")
        found = {worker: result_from(text) for worker, text in results.items()}
        # Of a worker that is taken back the others may do: what it alone has tried is missing then.
        arms = tuple(
            arm
            for worker, order in self.orders.items()
            if (result := found.get(worker)) is not None and result.trial == order.trial
            for arm in result.arms
        )
        complete = len(arms) == len(self.actions)
        if not complete and replicas >= self.replicas and self.clock() < self.until:
            return None
        best = rules.best(arms, self.manner, self.asked.decision.gains)
        if best is None or (not complete and not any(arm.action != str(Action.nothing()) for arm in arms)):
            reason = "workers that tried were taken back" if replicas < self.replicas else "results are missing"
            return Verdict(arms, None, why=reason)
        verdict = Verdict(arms, best)
        if verdict.grows:
            holders = (worker for worker, order in self.orders.items() if order.keep and _last(order) == best.action)
            return Verdict(arms, best, next(holders, None))
        return verdict


def _last(order: Order) -> str:
    return str(order.actions[-1])


def begun(
    manner: Trials,
    asked: Asked,
    workers: tuple[str, ...],
    network: Network,
    replicas: int,
    seconds_left: float,
    rates: tuple[float, float],
    seed: int,
    *,
    linear: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Trial | None:
    """Return the trial of an advice by these extra workers; None where there is nothing to try.

    `seconds_left` is wall time; `rates` are the learning rates after a growth, and without one;
    `linear`: they fall to 0 at the end of the budget, else they stay while a race is on.
    """
    decision = asked.decision
    growths = rules.ranked(decision.action, asked.allowed, decision.probabilities, decision.gains)
    tried = rules.arms(manner, growths, len(workers))
    if not tried or seconds_left <= 0:
        return None
    keep, name = rules.keeps_winner(manner, tried), uuid.uuid4().hex
    manner = Trials.RACE if keep else Trials.CONFIRM
    share = SHARES[manner]
    seconds = share * seconds_left
    orders = {
        worker: Order(
            trial=name,
            actions=actions,
            rates=tuple(rates[0] if each.grows else rates[1] for each in actions),
            ends=0.0 if not keep else 1 - share if linear else 1.0,
            seconds=seconds,
            shares=(share,),
            seed=seed,
            keep=keep and actions[-1].grows,
        )
        for worker, actions in zip(workers, tried, strict=False)
    }
    return Trial(asked, network, orders, replicas, seconds, clock() + rules.patience(seconds, tried), manner, clock)
