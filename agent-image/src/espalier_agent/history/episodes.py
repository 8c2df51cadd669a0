"""Decisions of the service, grouped by job, for learning and for judging.

An episode is named by one report of a job's end: the decisions that were carried out, in order, and the resulting
accuracy. Jobs are compared with jobs of their kind only: the same starting model, about the same budget, and about the
same share of it left at the first decision, which no decision can change. Data sets are unknown here: one model trained
on two of them looks like one kind.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Final, TypeVar

from espalier_agent.history import HistoryDecision
from espalier_core.estimates.gains import LossScale, TrialGain, trial_gains

SHARES: Final = 4
"""Number of distinguished shares of the budget left at the first decision."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The key of comparable jobs."""

    model: str
    """Fingerprint of the architecture at the first decision."""
    budget: int
    """Binary logarithm of the budget, rounded."""
    left: int
    """Quarter of the budget that the time left falls into."""


@dataclass(frozen=True, slots=True)
class Episode:
    """The decisions about one job, and their outcome."""

    id: str
    """The job, and the time at which its end was reported: the same in all of the service's files."""
    kind: Kind
    decisions: tuple[HistoryDecision, ...]
    accuracy: float

    @property
    def explored(self) -> bool:
        """Whether another action was possible wherever there was a choice.

        A certain choice shows nothing about the others, and no weight makes up for actions that were never tried.
        """
        return all(decision.behaviour_probability < 1 or len(decision.actions) == 1 for decision in self.decisions)


@dataclass(frozen=True, slots=True)
class Tried:
    """A decision that a trial took, and the results of its arms: several actions in the same state."""

    id: str
    """The id of the job, as of an episode, so that a job is held out as a whole."""
    model: str
    """Fingerprint of the architecture."""
    decision: HistoryDecision
    seen: Mapping[str, TrialGain]
    """Gain by action that grows, as text; doing nothing gains 0."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The contents of a history, and the numbers of unusable parts."""

    episodes: tuple[Episode, ...]
    """Explored episodes of kinds with two or more of them."""
    without_outcome: int = 0
    """Decisions left out: no outcome was reported, or they were not carried out."""
    certain: int = 0
    """Episodes left out: not explored."""
    alone: int = 0
    """Episodes left out: the only one of its kind has nothing to be compared with."""
    tried: tuple[Tried, ...] = ()
    """Decisions that a trial took. They belong to no episode: no probability of the agent applies to them."""

    @property
    def decisions(self) -> int:
        """Decisions in the episodes."""
        return sum(len(episode.decisions) for episode in self.episodes)


RememberedT = TypeVar("RememberedT", Episode, Tried)


def gather(history: Iterable[HistoryDecision]) -> Gathered:
    """Group decisions by episode."""
    by_report: dict[tuple[str, str, float], list[HistoryDecision]] = defaultdict(list)
    without_outcome, tried = 0, []
    for decision in history:
        if decision.final_accuracy is None or decision.reported is None:
            without_outcome += 1
        elif decision.trial is not None:
            tried.append(decision)
        else:
            by_report[decision.job, decision.reported, decision.final_accuracy].append(decision)
    found = []
    fingerprints: dict[int, str] = {}
    for (job, reported, accuracy), made in by_report.items():
        # Order by the job's count of decisions: clocks of replicas differ, and one may be set back.
        made.sort(key=lambda decision: (decision.progress.adaptations, decision.time, -decision.time_left_seconds))
        # Decisions about one model share its description, and a fingerprint takes a millisecond.
        model = made[0].architecture
        if id(model) not in fingerprints:
            fingerprints[id(model)] = model.fingerprint
        name = f"{job} {reported}"
        found.append(Episode(name, _kind(made[0], fingerprints[id(model)]), tuple(made), accuracy))
    explored = [episode for episode in found if episode.explored]
    kept = comparable(explored)
    return Gathered(
        kept, without_outcome, len(found) - len(explored), len(explored) - len(kept), _shown(tried, fingerprints)
    )


def _shown(decisions: Iterable[HistoryDecision], fingerprints: dict[int, str]) -> tuple[Tried, ...]:
    """Return the decisions whose trials have results, sorted like episodes."""
    found = []
    for one in decisions:
        scale = LossScale.of(one.task, {each.name: each.value for each in one.progress.metrics})
        seen = trial_gains(one.trial.arms, scale) if one.trial is not None else {}
        if seen:
            if id(one.architecture) not in fingerprints:
                fingerprints[id(one.architecture)] = one.architecture.fingerprint
            found.append(Tried(f"{one.job} {one.reported}", fingerprints[id(one.architecture)], one, seen))
    return tuple(sorted(found, key=lambda one: (one.id, one.decision.decision_id)))


def comparable(episodes: Iterable[Episode]) -> tuple[Episode, ...]:
    """Return the episodes that are not the only ones of their kind.

    They are sorted, but not by time: the same episodes give the same policy, whatever their file and moment.
    """
    kept = (episode for members in _by_kind(episodes).values() if len(members) > 1 for episode in members)
    return tuple(sorted(kept, key=lambda episode: (episode.id, episode.accuracy)))


def split(
    episodes: Sequence[RememberedT], share: float, seed: int
) -> tuple[tuple[RememberedT, ...], tuple[RememberedT, ...]]:
    """Return the part to learn from, and the held-out part: about `share` of the jobs.

    The choice is by a digest of the job and its end. So all decisions of a job are on one side, a held-out job stays
    held out when more come, and a smaller share with the same seed holds out a subset.
    """
    learnt: list[RememberedT] = []
    held_out: list[RememberedT] = []
    for episode in episodes:
        drawn = int.from_bytes(hashlib.sha256(f"{seed}/{episode.id}".encode()).digest()[:8]) / 2**64
        (held_out if drawn < share else learnt).append(episode)
    return tuple(learnt), tuple(held_out)


def standardised(episodes: Sequence[Episode]) -> list[float]:
    """Return each accuracy less the mean of its kind, by their standard deviation; 0 if all are equal."""
    moments = {
        kind: (fmean(values), pstdev(values))
        for kind, members in _by_kind(episodes).items()
        for values in [[episode.accuracy for episode in members]]
    }
    rewards = []
    for episode in episodes:
        mean, spread = moments[episode.kind]
        rewards.append((episode.accuracy - mean) / spread if spread > 1e-12 else 0.0)
    return rewards


def centred(episodes: Sequence[Episode]) -> list[float]:
    """Return each accuracy less the mean of the others of its kind, which makes kinds comparable and keeps the unit.

    A mean that includes the episode itself would make one of a small kind seem to differ less. None may be alone.
    """
    members = {kind: [episode.accuracy for episode in found] for kind, found in _by_kind(episodes).items()}
    return [
        episode.accuracy - (math.fsum(others) - episode.accuracy) / (len(others) - 1)
        for episode in episodes
        for others in [members[episode.kind]]
    ]


def episodes_digest(episodes: Sequence[Episode], tried: Sequence[Tried] = ()) -> str:
    """Return the SHA-256 (hex) of the learnt content of episodes and trials, whatever their order."""
    shown = [f"{one.decision.decision_id} {action} {seen.gain!r}" for one in tried for action, seen in one.seen.items()]
    lines = shown + [
        f"{decision.decision_id} {decision.action} {decision.behaviour_probability!r} {episode.accuracy!r}"
        for episode in episodes
        for decision in episode.decisions
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "replace")).hexdigest()


def _kind(first: HistoryDecision, fingerprint: str) -> Kind:
    left = math.floor(SHARES * first.time_left_seconds / first.time_budget_seconds)
    return Kind(fingerprint, round(math.log2(first.time_budget_seconds)), min(left, SHARES - 1))


def _by_kind(episodes: Iterable[Episode]) -> dict[Kind, list[Episode]]:
    members: dict[Kind, list[Episode]] = defaultdict(list)
    for episode in episodes:
        members[episode.kind].append(episode)
    return dict(members)
