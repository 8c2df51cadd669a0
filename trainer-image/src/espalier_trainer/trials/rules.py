"""Rules of trials: the arms of each worker, their duration, the orders to workers, and the arm that wins. Pure.

A growth's gain is initially believed to be the policy's expectation; the losses of a trial are evidence of it. Both are
combined by Bayes' rule with normal distributions, so a trial with little evidence leaves the advice unchanged, and
unsure advice leaves the decision to the trial.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pydantic import Field, ValidationError

from espalier_core.base import Record
from espalier_core.estimates.gains import EVIDENCE, RACING, SHARES, Belief, LossScale
from espalier_core.estimates.trial_worth import TrialWorth, trial_worth
from espalier_core.types.advice import Action, ExpectedGain
from espalier_core.types.job import Trials
from espalier_core.types.report import MAX_ARMS, Arm
from espalier_core.types.task import Task
from espalier_trainer.optimizers.schedules import Moment


class TrialOrder(Record):
    """Actions that one worker tries, one after the other, each from the state that it holds."""

    trial: str
    """Id, unique for each trial."""
    actions: tuple[Action, ...] = Field(min_length=1)
    rates: tuple[float, ...]
    """Initial learning rates of the arms, from `TrainingState.trial_rates`."""
    ends: float = Field(ge=0, le=1)
    """Rate at the end of an arm, as a share of its initial rate; it falls linearly."""
    seconds: float = Field(gt=0)
    """Wall seconds of each arm."""
    shares: tuple[float, ...] = Field(min_length=1)
    """Ends of an arm's slices, ascending, as shares of the remaining budget; the last one ends the arm."""
    seed: int
    """Seed of random choices in growth, the same as if the leader carried out the action."""
    keep: bool
    """Whether to hold the state of the last arm at its end, in case it wins."""
    used_seconds: float = 0.0
    """Used seconds of the leader's budget."""
    budget_seconds: float = 0.0
    pace: float = 1.0
    """Budget seconds per second of wall time."""

    def moment(self, seconds: float) -> Moment:
        """Return the budget position of an arm after these wall seconds, which is the job's at that time."""
        return Moment(self.used_seconds + self.pace * seconds, self.budget_seconds)


class TrialResult(Record):
    """The result of an order."""

    trial: str
    arms: tuple[Arm, ...]


def result_from(text: str) -> TrialResult | None:
    """Parse a result; None where it is invalid, as from a worker of another version."""
    try:
        return TrialResult.model_validate_json(text)
    except ValidationError:
        return None


KEPT: Final[Mapping[float, int]] = {0.2: 4, 0.4: 2}
"""Number of growths of a race that continue after a share of the remaining budget; the other workers rejoin the base.

On the corpus `free`, with three growths by their losses alone, racing on with two after 0.4 left a regret of 0.0035,
as with all; after 0.2 it was 0.0039, with one after 0.4 it was 0.0043."""
LATEST: Final[Mapping[Trials, float]] = {Trials.CONFIRM: 0.5, Trials.RACE: 0.9}
"""Share of the budget remaining at a trial's beginning after which the trial is cancelled. Growth at that time gains
nothing; the winner of a race has grown long before."""
_PATIENCE: Final = 1.5
"""Multiple of a trial's expected duration after which its missing arms are no longer awaited."""
_START_SECONDS: Final = 10.0
"""Seconds added to it for copying and growing the model, and for the evaluation, not measured there before."""


def ranked(
    advised: Action, allowed: Sequence[Action], probabilities: Mapping[str, float], gains: Mapping[str, ExpectedGain]
) -> tuple[Action, ...]:
    """Return the growths to try, the most promising first: the advised one, then by gain, else by probability.

    Growths unknown to the policy are left out; where it advises nothing, its best growths are tried.
    """
    others = [each for each in allowed if each.grows and each != advised and probabilities.get(str(each), 0.0) > 0]
    others.sort(key=lambda each: (-gains[str(each)].mean if str(each) in gains else 0.0, -probabilities[str(each)]))
    return (advised, *others) if advised.grows else tuple(others)


def races_base(mode: Trials, workers: int, base: int) -> bool:
    """Return whether a base of this many workers may be the arm of `Nothing`, which no extra worker tries then."""
    return base == 1 and (workers == 1 if mode is Trials.RACE else mode is Trials.AUTO and workers > 0)


def arms(mode: Trials, growths: Sequence[Action], workers: int, *, base: int = 1) -> tuple[tuple[Action, ...], ...]:
    """Return the actions that each of at most `workers` extra workers tries, one after the other.

    `growths` is the result of `ranked`. The arms always include the first, and `Nothing`, except for a race of one
    worker with a `base` of one worker, which is that arm. With a larger base, or to `Confirm`, one worker tries both in
    turn. A `Race` of more workers tries the other growths, too.
    """
    if mode is Trials.OFF or workers < 1 or not growths:
        return ()
    if races_base(mode, workers, base):
        return ((growths[0],),)
    if workers == 1:
        return ((growths[0], Action.nothing()),)
    most = workers - 1 if mode is Trials.RACE else 1
    return (*((each,) for each in growths[:most]), (Action.nothing(),))


def keeps_winner(mode: Trials, tried: Sequence[Sequence[Action]]) -> bool:
    """Return whether training continues with the winning copy: if each worker has trained one arm of a race."""
    return mode is Trials.RACE and all(len(actions) == 1 for actions in tried)


def read_at(mode: Trials, tried: Sequence[Sequence[Action]], epoch: float) -> float:
    """Return when the results of a trial are read, as a share of the remaining time: at the end of an epoch.

    `epoch` is the share that an epoch takes; 0 if that is not known.
    """
    share = SHARES[mode] * max(map(len, tried), default=0)
    return math.ceil(share / epoch) * epoch if epoch > 0 else share


def lent(mode: Trials, tried: Sequence[Sequence[Action]]) -> float:
    """Return the time of the workers on a trial, as a share of the remaining time of one worker."""
    growths = sum(action.grows for actions in tried for action in actions)
    time, before, left = SHARES[mode] * (sum(map(len, tried)) - growths), 0.0, growths
    for share in slices(mode, growths):
        time += left * (share - before)
        before, left = share, min(left, KEPT.get(share, left))
    return time


def worth(
    growths: Sequence[Action],
    gains: Mapping[str, ExpectedGain],
    task: Task,
    workers: int,
    *,
    base: int = 1,
    races_base: bool = True,
    confirms: bool = True,
    epoch: float = 0.0,
) -> TrialWorth | None:
    """Return the worth of the best trial by at most `workers` extra workers beside `base` others; None without any.

    `growths` is the result of `ranked`. `races_base`: whether the loss of a base of one worker is known. `confirms`:
    whether a short trial shows anything; it does not of growths that take time to unfold. `epoch`: see `read_at`.
    """
    found = []
    most = min(workers, len(growths) + 1, MAX_ARMS)
    for mode, count in itertools.product((Trials.CONFIRM, Trials.RACE), range(1, most + 1)):
        tried = arms(mode, growths, count, base=base if races_base else 0)
        keep = keeps_winner(mode, tried)
        kind = Trials.RACE if keep else Trials.CONFIRM
        if tried and (confirms or keep) and read_at(kind, tried, epoch) < LATEST[kind]:
            beliefs = [Belief.of(gains.get(str(each)), task) for actions in tried for each in actions if each.grows]
            delay = 0.0 if keep else SHARES[kind] * max(map(len, tried))
            error = EVIDENCE[task][kind].deviation
            found.append(trial_worth(kind, count, beliefs, task, error, lent=lent(kind, tried) / base, delay=delay))
    return max(found, key=lambda one: one.information - one.cost, default=None)


def slices(mode: Trials, growths: int) -> tuple[float, ...]:
    """Return the shares of the remaining budget at which the arms of a trial with this many growths are measured."""
    narrowing = () if mode is not Trials.RACE else (share for share, kept in KEPT.items() if growths > kept)
    return (*narrowing, SHARES[mode])


def behind(
    share: float, growths: Iterable[Arm], nothing: Arm | None, gains: Mapping[str, ExpectedGain], scale: LossScale
) -> set[str]:
    """Return the growths of a race that do not continue after a share of the remaining budget.

    Empty until all losses are known. `nothing` is None where the base is that arm.
    """
    losses = {arm.action: _at(arm, share) for arm in growths}
    base = None if nothing is None else _at(nothing, share)
    found = {action: loss for action, loss in losses.items() if loss is not None}
    if share not in KEPT or len(found) < len(losses) or (nothing is not None and base is None):
        return set()

    def promise(action: str) -> tuple[float, float]:
        if base is None:
            return 0.0, -found[action]
        belief = Belief.of(gains.get(action), scale.task)
        return belief.after(scale.seen(base, found[action]), RACING[scale.task][share]), -found[action]

    ordered = sorted(found, key=promise, reverse=True)
    return set(ordered[KEPT[share] :])


def _at(arm: Arm, share: float) -> float | None:
    return next((one.loss for one in arm.slices if one.share == share), None)


def interpolated(measured: Sequence[tuple[float, float]], at: float) -> float | None:
    """Return the loss of a run at a time, between the measured ones before and after; None without both.

    `measured` are times and losses, ascending; it falls geometrically, or linearly where a loss is not above 0.
    """
    for (earlier, first), (later, second) in itertools.pairwise(measured):
        if earlier <= at <= later:
            share = (at - earlier) / (later - earlier) if later > earlier else 1.0
            if first > 0 and second > 0:
                return math.exp((1 - share) * math.log(first) + share * math.log(second))
            return (1 - share) * first + share * second
    return None


def patience(seconds: float, tried: Sequence[Sequence[Action]]) -> float:
    """Return the wall seconds to wait for arms of `seconds` each."""
    return _START_SECONDS + _PATIENCE * seconds * max((len(each) for each in tried), default=0)


def best(results: Iterable[Arm], mode: Trials, gains: Mapping[str, ExpectedGain], scale: LossScale) -> Arm | None:
    """Return the arm with the highest expected gain after the trial, `Nothing` where no gain is above 0.

    `gains` are the gains expected before. None where `Nothing` is not finished, as nothing can be compared then.
    """
    finished = {each.action: each for each in results if each.loss is not None and math.isfinite(each.loss)}
    nothing = finished.pop(str(Action.nothing()), None)
    if nothing is None or nothing.loss is None:
        return None
    evidence = EVIDENCE[scale.task][mode]
    found = {
        action: (
            Belief.of(gains.get(action), scale.task).after(scale.seen(nothing.loss, arm.loss), evidence),
            -arm.loss,
        )
        for action, arm in finished.items()
        if arm.loss is not None
    }
    winner = max(found, key=lambda action: found[action], default=None)
    return finished[winner] if winner is not None and found[winner][0] > 0 else nothing
