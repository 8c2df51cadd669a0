"""Decision on whether a new policy may replace the one in service: only if it is not worse on data that it has not
learnt.

Tables: the mean regret of its greedy sequences must not be greater. History: the value of each greedy policy is
estimated on held-out jobs, as in `history.off_policy`; the difference has an interval over jobs (each one's influence
on the two ratios, the delta method). Jobs count by their weight: of many jobs, only the few that tried a policy's
actions say something about it. Where the two differ, the actions of each must have been tried in enough jobs: the
interval ignores actions that never were. It is enough that the lower end is not below 0 by more than a margin, a test
of non-inferiority: to show that it is better could take years of jobs. If the interval is too wide for that, the policy
in service stays.

Trials show several actions in one state, whichever policy was in service: both policies are compared on these as well.
An interval counts jobs there (`clustered_interval`), because decisions of one job resemble each other. The agent's
image has no scipy, so the quantile is found here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Final

import torch
from torch import Tensor

from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.history import HistoryDecision
from espalier_agent.history.episodes import Episode, Gathered, Tried, centred, comparable, split
from espalier_agent.history.off_policy import Log, LoggedStates, Unit, effective_size, self_normalised
from espalier_agent.policies.advice import decide
from espalier_agent.policies.network import ENCODERS
from espalier_agent.policies.policy import Policy
from espalier_agent.tables.tree import table_digest
from espalier_core.base import Record
from espalier_core.types.advice import Action, PolicyVersion
from espalier_core.types.outcomes import OutcomeTable

_LEVEL: Final = 0.95
TOLERANCE: Final = 1e-9
"""Tolerance for mean regrets, which are sums of rounded figures."""


class OnTrials(Record):
    """Both policies on decisions of trials that the new one has not learnt from."""

    decisions: int
    """Decisions in which the trial shows the choices of both."""
    jobs: int
    """Jobs of these decisions: decisions of one job resemble each other."""
    changed: int
    """Decisions in which the two choose differently."""
    changed_jobs: int
    """Jobs with such a decision."""
    untold: int
    """Decisions left out: one of the two would have chosen an action that was not tried."""
    difference: float | None
    """Gain of the new policy's choices less the gain of those in service; None without a decision."""
    low: float | None
    """Lower end of its 95 % interval, which counts jobs; None for fewer than two jobs."""
    high: float | None


def choices(policy: Policy, decisions: Sequence[HistoryDecision]) -> list[Action]:
    """Return a policy's greedy choice in each state."""
    if not decisions:
        return []
    if not policy.parts and ENCODERS.load(policy.network.config.encoder).learnt_by is None:
        states = LoggedStates(Log.of(decisions), policy.network, policy.vocabulary)
        return states.preferred(policy.network)
    # Trees read more of a request than the model and the time.
    return [decide(policy, one.request()).action for one in decisions]


def compare_on_trials(policy: Policy, in_service: Policy, tried: Sequence[Tried]) -> OnTrials:
    """Compare the results, in trials, of the growths that each of the two would have chosen in the same states."""
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
    """Return why the new policy is refused by trials; empty if it is not."""
    if found.low is None or found.jobs < least_effective:
        return [
            f"too few trials: those of {found.jobs} held-out jobs show what both policies would choose, "
            f"{max(2, least_effective):g} are required"
        ]
    if found.untold and found.changed_jobs < least_effective:
        return [
            f"too few trials of what would change: those of {found.changed_jobs} jobs, and {found.untold} trials "
            f"did not try what one of the policies would choose; {least_effective:g} are required; "
            "serve with --explore, or use Race"
        ]
    if found.low >= -margin:
        return []
    interval = f"95 % interval {found.low:+.4f} to {found.high:+.4f}, margin {margin:g}"
    return [f"not shown to be no worse by {found.decisions} held-out trials: {found.difference:+.4f}, {interval}"]


def clustered_interval(values: Sequence[float], groups: Sequence[str]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of `values`, each of one of the `groups`; None for fewer than two groups.

    The variance sums residuals within a group first, and the interval is by Student's t with degrees of freedom one
    below the number of groups (Cameron and Miller, "A Practitioner's Guide to Cluster-Robust Inference", Journal of
    Human Resources 50, 2015). Where each group has one value, it is the usual interval.
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
    """Return the value that |t| of Student with these degrees of freedom exceeds with a probability of 5 %."""
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


class GateError(ValueError):
    """There is not enough data for a decision. The message names the missing data."""


class GateTerms(Record):
    """Requirements on a new policy."""

    margin: float
    """Allowed loss of accuracy, at the lower end of the interval."""
    least_effective: float
    """Minimum effective number of jobs in a history for a decision."""
    unit: Unit = Unit.DECISION
    """The unit that has an importance weight."""


class OnTables(Record):
    """Both policies on tables that the new one has not learnt."""

    tables: tuple[str, ...]
    left_out: tuple[str, ...]
    """Given tables that the new policy has learnt."""
    regret: float
    """Mean regret of the new policy."""
    regret_in_service: float


class OnHistory(Record):
    """Both policies on jobs that the new one has not learnt from."""

    episodes: int
    decisions: int
    changed: int
    """Decisions in which the new policy takes another action than the one in service."""
    effective: float
    """Effective number of jobs in the new policy's estimate."""
    effective_in_service: float
    effective_changed: float | None
    """The smaller effective number of the two policies among the changed decisions; None where nothing changes."""
    difference: float | None
    """Estimated accuracy of the new policy less that of the one in service; None where one has no weight at all."""
    low: float | None
    """Lower end of its 95 % interval, by Student's t with degrees of freedom one below the smallest effective number of
    jobs; None if that is below two."""
    high: float | None


class Judgement(Record):
    """The comparison, and the reasons to refuse the new policy; without refusals it may go into service."""

    policy: PolicyVersion
    in_service: PolicyVersion
    tables: OnTables | None = None
    history: OnHistory | None = None
    trials: OnTrials | None = None
    refusals: tuple[str, ...] = ()


def judge(
    policy: Policy, in_service: Policy, terms: GateTerms, *, tables: Sequence[OutcomeTable], history: Gathered | None
) -> Judgement:
    """Compare two policies on tables and on a history, as far as they are given.

    Raise `GateError` if there is nothing that the new policy has not learnt from, and `TableError`.
    """
    on_tables = _on_tables(policy, in_service, tables) if tables else None
    on_history, on_trials = None, None
    if history is not None:
        learnt = policy.lineage.history
        held_out, tried = history.episodes, history.tried
        if learnt is not None:
            _, held_out = split(history.episodes, learnt.held_out_share, learnt.held_out_seed)
            _, tried = split(history.tried, learnt.held_out_share, learnt.held_out_seed)
        on_trials = compare_on_trials(policy, in_service, tried) if tried else None
        # Jobs of a service that lets trials decide may be the only ones: then these judge alone.
        if held_out or on_trials is None:
            on_history = compare(policy, in_service, held_out, terms.unit)
    refusals = [
        *([] if on_tables is None else _worse_on_tables(on_tables)),
        *([] if on_history is None else worse_on_history(on_history, terms)),
        *(
            []
            if on_trials is None
            else worse_on_trials(on_trials, margin=terms.margin, least_effective=terms.least_effective)
        ),
    ]
    return Judgement(
        policy=policy.identity,
        in_service=in_service.identity,
        tables=on_tables,
        history=on_history,
        trials=on_trials,
        refusals=tuple(refusals),
    )


def compare(policy: Policy, in_service: Policy, episodes: Sequence[Episode], unit: Unit) -> OnHistory:
    """Estimate the value of each greedy policy from episodes that the new one has not learnt from.

    The policy in service is flattered by episodes that it has learnt from.
    """
    episodes = comparable(episodes)
    if not episodes:
        return estimated((), (), (), unit)
    made = [decision for episode in episodes for decision in episode.decisions]
    return estimated(episodes, choices(policy, made), choices(in_service, made), unit)


def estimated(
    episodes: Sequence[Episode], actions: Sequence[Action], in_service: Sequence[Action], unit: Unit
) -> OnHistory:
    """Estimate the difference between always taking `actions` and always taking those `in_service`, one per decision.

    No episode may be the only one of its kind. Where the policies agree, both estimates have the same jobs in them,
    however many: the jobs in which a change was tried determine whether it was tried enough.
    """
    log = Log(episodes, centred(episodes), unit)
    done = [decision.action for decision in log.decisions]
    weights = [
        log.weights(
            torch.tensor([0.0 if would == did else -math.inf for would, did in zip(chosen, done, strict=True)]),
            cut=unit is Unit.EPISODE,
        )
        for chosen in (actions, in_service)
    ]
    effective = [_jobs(log, each) for each in weights]
    changed = torch.tensor([new != old for new, old in zip(actions, in_service, strict=True)], dtype=torch.bool)
    affected = torch.zeros(len(log.rewards), dtype=torch.bool)
    affected[log.unit[changed]] = True
    of_changed = min(_jobs(log, each * affected) for each in weights) if bool(changed.any()) else None
    difference = low = high = None
    if min(effective) > 0:
        influences = [_influence(log, each, len(episodes)) for each in weights]
        values = [float(self_normalised(each, log.rewards)) for each in weights]
        # The value of a decision is the effect of that decision alone: a job's value is the sum over its decisions.
        scale = len(log.decisions) / len(episodes) if unit is Unit.DECISION else 1.0
        difference = scale * (values[0] - values[1])
        jobs = min(*effective, math.inf if of_changed is None else of_changed)
        if jobs >= 2:
            squares = float(((influences[0] - influences[1]) ** 2).sum())
            half = student_quantile(math.floor(jobs) - 1) * scale * math.sqrt(jobs / (jobs - 1) * squares)
            low, high = difference - half, difference + half
    return OnHistory(
        episodes=len(episodes),
        decisions=len(log.decisions),
        changed=int(changed.sum()),
        effective=effective[0],
        effective_in_service=effective[1],
        effective_changed=of_changed,
        difference=difference,
        low=low,
        high=high,
    )


def _influence(log: Log, weights: Tensor, episodes: int) -> Tensor:
    """Return the effect of each episode on the self-normalised estimate, to first order."""
    of_units = weights * (log.rewards - self_normalised(weights, log.rewards)) / weights.sum()
    return of_units.new_zeros(episodes).index_add(0, log.episode_of_unit, of_units)


def _jobs(log: Log, weights: Tensor) -> float:
    """Return the effective number of jobs by their weights: decisions of one job share its accuracy."""
    if not bool(weights.any()):
        return 0.0
    of_jobs = weights.new_zeros(int(log.episode[-1]) + 1).index_add(0, log.episode_of_unit, weights)
    return round(float(effective_size(of_jobs)), 6)  # equal weights give a whole number


def _on_tables(policy: Policy, in_service: Policy, tables: Sequence[OutcomeTable]) -> OnTables:
    learnt = {table.sha256 for table in policy.lineage.tables}
    fresh = [table for table in tables if table_digest(table) not in learnt]
    if not fresh:
        raise GateError(
            f"policy {policy.name!r} has learnt all of the tables given ({', '.join(table.name for table in tables)}); "
            "judge by others, or keep some out of learning with `learn --held-out`"
        )
    return OnTables(
        tables=tuple(table.name for table in fresh),
        left_out=tuple(table.name for table in tables if table not in fresh),
        regret=evaluate(policy, fresh).mean_regret,
        regret_in_service=evaluate(in_service, fresh).mean_regret,
    )


def _worse_on_tables(found: OnTables) -> list[str]:
    worse = found.regret - found.regret_in_service
    if worse <= TOLERANCE:
        return []
    return [
        f"worse by {worse:.4f} on {len(found.tables)} held-out tables: mean regret {found.regret:.4f}, "
        f"in service {found.regret_in_service:.4f}"
    ]


def worse_on_history(found: OnHistory, terms: GateTerms) -> list[str]:
    """Return why the new policy is refused by a history; empty if it is not."""
    effective, least = min(found.effective, found.effective_in_service), max(2, terms.least_effective)
    changed = math.inf if found.effective_changed is None else found.effective_changed
    if found.difference is None or effective < least:
        return [
            f"too little history: the {found.episodes} held-out jobs count as {effective:.1f} for the policies' "
            f"choices, {least:g} are required"
        ]
    if found.low is None or changed < least:
        return [
            f"too little history of what would change: {found.changed} of {found.decisions} decisions would, and the "
            f"held-out jobs in which either way was tried count as {changed:.1f}, "
            f"{least:g} are required; serve with a larger --explore, or let more jobs end"
        ]
    if found.low >= -terms.margin:
        return []
    interval = f"95 % interval {found.low:+.4f} to {found.high:+.4f}, margin {terms.margin:g}"
    if found.difference < 0:
        return [f"worse by {-found.difference:.4f} in accuracy on {found.episodes} held-out jobs: {interval}"]
    return [f"too little history to say that it is not worse, on {found.episodes} held-out jobs: {interval}"]
