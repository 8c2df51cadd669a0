"""Hooks for a job's `adaptation.onReclaim`. Distillation is imported on use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from espalier_core.types.job import OnReclaim
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.training.hooks import HookContext, Hooks
from espalier_trainer.training.network import Network

if TYPE_CHECKING:
    from espalier_trainer.distillation.shrinking import ShrinkOptions


@dataclass(frozen=True, slots=True)
class _Keeper(Hooks):
    """Continues with the larger network of a trial if the job no longer allows a smaller one."""

    context: HookContext

    def restore(self, checkpoint: Checkpoint, network: Network) -> Network:
        """Return the larger network, if a smaller one is on trial."""
        if checkpoint.state.shrinking is None:
            return network
        from espalier_trainer.distillation.trial import untried

        job, start, example = self.context.job, self.context.start, self.context.data.example_input()
        return untried(checkpoint, network, start, job.spec.training.optimizer, example)


def on_reclaim(context: HookContext, options: ShrinkOptions | None = None) -> Hooks:
    """Return the hooks for the job's `onReclaim`; a `Shrinker` for `Distill`."""
    if context.job.spec.adaptation.on_reclaim is not OnReclaim.DISTILL:
        return _Keeper(context)
    from espalier_trainer.distillation.shrinking import Shrinker

    return Shrinker(context, options)
