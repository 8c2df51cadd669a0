"""Which loans a search for reclaims looks at, one after the other. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from espalier_operator.model import JobFacts
from espalier_operator.reclaim.extra_workers import Line, Loan, Loans
from espalier_operator.reclaim.requests import Ask

MayTake = Callable[[JobFacts, int], bool]
"""Takes a holder, and how many extra workers would be left to it. The search ends where it returns False."""


def in_turn(line: Line, loans: Loans, made: Mapping[str, Ask], may_take: MayTake | None) -> Iterator[Loan]:
    """Yield candidates for reclaim.

    Where one loan is not enough, its holder's other loans follow directly: a worker of many GPUs thus takes from as
    few jobs as possible. What a job is asked for already, as `made` says, is left out.
    """
    seen, at = set[str](), line.first
    run = at  # where the loans begin, up to `at`, whose holders are asked for all: no search need read them again
    while True:
        beyond = line.beyond.get(at)
        if beyond is not None:
            at = line.beyond[run] = beyond
            continue
        first = line.at(at)
        if first is None:
            return
        at += 1
        key = first.job.key
        if may_take is not None and not may_take(first.job, first.worker.index):
            return
        if key in seen:
            run = at
            continue
        own, asked = loans.of(key), made.get(key)
        if asked is not None and own[-1].worker.index >= asked.extra:
            line.beyond[run] = at
            continue
        seen.add(key)
        run = at
        for place in range(first.place, len(own)):
            loan = own[place]
            if may_take is not None and place > first.place and not may_take(loan.job, loan.worker.index):
                break
            asked = made.get(key)
            if asked is None or loan.worker.index < asked.extra:
                yield loan
