"""How fast learning is, in processor time, and how well it fits what it learns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from harness.printed import progress

from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.learners import expected, reinforce
from espalier_agent.learners.expected import SeededRun, learn_many
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork, masked_log_probabilities
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.tree import decision_tree
from espalier_core.types.outcomes import OutcomeTable, reward

Tables = Sequence[OutcomeTable]


def one_at_a_time(tables: Tables, episodes: int) -> float:
    """Play and learn the paper's way, Algorithms 3 and 4; return episodes a second."""
    trees = [decision_tree(table) for table in tables]
    vocabulary = Vocabulary.build((state.architecture for tree in trees for state in tree.states), 0)
    points = max(len(tree.actions) - 1 for tree in trees)
    network = PolicyNetwork.seeded(NetworkConfig(growth_points=points), 0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    started = time.process_time()
    for episode in range(episodes):
        tree = trees[episode % len(trees)]
        at, recorded = 0, []
        for _ in range(tree.decisions):
            state = tree.states[at]
            times = [torch.tensor([value], dtype=torch.float64) for value in (state.time_left_s, state.time_budget_s)]
            logits = network.logits(
                network.prepare([state.architecture], vocabulary), torch.tensor([0]), times[0], times[1]
            )
            row = masked_log_probabilities(logits, torch.ones_like(logits, dtype=torch.bool))[0]
            action = int(torch.multinomial(row.detach().exp(), 1, generator=generator).item())
            recorded.append(row[action])
            at = tree.next_states[at][action]
        loss = -torch.stack(recorded).mean() * reward(tree.accuracies[at])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return episodes / (time.process_time() - started)


def batched(tables: Tables, updates: int, episodes_per_update: int) -> float:
    """Learn by the same estimator in large batches; return episodes a second, set-up included."""
    config = reinforce.BATCHED.model_copy(
        update={"episodes": updates * episodes_per_update * len(tables), "episodes_per_update": episodes_per_update}
    )
    started = time.process_time()
    learnt = reinforce.learn(tables, config=config, encoder="lstm", seed=0)
    return learnt.lineage.episodes / (time.process_time() - started)


def speed(tables: Tables, rounds: int) -> dict[str, Any]:
    """Measure both loops, interleaved."""
    slow, fast = [], []
    one_at_a_time(tables, 2)
    for _ in range(rounds):
        slow.append(one_at_a_time(tables, 60))
        fast.append(batched(tables, 20, 10_000))
    return {"one_at_a_time": slow, "batched": fast, "ratio": statistics.median(fast) / statistics.median(slow)}


def fit(tables: Tables, seeds: int, config: expected.ExpectedConfig) -> dict[str, Any]:
    """Learn all tables with each seed, one after the other as the command does, and then all seeds at once."""
    rows = []
    for seed in range(seeds):
        started = time.process_time()
        policy = expected.learn(tables, config=config, seed=seed)
        seconds = time.process_time() - started
        ranks = {result.table: result.rank for result in evaluate(policy, tables).tables}
        rows.append({"seed": seed, "seconds": seconds, "ranks": ranks})
        progress(f"fit, seed {seed}: {seconds:.1f} s, ranks {list(ranks.values())}")
    started = time.process_time()
    learn_many([SeededRun(tuple(tables), seed) for seed in range(seeds)], config=config)
    return {"seeds": rows, "at_once_seconds": time.process_time() - started}
