"""The paper's learner for many runs at once is its learner; the study runs, draws and reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bench.cases.study import CURRICULA, report, run_study
from bench.paper import LEARNING_RATE, Run, greedy, learn_many
from bench.paper_figures import draw
from espalier_agent.data import lamelas_tables
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import DEFAULT_EMBEDDING_SEED
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.tables.tree import DecisionTree, State, decision_tree
from espalier_core.types.outcomes import reward

VOCABULARY = Vocabulary.build((), DEFAULT_EMBEDDING_SEED)


@pytest.fixture(scope="module")
def trees() -> list[DecisionTree]:
    return [decision_tree(table) for table in lamelas_tables()]


def network(seed: int) -> PolicyNetwork:
    return PolicyNetwork.seeded(NetworkConfig(growth_points=3), seed)


def logits(learner: PolicyNetwork, state: State) -> torch.Tensor:
    """Return the logits (4,) of one state, evaluated alone."""
    times = torch.tensor([[state.time_left_s], [state.time_budget_s]], dtype=torch.float64)
    return learner.logits(learner.prepare([state.architecture], VOCABULARY), torch.tensor([0]), *times)[0]


def one_by_one(tree: DecisionTree, seed: int, temperature: float, episodes: int) -> tuple[PolicyNetwork, list[float]]:
    """Run algorithms 3 and 4 as they are written: one state after the other, one network, Adam."""
    learner = network(seed)
    optimizer = torch.optim.Adam(learner.parameters(), lr=LEARNING_RATE)
    drawn = torch.rand(episodes, tree.decisions, generator=torch.Generator().manual_seed(seed))
    objectives = []
    for numbers in drawn:
        at, recorded = 0, []
        for number in numbers:
            log_probabilities = torch.log_softmax(logits(learner, tree.states[at]) / temperature, dim=0)
            action = int((number >= log_probabilities.detach().exp().cumsum(0)[:-1]).sum())
            recorded.append(log_probabilities[action])
            at = tree.next_states[at][action]
        objective = (-torch.stack(recorded) * reward(tree.accuracies[at])).mean()
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
        objectives.append(objective.item())
    return learner, objectives


def test_many_runs_learn_as_each_does_alone(trees: list[DecisionTree]) -> None:
    runs = [Run(tree=trees[0], seed=1), Run(tree=trees[5], seed=2, temperature=10.0), Run(tree=trees[3], seed=1)]
    together = learn_many(runs, 15)
    for run, learnt in zip(runs, together, strict=True):
        alone, objectives = one_by_one(run.tree, run.seed, run.temperature, 15)
        np.testing.assert_allclose(learnt.objectives, objectives, rtol=1e-3)
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(learnt.weights[name], value, rtol=1e-3, atol=2e-5)


def test_transfer_begins_where_the_prior_ended(trees: list[DecisionTree]) -> None:
    start = network(7).state_dict()
    (first,) = learn_many([Run(tree=trees[1], seed=3, start=start)], 1)
    moved = {name: (first.weights[name] - value).abs().max().item() for name, value in start.items()}
    # Adam's first step moves nothing by more than the learning rate, and what has a gradient by about as much.
    assert max(moved.values()) <= LEARNING_RATE * 1.01
    assert max(moved.values()) >= LEARNING_RATE * 0.9
    assert all(torch.equal(value, network(7).state_dict()[name]) for name, value in start.items()), "it was changed"


def test_greedy_is_the_most_probable_path(trees: list[DecisionTree]) -> None:
    learners = [network(seed) for seed in range(6)]
    found = greedy([learner.state_dict() for learner in learners], trees)
    for actions, tree, learner in zip(found, trees, learners, strict=True):
        at = 0
        for action in actions:
            assert action == int(logits(learner, tree.states[at]).argmax())
            at = tree.next_states[at][action]


def test_the_study_draws_and_reports(trees: list[DecisionTree], tmp_path: Path) -> None:
    stages: list[tuple[str, int]] = []

    def learn(stage: str, runs: list[Run]) -> list[object]:
        stages.append((stage, len(runs)))
        # The later stages continue from what the earlier ones learnt.
        assert all((run.start is None) == (stage == "from scratch") for run in runs)
        return learn_many(runs, 2)

    study = run_study(trees, 1, learn)
    assert stages == [("from scratch", 6), ("transfers", 24), ("curricula", 16)]
    assert set(study.curricula) == set(CURRICULA)
    draw(study, tmp_path)
    page = report(study, 1, 2)
    pictures = sorted(tmp_path.iterdir())
    assert len(pictures) == 6
    assert all(picture.read_bytes().startswith(b"\x89PNG") and f"]({picture.name})" in page for picture in pictures)
    assert page.count("| cnn1-early |") == 2
    assert "| cnn1-early | 0.6221 | 0.6895 | 0.6614 | 0.7391 |" in page
