"""Errors of a user's training loop."""

from __future__ import annotations

from typing import Final

from espalier_trainer.errors import TrainerError

ONCE: Final = (
    "the loader was looped over a second time in one epoch; its batches are trained on once: evaluate by a DataLoader "
    "that was not given to join"
)


class OwnLoopError(TrainerError):
    """The script uses something that workers cannot do together; the message names the change that it needs."""
