"""The computation of a step of the built-in loop: the forward pass, the loss, and the update of the weights.

`evaluate` computes the measures of a model on a whole split. With gradient checkpointing, blocks keep only their
inputs, and recompute intermediate values in the backward pass: Chen et al. 2016, "Training Deep Nets with Sublinear
Memory Cost" (arXiv 1604.06174).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from espalier_core.types.job import Precision, TrainingSpec
from espalier_core.types.task import Task
from espalier_trainer.data.objective import Evaluation, Objective, objective_of
from espalier_trainer.data.source import Source
from espalier_trainer.errors import ModelError
from espalier_trainer.net2net.modules import mode
from espalier_trainer.optimizers.averaging import averaged, averaged_step
from espalier_trainer.training.network import Network

BATCH: Final = 1024
"""Maximum batch in evaluation: no gradients are kept, so more than in training; at most 8 * `batch_size`."""

Forward = Callable[[nn.Module, Tensor], Tensor]
"""Function from a module and its inputs to its outputs."""


def plain_forward(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return the module's outputs."""
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
    """Evaluate in eval mode and restore the model's mode; return None when `until` became true before the end.

    `batch_size` is the training batch size; batches are eight times as large, at most `BATCH`.
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


def blocks_of(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the blocks of a model: modules with children and parameters in a `ModuleList`, the outermost of them.

    Modules with a batch norm are left out: recomputed, they would count their batch twice.
    """
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList):
            continue
        for child in module:
            parts = list(child.modules())
            whole = len(parts) > 1 and next(child.parameters(), None) is not None
            if whole and child not in inside and not any(isinstance(part, _BatchNorm) for part in parts):
                found.append(child)
                inside.update(parts)
    return tuple(found)


@contextmanager
def recomputed(model: nn.Module) -> Iterator[None]:
    """Recompute the forward pass of the blocks of `model` in the backward pass, within the context."""
    blocks = blocks_of(model)
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


_CLIP_EPSILON: Final = 1e-6
"""Value that `torch.nn.utils.clip_grad_norm_` adds to the norm before dividing."""


@dataclass(frozen=True, slots=True)
class Method:
    """Computation of a step that is the same in all steps and workers of a job."""

    objective: Objective
    max_gradient_norm: float | None = None
    """Norm over all parameters to which larger gradients are scaled; None for no limit."""
    precision: Precision = Precision.FLOAT32
    recomputes: bool = False
    """Whether blocks recompute their forward pass in the backward pass."""
    decay: float = 0.0
    """Decay of the average of the weights; 0 for no average."""

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

        Return the factor, 1 or less, by which they were multiplied before it, in place.
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
        """Evaluate a network on a split; return None when `until` became true before the end."""
        with averaged(network.optimizer) if self.decay else nullcontext():
            return evaluate(network.module, split, batch_size, until, self.objective, self.forward)

    def _numbers(self, inputs: Tensor) -> AbstractContextManager[object]:
        if self.precision is Precision.FLOAT32:
            return nullcontext()
        return torch.autocast(inputs.device.type, dtype=torch.bfloat16)


def method_of(training: TrainingSpec, model: nn.Module) -> Method:
    """Return the method of a job; raise `ModelError` where it does not fit the starting model."""
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
"""Cross entropy without options."""
