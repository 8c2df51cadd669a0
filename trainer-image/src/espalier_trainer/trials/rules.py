"""What is tried on how many workers, for how long, and which arm wins. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from espalier_api.advice import Action
from espalier_api.job import Trials
from espalier_api.report import Arm

SHARES: Final[Mapping[Trials, float]] = {Trials.CONFIRM: 0.1, Trials.RACE: 0.25}
"""The slice of an arm as a share of the remaining budget.

Validation loss after a tenth predicts the end well enough to refuse a bad growth, a quarter well enough to choose
between growths; less throws winners away. The rate falls to 0 within the slice in each arm: what errs in a short trial
is the horizon, not noise."""
START_SHARE: Final = 0.1
"""Share of the budget for which advice waits for extra workers that still start; then those that are there try it, or
it is carried out untried."""
_PATIENCE: Final = 1.5
"""Times the expected duration of a trial after which its missing arms are no longer waited for."""
_START_SECONDS: Final = 10.0
"""Added to it: copying the model, growing it, and the evaluation, which has not been measured in the worker."""


def arms(
    manner: Trials, advised: Action, allowed: Sequence[Action], probabilities: Mapping[str, float], workers: int
) -> tuple[tuple[Action, ...], ...]:
    """Return what each of at most `workers` extra workers tries, one action after the other.

    Nothing is tried where nothing is advised. The advised action and `Nothing` are always among the arms; one worker
    tries both in turn. A `Race` of more workers tries the next best actions by `probabilities`, by the action's text,
    too.
    """
    if manner is Trials.OFF or workers < 1 or not advised.grows:
        return ()
    if workers == 1:
        return ((advised, Action.nothing()),)
    grown = [advised]
    if manner is Trials.RACE:
        others = [each for each in allowed if each.grows and each != advised and str(each) in probabilities]
        others.sort(key=lambda each: -probabilities[str(each)])
        grown += others[: workers - 2]
    return (*((each,) for each in grown), (Action.nothing(),))


def keeps_winner(manner: Trials, tried: Sequence[Sequence[Action]]) -> bool:
    """Return whether training continues with the copy that won: each worker has trained one arm of a race."""
    return manner is Trials.RACE and len(tried) > 1


def patience(seconds: float, tried: Sequence[Sequence[Action]]) -> float:
    """Return for how many seconds of wall time to wait for arms of `seconds` each."""
    return _START_SECONDS + _PATIENCE * seconds * max((len(each) for each in tried), default=0)


def best(results: Iterable[Arm]) -> Arm | None:
    """Return the arm with the lowest validation loss; of equal ones `Nothing`, then the first.

    None where `Nothing` has not been finished: then there is nothing to compare with.
    """
    finished = [each for each in results if each.loss is not None and math.isfinite(each.loss)]
    nothing = str(Action.nothing())
    if not any(each.action == nothing for each in finished):
        return None
    return min(finished, key=lambda each: (each.loss, each.action != nothing))
