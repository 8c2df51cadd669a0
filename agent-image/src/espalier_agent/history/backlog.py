"""A bounded queue between two threads: the producer never waits, and items beyond the bound are refused."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class Backlog(Generic[ItemT]):
    """A queue that is bounded by the number of its items and by their weight in bytes."""

    def __init__(self, items: int, weight: int) -> None:
        self.items = items
        self.weight = weight
        self._waiting: deque[tuple[ItemT, int]] = deque()
        self._weight = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: ItemT, weight: int = 0) -> bool:
        """Put an item; False if there is no room or the backlog is closed. Never waits for room."""
        with self._changed:
            if self._closed or len(self._waiting) >= self.items or self._weight + weight > self.weight:
                return False
            self._waiting.append((item, weight))
            self._weight += weight
            self._changed.notify()
            return True

    def take(self, most: int) -> list[ItemT]:
        """Return up to `most` of the oldest items; waits until there are some. Empty if closed and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._weight -= sum(weight for _, weight in taken)
            return [item for item, _ in taken]

    def close(self) -> None:
        """Refuse new items; queued ones can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        with self._changed:
            return len(self._waiting)
