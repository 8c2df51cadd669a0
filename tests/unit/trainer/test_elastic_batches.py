"""Elastic workers: whose examples are whose, who leads, and who is slow."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from espalier_core.types.job import ElasticBatch
from espalier_trainer.elastic.membership import (
    MAX_DROPS,
    NEWCOMER,
    PAUSE_SECONDS,
    STEPS,
    GenerationPlan,
    MemberSpeeds,
    WorkerArrival,
    chosen,
    fixed_portion,
    observed,
    planned,
    shares,
    straggler,
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
def test_an_epoch_sees_each_example_once_whoever_comes_and_goes(policy, world, batches, rows, data):
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
def test_members_share_a_batch_evenly_and_never_take_a_single_example(world, rows):
    sizes = [share.rows for share in shares(ElasticBatch.KEEP_GLOBAL, world, 0, rows) if share.rows]
    assert max(sizes) - min(sizes) <= 1
    assert rows < 2 or min(sizes) >= 2  # a batch norm over one example has no variance


@given(st.lists(ARRIVALS, max_size=8, unique_by=lambda each: each.worker), st.integers(0, 9))
def test_those_of_the_lowest_index_stay(arrivals, replicas):
    found = chosen(arrivals, replicas)
    assert len(found) == min(len(arrivals), max(0, replicas - 1))
    left = [each for each in arrivals if each not in found]
    assert all((not stays.base, stays.index) <= (not goes.base, goes.index) for stays in found for goes in left)
    assert chosen(reversed(arrivals), replicas) == found  # not by the order of arrival


@given(st.lists(ARRIVALS, max_size=6, unique_by=lambda each: each.worker), st.integers(0, 100))
def test_a_leader_that_came_again_takes_the_newest_state(arrivals, step):
    leader = WorkerArrival("leader", base=True, index=0, step=step)
    plan = planned(3, leader, arrivals, newest=True)
    steps = [step, *(each.step for each in arrivals)]
    assert steps[plan.source] == max(steps)
    assert plan.source == 0 or steps[plan.source] > step
    assert planned(3, leader, arrivals).source == 0
    assert GenerationPlan.from_json(plan.to_json()) == plan


@given(ARRIVALS)
def test_an_arrival_comes_through_as_text(arrival):
    assert WorkerArrival.from_json(arrival.to_json()) == arrival


SECONDS = st.sampled_from([0.0, 0.01, 0.02, 0.1, 0.2, 1.0])
WORKERS = ["leader", "a", "b", "c"]


def test_a_straggler_is_one_that_is_much_slower_than_the_middle_of_the_others():
    assert straggler([0.1, 0.1, 1.1], 5) == 2
    assert straggler([0.1, 0.1, 0.4], 5) is None
    assert straggler([0.1, 1.1], 5) == 1
    assert straggler([1.0], 5) is None
    assert straggler([0.0, 0.0], 5) is None


COUNTS = st.sampled_from([1, 2, STEPS - 1, STEPS, STEPS + 1])
"""Of equal steps: those that are drawn one by one never have the same straggler for long."""


@settings(deadline=None)
@example([([0.01, 0.01, 1.0, 0.01], 2 * STEPS)])
@given(st.lists(st.tuples(st.lists(SECONDS, min_size=4, max_size=4), COUNTS), max_size=6))
def test_only_who_is_slow_for_many_steps_in_a_row_is_found_and_only_once(runs):
    steps = [seconds for seconds, count in runs for _ in range(count)]
    speeds = MemberSpeeds()
    slowest = [straggler(seconds, 5.0) for seconds in steps]
    for number, seconds in enumerate(steps):
        speeds, found = observed(speeds, WORKERS, seconds)
        row = slowest[max(0, number - STEPS + 1) : number + 1]
        begins = number < STEPS or slowest[number - STEPS] != slowest[number]
        expected = len(row) == STEPS and len(set(row)) == 1 and row[0] is not None and begins
        assert (found is not None) == expected
        assert found is None or found == WORKERS[slowest[number] or 0]


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORKERS[1:]), max_size=40), st.data())
def test_a_straggler_comes_again_after_longer_and_longer_and_not_for_ever(found, data):
    """However members come and go, one process costs the others `MAX_DROPS` times `STEPS` slow steps at most."""
    speeds, now, dropped = MemberSpeeds(), 0.0, dict.fromkeys(WORKERS, 0)
    for worker in found:
        if worker in speeds.out(now):
            continue  # who is left out cannot be found slow
        pauses = PAUSE_SECONDS * 2 ** dropped[worker]
        speeds = speeds.dropping(worker, now).changed()
        dropped[worker] += 1
        assert speeds.drops(worker) == dropped[worker] <= MAX_DROPS
        assert worker in speeds.out(now)
        assert (worker in speeds.out(now + pauses)) == (dropped[worker] == MAX_DROPS)
        now += data.draw(st.sampled_from([0.0, 1.0, PAUSE_SECONDS, 4 * PAUSE_SECONDS]))
    assert "leader" not in speeds.out(now)
