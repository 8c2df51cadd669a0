"""Who takes which examples, who is a member: properties."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.job import ElasticBatch
from espalier_trainer.elastic.membership import (
    NEWCOMER,
    GenerationPlan,
    WorkerArrival,
    chosen,
    fixed_portion,
    planned,
    shares,
)

POLICIES = st.sampled_from(ElasticBatch)
ARRIVALS = st.builds(
    WorkerArrival,
    worker=st.uuids().map(str),
    base=st.booleans(),
    index=st.integers(0, 5),
    step=st.integers(NEWCOMER, 100),
)


@given(POLICIES, st.integers(1, 9), st.integers(1, 40), st.integers(1, 70), st.data())
def test_an_epoch_sees_each_example_once_whoever_comes_and_goes(
    policy: ElasticBatch, world: int, batches: int, rows: int, data: st.DataObject
) -> None:
    seen = []
    cursor = 0
    while cursor < batches:
        taken = fixed_portion(policy, world, cursor, batches).batches
        step = shares(policy, world, cursor, rows, taken)
        assert len(step) == world
        seen += [(share.batch, row) for share in step for row in range(share.first, share.last)]
        cursor += taken
        world = data.draw(st.integers(1, 9))
    assert sorted(seen) == [(batch, row) for batch in range(batches) for row in range(rows)]


@given(st.integers(1, 9), st.integers(1, 70))
def test_members_share_a_batch_evenly_and_never_take_a_single_example(world: int, rows: int) -> None:
    sizes = [share.rows for share in shares(ElasticBatch.KEEP_GLOBAL, world, 0, rows) if share.rows]
    assert max(sizes) - min(sizes) <= 1
    assert rows < 2 or min(sizes) >= 2  # a batch norm over one example has no variance


@given(st.lists(ARRIVALS, max_size=8, unique_by=lambda each: each.worker), st.integers(0, 9))
def test_those_of_the_lowest_index_stay(arrivals: list[WorkerArrival], replicas: int) -> None:
    found = chosen(arrivals, replicas)
    assert len(found) == min(len(arrivals), max(0, replicas - 1))
    left = [each for each in arrivals if each not in found]
    assert all((not stays.base, stays.index) <= (not goes.base, goes.index) for stays in found for goes in left)
    assert chosen(reversed(arrivals), replicas) == found  # not by the order of arrival


@given(st.lists(ARRIVALS, max_size=6, unique_by=lambda each: each.worker), st.integers(0, 100))
def test_a_leader_that_came_again_takes_the_newest_state(arrivals: list[WorkerArrival], step: int) -> None:
    leader = WorkerArrival("leader", base=True, index=0, step=step)
    plan = planned(3, leader, arrivals, newest=True)
    steps = [step, *(each.step for each in arrivals)]
    assert steps[plan.source] == max(steps)
    assert plan.source == 0 or steps[plan.source] > step
    assert planned(3, leader, arrivals).source == 0
    assert GenerationPlan.from_json(plan.to_json()) == plan


@given(ARRIVALS)
def test_an_arrival_comes_through_as_text(arrival: WorkerArrival) -> None:
    assert WorkerArrival.from_json(arrival.to_json()) == arrival
