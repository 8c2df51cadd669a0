"""The leader's decisions on its members: membership, temporary exclusion, and each member's share of a step. Pure.

Workers and the leader exchange `WorkerArrival`s and `GenerationPlan`s. Workers that slow the others down are excluded;
the caller passes all times. `shares` divides the examples of a step among the members.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, Final, Self

from pydantic import TypeAdapter, ValidationError

from espalier_core.types.job import ElasticBatch
from espalier_trainer.elastic.store import derived

PROTOCOL = 9
"""Version of the protocol, increased when workers of two versions can no longer train together."""
NEWCOMER = -1
"""Value of `step` for a worker that has no state."""


class RecordError(ValueError):
    """A record of the rendezvous cannot be read."""


class _Message:
    """A record that a worker or the leader writes to the store."""

    _adapter: ClassVar[TypeAdapter[Any]]
    """Adapter made once for each kind of record, which takes 200 times as long as a message."""

    def to_json(self) -> str:
        """Return the record as text."""
        return self._adapter.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse a record; raises `RecordError`."""
        try:
            read: Self = cls._adapter.validate_json(text)
        except ValidationError as error:
            raise RecordError(f"{text[:200]!r} is no {cls.__name__.lower()}: {error}") from error
        return read


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Role and index of this process among the job's workers."""

    base: bool = False
    """Whether it is a base worker; otherwise it is an extra worker."""
    index: int = 0
    node: str = ""
    """Node that it runs on."""


@dataclass(frozen=True)
class WorkerArrival(_Message):
    """A worker's request to take part in the next generation, or its announcement that it leaves."""

    worker: str
    """Id, unique for every process."""
    base: bool
    index: int
    """Index among the workers of its role."""
    step: int = NEWCOMER
    """Step of the state that it holds."""
    leaving: bool = False
    node: str = ""
    """Node that it runs on."""
    result: str = ""
    """Result of the order with which it left the last generation, as text."""
    protocol: int = PROTOCOL

    @property
    def name(self) -> str:
        """Display name of the worker."""
        return f"{'base' if self.base else 'extra'} worker {self.index}"


@dataclass(frozen=True)
class GenerationPlan(_Message):
    """The members of a generation; a member's index is its rank, the leader is the first."""

    generation: int
    members: tuple[str, ...]
    source: int
    """Rank of the member whose state all take."""
    nonce: str = ""
    """Random value, so that no two generations of a job have the same key."""

    def key(self, secret: bytes) -> bytes:
        """Return the key that authenticates this generation's commands, derived from the job's key."""
        return derived(secret, f"generation {self.nonce}".encode())


WorkerArrival._adapter = TypeAdapter(WorkerArrival)
GenerationPlan._adapter = TypeAdapter(GenerationPlan)


def chosen(candidates: Iterable[WorkerArrival], replicas: int) -> tuple[WorkerArrival, ...]:
    """Return the candidates, among which the leader is not, that get a place in a job of `replicas` workers.

    Base workers come first, then those of the lowest index, as extra workers are taken back from the highest.
    """
    ordered = sorted(candidates, key=lambda each: (not each.base, each.index, -each.step, each.worker))
    return tuple(ordered[: max(0, replicas - 1)])


def planned(
    generation: int,
    leader: WorkerArrival,
    members: Iterable[WorkerArrival],
    *,
    newest: bool = False,
    winner: str | None = None,
) -> GenerationPlan:
    """Return the plan of a generation; its source is the leader, or with `newest` the member with the latest step.

    The leader's state is authoritative while it lives: a member that is a step ahead of it goes back. Only the `winner`
    of a trial, if it is a member, is the source instead.
    """
    everyone = (leader, *members)
    names, steps = tuple(each.worker for each in everyone), [each.step for each in everyone]
    source = steps.index(max(steps)) if newest else 0
    return GenerationPlan(generation, names, names.index(winner) if winner in names else source, secrets.token_hex(16))


FACTOR: Final = 5.0
STEPS: Final = 20
"""A member that is FACTOR times slower than the others for STEPS steps in a row is a straggler."""
PAUSE_SECONDS: Final = 60.0
"""Seconds until an excluded straggler may join again, doubled each time: it was slow, not broken."""
MAX_DROPS: Final = 3
"""Number of exclusions after which it stays excluded, as each return costs `STEPS` slow steps and two pauses."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Number of exclusions of a worker, and the end of the last one."""

    times: int
    until: float


@dataclass(frozen=True, slots=True)
class MemberSpeeds:
    """Observations of the members' speed."""

    slow: str | None = None
    """Straggler of the last step."""
    steps: int = 0
    """Number of its consecutive steps as the straggler."""
    dropped: Mapping[str, Dropped] = field(default_factory=dict)

    def out(self, now: float) -> frozenset[str]:
        """Return the workers that are excluded at `now`."""
        return frozenset(worker for worker, each in self.dropped.items() if now < each.until)

    def drops(self, worker: str) -> int:
        """Return the number of times that `worker` was excluded."""
        found = self.dropped.get(worker)
        return 0 if found is None else found.times

    def changed(self) -> MemberSpeeds:
        """Return the state after a change of members, which ends the current run of slow steps."""
        return replace(self, slow=None, steps=0)

    def dropping(self, worker: str, now: float) -> MemberSpeeds:
        """Return the state after `worker` is excluded at `now`."""
        times = self.drops(worker) + 1
        until = float("inf") if times >= MAX_DROPS else now + PAUSE_SECONDS * 2 ** (times - 1)
        return MemberSpeeds(dropped={**self.dropped, worker: Dropped(times, until)})


def straggler(seconds: Sequence[float], factor: float) -> int | None:
    """Return the slowest member if its `seconds` of computing are more than `factor` times the others' median."""
    if len(seconds) < 2:
        return None
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    others = sorted(value for member, value in enumerate(seconds) if member != slowest)
    return slowest if seconds[slowest] > factor * others[len(others) // 2] else None


def observed(speeds: MemberSpeeds, workers: Sequence[str], seconds: Sequence[float]) -> tuple[MemberSpeeds, str | None]:
    """Return the state after a step in which `workers` computed for `seconds`, and the worker if it is a straggler.

    A straggler is reported once, until the members change.
    """
    rank = straggler(seconds, FACTOR)
    slow = None if rank is None else workers[rank]
    steps = speeds.steps + 1 if slow is not None and slow == speeds.slow else int(slow is not None)
    return replace(speeds, slow=slow, steps=steps), slow if steps == STEPS else None


def straggler_message(name: str, rank: int, seconds: Sequence[float], pause: float, times: int) -> str:
    """Return a warning about the straggler `name`, with rank `rank` in the `seconds` of a step.

    `pause` is the duration of its exclusion (0: none, inf: for good), `times` the number of its exclusions so far.
    """
    others = sorted(each for place, each in enumerate(seconds) if place != rank)
    what = "all wait for it at each step"
    if math.isinf(pause):
        what = f"it is excluded for good, as it was {times - 1} times before"
    elif pause:
        what = f"it is excluded for {pause:.0f} s"
    return f"{name} computes {seconds[rank]:.3g} s a step, the others {others[len(others) // 2]:.3g} s; {what}"


@dataclass(frozen=True, slots=True)
class Portion:
    """The part of an epoch that all members take in a step, decided by the leader."""

    batches: int = 1
    """Number of batches of the epoch, from its cursor on."""
    passes: int = 1
    """Number of consecutive passes over which each member splits its share; gradients add up."""
    rate: float = 1.0
    """Factor of the learning rate, relative to a step of one batch."""
    full: bool = True
    """Whether the portion is not cut short by the end of the epoch."""


ONE = Portion()


@dataclass(frozen=True, slots=True)
class BatchShare:
    """Rows `first` to `last` (exclusive), counted from the beginning of batch `batch` of the epoch; may be empty."""

    batch: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self.last - self.first


LEAST_ROWS = 2
"""Minimum number of rows: a batch norm over one example has no variance."""


def shares(policy: ElasticBatch, world: int, cursor: int, rows: int, batches: int = 1) -> tuple[BatchShare, ...]:
    """Return the members' shares of the step that takes `batches` batches of `rows` examples from batch `cursor` on.

    `keepGlobal`: they are cut into `world` parts whose sizes differ by one at most. `scaleLinear`: each member takes
    one batch, the k-th member batch `cursor` + k; near the epoch's end some take none. Each example is in one share.
    """
    if policy is ElasticBatch.SCALE_LINEAR:
        return tuple(BatchShare(cursor + member, 0, rows if member < batches else 0) for member in range(world))
    rows *= batches
    parts = max(1, min(world, rows // LEAST_ROWS))
    cuts = [rows * part // parts for part in range(parts + 1)]
    idle = [BatchShare(cursor, 0, 0)] * (world - parts)
    return (*(BatchShare(cursor, *cut) for cut in pairwise(cuts)), *idle)


def fixed_portion(policy: ElasticBatch, world: int, cursor: int, batches: int) -> Portion:
    """Return the portion of a step at batch `cursor` of `batches` if the author of the job sets the batch size.

    `scaleLinear`: a batch for each member, with the learning rate multiplied by their number (the linear scaling rule:
    Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1).
    """
    if policy is not ElasticBatch.SCALE_LINEAR:
        return ONE
    taken = min(world, batches - cursor)
    return Portion(batches=taken, rate=float(taken), full=taken == world)
