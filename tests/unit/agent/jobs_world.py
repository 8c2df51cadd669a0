"""A world in which jobs end as an outcome table says, and a service that advises them and keeps what came of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bodies import ask
from click.testing import CliRunner, Result

from espalier_agent.commands.agent import agent
from espalier_agent.evaluation.evaluate import evaluate, greedy_sequence, sequence_result
from espalier_agent.history.schema import DecisionRecord
from espalier_agent.history.store import OutcomeStore
from espalier_agent.policies.advice import Exploration, PolicyDecision, decide, explored
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import Lineage, Policy, make_policy
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.tree import DecisionTree
from espalier_core.types.advice import Action, AdviceRequest, OutcomeReport
from espalier_core.types.outcomes import OutcomeTable

PATIENCE = 60.0


def request(tree: DecisionTree, state: int, job: str) -> AdviceRequest:
    """Return what a trainer asks in a state of the world."""
    here = tree.states[state]
    return ask(here.architecture, here.time_left_s, job=job, time_budget_seconds=here.time_budget_s)


def play(tree: DecisionTree, answer: Callable[[int, int], Action]) -> float:
    """Play one job: `answer` is told the number of the decision and the state; return the final accuracy."""
    at = 0
    for number in range(tree.decisions):
        at = tree.next_states[at][tree.actions.index(answer(number, at))]
    return tree.accuracies[at]


@dataclass(frozen=True)
class Jobs:
    """How many jobs, how often something is tried, and the seed of it."""

    count: int
    share: float
    seed: int = 0


@contextmanager
def storing(path: Path) -> Iterator[OutcomeStore]:
    """Give a store that writes into a database, until all is written."""
    store = OutcomeStore(path)
    store.start()
    yield store
    store.close(PATIENCE)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a database, as another process that writes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def outcome(*ids: str, accuracy: float = 0.5, job: str = "job", **changes: Any) -> OutcomeReport:
    """Return a report of what came of these decisions."""
    fields = {"job": job, "decision_ids": ids, "final_accuracy": accuracy, "time_budget_seconds": 100}
    return OutcomeReport(**{**fields, **changes})


def collect(policy: Policy, tree: DecisionTree, jobs: Jobs, path: Path) -> None:
    """Let jobs ask for advice and end, into a database as the service writes it."""
    exploration = Exploration(share=jobs.share, seed=jobs.seed)
    greedy: dict[int, PolicyDecision] = {}
    with storing(path) as store:
        for job in range(jobs.count):
            name = f"job-{jobs.seed}-{job}"

            def answer(number: int, state: int, name: str = name) -> Action:
                asked = request(tree, state, name)
                if state not in greedy:
                    greedy[state] = decide(policy, asked)
                decision = explored(greedy[state], exploration, f"{name}-{number}")
                store.keep(DecisionRecord(f"{name}-{number}", datetime.now(UTC), asked, decision, policy.identity), 1)
                return decision.action

            ids = [f"{name}-{number}" for number in range(tree.decisions)]
            budget = tree.states[0].time_budget_s
            committed = store.report(outcome(*ids, accuracy=play(tree, answer), job=name, time_budget_seconds=budget))
            if job % 100 == 99 or job == jobs.count - 1:
                committed.result(PATIENCE)


def untaught(seed: int, encoder: str = "graph") -> Policy:
    """Return a policy that nobody taught."""
    config = NetworkConfig.model_validate({"encoder": encoder, "growthPoints": 3})
    lineage = Lineage(learner="none", config={}, seed=seed, episodes=0, tables=())
    return make_policy("untaught", PolicyNetwork.seeded(config, seed), Vocabulary.build((), 0), lineage)


def poor(table: OutcomeTable, regret: float, first: int = 0) -> Policy:
    """Return the first untaught policy that is so bad on a table."""
    seeds = range(first, first + 100)
    return next(policy for policy in map(untaught, seeds) if evaluate(policy, [table]).mean_regret >= regret)


def accuracy(policy: Policy, tree: DecisionTree) -> float:
    """Return what the policy's own decisions lead to in the world."""
    return sequence_result(tree, greedy_sequence(policy, tree)).accuracy


def names(actions: Sequence[Action]) -> list[str]:
    """Return actions as text."""
    return [str(action) for action in actions]


def run(*arguments: object, exits: int | None = None) -> Result:
    """Return what a command of the agent said."""
    ended = CliRunner().invoke(agent, [str(argument) for argument in arguments])
    assert exits in (None, ended.exit_code), ended.output
    return ended
