"""The paper's learner for many runs at once is its learner; the study runs, and says what it found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from espalier_agent.data import lamelas_tables
from espalier_agent.evaluation.evaluate import evaluate
from espalier_agent.policies.files import default_policy
from espalier_agent.policies.network import NetworkConfig, PolicyNetwork
from espalier_agent.policies.policy import DEFAULT_EMBEDDING_SEED
from espalier_agent.policies.vocabulary import Vocabulary
from espalier_agent.study.experiments import baselines, run_study
from espalier_agent.study.many_lstms import lstms
from espalier_agent.study.many_networks import Models, encode, stacked, unstacked
from espalier_agent.study.many_runs import LEARNING_RATE, Run, greedy, learn_many
from espalier_agent.study.paper import CURRICULA, TEMPERATURES
from espalier_agent.study.workers import workers
from espalier_agent.tables.tree import DecisionTree, State, decision_tree
from espalier_api.outcomes import reward
from espalier_cli.study.figures import figures, rolling
from espalier_cli.study.report import report


@pytest.fixture(scope="module")
def trees() -> list[DecisionTree]:
    return [decision_tree(table) for table in lamelas_tables()]


VOCABULARY = Vocabulary.build((), DEFAULT_EMBEDDING_SEED)


def logits(learner: PolicyNetwork, state: State) -> torch.Tensor:
    """Return the logits (4,) of one state, asked for alone."""
    times = torch.tensor([[state.time_left_s], [state.time_budget_s]], dtype=torch.float64)
    return learner.logits(learner.prepare([state.architecture], VOCABULARY), torch.tensor([0]), *times)[0]


def network(seed: int) -> PolicyNetwork:
    return PolicyNetwork.seeded(NetworkConfig(growth_points=3), seed)


def test_stacked_networks_encode_as_each_does_alone(trees: list[DecisionTree]) -> None:
    models = [[state.architecture for state in tree.states] for tree in trees]
    embedded = [[VOCABULARY.embed(architecture) for architecture in of_tree] for of_tree in models]
    networks = [network(seed) for seed in range(len(trees))]
    together = encode(stacked([each.state_dict() for each in networks]), Models(embedded))
    for alone, of_tree, found in zip(networks, models, together, strict=True):
        encoded = alone.encoder(alone.prepare(of_tree, VOCABULARY))
        torch.testing.assert_close(found, encoded, rtol=1e-5, atol=1e-6)


def test_the_gradient_that_is_written_out_is_the_right_one() -> None:
    generator = torch.Generator().manual_seed(7)
    shapes = ((3, 2, 4, 20), (2, 5, 20))  # three steps, two runs, four models, five hidden units
    numbers = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(lstms, numbers)


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
            at = tree.following[at][action]
        objective = (-torch.stack(recorded) * reward(tree.accuracies[at])).mean()
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
        objectives.append(objective.item())
    return learner, objectives


def test_many_runs_learn_as_each_does_alone(trees: list[DecisionTree]) -> None:
    runs = [Run(tree=trees[0], seed=1), Run(tree=trees[5], seed=2, temperature=10.0), Run(tree=trees[3], seed=1)]
    together = learn_many(runs, 25)
    for run, learnt in zip(runs, together, strict=True):
        alone, objectives = one_by_one(run.tree, run.seed, run.temperature, 25)
        np.testing.assert_allclose(learnt.objectives, objectives, rtol=1e-3)
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(learnt.weights[name], value, rtol=1e-3, atol=2e-5)


def test_a_run_does_not_depend_on_its_company(trees: list[DecisionTree]) -> None:
    (alone,) = learn_many([Run(tree=trees[2], seed=4)], 30)
    *_, among = learn_many([Run(tree=tree, seed=9) for tree in trees] + [Run(tree=trees[2], seed=4)], 30)
    np.testing.assert_allclose(alone.objectives, among.objectives, rtol=1e-3)
    assert (alone.accuracies == among.accuracies).all()


def test_transfer_begins_where_the_prior_ended(trees: list[DecisionTree]) -> None:
    start = network(7).state_dict()
    (first,) = learn_many([Run(tree=trees[1], seed=3, start=start)], 1)
    moved = {name: (first.weights[name] - value).abs().max().item() for name, value in start.items()}
    # Adam's first step moves nothing by more than the learning rate, and what has a gradient by about as much.
    assert max(moved.values()) <= LEARNING_RATE * 1.01
    assert max(moved.values()) >= LEARNING_RATE * 0.9
    assert all(torch.equal(value, network(7).state_dict()[name]) for name, value in start.items()), "it was changed"


def test_greedy_is_the_most_probable_path(trees: list[DecisionTree]) -> None:
    weights = [network(seed).state_dict() for seed in range(6)]
    for actions, tree, each in zip(greedy(weights, trees), trees, weights, strict=True):
        learner = PolicyNetwork.with_weights(NetworkConfig(growth_points=3), unstacked(stacked([each]), 0))
        at = 0
        for action in actions:
            assert action == int(logits(learner, tree.states[at]).argmax())
            at = tree.following[at][action]


def test_it_learns(trees: list[DecisionTree]) -> None:
    cnn2_late = next(tree for tree in trees if (tree.model, tree.scenario) == ("cnn2", "late"))
    learnt = learn_many([Run(tree=cnn2_late, seed=seed) for seed in range(3)], 600)
    gained = [each.accuracies[-150:].mean() - each.accuracies[:150].mean() for each in learnt]
    assert sum(gained) / len(gained) > 0


def test_baselines(trees: list[DecisionTree]) -> None:
    found = baselines(trees[0], 0)
    assert (found.none, found.best) == (0.6221, 0.7391)
    assert found.random_mean == pytest.approx(0.6895, abs=1e-4)
    assert found.random_ten != found.random_mean


def test_study_and_evaluation_draw_the_same_ten_random_sequences(trees: list[DecisionTree]) -> None:
    shown = evaluate(default_policy(), lamelas_tables(), seed=1).tables
    assert [baselines(tree, 1).random_ten for tree in trees] == [result.random_ten_mean_accuracy for result in shown]


def test_rolling_means() -> None:
    assert rolling(np.array([1.0, 2.0, 3.0, 6.0]), 2).tolist() == [1.5, 2.5, 4.5]


def test_the_study_runs_in_processes_and_reports(trees: list[DecisionTree]) -> None:
    told: list[tuple[str, int, int]] = []
    with workers(2, lambda *news: told.append(news)) as learn:
        study = run_study(trees, range(1), 3, learn)
    assert [stage for stage, _ in itertools.groupby(told, key=lambda news: news[0])] == [
        "from scratch",
        "transfers",
        "curricula",
    ]
    assert all(done <= of for _, done, of in told)
    assert len(study.scratch) == 6
    assert len(study.transfers) == 6 * len(TEMPERATURES)
    assert set(study.curricula) == set(CURRICULA)
    # The processes found what one alone finds.
    (alone,) = learn_many([Run(tree=trees[1], seed=0)], 3)
    np.testing.assert_allclose(
        study.scratch[f"{trees[1].model}-{trees[1].scenario}", 0].objectives, alone.objectives, rtol=1e-4
    )
    pictures = figures(study)
    assert len(pictures) == 6
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    page = report(study)
    assert all(f"]({name})" in page for name in pictures)
    assert page.count("| cnn1-early |") == 2
