"""What decisions of a service teach the trees: what each growth has gained, and how much that counts.

A trial shows several growths in one state, so each is compared with nothing there. Where the agent decided, and
explored, the accuracies of jobs are compared: of those of a kind that were in the same state, the mean where a growth
was chosen (by weights of importance) less the mean where nothing was. Both are noisy measurements, and count by how
little they err compared with how much gains differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import pstdev

from espalier_agent.history import HistoryDecision
from espalier_agent.history.episodes import Episode, Tried
from espalier_agent.policies.tree_features import Facts
from espalier_core.estimates.gains import SPREAD
from espalier_core.types.advice import Action


@dataclass(frozen=True, slots=True)
class Measured:
    """What growths gained in one state."""

    decision: HistoryDecision
    facts: Facts
    gains: dict[Action, tuple[float, float]]
    """Gain in accuracy, and weight: 1 for a gain without error."""
    family: str


def measured(episodes: Sequence[Episode], tried: Sequence[Tried]) -> Iterator[Measured]:
    """Yield what a history shows of growths."""
    for one in tried:
        by_name = {str(action): action for action in one.decision.actions}
        gains = {
            by_name[name]: (seen.gain, _weight(seen.deviation**2)) for name, seen in one.seen.items() if name in by_name
        }
        yield Measured(one.decision, Facts.of(one.decision.request()), gains, one.model)
    for (model, *_), members in _alike(episodes).items():
        gains = _compared(members)
        for decision, _ in members:
            shares = {action: (gain, weight / len(members)) for action, (gain, weight) in gains.items()}
            yield Measured(decision, Facts.of(decision.request()), shares, model)


def _alike(episodes: Sequence[Episode]) -> dict[tuple[str, object, str], list[tuple[HistoryDecision, float]]]:
    """Gather decisions in the same state, each with the accuracy of its job: by model, kind of job, and grown model."""
    found: dict[tuple[str, object, str], list[tuple[HistoryDecision, float]]] = defaultdict(list)
    fingerprints: dict[int, str] = {}
    for episode in episodes:
        for number, decision in enumerate(episode.decisions):
            model = decision.architecture
            if id(model) not in fingerprints:
                fingerprints[id(model)] = model.fingerprint
            found[episode.kind.model, (episode.kind, number), fingerprints[id(model)]].append(
                (decision, episode.accuracy)
            )
    return found


def _compared(members: Sequence[tuple[HistoryDecision, float]]) -> dict[Action, tuple[float, float]]:
    """Return the gain of each growth that was chosen, and its weight; none where nothing was never chosen."""
    by_action: dict[Action, list[tuple[float, float]]] = defaultdict(list)
    for decision, accuracy in members:
        by_action[decision.action].append((1 / decision.behaviour_probability, accuracy))
    nothing = by_action.pop(Action.nothing(), [])
    if not nothing:
        return {}
    base, jobs = _mean(nothing)
    noise = pstdev(accuracy for _, accuracy in members) ** 2
    found = {}
    for action, values in by_action.items():
        mean, count = _mean(values)
        found[action] = (mean - base, len(values) * _weight(noise * count * (1 / count + 1 / jobs)))
    return found


def _mean(values: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the weighted mean, and the effective number of jobs."""
    total = sum(weight for weight, _ in values)
    mean = sum(weight * value for weight, value in values) / total
    return mean, total**2 / sum(weight**2 for weight, _ in values)


def _weight(variance: float) -> float:
    return SPREAD**2 / (SPREAD**2 + variance)
