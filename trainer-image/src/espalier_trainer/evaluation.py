"""Accuracy and loss on a whole split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from espalier_trainer.data.source import Source
from espalier_trainer.net2net.modules import mode

BATCH = 1024
"""Examples at once: no gradients are kept, so more than in training; bounded by `batch_size` * 8."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a model does on a split."""

    accuracy: float
    """Share of examples whose largest logit is their label's, in [0, 1]."""
    loss: float
    """Mean cross entropy."""


def evaluate(
    model: nn.Module, source: Source, batch_size: int, until: Callable[[], bool] = lambda: False
) -> Evaluation | None:
    """Evaluate in eval mode and leave the model in the mode it was in; None when `until` became true before the end.

    `batch_size` is the training batch size; eight times as much is taken at once, at most `BATCH`.
    """
    size = max(batch_size, min(BATCH, 8 * batch_size))
    correct: Tensor | float = 0.0
    loss: Tensor | float = 0.0
    with torch.no_grad(), mode(model, training=False):
        for indices in torch.split(torch.arange(len(source)), size):
            if until():
                return None
            inputs, labels = source.batch(indices, None)
            logits = model(inputs)
            correct = correct + (logits.argmax(1) == labels).sum()
            loss = loss + nn.functional.cross_entropy(logits, labels, reduction="sum").double()
    return Evaluation(float(correct) / len(source), float(loss) / len(source))
