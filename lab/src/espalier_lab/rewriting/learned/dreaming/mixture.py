"""Mixtures of Gaussians over the next state (Bishop 1994), with a temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal


@dataclass(frozen=True, slots=True)
class Mixture:
    """K Gaussians with diagonal covariances over L numbers, for each of some places (...)."""

    logits: Tensor
    """(..., K): logits of the weights."""
    means: Tensor
    """(..., K, L)."""
    scales: Tensor
    """(..., K, L): standard deviations."""

    def log_prob(self, values: Tensor) -> Tensor:
        """Return log Σ_k w_k N(value | mean_k, scale_k²) of values (..., L): (...)."""
        parts = Independent(Normal(self.means, self.scales, validate_args=False), 1, validate_args=False)
        weights = Categorical(logits=self.logits, validate_args=False)
        found: Tensor = MixtureSameFamily(weights, parts, validate_args=False).log_prob(values)  # type: ignore[no-untyped-call]
        return found

    def at(self, temperature: float) -> Mixture:
        """Return the mixture at temperature τ > 0: weights ∝ exp(logit / τ), scales · √τ.

        As Ha and Schmidhuber (2018, arXiv:1803.10122, on the MDN-RNN) after Ha and Eck (2017, arXiv:1704.03477). Below
        1, probable values become more probable; above 1, the model is less certain than learnt.
        """
        return Mixture(self.logits / temperature, self.means, self.scales * math.sqrt(temperature))

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw values: (..., L)."""
        weights = torch.softmax(self.logits, dim=-1)
        drawn = torch.multinomial(weights.flatten(0, -2), 1, generator=generator).view(weights.shape[:-1])
        at = drawn[..., None, None].expand(*drawn.shape, 1, self.means.shape[-1])
        means, scales = self.means.gather(-2, at).squeeze(-2), self.scales.gather(-2, at).squeeze(-2)
        return means + scales * torch.randn(means.shape, generator=generator)

    def mode(self) -> Tensor:
        """Return the mean of the Gaussian with the largest weight: (..., L)."""
        best = self.logits.argmax(dim=-1)
        at = best[..., None, None].expand(*best.shape, 1, self.means.shape[-1])
        return self.means.gather(-2, at).squeeze(-2)
