"""Steps that fail: a loss that is not finite, and memory that is used up. What a run continues with then."""

from __future__ import annotations

import math

import torch

from espalier_core.causes import in_one_line
from espalier_trainer.errors import LossNotFiniteError
from espalier_trainer.growth.consultation import undone
from espalier_trainer.run.live import LiveRun


def usable(run: LiveRun, loss: float) -> bool:
    """Return whether a step with this loss counts; raises `LossNotFiniteError` where training cannot continue."""
    if math.isfinite(loss):
        return True
    if run.computed_plainly(f"the loss is {loss}"):
        return False
    change = run.hooks.failed(f"the smaller model's loss is {loss}")
    if change is None:
        raise LossNotFiniteError(
            f"the loss of step {run.progress.step + 1} (epoch {run.progress.epoch}) is {loss}",
            run.state.network.optimizer.param_groups[0]["lr"],
        )
    run.change(change)
    return False


def recover(run: LiveRun, error: torch.OutOfMemoryError) -> None:
    """Continue with a network that fits into the memory of the device; raises `error` if there is none."""
    message = f"out of memory: {in_one_line(str(error))}"
    if run.computed_plainly(message):
        return
    if smaller := run.batching.out_of_memory(run.place.workers):
        run.resized(smaller, message)
    elif run.grown_from is not None:
        before, run.grown_from = run.grown_from, None
        run.use(before)
        run.hooks.growth_undone()
        undo = undone(run.progress.adaptations[-1], before, message)
        run.progress.adaptations[-1] = undo
        run.journal.adapted(undo, None)
    elif change := run.hooks.failed(message):
        run.change(change)
    else:
        raise error
