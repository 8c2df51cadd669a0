"""What workers hold of nodes: GPUs, and what else they request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from espalier_operator.model.constraints import Amounts


@dataclass(frozen=True, slots=True)
class Goods:
    """Amounts that can be added and subtracted; they may be negative."""

    gpus: int
    requests: Amounts = ()
    """In order of name; one that is not named is 0."""

    def __add__(self, other: Goods) -> Goods:
        """Return both together."""
        if self is NOTHING:
            return other
        if not self.requests and not other.requests:
            return Goods(self.gpus + other.gpus)
        return self._with(other, lambda own, others: own + others)

    def __sub__(self, other: Goods) -> Goods:
        """Return what is left without `other`."""
        if not self.requests and not other.requests:
            return Goods(self.gpus - other.gpus)
        return self._with(other, lambda own, others: own - others)

    def __mul__(self, times: int) -> Goods:
        """Return a multiple of it."""
        return Goods(self.gpus * times, tuple([(name, amount * times) for name, amount in self.requests]))

    def of_which(self, other: Goods) -> Goods:
        """Return the part of it that `other` covers, 0 or more."""
        return self._with(other, lambda own, others: max(0, min(own, others)))

    def _with(self, other: Goods, joined: Callable[[int, int], int]) -> Goods:
        if [name for name, _ in self.requests] == [name for name, _ in other.requests]:
            pairs = zip(self.requests, other.requests, strict=True)
            alike = tuple([(name, joined(amount, others)) for (name, amount), (_, others) in pairs])
            return Goods(joined(self.gpus, other.gpus), alike)
        own, others = dict(self.requests), dict(other.requests)
        both = tuple((name, joined(own.get(name, 0), others.get(name, 0))) for name in sorted(own.keys() | others))
        return Goods(joined(self.gpus, other.gpus), both)


NOTHING: Final = Goods(0)
