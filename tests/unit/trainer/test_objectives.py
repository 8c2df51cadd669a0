"""Losses and measures of the tasks, compared with formulas and with scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from espalier_core.types.task import Task
from espalier_trainer.data import TensorSource
from espalier_trainer.data.objective import objective_of
from espalier_trainer.data.source import TokenSource
from espalier_trainer.training.method import evaluate


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
