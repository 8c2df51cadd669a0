"""Fair share over time: who held fewer GPUs lately goes first."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_operator.model import JobFacts, Node, Rules, Snapshot
from espalier_operator.model.queues import QueueLimits
from espalier_operator.planner import plan
from espalier_operator.policies.decisions import LendingOrder, decided
from espalier_operator.policies.fair import FairPolicy
from espalier_operator.policies.memory import SHARES_KEPT, RecentUse
from operator_world import facts

DAY = 86_400.0


def job(key: str, gpus: int = 1, *, held: bool = False, **changes: Any) -> JobFacts:
    state = {"admitted_at": 0.0, "gpu_type": "a"} if held else {}
    return facts.job(key, gpus, time_budget_seconds=1e6, **state, **changes)


def world(at: float, *jobs: JobFacts, queues: tuple[QueueLimits, ...] = (), aging: float = 0.0) -> Snapshot:
    return Snapshot(taken_at=at, jobs=jobs, queues=queues, rules=Rules(aging_seconds=aging))


def use_of(snapshot: Snapshot, key: str = "x/w") -> float:
    return next(each.recent_use for each in snapshot.jobs if each.key == key)


def test_what_is_held_counts_half_after_a_half_life() -> None:
    use = RecentUse(DAY)
    use.seen(world(0.0, job("x/r", 8, held=True)))
    assert use_of(use.seen(world(DAY, job("x/w")))) == 4.0, "eight GPUs were held all the time"
    assert use_of(use.seen(world(2 * DAY, job("x/w")))) == 2.0
    assert use_of(use.seen(world(2 * DAY, job("y/w"))), "y/w") == 0.0, "another namespace"


@given(
    st.lists(st.tuples(st.floats(0.0, 1e5), st.integers(0, 64)), max_size=8),
    st.floats(0.0, 1.0),
    st.sampled_from((600.0, DAY)),
)
def test_it_is_an_average_that_does_not_depend_on_when_one_looks(
    spans: list[tuple[float, int]], part: float, half_life: float
) -> None:
    rare, often = RecentUse(half_life), RecentUse(half_life)
    now = 0.0
    for seconds, gpus in spans:
        holder = (job("x/r", gpus, held=True),) if gpus else ()
        rare.seen(world(now, job("x/w"), *holder))
        often.seen(world(now, job("x/w"), *holder))
        often.seen(world(now + part * seconds, job("x/w"), *holder))
        now += seconds
    figure = use_of(rare.seen(world(now, job("x/w"))))
    assert use_of(often.seen(world(now, job("x/w")))) == pytest.approx(figure, abs=0.02)
    assert 0.0 <= figure <= max((gpus for _, gpus in spans), default=0)


def test_queues_count_by_their_weight_where_there_are_any() -> None:
    queues = (QueueLimits(name="big", weight=4), QueueLimits(name="small"))
    use = RecentUse(DAY)
    use.seen(world(0.0, *(job(f"x/r-{name}", 8, held=True, queue=name) for name in ("big", "small")), queues=queues))
    seen = use.seen(world(DAY, *(job(f"y/{name}", queue=name) for name in ("big", "small")), queues=queues))
    assert (use_of(seen, "y/big"), use_of(seen, "y/small")) == (1.0, 4.0)


def test_yesterdays_heavy_user_waits_after_others_of_the_same_priority() -> None:
    use = RecentUse(DAY)
    use.seen(world(0.0, job("heavy/r", 8, held=True)))
    waiting = (job("heavy/w", at=1), job("light/w", at=2), job("heavy/first", at=3, priority=1))
    seen = use.seen(replace(world(DAY, *waiting), nodes=(Node(name="n", gpu_type="a", allocatable=2),)))
    planned = plan(seen, FairPolicy(), DAY)
    assert planned.actions == facts.starts("heavy/first", "light/w")
    off = RecentUse(0.0)
    off.seen(world(0.0, job("heavy/r", 8, held=True)))
    assert use_of(off.seen(world(DAY, *waiting)), "heavy/w") == 0.0


def test_who_waits_rises_by_a_step_of_priority_at_a_time() -> None:
    use = RecentUse(0.0)
    seen = use.seen(world(1000.0, job("x/w", at=50), job("x/r", held=True), job("x/new", at=2000), aging=100.0))
    assert [each.aged for each in seen.jobs] == [9, 0, 0]
    first, second = job("x/a", at=0, priority=0), job("x/b", at=900, priority=8)
    ranked = use.seen(world(1000.0, first, second, aging=100.0)).jobs
    order = LendingOrder(decided(FairPolicy(), Snapshot(taken_at=1000.0), ranked, 1000.0), ranked)
    assert order.sorted(ranked)[0].key == "x/a"


def test_a_successor_continues() -> None:
    use = RecentUse(DAY)
    use.seen(world(0.0, job("x/r", 8, held=True)))
    use.seen(world(DAY, job("x/r", 8, held=True)))
    heir = RecentUse(DAY, use.to_json())
    seen = heir.seen(world(2 * DAY, job("x/w"), job("x/r", 8, held=True)))
    assert use_of(seen) == 6.0, "the job that runs held its GPUs while no operator looked"


def test_a_note_counts_what_was_held_since_the_last_plan() -> None:
    use = RecentUse(DAY)
    assert json.loads(use.to_json(DAY))["gpus"] == {}, "nobody was seen yet"
    use.seen(world(0.0, job("x/r", 8, held=True)))
    assert json.loads(use.to_json(DAY)) == {"at": DAY, "gpus": {"namespace x": 4.0}}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"at":"x"}', '{"at":0,"gpus":{"a":"b"}}', '{"at":0,"gpus":{"namespace x":-5}}']
)
def test_a_note_that_cannot_be_read_is_as_none(text: str) -> None:
    assert use_of(RecentUse(DAY, text).seen(world(DAY, job("x/w")))) == 0.0


def test_the_note_stays_small() -> None:
    use = RecentUse(DAY)
    many = tuple(job(f"{'n' * 58}{number:05}/r", 1 + number % 7, held=True) for number in range(1000))
    use.seen(world(0.0, *many))
    use.seen(world(DAY, *many))
    text = use.to_json()
    assert len(text) < 20_000
    kept = json.loads(text)["gpus"]
    assert len(kept) == SHARES_KEPT
    assert min(kept.values()) == 3.0, "the largest: 142 with 3.5 GPUs, and others with 3"
    use.seen(world(DAY))
    use.seen(world(40 * DAY))
    assert json.loads(use.to_json())["gpus"] == {}, "who has used nothing for long is forgotten"
