"""How an operator of a history decides: by a policy, or a policy file that is away, late, broken, without sense."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Final

from espalier_operator.policies import Policy
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.policies.learned import Allotment, LearnedPolicy, PolicyAnswer, PolicyFileError
from espalier_operator.policies.remote import Asking, AwayError
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Candidate, View
from operator_world.whims import WhimsicalPolicy

OTHER_POLICIES: Final = ("value", "soonest", "las", "gandiva")
WAIT_SECONDS: Final = 0.001
"""A server that is late never answers: no history depends on how fast this machine is."""


@dataclass(frozen=True)
class Deciding:
    """A policy, and who is asked for it."""

    policy: Policy
    asking: Asking | None = None
    is_fair: bool = False
    """It lets nobody wait who fits."""


def by_policy(policy: Policy) -> Deciding:
    """Return an operator's way to decide by a policy that asks nobody."""
    return Deciding(policy, is_fair=isinstance(policy, FairPolicy))


def drawn(chance: Random) -> Deciding:
    """Return the usual policy mostly; else one that preempts, or has no sense."""
    which = chance.random()
    if which < 0.7:
        return by_policy(FairPolicy())
    return by_policy(
        WhimsicalPolicy(chance.randrange(1000)) if which < 0.85 else configured(chance.choice(OTHER_POLICIES))
    )


def by_policy_file(seed: str, *, answers: bool) -> Deciding:
    """Return the policy `learned`; if its file never `answers`, `fair` decides in its place."""
    policy = LearnedPolicy(wait=WAIT_SECONDS)
    return Deciding(policy, Asking(policy, _Server(seed, answers).ask), is_fair=not answers)


class _Server:
    """Fails in all ways there are, and answers what cannot be, too."""

    def __init__(self, seed: str, answers: bool) -> None:
        self._chance, self._answers = Random(seed), answers

    async def ask(self, view: View) -> PolicyAnswer:
        chance = self._chance
        match chance.choice(("answer", "answer", "away", "late", "refuses", "fails")):
            case "answer" if self._answers:
                return PolicyAnswer(
                    policy="drawn@1",
                    allotments=tuple(self._allotment(job, view) for job in chance.sample(view.jobs, len(view.jobs))),
                    preempts=chance.random() < 0.5,
                    until=chance.choice((None, view.now + 7)),
                )
            case "late":
                await asyncio.Event().wait()
            case "refuses":
                raise PolicyFileError("it serves other clusters")
            case "fails":
                raise ArithmeticError("its weights are not finite")
        raise AwayError("connection refused")

    def _allotment(self, job: Candidate, view: View) -> Allotment:
        chance, nodes = self._chance, sorted(view.nodes)
        return Allotment(
            job=chance.choice((job.key,) * 9 + ("ns/nobody",)),
            workers=chance.choice((0, *(job.min_workers,) * 3, job.min_workers + 1, job.max_workers + 1)),
            spare=chance.choice((0, 1, 3, -1)),
            nodes=tuple(chance.choice((*nodes, "nowhere")) for _ in range(chance.choice((0, 0, job.min_workers)))),
        )
