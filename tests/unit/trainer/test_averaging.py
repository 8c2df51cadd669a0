"""The average of the weights where the model grows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from espalier_core.types.advice import Action
from espalier_core.types.job import Insertion, OptimizerSpec
from espalier_core.types.task import Task
from espalier_trainer.builtin_loop.steps import optimize
from espalier_trainer.data.objective import objective_of
from espalier_trainer.models.gpt import gpt
from espalier_trainer.models.zoo import mlp
from espalier_trainer.optimizers.averaging import AVERAGE
from espalier_trainer.training.method import Method
from espalier_trainer.training.network import Network, new_network

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
    build: Callable[[], nn.Module],
    inputs: Tensor,
    labels: Tensor,
    task: Task,
    action: Action,
    insertion: Insertion,
    optimizer: str,
) -> None:
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
