"""The noise of gradients on problems where it is known."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from espalier_trainer.builtin_loop.steps import accumulate, optimize
from espalier_trainer.measuring import gradients
from espalier_trainer.measuring.gradients import Noise, Norms, Passes, Successive, estimates
from espalier_trainer.run.meter import RunMeter
from espalier_trainer.training.method import PLAIN, Method
from espalier_trainer.training.network import Network

SIZE = 400


class Gaussian(nn.Module):
    """The gradient of its mean output over examples is their mean: they are drawn from N(mean, spread²)."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chance = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.zeros(SIZE))
        self.mean = torch.full((SIZE,), 0.05)
        self.spread = torch.linspace(0.1, 1.0, SIZE)
        self.squared_norm = float(self.mean.square().sum())
        self.variance = float(self.spread.square().sum())

    def gradient(self, examples: int) -> Tensor:
        draws = self.mean + self.spread * torch.randn(examples, SIZE, generator=self.chance)
        self.weight.grad = None
        (draws @ self.weight).mean().backward()
        return self.weight.grad


def of_members(problem: Gaussian, members: int, rows: int) -> Norms:
    parts = [problem.gradient(rows) for _ in range(members)]
    small = statistics.mean(float(part.square().sum()) for part in parts)
    return Norms(small, rows, float(torch.stack(parts).mean(0).square().sum()), members * rows)


@pytest.mark.parametrize("members", [2, 4])
def test_members_estimate_both_figures_without_bias(members):
    """Over 16 seeds with 30 estimates each, the mean is within four standard errors of the truth."""
    problem = Gaussian(0)
    means = []
    for seed in range(16):
        problem = Gaussian(seed)
        found = [estimates(of_members(problem, members, 16)) for _ in range(30)]
        means.append([statistics.mean(column) for column in zip(*filter(None, found), strict=True)])
    for column, truth in zip(zip(*means, strict=True), (problem.squared_norm, problem.variance), strict=True):
        error = statistics.stdev(column) / math.sqrt(len(column))
        assert abs(statistics.mean(column) - truth) < 4 * error
        assert error < 0.05 * truth  # the interval is narrow enough to mean something


@pytest.mark.parametrize("passes", [1, 2])
def test_clipped_gradients_have_the_noise_that_they_had_before(monkeypatch, digits, passes):
    """`maxGradientNorm` scales those that the optimizer takes, in place."""
    monkeypatch.setattr("espalier_trainer.measuring.speeds.NoiseSampling.due", lambda sampling, after=0: True)
    found = []
    for most in (None, 1e-3, 1e6):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        network = Network(module, torch.optim.SGD(module.parameters(), lr=0.0), None, ())
        method, meter = Method(PLAIN.objective, most), RunMeter(network)
        for step in range(4):
            assert meter.begin()
            batch = digits.train.batch(torch.arange(64) + 64 * step, None)
            if passes == 1:
                meter.look(optimize(network, *batch, method), network)
            else:
                meter.look(accumulate(network, *batch, method, lambda rows: None, passes), network)
        gradient = meter.measured().gradient
        assert gradient.samples == 2
        assert gradient.squared_norm > 1e-3
        found.append((gradient.squared_norm, gradient.variance))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[2] == found[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_worker_alone_estimates_them_from_successive_gradients(seed):
    problem, noise, successive = Gaussian(seed), Noise(), Successive()
    for _ in range(400):
        problem.gradient(64)
        if (norms := successive.look(problem, 64)) is not None:
            noise.add(norms)
    found = noise.measured()
    assert found.samples == 200
    assert found.variance == pytest.approx(problem.variance, rel=0.05)
    assert found.squared_norm == pytest.approx(problem.squared_norm, rel=0.35)
    assert found.noise_scale == pytest.approx(problem.variance / problem.squared_norm, rel=0.5)


def test_of_a_large_gradient_a_part_gives_the_same_figures(monkeypatch):
    monkeypatch.setattr(gradients, "MAX_COORDINATES", 50)
    problem, noise, successive = Gaussian(3), Noise(), Successive()
    for _ in range(1600):
        problem.gradient(64)
        if successive.waits:
            assert len(successive._kept) <= 50
        if (norms := successive.look(problem, 64)) is not None:
            noise.add(norms)
    found = noise.measured()
    assert found.variance == pytest.approx(problem.variance, rel=0.1)


def test_gradients_that_are_sparse_or_complex_count_whole():
    module, successive = nn.ParameterList([torch.zeros(3, 2), torch.zeros(2, dtype=torch.complex64)]), Successive()
    sparse = torch.sparse_coo_tensor(
        [[2, 2]], [[1.0, 0.0], [2.0, 4.0]], (3, 2), check_invariants=True
    )  # as an embedding's, in two parts
    for _ in range(2):
        module[0].grad, module[1].grad = sparse.clone(), torch.tensor([3 + 4j, 0])
        norms = successive.look(module, 8)
    assert (norms.small, norms.large) == (50, 50)


def test_batches_of_different_sizes_are_not_compared():
    problem, successive = Gaussian(0), Successive()
    problem.gradient(64)
    assert successive.look(problem, 64) is None
    problem.gradient(17)
    assert successive.look(problem, 17) is None
    assert not successive.waits


def test_the_average_goes_on_from_what_was_kept():
    problem, noise = Gaussian(1), Noise()
    for _ in range(100):
        noise.add(of_members(problem, 2, 16))
    kept = noise.measured()
    again = Noise(kept).measured()
    assert (again.samples, again.variance) == (kept.samples, pytest.approx(kept.variance))
    assert again.squared_norm == pytest.approx(kept.squared_norm)


@given(st.lists(st.tuples(*[st.floats(allow_nan=True, allow_infinity=True, width=32)] * 4), max_size=30))
def test_whatever_the_norms_the_figures_can_be_reported(drawn):
    noise = Noise()
    for norms in drawn:
        noise.add(Norms(*norms))
    found = noise.measured()
    if found is not None:
        assert type(found).model_validate_json(found.model_dump_json(by_alias=True)) == found
        assert found.noise_scale is None or math.isfinite(found.noise_scale)


def test_the_passes_of_a_step_tell_the_noise_without_bias_however_fast_the_weights_move():
    """Two halves of a batch at the same weights; successive steps at a high rate take their movement for noise."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False)
    found = Noise()
    for turn in range(400):
        model.zero_grad()
        with torch.no_grad():
            model.weight.add_(torch.randn_like(model.weight))  # they move far; the gradient does not depend on them
        inputs = 3.0 + torch.randn(32, 4)
        passes = Passes(model, turn)
        for part in inputs.split(16):
            (0.5 * model(part).mean()).backward()
            passes.look(0.5)
        norms = passes.norms(32, 2)
        found.add(norms)
    noise = found.measured()
    # The gradient of an example is the example itself: mean 3 in each of four places, variance 1 each.
    assert noise.squared_norm == pytest.approx(36, rel=0.1)
    assert noise.variance == pytest.approx(4, rel=0.5)
