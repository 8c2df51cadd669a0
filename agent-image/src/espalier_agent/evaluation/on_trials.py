"""Two policies on decisions that trials took: these show several actions in one state, whoever was in service.

`clustered_interval` says how sure a mean is whose values come in groups: decisions of one job resemble each other. The
agent's image has no scipy, so the quantile is found here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Final

from espalier_agent.history import HistoryDecision
from espalier_agent.history.episodes import Tried
from espalier_agent.history.off_policy import Log, LoggedStates
from espalier_agent.policies.advice import decide
from espalier_agent.policies.network import ENCODERS
from espalier_agent.policies.policy import Policy
from espalier_core.base import Record
from espalier_core.types.advice import Action

_LEVEL: Final = 0.95


class OnTrials(Record):
    """Both policies on decisions that trials took, which the new one has not learnt from."""

    decisions: int
    """Those in which the trial shows what each of the two would have chosen."""
    jobs: int
    """Those whose decisions these are: decisions of one job resemble each other."""
    changed: int
    """Decisions in which the two choose differently."""
    changed_jobs: int
    """Jobs with such a decision."""
    untold: int
    """Decisions left out: one of the two would have chosen what was not tried."""
    difference: float | None
    """Gain of the new policy's choices less that of those in service; None without a decision."""
    low: float | None
    """Lower end of its 95 % interval, which counts jobs; None for fewer than two."""
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
        (one.id, _shown(one, new), _shown(one, old), new != old)
        for one, new, old in zip(tried, choices(policy, made), choices(in_service, made), strict=True)
    ]
    known = [(job, new - old, changed) for job, new, old, changed in pairs if new is not None and old is not None]
    gains = [gain for _, gain, _ in known]
    low, high = clustered_interval(gains, [job for job, _, _ in known]) or (None, None)
    return OnTrials(
        decisions=len(known),
        jobs=len({job for job, _, _ in known}),
        changed=sum(changed for _, _, changed in known),
        changed_jobs=len({job for job, _, changed in known if changed}),
        untold=len(pairs) - len(known),
        difference=fmean(gains) if gains else None,
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
    if found.low is None or found.jobs < least_effective:
        return [
            f"too few trials: those of {found.jobs} held-out jobs show what both policies would choose, "
            f"{max(2, least_effective):g} are asked for"
        ]
    if found.untold and found.changed_jobs < least_effective:
        return [
            f"too few trials of what would change: those of {found.changed_jobs} jobs, and {found.untold} trials "
            f"did not try what one of the policies would choose; {least_effective:g} are asked for; "
            "serve with --explore, or use Race"
        ]
    if found.low >= -margin:
        return []
    interval = f"95 % interval {found.low:+.4f} to {found.high:+.4f}, margin {margin:g}"
    return [f"not shown to be no worse by {found.decisions} held-out trials: {found.difference:+.4f}, {interval}"]


def clustered_interval(values: Sequence[float], groups: Sequence[str]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of `values`, each of one of the `groups`; None for fewer than two groups.

    The variance sums residuals within a group first, and the interval is by Student's t with one degree of freedom less
    than there are groups (Cameron and Miller, "A Practitioner's Guide to Cluster-Robust Inference", Journal of Human
    Resources 50, 2015). Where each group has one value, it is the usual interval.
    """
    count = len(set(groups))
    if count < 2:
        return None
    mean = math.fsum(values) / len(values)
    residuals: dict[str, list[float]] = defaultdict(list)
    for value, group in zip(values, groups, strict=True):
        residuals[group].append(value - mean)
    squares = math.fsum(math.fsum(each) ** 2 for each in residuals.values())
    half = student_quantile(count - 1) * math.sqrt(count / (count - 1) * squares) / len(values)
    return mean - half, mean + half


def student_quantile(degrees: int) -> float:
    """Return what a Student's t variable with these degrees of freedom exceeds in absolute value with 5 %."""
    low, high = 0.0, math.pi / 2  # of the angle atan(t / sqrt(degrees))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < _LEVEL else (low, middle)
    return math.sqrt(degrees) * math.tan(high)


def _within(angle: float, degrees: int) -> float:
    """Return the probability of |t| < sqrt(degrees) * tan(angle): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = cosine if odd else 1.0, 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
