"""Policies: who should have what. The mechanism (`plan`) sees to it that no policy can break an invariant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from espalier_api.registry import Registry
from espalier_operator.facts import DEFAULT_POLICY, JobFacts

Rank = tuple[float | str, ...]
"""Smaller goes first. Ranks of one policy compare with each other; the last element makes them unique."""


class Policy(Protocol):
    """Who goes first, and whose lent GPUs another's wish may take. Pure: no clock, no I/O, no state."""

    @property
    def name(self) -> str:
        """What settings and metrics call it."""

    @property
    def queue_order(self) -> str:
        """The order of admission, to follow "these jobs wait before it, ": `by priority, recent use and age`."""

    def admission_rank(self, job: JobFacts, now: float) -> Rank:
        """Return the place of a waiting job in the queue for base GPUs."""

    def lending_rank(self, job: JobFacts, extra: int, now: float) -> Rank:
        """Return the place of `job`, were it to have `extra` extra workers, in the queue for one more.

        Must not fall as `extra` rises: what is needed elsewhere is asked back in the reverse of this order.
        """

    def may_take(self, taker: JobFacts, has: int, holder: JobFacts, keeps: int, now: float) -> bool:
        """Return whether `taker`, with `has` extra workers, may be given one that leaves `holder` with `keeps`.

        Must be monotone: whoever may not take what is asked back first takes nothing, and what `taker` may not take,
        no wish may that comes later by `lending_rank`. Must not be true both ways: where a worker may move, it may not
        move back.
        """


POLICIES: Final[Registry[Callable[[], Policy]]] = Registry(
    "scheduling policy",
    "espalier.scheduling_policies",
    {
        DEFAULT_POLICY: "espalier_operator.policies.fair:FairPolicy",
    },
)


def policy_named(name: str) -> Policy:
    """Return the policy that settings call `name`. Raises `RegistryError` where there is none."""
    return POLICIES.load(name)()
