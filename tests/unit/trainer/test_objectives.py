"""What is trained for: losses and measures, and the average of the weights."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion, OptimizerSpec
from espalier_core.types.task import Task
from espalier_trainer.builtin_loop.steps import optimize
from espalier_trainer.data import TensorSource
from espalier_trainer.data.objective import objective_of
from espalier_trainer.data.source import TokenSource
from espalier_trainer.models.gpt import gpt
from espalier_trainer.models.zoo import mlp
from espalier_trainer.optimizers.averaging import AVERAGE
from espalier_trainer.training.method import Method, evaluate
from espalier_trainer.training.network import Network, new_network


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(1, 3), st.integers(0, 1000))
def test_r2_and_rmse_are_those_of_scikit_learn(rows, columns, seed):
    from sklearn.metrics import r2_score  # with scipy.stats, a second of every process that collects tests

    generator = torch.Generator().manual_seed(seed)
    targets = torch.randn(rows, columns, generator=generator) * 3 + 5
    outputs = targets + torch.randn(rows, columns, generator=generator)
    found = evaluate(nn.Identity(), TensorSource(outputs, targets), 1, objective=objective_of(Task.REGRESSION))
    assert found.score.measure == "r2"
    assert found.score.value == pytest.approx(r2_score(targets.numpy(), outputs.numpy()), abs=1e-3)
    assert found.figures["rmse"] == pytest.approx(math.sqrt(float((outputs - targets).square().mean())), rel=1e-4)


def test_targets_that_are_all_equal_have_an_r2():
    targets = torch.full((4, 1), 7.0)
    objective = objective_of(Task.REGRESSION)
    met = evaluate(nn.Identity(), TensorSource(targets, targets), 4, objective=objective)
    missed = evaluate(nn.Identity(), TensorSource(targets + 1, targets), 4, objective=objective)
    assert (met.score.value, missed.score.value) == (1.0, 0.0)


def test_a_model_that_knows_nothing_of_a_text_needs_the_bits_of_its_vocabulary():
    class Even(nn.Module):
        def forward(self, tokens):
            return torch.zeros(*tokens.shape, 16)

    source = TokenSource(torch.arange(100, dtype=torch.int32) % 16, context=5, windows=7, characters_per_token=2.0)
    found = evaluate(Even(), source, 2, objective=objective_of(Task.LANGUAGE_MODEL))
    assert found.score.measure == "bits_per_character"
    assert found.score.value == pytest.approx(4 / 2)
    assert found.figures["perplexity"] == pytest.approx(16)
    assert found.named("test").keys() == {"test_bits_per_character", "test_loss", "test_perplexity"}


@pytest.mark.parametrize("task", Task)
def test_losses_of_parts_add_up(task):
    generator = torch.Generator().manual_seed(0)
    outputs, targets = {
        Task.CLASSIFICATION: (torch.randn(6, 4, generator=generator), torch.arange(6) % 4),
        Task.REGRESSION: (torch.randn(6, 2, generator=generator), torch.randn(6, 2, generator=generator)),
        Task.LANGUAGE_MODEL: (torch.randn(6, 3, 4, generator=generator), torch.arange(18).view(6, 3) % 4),
    }[task]
    objective = objective_of(task)
    whole = objective.losses(outputs, targets)
    assert torch.isclose(whole, objective.losses(outputs[:2], targets[:2]) + objective.losses(outputs[2:], targets[2:]))
    assert objective.misfit(outputs, 6, 2 if task is Task.REGRESSION else 4) == ""


@pytest.mark.parametrize(
    ("task", "shape", "problem"),
    [
        (Task.CLASSIFICATION, (2, 3), "has 3 outputs, but the data set has 4 classes"),
        (Task.CLASSIFICATION, (2, 5, 3), "it must return logits [N, classes]"),
        (Task.REGRESSION, (2, 5), "it must return numbers [N, 4], as the data set has 4 for each example"),
        (Task.LANGUAGE_MODEL, (2, 5), "it must return logits [N, T, tokens]"),
        (Task.LANGUAGE_MODEL, (2, 5, 3), "has 3 outputs for a token, but the data set has 4 tokens"),
    ],
)
def test_outputs_that_do_not_fit_are_named(task, shape, problem):
    assert objective_of(task).misfit(torch.zeros(shape), 2, 4) == problem


DECAY = 0.9
ROWS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
TOKENS = torch.arange(32).reshape(4, 8) % 5


def averages(network: Network) -> dict[str, Tensor]:
    state = network.optimizer.state
    return {name: state[each][AVERAGE].clone() for name, each in network.module.named_parameters()}


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in module.named_parameters()}


@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "RMSprop"])
@pytest.mark.parametrize(
    ("build", "inputs", "labels", "task", "action", "insertion"),
    [
        (lambda: mlp(2, 4), ROWS, torch.arange(8) % 2, Task.CLASSIFICATION, Action.deepen("0"), Insertion.EXACT),
        (
            lambda: gpt(5, 8, 8),
            TOKENS,
            (TOKENS + 1) % 5,
            Task.LANGUAGE_MODEL,
            Action(kind="AddBlock", target="blocks.0"),
            Insertion.SCALED,
        ),
    ],
    ids=["new layers", "new and changed blocks"],
)
def test_what_growth_adds_or_changes_is_averaged_from_the_value_that_growth_gave_it(
    build, inputs, labels, task, action, insertion, optimizer
):
    spec = OptimizerSpec.model_validate({"name": optimizer})
    network, _ = new_network(build(), spec, inputs[:2], insertion, (action.kind,))
    method = Method(objective_of(task), decay=DECAY)
    for _ in range(90):  # until the decay is the job's: (1 + n) / (10 + n) > 0.9
        optimize(network, inputs, labels, method)
    kept, before = averages(network), weights(network.module)
    grown = network.grown(action, inputs[:2], insertion, 0)
    given = weights(grown.module)
    optimize(grown, inputs, labels, method)
    changed = {name for name, value in given.items() if name not in before or not torch.equal(before[name], value)}
    assert changed
    for name, average in averages(grown).items():
        start = given[name] if name in changed else kept[name]
        torch.testing.assert_close(average, start.lerp(weights(grown.module)[name], 1 - DECAY), msg=name)
