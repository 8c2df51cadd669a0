"""A training loop of a user's own as a worker of a job: `join`, and what it returns.

Every worker runs the same script. One leads (base worker 0); the others take part in its steps. What stands
within the loop all do, what stands behind it the leader does alone. `docs/own-training.md` has it line by line.
"""

from espalier_trainer.own.errors import OwnLoopError
from espalier_trainer.own.joining import join
from espalier_trainer.own.loop import Loop

__all__ = ["Loop", "OwnLoopError", "join"]
