"""The hooks that a job's `adaptation.onReclaim` asks for. Distillation is imported on use."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from espalier_core.types.job import AdaptiveTrainingJob, OnReclaim
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.data.source import Data
from espalier_trainer.training.hooks import Hooks
from espalier_trainer.training.network import Network

if TYPE_CHECKING:
    from espalier_trainer.distillation.shrinking import ShrinkOptions


@dataclass(frozen=True, slots=True)
class _Keeper(Hooks):
    """Continues with the larger network of a trial if the job no longer allows a smaller one."""

    job: AdaptiveTrainingJob
    start: Network
    example: Tensor

    def restore(self, checkpoint: Checkpoint, network: Network) -> Network:
        """Return the larger network, if a smaller one is tried."""
        if checkpoint.state.shrinking is None:
            return network
        from espalier_trainer.distillation.trial import untried

        return untried(checkpoint, network, self.start, self.job.spec.training.optimizer, self.example)


def on_reclaim(
    job: AdaptiveTrainingJob,
    data: Data,
    start: Network,
    seed: int,
    device: torch.device,
    used_seconds: Callable[[], float] = lambda: 0.0,
    shrink_options: ShrinkOptions | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Hooks:
    """Return the hooks for the job's `onReclaim`; a `Shrinker` for `Distill`."""
    training = job.spec.training
    if job.spec.adaptation.on_reclaim is not OnReclaim.DISTILL:
        return _Keeper(job, start, data.example_input())
    from espalier_trainer.distillation.shrinking import Shrinker

    size = training.batch_size
    return Shrinker(data, start, training.optimizer, size, seed, device, used_seconds, shrink_options, clock)
