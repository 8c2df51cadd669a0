"""The interface of learners and their shared parts: start, progress, end, and the registry `LEARNERS`.

A learner is one module with a configuration (a `Record`), a function that trains a network, and a `Learner` of both;
one line in `LEARNERS`, or an entry point of another package, gives it a name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from espalier_agent.history.episodes import Episode, Gathered, Tried, episodes_digest, split
from espalier_agent.policies.familiarity import Domain
from espalier_agent.policies.network import ENCODERS, NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import (
    DEFAULT_EMBEDDING_SEED,
    LearntHistory,
    LearntTable,
    Lineage,
    Policy,
    make_policy,
)
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.game import Game
from espalier_agent.tables.tree import DecisionTree, decision_tree, table_digest
from espalier_core.growth import operation
from espalier_core.growth.architecture import Architecture
from espalier_core.registry import Registry
from espalier_core.types.advice import ActionColumns
from espalier_core.types.outcomes import OutcomeTable


class LearningError(ValueError):
    """Learning cannot start or continue. The message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class LearningProgress:
    """Progress of learning after an update."""

    episodes: int
    total_episodes: int
    objective: float = math.nan
    """Value that the learner minimises, mean over the update's episodes; for REINFORCE Algorithm 3's O. NaN: none."""
    mean_accuracy: float = math.nan
    """Final accuracy, mean over the update's episodes; NaN: not known."""


ProgressCallback = Callable[[LearningProgress], None]


@dataclass(frozen=True, slots=True)
class Start:
    """The initial state of learning."""

    tables: tuple[OutcomeTable, ...]
    seed: int
    network: PolicyNetwork
    """Trained in place."""
    vocabulary: Vocabulary
    games: list[Game]
    """One game per table, in the tables' order."""

    def generator(self) -> torch.Generator:
        """Return a generator with the seed: all random choices of a learner come from one generator."""
        return torch.Generator().manual_seed(self.seed)


@dataclass(frozen=True, slots=True)
class Lesson:
    """What to learn a policy from, and how."""

    tables: Sequence[OutcomeTable]
    config: Any
    """A recipe of the learner, perhaps changed."""
    encoder: str
    seed: int = 0
    name: str = ""
    """Of the policy."""
    parent: Policy | None = None
    """The policy to continue from."""
    progress: ProgressCallback = lambda progress: None


@dataclass(frozen=True, slots=True)
class Learner:
    """A learner, its recipes, and its possible combinations."""

    name: str
    train: Callable[[Start, Any, ProgressCallback], int]
    """Trains the start's network with a configuration, on one thread; returns the number of episodes learnt from."""
    recipes: Mapping[str, Any]
    """Configurations by name, each with a field `returns`; the first is the default."""
    encoder: str = "graph"
    """Encoder of a fresh network if none is named."""
    continues: bool = True
    """Whether it can continue from another policy."""
    stacks: bool = False
    """Whether it trains several networks at once by stacked weights, which the encoder must allow."""
    with_history: Callable[[Gathered, Sequence[str]], Learner] | None = None
    """Returns a learner that also learns from a history, given the names of its files."""

    def recipe(self, name: str | None = None) -> Any:
        """Return the recipe with this name, or the first; raise `LearningError` with the known names."""
        if name is None:
            return next(iter(self.recipes.values()))
        if name not in self.recipes:
            raise LearningError(f"learner {self.name} has no recipe {name!r}; its recipes: {', '.join(self.recipes)}")
        return self.recipes[name]

    def learn(
        self,
        tables: Sequence[OutcomeTable],
        *,
        config: Any = None,
        encoder: str | None = None,
        seed: int = 0,
        name: str | None = None,
        parent: Policy | None = None,
        progress: ProgressCallback = lambda progress: None,
    ) -> Policy:
        """Learn a policy from tables. The same tables, configuration, seed and parent give the same policy bit for bit.

        `config` is the first recipe's by default. `parent` is the policy to continue from: it keeps its encoder. A
        fresh network gets `encoder`. Runs on one thread: the tensors are too small to share. Raise `TableError` for a
        table that cannot be played, and `LearningError` if learning cannot start, or a number stops being finite.
        """
        config, encoder = self.recipe() if config is None else config, encoder or self.encoder
        self.check(encoder, parent)
        return self._learn(Lesson(tables, config, encoder, seed, name or self.name, parent, progress))

    def _learn(self, lesson: Lesson) -> Policy:
        start = start_learning(lesson)
        with one_thread():
            start.network.train()
            episodes = self.train(start, lesson.config, lesson.progress)
        return finish_learning(start, self.name, lesson, episodes)

    def check(self, encoder: str, parent: Policy | None) -> None:
        """Raise `LearningError` if this learner cannot use the encoder, or cannot continue from a policy."""
        if self.stacks and not ENCODERS.load(encoder).stackable:
            raise LearningError(
                f"learner {self.name} stacks networks, which encoder {encoder} does not allow; leave --encoder out"
            )
        learnt_by = ENCODERS.load(encoder).learnt_by
        if learnt_by is not None and learnt_by != self.name:
            raise LearningError(f"encoder {encoder} has no gradients; --learner {learnt_by} learns it")
        if parent is not None and not self.continues:
            raise LearningError(f"learner {self.name} starts from a fresh network; leave --from out")


def time_shifts(jitter: float, count: int, generator: torch.Generator) -> Tensor:
    """Draw the shift of times left as a share of the budget, at most `jitter` either way, (count,), float64.

    Without jitter it is 0, and nothing is drawn.
    """
    if jitter == 0:
        return torch.zeros(count, dtype=torch.float64)
    return jitter * (2.0 * torch.rand(count, generator=generator, dtype=torch.float64) - 1.0)


def ascend(optimizer: torch.optim.Optimizer, wanted: Tensor) -> None:
    """Take a step towards a larger sum of `wanted`; raise `LearningError` if it is not finite."""
    if not bool(torch.isfinite(wanted).all()):
        raise LearningError(NOT_FINITE)
    optimizer.zero_grad()
    torch.autograd.backward(-wanted.sum())
    optimizer.step()


NOT_FINITE: Final = "the network's outputs are no longer finite; lower the learning rate"


def start_learning(lesson: Lesson, architectures: Sequence[Architecture] = ()) -> Start:
    """Unfold the tables, and take a fresh network of this seed, or a copy of the parent's.

    `architectures` belong to other states to learn from. Raise `TableError` for a table that cannot be played; raise
    `LearningError` if there is nothing to learn from, or if the network of the encoder or parent cannot decide about as
    many growth points, or about an operation of a table.
    """
    if not lesson.tables and not architectures:
        raise LearningError("there is no outcome table to learn from")
    encoder, parent = lesson.encoder, lesson.parent
    trees = [decision_tree(table) for table in lesson.tables]
    starts = [tree.states[0].architecture for tree in trees]
    points = max(len(each.growth_points) for each in (*starts, *architectures))
    if parent is None:
        counts = ActionColumns.over((*starts, *architectures)).counts if ENCODERS.load(encoder).any_operation else {}
        config = NetworkConfig.scoring(encoder, max(points, 1), [name for name, count in counts.items() if count])
        _check_outputs(trees, f"encoder {encoder}", config)
        network = PolicyNetwork.seeded(config, lesson.seed)
        vocabulary = Vocabulary.build((), DEFAULT_EMBEDDING_SEED)
    else:
        head = parent.network.config.growth_points
        if head < points and parent.network.fixed_size:
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
    games = [Game(tree, vocabulary, network.config, lesson.config.returns) for tree in trees]
    return Start(tuple(lesson.tables), lesson.seed, network, vocabulary, games)


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
    learner: str,
    lesson: Lesson,
    episodes: int,
    *,
    history: LearntHistory | None = None,
    domain: Domain | None = None,
) -> Policy:
    """Freeze the result into a policy that records its origin, and the data that its parent has learnt from."""
    learnt, parent = {table_digest(table): table.name for table in start.tables}, lesson.parent
    if parent is not None:
        learnt |= {table.sha256: table.name for table in parent.lineage.tables}
        history = history or parent.lineage.history
    lineage = Lineage(
        learner=learner,
        config=lesson.config.model_dump(mode="json"),
        seed=start.seed,
        episodes=episodes,
        tables=tuple(LearntTable(name=name, sha256=sha256) for sha256, name in learnt.items()),
        parent=None if parent is None else parent.identity,
        history=history,
        domain=domain,
    )
    return make_policy(lesson.name, start.network, start.vocabulary, lineage)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread within: the tensors are too small to share."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class HoldOutConfig(Protocol):
    """A configuration of the held-out part."""

    @property
    def held_out_share(self) -> float:
        """Share of the jobs."""

    @property
    def held_out_seed(self) -> int:
        """Seed of the share."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """The part of a history to learn from."""

    episodes: Sequence[Episode]
    tried: Sequence[Tried]
    held_out: int
    """Number of held-out episodes, without trials."""
    lineage: LearntHistory


def remembered(
    history: Gathered,
    config: HoldOutConfig,
    files: tuple[str, ...],
    usable: Callable[[Sequence[Episode]], Sequence[Episode]] = lambda episodes: episodes,
) -> Remembered:
    """Return the part of a history to learn from: of the part not held out, the `usable` episodes, and all trials.

    `files` are the names that the lineage gives to the history.
    """
    learnt, held_out = split(history.episodes, config.held_out_share, config.held_out_seed)
    tried, held_out_trials = split(history.tried, config.held_out_share, config.held_out_seed)
    episodes = usable(learnt)
    lineage = LearntHistory(
        files=files,
        sha256=episodes_digest(episodes, tried),
        decisions=sum(len(one.decisions) for one in episodes),
        episodes=len(episodes),
        trials=len(tried),
        held_out_share=config.held_out_share,
        held_out_seed=config.held_out_seed,
        held_out_episodes=len(held_out) + len(held_out_trials),
    )
    return Remembered(episodes, tried, len(held_out), lineage)


LEARNERS: Final = Registry[Learner](
    "learner",
    "espalier.learners",
    {
        "expected": "espalier_agent.learners.expected:LEARNER",
        "reinforce": "espalier_agent.learners.reinforce:LEARNER",
        "trees": "espalier_agent.learners.trees:LEARNER",
    },
)
DEFAULT_LEARNER: Final = "expected"
