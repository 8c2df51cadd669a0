"""How good a policy is on outcome tables: the place of its greedy sequence among all sequences (Lamelas 6.5)."""

from __future__ import annotations

from collections.abc import Sequence

from espalier_agent.advice import decide
from espalier_agent.policy import Policy
from espalier_agent.tree import DecisionTree, decision_tree
from espalier_api.advice import AdviceRequest
from espalier_api.base import Record
from espalier_api.outcomes import OutcomeTable


class SequenceResult(Record):
    """One sequence of decisions and what it led to."""

    actions: tuple[str, ...]
    accuracy: float
    rank: int
    """1 + the number of the table's sequences that end with a higher accuracy."""


class TableResult(Record):
    """A policy's greedy sequence on one table, beside what else could have been done."""

    table: str
    model: str
    scenario: str
    sequences: int
    """How many the rank is among."""
    actions: tuple[str, ...]
    accuracy: float
    rank: int
    regret: float
    """Accuracy of the best sequence less this one's."""
    none: SequenceResult
    """Doing nothing each time."""
    random_mean_accuracy: float
    """Mean over all sequences: what uniformly random decisions give."""
    best: SequenceResult


class Evaluation(Record):
    """A policy on several tables."""

    policy: str
    version: str
    tables: tuple[TableResult, ...]
    mean_regret: float


def evaluate(policy: Policy, tables: Sequence[OutcomeTable]) -> Evaluation:
    """Roll the policy out greedily on each table; raises `TableError` for one that cannot be played."""
    results = tuple(_result(policy, decision_tree(table)) for table in tables)
    return Evaluation(
        policy=policy.name,
        version=policy.version,
        tables=results,
        mean_regret=sum(result.regret for result in results) / max(len(results), 1),
    )


def greedy_sequence(policy: Policy, tree: DecisionTree) -> tuple[int, ...]:
    """Return the actions (indices into the table's) that the policy chooses, each by the state the last one led to."""
    chosen: list[int] = []
    at = 0
    for _ in range(tree.decisions):
        state = tree.states[at]
        request = AdviceRequest(
            job=tree.name,
            architecture=state.architecture,
            time_left_seconds=state.time_left_s,
            time_budget_seconds=state.time_budget_s,
        )
        action = tree.actions.index(decide(policy, request).action)
        chosen.append(action)
        at = tree.following[at][action]
    return tuple(chosen)


def _result(policy: Policy, tree: DecisionTree) -> TableResult:
    nothing = len(tree.actions) - 1
    none = _sequence(tree, (nothing,) * tree.decisions)
    best = _sequence(tree, tree.sequences[tree.accuracies.index(max(tree.accuracies))])
    reached = _sequence(tree, greedy_sequence(policy, tree))
    return TableResult(
        table=tree.name,
        model=tree.model,
        scenario=tree.scenario,
        sequences=len(tree.sequences),
        actions=reached.actions,
        accuracy=reached.accuracy,
        rank=reached.rank,
        regret=best.accuracy - reached.accuracy,
        none=none,
        random_mean_accuracy=sum(tree.accuracies) / len(tree.accuracies),
        best=best,
    )


def _sequence(tree: DecisionTree, sequence: tuple[int, ...]) -> SequenceResult:
    accuracy = tree.accuracies[tree.sequences.index(sequence)]
    return SequenceResult(
        actions=tuple(str(tree.actions[index]) for index in sequence), accuracy=accuracy, rank=tree.rank(accuracy)
    )
