"""Gandiva: pairs of jobs on the same GPUs, equal parts of the time, and its published figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from espalier_operator.policies.leases import ALLOCATION_SECONDS
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Candidate, Decision, View
from small_simulations import on_types


@pytest.mark.parametrize(("seed", "published"), [(0, 17_379.4), (1, 18_148.7)])
def test_it_is_as_fast_as_published(seed: int, published: float, gavel: Path) -> None:
    found = on_types(gavel / "max_min_fairness.trace", f"gandiva:seed={seed}")
    assert found.average_jct == pytest.approx(published, rel=0.05)


class Packed:
    """A step a second alone, and a part of it beside another job."""

    def __init__(self, kept: float) -> None:
        self._kept = kept

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        return 1.0 if beside is None else self._kept


def decided(
    sizes: Mapping[str, int], gpus: int, *, kept: float = 0.7, now: float = 1.0, memory: Mapping[str, Any] | None = None
) -> Decision:
    jobs = tuple(
        Candidate(key=key, submitted_at=0.0, min_workers=size, max_workers=size) for key, size in sizes.items()
    )
    view = View(now=now, gpus=gpus, jobs=jobs, gpu_types={"a": gpus}, speeds=Packed(kept), memory=memory or {})
    decision = configured("gandiva").decide(view)
    json.dumps(decision.memory)
    return decision


def running(decision: Decision) -> dict[str, str | None]:
    return {share.job: share.beside for share in decision.shares if share.workers}


def test_jobs_with_as_many_gpus_share_them_where_not_all_have_some() -> None:
    """The third job is alone with its size, and runs when the pair does not."""
    decision = decided({"one": 2, "two": 2, "wide": 4}, 4)
    table = {tuple(group): row["a"] for group, row in decision.memory["allocation"]}
    assert table == {("one",): 0.0, ("two",): 0.0, ("wide",): 0.5, ("one", "two"): 1.0}
    assert running(decision) == {"one": None, "two": "one"}


def test_nobody_shares_where_all_have_gpus() -> None:
    assert running(decided({"one": 2, "two": 2}, 4)) == {"one": None, "two": None}


def test_a_pair_that_does_not_pay_is_given_up_for_another() -> None:
    """Two on the same GPUs are drawn before anybody knows; at the next allocation they are apart, or paired again."""
    sizes = {f"j{place}": 1 for place in range(4)}
    first = decided(sizes, 1, kept=0.4)
    kept = decided({**sizes, "new": 1}, 1, kept=0.6, now=1.0 + ALLOCATION_SECONDS, memory=first.memory)
    apart = decided({**sizes, "new": 1}, 1, kept=0.4, now=1.0 + ALLOCATION_SECONDS, memory=first.memory)

    def pairs(decision: Decision) -> set[tuple[str, ...]]:
        return {tuple(group) for group, _ in decision.memory["allocation"] if len(group) == 2}

    assert len(pairs(first)) == 2
    assert pairs(first) <= pairs(kept)
    assert pairs(first) != pairs(apart)


def test_where_nothing_is_known_of_types_the_oldest_go_first() -> None:
    jobs = tuple(
        Candidate(key=key, submitted_at=at, min_workers=1, max_workers=1) for key, at in (("young", 9.0), ("old", 1.0))
    )
    decision = configured("gandiva").decide(View(now=9.0, gpus=2, jobs=jobs))
    assert [share.job for share in decision.shares] == ["old", "young"]
