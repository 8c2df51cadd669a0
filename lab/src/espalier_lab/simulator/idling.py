"""The limit on the time for which a policy may let all jobs wait before a simulation ends."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from espalier_lab.simulator.errors import TraceError

LONGEST_SECONDS: Final = 600_000.0
"""Limit in seconds: a policy that lets all jobs wait for so long will never run them."""


class Idling:
    """The time for which all jobs have waited, counted in rounds of one simulation."""

    def __init__(self, policy: str, round_seconds: float) -> None:
        """Take the name of the policy, for errors, and the length of a round."""
        self._policy, self._round_seconds, self._idle = policy, round_seconds, 0.0

    def count(self, waiting: Collection[str]) -> None:
        """Count a round in which these unfinished jobs waited without GPUs; empty: one had GPUs, or there are none.

        Raise `TraceError` if they have waited for longer than `LONGEST_SECONDS`.
        """
        self._idle = self._idle + self._round_seconds if waiting else 0.0
        if self._idle > LONGEST_SECONDS:
            raise TraceError(f"policy {self._policy}: lets all of {', '.join(waiting)} wait for ever")
