"""A model that no allowed action fits is reported with the reason of that action."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from espalier_core.types.job import Insertion
from espalier_trainer.training.network import starting_architecture


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (["AddBlock"], "it has no run of residual blocks); allow Deepen or Widen in adaptation.actions"),
        ([], "no action is allowed); allow"),
        (["Widen"], "'0': '2' (Softmax) reads it"),
    ],
)
def test_the_reason_is_that_of_the_allowed_actions(actions: list[str], said: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(1))
    architecture, problem = starting_architecture(model, torch.randn(2, 4), Insertion.EXACT, actions)
    assert architecture is not None
    assert problem.startswith("the model will be trained as it is: no place of it can grow (")
    assert said in problem


def test_an_allowed_action_that_fits_is_no_problem() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert starting_architecture(model, torch.randn(2, 4), Insertion.EXACT, ["Deepen"])[1] == ""
