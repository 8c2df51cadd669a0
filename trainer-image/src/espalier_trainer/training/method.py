"""How a step of the ready trainer is computed: the forward pass, the loss, and the update of the weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from espalier_core.types.job import Precision, TrainingSpec
from espalier_core.types.task import Task
from espalier_trainer.data.objective import Objective, objective_of
from espalier_trainer.data.source import Source
from espalier_trainer.errors import ModelError
from espalier_trainer.optimizers.averaging import averaged, averaged_step
from espalier_trainer.training.evaluation import Evaluation, evaluate
from espalier_trainer.training.network import Network
from espalier_trainer.training.recomputing import blocks_of, recomputed

_CLIP_EPSILON: Final = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to the norm that it divides by."""


@dataclass(frozen=True, slots=True)
class Method:
    """What does not change between the steps of a job. The leader and all other workers have the same."""

    objective: Objective
    max_gradient_norm: float | None = None
    """Gradients with a larger norm, over all parameters, are scaled to it."""
    precision: Precision = Precision.FLOAT32
    recomputes: bool = False
    """Whether blocks compute their forward pass again in the backward pass."""
    decay: float = 0.0
    """Of the average of the weights; 0: there is none."""

    def forward(self, module: nn.Module, inputs: Tensor) -> Tensor:
        """Return the outputs of a module."""
        again = self.recomputes and module.training and torch.is_grad_enabled()
        with self._numbers(inputs), recomputed(module) if again else nullcontext():
            outputs: Tensor = module(inputs)
        return outputs

    def outputs(self, network: Network, inputs: Tensor) -> Tensor:
        """Return the outputs of a network in a training step."""
        return self.forward(network.computing, inputs)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the examples' losses."""
        return self.objective.losses(outputs, targets)

    def update(self, network: Network) -> Tensor | float:
        """Take the step along the gradients, which are those of all workers.

        Returns what they were multiplied by before it, in place: 1 or less.
        """
        scale: Tensor | float = 1.0
        if self.max_gradient_norm is not None:
            norm = nn.utils.clip_grad_norm_(network.module.parameters(), self.max_gradient_norm)
            scale = (self.max_gradient_norm / (norm + _CLIP_EPSILON)).clamp(max=1.0)
        if self.decay:
            averaged_step(network.optimizer, self.decay)
        else:
            network.optimizer.step()
        return scale

    def evaluation(
        self, network: Network, split: Source, batch_size: int, until: Callable[[], bool]
    ) -> Evaluation | None:
        """Evaluate a network on a split; None when `until` became true before the end."""
        with averaged(network.optimizer) if self.decay else nullcontext():
            return evaluate(network.module, split, batch_size, until, self.objective, self.forward)

    def _numbers(self, inputs: Tensor) -> AbstractContextManager[object]:
        if self.precision is Precision.FLOAT32:
            return nullcontext()
        return torch.autocast(inputs.device.type, dtype=torch.bfloat16)


def method_of(training: TrainingSpec, model: nn.Module) -> Method:
    """Return the method of a job. Raises `ModelError` where it does not fit the starting model."""
    if training.gradient_checkpointing and not blocks_of(model):
        raise ModelError(
            "training.gradientCheckpointing: is true, and the model has no blocks without batch norms in a "
            "torch.nn.ModuleList; put its blocks into one, or set it to false"
        )
    return Method(
        objective_of(training.task),
        training.optimizer.max_gradient_norm,
        training.precision,
        training.gradient_checkpointing,
        training.weight_averaging,
    )


PLAIN: Final = Method(objective_of(Task.CLASSIFICATION))
"""Cross entropy, and nothing else."""
