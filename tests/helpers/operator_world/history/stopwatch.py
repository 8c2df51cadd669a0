"""For how long things have been so while an operator was there to change them."""

from __future__ import annotations

from operator_world.history.world import SharedCluster


class Stopwatch:
    """One for each kind of thing that an operator must not leave so for long."""

    def __init__(self, world: SharedCluster) -> None:
        """Nothing is so yet."""
        self._world = world
        self._since: dict[str, float] = {}
        self._asked: set[str] = set()

    def seconds(self, what: str) -> float:
        """Return for how long `what` has been so, which it is now; 0 for what was not at the last `turn`."""
        self._asked.add(what)
        return self._world.now - self._since.setdefault(what, self._world.now)

    def turn(self) -> None:
        """End a moment: forget what was not asked about."""
        self._since = {what: since for what, since in self._since.items() if what in self._asked}
        self._asked.clear()

    def was_away(self, seconds: float) -> None:
        """Do not count the last `seconds`: the operator could do nothing."""
        self._since = {what: since + seconds for what, since in self._since.items()}
