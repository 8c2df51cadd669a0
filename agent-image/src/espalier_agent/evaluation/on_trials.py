"""Two policies on decisions that trials took: these show several actions in one state, whoever was in service."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Final

from espalier_agent.history import HistoryDecision
from espalier_agent.history.episodes import Tried
from espalier_agent.history.off_policy import Log, LoggedStates
from espalier_agent.policies.advice import decide
from espalier_agent.policies.network import ENCODERS
from espalier_agent.policies.policy import Policy
from espalier_api.advice import Action
from espalier_api.base import Record

NORMAL_95: Final = 1.96


class OnTrials(Record):
    """Both policies on decisions that trials took, which the new one has not learnt from."""

    decisions: int
    """Those in which the trial shows what each of the two would have chosen."""
    changed: int
    """Those of them in which the two choose differently."""
    untold: int
    """Decisions left out: one of the two would have chosen what was not tried."""
    difference: float | None
    """Gain of the new policy's choices less that of those in service; None without a decision."""
    low: float | None
    """Lower end of its 95 % interval."""
    high: float | None


def choices(policy: Policy, decisions: Sequence[HistoryDecision]) -> list[Action]:
    """Return what a policy chooses in each state, greedily."""
    if not decisions:
        return []
    if policy.strangers is None and ENCODERS.load(policy.network.config.encoder).learnt_by is None:
        states = LoggedStates(Log.of(decisions), policy.network, policy.vocabulary)
        return states.preferred(policy.network)
    # Trees read more of a request than its model and time.
    return [decide(policy, one.request()).action for one in decisions]


def compare_on_trials(policy: Policy, in_service: Policy, tried: Sequence[Tried]) -> OnTrials:
    """Compare what trials have shown of the growths that each of the two would have chosen in the same states."""
    made = [one.decision for one in tried]
    pairs = [
        (_shown(one, new), _shown(one, old), new != old)
        for one, new, old in zip(tried, choices(policy, made), choices(in_service, made), strict=True)
    ]
    told = [(new - old, changed) for new, old, changed in pairs if new is not None and old is not None]
    difference = low = high = None
    if told:
        gains = [gain for gain, _ in told]
        difference = fmean(gains)
        error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        low, high = difference - NORMAL_95 * error, difference + NORMAL_95 * error
    return OnTrials(
        decisions=len(told),
        changed=sum(changed for _, changed in told),
        untold=len(pairs) - len(told),
        difference=difference,
        low=low,
        high=high,
    )


def _shown(tried: Tried, action: Action) -> float | None:
    if not action.grows:
        return 0.0
    seen = tried.seen.get(str(action))
    return None if seen is None else seen.gain


def worse_on_trials(found: OnTrials, *, margin: float, least_effective: float) -> list[str]:
    """Return why the new policy is refused by trials, empty where it is not."""
    if found.low is None or found.decisions < least_effective:
        return [
            f"too few trials: {found.decisions} held-out ones show what both policies would choose, "
            f"{least_effective:g} are asked for"
        ]
    if found.untold and found.changed < least_effective:
        return [
            f"too few trials of what would change: {found.changed}, and {found.untold} did not try what one of the "
            f"policies would choose; {least_effective:g} are asked for; serve with --explore, or use Race"
        ]
    if found.low >= -margin:
        return []
    interval = f"95 % interval {found.low:+.4f} to {found.high:+.4f}, margin {margin:g}"
    return [f"not shown to be no worse by {found.decisions} held-out trials: {found.difference:+.4f}, {interval}"]
