"""How much of its budgets a job has used: pure accounting, the same for every backend.

The time budget runs while the job's leader is past its start-up: from the first report of an incarnation that says
anything other than `Starting`, until the leader ends. Queueing, starting, importing, back-off between restarts and
suspension are not counted. A leader that does not get past its start-up, or never reports (its image does not use
the trainer library), is counted from its start once `Timing.start_up_allowance` is over: nobody holds GPUs for
free by keeping silent. GPU-seconds are the GPUs held, lent ones included, over the same time.

Figures never fall. They survive the scheduler by being stored, and where the leader counted further than what was
stored (the scheduler was killed in between) its own figure is taken over.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Leader(Enum):
    """What a job's leader is doing, as far as budgets go."""

    ABSENT = auto()
    STARTING = auto()
    """Its process runs and has not reported that it trains."""
    TRAINING = auto()
    """It adapts, evaluates or trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """The account of one job at a moment of the scheduler's clock. Times in the clock's (budget) seconds."""

    used_seconds: float = 0.0
    gpu_seconds_used: float = 0.0
    read_at: float | None = None
    """When it was last advanced; None before that and after a restart of the scheduler."""
    starting_since: float | None = None
    """Since when the leader has been starting, None while it is not."""

    def advance(self, now: float, leader: Leader, gpus: int, allowance: float, reported_seconds: float = 0.0) -> Meter:
        """Return the account at `now`.

        `leader` is what the leader has done since the last call, `gpus` what the job has held since then;
        `allowance` is the start-up allowance in the clock's seconds; `reported_seconds` is the leader's own count.
        """
        before = now if self.read_at is None else min(self.read_at, now)
        since = None
        counted = 0.0
        if leader is Leader.TRAINING:
            counted = now - before
        elif leader is Leader.STARTING:
            since = before if self.starting_since is None else self.starting_since
            if now - since >= allowance:
                late = before - since < allowance
                counted = now - since if late else now - before
        used = max(self.used_seconds + counted, reported_seconds)
        return Meter(
            used_seconds=used,
            gpu_seconds_used=self.gpu_seconds_used + gpus * (used - self.used_seconds),
            read_at=now,
            starting_since=since,
        )
