"""What a worker that carries out an order by itself tells its leader meanwhile, and whether it may go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from espalier_trainer.elastic.rendezvous import RendezvousClient

ASK_SECONDS: Final = 0.2
"""Interval of asking whether the leader still wants the result; a question is a message to its process."""


class Line:
    """The line to the leader. Raises `LeaderAwayError` where that does not answer."""

    def __init__(self, client: RendezvousClient, worker: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._worker, self._clock = client, worker, clock
        self._asked = clock()
        self._dismissed = False

    def tell(self, text: str) -> None:
        """Say how far the order is carried out."""
        self._client.tell(self._worker, text)

    def dismissed(self) -> bool:
        """Return whether the leader no longer waits for the result."""
        now = self._clock()
        if not self._dismissed and now - self._asked >= ASK_SECONDS:
            self._asked = now
            self._dismissed = self._client.dismissed(self._worker)
        return self._dismissed
