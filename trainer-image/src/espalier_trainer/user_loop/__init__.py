"""A user's training loop as a worker of a job: `join`, and the loop that it returns.

Every worker runs the same script. One leads (base worker 0), and the others take part in its steps. All workers run the
code inside the loop; only the leader runs the code after it. `docs/loops.md` explains it line by line.
"""

from espalier_trainer.errors import OwnLoopError
from espalier_trainer.user_loop.joining import WATCH, join
from espalier_trainer.user_loop.loop import UserLoop as Loop

__all__ = ["Loop", "OwnLoopError", "join"]

WATCH.begin()
