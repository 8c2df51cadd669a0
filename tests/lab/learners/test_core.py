"""The core of PPO beside `MaskablePPO` of sb3-contrib 2.9.2: its buffer, distribution and loss, on the same batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from espalier_lab.learners.core import advantages, clipped_loss, entropy
from espalier_lab.scheduling.learned.network import MASKED
from espalier_lab.scheduling.learners.descent import likelihood
from espalier_lab.scheduling.learners.rollout import Rollout, estimated

REWARDS = torch.tensor([[1.0, -0.5, 0.25], [0.0, 2.0, -1.0]])
VALUES = torch.tensor([[0.3, 0.1, -0.2], [0.5, -0.4, 0.9]])
ADVANTAGES = [[0.4445, -0.395, 0.45], [0.531, 1.59, -1.9]]
"""`MaskableRolloutBuffer` with gamma 1 and gae_lambda 0.9, of two environments whose episodes end with the buffer."""

NOW = torch.tensor([[0.5, -1.0, 2.0, 0.1], [1.5, 0.2, -0.3, 0.0], [-0.7, 0.9, 0.4, 1.1]])
BEFORE = torch.tensor([[0.2, -0.8, 1.0, 0.3], [0.5, 0.9, -0.3, 0.4], [-0.2, 0.1, 0.9, 1.3]])
ALLOWED = torch.tensor([[True, True, False, True], [True, True, True, True], [False, True, True, False]])
ACTIONS = torch.tensor([0, 1, 2])
LOGS, ENTROPY = [-0.6384007, -1.8073962, -0.9740770], [0.9567735, 1.1013443, 0.6628473]
LOSS = -0.3662908
"""Of `MaskablePPO.train` with clip_range 0.2 and these advantages."""
GAINED = torch.tensor([1.2, -0.7, 0.4])


def log_probabilities(scores: Tensor, lowest: float) -> Tensor:
    return torch.log_softmax(scores.masked_fill(~ALLOWED, lowest), 1)


def test_advantages() -> None:
    np.testing.assert_allclose(advantages(REWARDS, VALUES, 0.9), ADVANTAGES, rtol=1e-5)


def test_advantages_of_scheduling_where_there_is_one_job() -> None:
    nothing, present = torch.zeros(2, 1, 1), torch.ones(2, 1)
    rollout = Rollout(
        seen=[(nothing, nothing, nothing, present, present > 0)] * 4,
        windows=[np.zeros((2, 1), np.int64)] * 4,
        actions=torch.zeros(3, 2, dtype=torch.long),
        logs=torch.zeros(3, 2),
        about=np.zeros((3, 2), np.int64),
        rewards=REWARDS.T[..., None].double().numpy(),
        lives=np.array([1.0, 1.0, 0.0])[:, None, None].repeat(2, 1),
        values=np.concatenate([VALUES.T[..., None].double().numpy(), np.zeros((1, 2, 1))]),
        lost=0.0,
    )
    np.testing.assert_allclose(estimated(rollout, trace=0.9, others=1.0).advantages.T, ADVANTAGES, rtol=1e-5)


@pytest.mark.parametrize("lowest", [-torch.inf, MASKED], ids=["not allowed", "of a score too low"])
def test_the_entropy_and_the_clipped_loss_of_masked_actions(lowest: float) -> None:
    now, before = (log_probabilities(scores, lowest) for scores in (NOW, BEFORE))
    np.testing.assert_allclose(entropy(now), ENTROPY, rtol=1e-5)
    chosen = [each.gather(1, ACTIONS[:, None])[:, 0] for each in (now, before)]
    np.testing.assert_allclose(chosen[0], LOGS, rtol=1e-5)
    assert float(clipped_loss(chosen[0], chosen[1], GAINED, 0.2)) == pytest.approx(LOSS, rel=1e-5)


def test_the_likelihood_that_learners_of_scheduling_read() -> None:
    logs, mean = likelihood(NOW.masked_fill(~ALLOWED, MASKED), ACTIONS)
    np.testing.assert_allclose(logs, LOGS, rtol=1e-5)
    assert float(mean) == pytest.approx(np.mean(ENTROPY), rel=1e-5)
