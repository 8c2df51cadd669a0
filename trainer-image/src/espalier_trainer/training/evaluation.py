"""A model on a whole split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from espalier_core.types.task import Task
from espalier_trainer.data.objective import Evaluation, Objective, objective_of
from espalier_trainer.data.source import Source
from espalier_trainer.net2net.modules import mode

__all__ = ["Evaluation", "evaluate"]

BATCH: Final = 1024
"""Examples at once: no gradients are kept, so more than in training; bounded by `batch_size` * 8."""

Forward = Callable[[nn.Module, Tensor], Tensor]
"""Returns the outputs of a module."""


def plain_forward(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return what the module returns."""
    outputs: Tensor = module(inputs)
    return outputs


def evaluate(
    model: nn.Module,
    source: Source,
    batch_size: int,
    until: Callable[[], bool] = lambda: False,
    objective: Objective = objective_of(Task.CLASSIFICATION),  # noqa: B008 (it has no state)
    forward: Forward = plain_forward,
) -> Evaluation | None:
    """Evaluate in eval mode and leave the model in the mode it was in; None when `until` became true before the end.

    `batch_size` is the training batch size; eight times as much is taken at once, at most `BATCH`.
    """
    size = max(batch_size, min(BATCH, 8 * batch_size))
    tally = objective.tally(source)
    with torch.no_grad(), mode(model, training=False):
        for indices in torch.split(torch.arange(len(source)), size):
            if until():
                return None
            inputs, targets = source.batch(indices, None)
            tally.add(forward(model, inputs), targets)
    return tally.total(len(source))
