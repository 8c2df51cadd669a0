"""`from espalier_trainer.own import join`: a user's training loop as a worker of a job (`docs/loops.md`)."""

from espalier_trainer.user_loop import Loop, OwnLoopError, join

__all__ = ["Loop", "OwnLoopError", "join"]
