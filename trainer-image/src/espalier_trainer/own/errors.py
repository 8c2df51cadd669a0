"""What a loop of a user's own can do wrong."""

from __future__ import annotations

from espalier_trainer.errors import TrainerError


class OwnLoopError(TrainerError):
    """The script asks for something that cannot be done together; the message says what to change in it."""
