"""Who is a member: the messages of workers, and the leader's decisions on them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import TypeAdapter, ValidationError

from espalier_trainer.elastic.channel import derived

PROTOCOL = 9
"""Increased when workers of two versions can no longer train together."""
NEWCOMER = -1
"""Step of a worker that has no state."""


class RecordError(ValueError):
    """A record of the rendezvous cannot be read."""


class _Message:
    """A record that a worker or the leader writes to the store."""

    _adapter: ClassVar[TypeAdapter[Any]]
    """Made once for each kind, which takes 200 times as long as a message."""

    def to_json(self) -> str:
        """Return it as text."""
        return self._adapter.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read it back; raises `RecordError`."""
        try:
            read: Self = cls._adapter.validate_json(text)
        except ValidationError as error:
            raise RecordError(f"{text[:200]!r} is no {cls.__name__.lower()}: {error}") from error
        return read


@dataclass(frozen=True)
class Arrival(_Message):
    """A worker requests to take part in the next generation, or announces that it leaves."""

    worker: str
    """Unique for every process."""
    base: bool
    index: int
    """Place among the workers of its role."""
    step: int = NEWCOMER
    """Of the state that it holds."""
    leaving: bool = False
    node: str = ""
    """The node that it runs on."""
    result: str = ""
    """What came of the order with which it left the last generation, as text."""
    protocol: int = PROTOCOL

    @property
    def name(self) -> str:
        """What people call the worker."""
        return f"{'base' if self.base else 'extra'} worker {self.index}"


@dataclass(frozen=True)
class Plan(_Message):
    """The members of a generation; a member's place is its rank, the leader is the first."""

    generation: int
    members: tuple[str, ...]
    source: int
    """Rank of the member whose state all take."""
    nonce: str = ""
    """Random: no two generations of a job have the same key."""

    def key(self, secret: bytes) -> bytes:
        """Return the key with which this generation's commands are authenticated, by that of the job."""
        return derived(secret, f"generation {self.nonce}".encode())


Arrival._adapter = TypeAdapter(Arrival)
Plan._adapter = TypeAdapter(Plan)


def chosen(candidates: Iterable[Arrival], replicas: int) -> tuple[Arrival, ...]:
    """Return those of `candidates` (the leader not among them) that a job of `replicas` workers has room for.

    Base workers come first, then those of the lowest index, as extra workers are taken back from the highest.
    """
    ordered = sorted(candidates, key=lambda each: (not each.base, each.index, -each.step, each.worker))
    return tuple(ordered[: max(0, replicas - 1)])


def planned(
    generation: int, leader: Arrival, members: Iterable[Arrival], *, newest: bool = False, winner: str | None = None
) -> Plan:
    """Return the plan of a generation; its source is the leader, or with `newest` the member with the latest step.

    The leader's state is authoritative while it lives: a member that is a step ahead of it goes back. Only the `winner`
    of a trial is the source instead, if it is a member.
    """
    everyone = (leader, *members)
    names, steps = tuple(each.worker for each in everyone), [each.step for each in everyone]
    source = steps.index(max(steps)) if newest else 0
    return Plan(generation, names, names.index(winner) if winner in names else source, secrets.token_hex(16))
