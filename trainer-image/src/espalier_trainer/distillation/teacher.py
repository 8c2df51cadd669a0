"""The larger model as a teacher (Hinton, Vinyals, Dean 2015, arXiv 1503.02531).

Each answer is computed once and kept, so that the model can be released.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from espalier_trainer.data.objective import in_float32
from espalier_trainer.net2net.modules import mode
from espalier_trainer.training.hooks import Criterion

CACHE_BYTES: Final = 64 * 2**20
"""Bytes for the logits of all training examples, as float32: 1.6 million examples of ten classes. For a larger set none
are kept, and the teacher answers each batch."""


@dataclass(frozen=True, slots=True)
class Teaching:
    """Weight and temperature of the teacher's answers."""

    temperature: float = 2.0
    """T: logits are divided by it. The factor T² makes the gradients of the soft part as large as those of the hard
    part."""
    weight: float = 0.5
    """Weight of the soft part, in [0, 1]; the labels have the rest."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature} is not a positive number")
        if not 0 <= self.weight <= 1:
            raise ValueError(f"weight {self.weight} is not in [0, 1]")


def distillation_loss(
    logits: Tensor, taught: Tensor, labels: Tensor, teaching: Teaching, known: Tensor | None = None
) -> Tensor:
    """Return the sum over examples of w T² KL(softmax(t/T) || softmax(s/T)) + (1 - w) CE(s, label).

    `logits` s and `taught` t are [N, C]. Where `known` [N] (bool) is False, the teacher's answer is missing, and the
    example is learnt from its label alone, at full weight. No gradient goes to `taught`.
    """
    hard = nn.functional.cross_entropy(logits, labels, reduction="none")
    temperature = teaching.temperature
    soft = nn.functional.kl_div(
        torch.log_softmax(logits / temperature, 1),
        torch.log_softmax(taught.detach() / temperature, 1),
        reduction="none",
        log_target=True,
    ).sum(1)
    both = teaching.weight * temperature**2 * soft + (1 - teaching.weight) * hard
    return (both if known is None else torch.where(known, both, hard)).sum()


class Teacher:
    """Answers batches of training examples with the logits of `module`, which does not change."""

    def __init__(
        self,
        module: nn.Module | None,
        examples: int,
        device: torch.device,
        teaching: Teaching | None = None,
        room: int = CACHE_BYTES,
    ) -> None:
        """With `module` None, only the logits given to `load` are known. `room` is the maximum bytes of kept logits."""
        self._module = module
        self._examples, self._device, self._room = examples, device, room
        self._teaching = teaching or Teaching()
        self._logits: Tensor | None = None
        self._known: Tensor | None = None
        self.asked = 0
        """Number of examples that the module has answered."""

    @property
    def keeps(self) -> bool:
        """Whether any logits are kept."""
        return self._logits is not None

    def release(self) -> None:
        """Release the module; kept answers are still used."""
        self._module = None

    def answer(self, indices: Tensor, inputs: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return (logits [N, C], known [N]) of the examples at `indices` [N], whose views are `inputs` [N, ...].

        Logits are None where none are known at all.
        """
        indices = indices.to(self._device)
        known = torch.zeros(len(indices), dtype=torch.bool, device=self._device)
        if self._known is not None:
            known = self._known[indices]
        if self._module is None or not len(indices) or bool(known.all()):
            return None if self._logits is None else self._logits[indices], known
        fresh = self._forward(self._module, inputs)
        if self._logits is None:
            if self._examples * fresh.shape[1] * fresh.element_size() > self._room:
                return fresh, torch.ones_like(known)
            self._logits = fresh.new_zeros(self._examples, fresh.shape[1])
            self._known = torch.zeros(self._examples, dtype=torch.bool, device=self._device)
        if self._known is not None:
            new = ~known
            self._logits[indices[new]] = fresh[new]
            self._known[indices[new]] = True
        return self._logits[indices], torch.ones_like(known)

    def criterion(self, indices: Tensor, inputs: Tensor) -> Criterion:
        """Return the criterion for a student's logits of this batch."""
        taught, known = self.answer(indices, inputs)

        def judge(outputs: Tensor, labels: Tensor) -> Tensor:
            logits = in_float32(outputs)
            if taught is None:
                return nn.functional.cross_entropy(logits, labels, reduction="sum")
            return distillation_loss(logits, taught, labels, self._teaching, known)

        return judge

    def tensors(self) -> dict[str, Tensor]:
        """Return the kept logits, for a checkpoint."""
        if self._logits is None or self._known is None:
            return {}
        return {"logits": self._logits, "known": self._known}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the `tensors` of another teacher, which may be empty."""
        if tensors:
            self._logits = tensors["logits"].to(self._device).clone()
            self._known = tensors["known"].to(self._device).clone()

    @torch.no_grad()
    def _forward(self, module: nn.Module, inputs: Tensor) -> Tensor:
        with mode(module, training=False):
            logits: Tensor = module(inputs)
        self.asked += len(inputs)
        return logits.detach().float()
