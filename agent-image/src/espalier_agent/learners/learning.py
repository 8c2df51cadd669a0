"""What learners share: where they start, how they report, how they end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from espalier_agent.policies.files import make_policy
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import DEFAULT_EMBEDDING_SEED, LearntHistory, LearntTable, Lineage, Policy
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.game import Game, Returns
from espalier_agent.tables.tree import DecisionTree, decision_tree, table_digest
from espalier_api.advice import ActionColumns
from espalier_api.architecture import Architecture
from espalier_api.base import Record
from espalier_api.growth import operation
from espalier_api.outcomes import OutcomeTable


class LearningError(ValueError):
    """Learning cannot start or go on. The message says why and what to change."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far learning is, after an update."""

    episodes: int
    total_episodes: int
    objective: float
    """What the learner minimises, its mean over the update's episodes; for REINFORCE Algorithm 3's O."""
    mean_accuracy: float
    """Final accuracy, mean over the update's episodes."""


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Start:
    """What learning begins with."""

    network: PolicyNetwork
    vocabulary: Vocabulary
    games: list[Game]
    """One a table, in the tables' order."""


def start_learning(
    tables: Sequence[OutcomeTable],
    *,
    encoder: str,
    seed: int,
    parent: Policy | None,
    returns: Returns,
    architectures: Sequence[Architecture] = (),
) -> Start:
    """Unfold the tables, and take a fresh network of this seed, or a copy of the parent's.

    `architectures` are those of other states that are learnt from. Raises `TableError` for a table that cannot be
    played, `LearningError` without anything to learn from and for an encoder or a parent whose network cannot decide
    about as many growth points, or about an operation of a table.
    """
    if not tables and not architectures:
        raise LearningError("there is no outcome table to learn from")
    trees = [decision_tree(table) for table in tables]
    starts = [tree.states[0].architecture for tree in trees]
    points = max(len(each.growth_points) for each in (*starts, *architectures))
    if parent is None:
        counts = ActionColumns.over((*starts, *architectures)).counts if encoder == "graph" else {}
        config = NetworkConfig.scoring(encoder, max(points, 1), [name for name, count in counts.items() if count])
        _check_outputs(trees, f"encoder {encoder}", config)
        network = PolicyNetwork.seeded(config, seed)
        vocabulary = Vocabulary.build((), DEFAULT_EMBEDDING_SEED)
    else:
        head = parent.network.config.growth_points
        if head < points and parent.network.config.encoder == "lstm":
            source = "history has" if architectures else "tables have"
            raise LearningError(
                f"policy {parent.name!r} decides about {head} growth points, where the {source} {points}; "
                "learn from a fresh network, with all tables at once"
            )
        _check_outputs(trees, f"policy {parent.name!r}", parent.network.config)
        network = PolicyNetwork.with_weights(parent.network.config, parent.network.state_dict())
        vocabulary = parent.vocabulary
    of_tables = (state.architecture for tree in trees for state in tree.states)
    vocabulary = vocabulary.extended(itertools.chain(of_tables, architectures))
    return Start(network, vocabulary, [Game(tree, vocabulary, network.config, returns) for tree in trees])


def _check_outputs(trees: Sequence[DecisionTree], who: str, config: NetworkConfig) -> None:
    for tree in trees:
        for kind in dict.fromkeys(action.kind for action in tree.actions if action.grows):
            unknown = operation(kind)
            if kind not in config.operations:
                raise LearningError(
                    f"{who} has no outputs for {unknown.targets_are}, which table {tree.name} {unknown.verb}s; learn "
                    "it from a fresh network with --encoder graph, or leave the table out"
                )


def finish_learning(
    start: Start,
    tables: Sequence[OutcomeTable],
    *,
    learner: str,
    config: Record,
    seed: int,
    name: str,
    parent: Policy | None,
    episodes: int,
    history: LearntHistory | None = None,
) -> Policy:
    """Freeze what was learnt into a policy that says how it came to be, and what its parent has learnt from."""
    learnt = {table_digest(table): table.name for table in tables}
    if parent is not None:
        learnt |= {table.sha256: table.name for table in parent.lineage.tables}
        history = history or parent.lineage.history
    lineage = Lineage(
        learner=learner,
        config=config.model_dump(mode="json"),
        seed=seed,
        episodes=episodes,
        tables=tuple(LearntTable(name=name, sha256=sha256) for sha256, name in learnt.items()),
        parent=None if parent is None else parent.identity,
        history=history,
    )
    return make_policy(name, start.network, start.vocabulary, lineage)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread within: the tensors are too small to share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
