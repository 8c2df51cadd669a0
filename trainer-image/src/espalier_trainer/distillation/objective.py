"""Knowledge distillation: what a smaller model learns from (Hinton, Vinyals, Dean 2015, arXiv 1503.02531)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Teaching:
    """How much is learnt from the teacher, and how soft its answers are made."""

    temperature: float = 2.0
    """T: logits are divided by it. Gradients of the soft part are of the size of the hard part's, as T² is in it."""
    weight: float = 0.5
    """Of the soft part, in [0, 1]; the labels have the rest."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature} is not a positive number")
        if not 0 <= self.weight <= 1:
            raise ValueError(f"weight {self.weight} is not in [0, 1]")


def distillation_loss(
    logits: Tensor, taught: Tensor, labels: Tensor, teaching: Teaching, known: Tensor | None = None
) -> Tensor:
    """Return the sum over examples of w T² KL(softmax(t/T) || softmax(s/T)) + (1 - w) CE(s, label).

    `logits` s and `taught` t are [N, C]. Where `known` [N] (bool) is False the teacher's answer is not there, and the
    example is learnt from its label alone, at full weight. No gradient goes to `taught`.
    """
    hard = functional.cross_entropy(logits, labels, reduction="none")
    temperature = teaching.temperature
    soft = functional.kl_div(
        torch.log_softmax(logits / temperature, 1),
        torch.log_softmax(taught.detach() / temperature, 1),
        reduction="none",
        log_target=True,
    ).sum(1)
    both = teaching.weight * temperature**2 * soft + (1 - teaching.weight) * hard
    return (both if known is None else torch.where(known, both, hard)).sum()
