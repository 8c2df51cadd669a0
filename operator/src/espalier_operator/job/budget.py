"""How much of its budgets a job has used: pure accounting, the same for every backend.

The time budget runs while the job's leader is past its start-up: from the first report of an incarnation with a state
other than `Starting`, until the leader ends. Queueing, starting, importing, back-off between restarts and
suspension are not counted. A leader that does not get past its start-up, or never reports (its image does not use
the trainer library), is counted from its start once `Timing.start_up_allowance` is over, so a leader that sends no
reports does not hold GPUs for free. GPU-seconds are the GPUs held, lent ones included, over the same time.

Figures never decrease. They are stored, so they survive a restart of the scheduler. Where the leader has counted more
than was stored (the scheduler was killed in between), the leader's figure is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Leader(Enum):
    """The activity of a job's leader, as the budgets distinguish it."""

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
