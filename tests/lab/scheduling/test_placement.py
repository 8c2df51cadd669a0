"""Worker placement: the environment, its candidates, and the formula of speed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier_lab.illegal_actions import IllegalActionError
from espalier_lab.scheduling.placement.candidates import MOST, candidates, consolidate, emptiest, first_fit
from espalier_lab.scheduling.placement.cluster import PendingGang, PlacementCluster
from espalier_lab.scheduling.placement.environment import PlacementEnvironment
from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.performance import Truth, step_time
from espalier_lab.scheduling.placement.placers import RULES, Oracle, PlacementRule, Random, run, seconds_added
from espalier_lab.scheduling.placement.tasks import KINDS, Family, episode, kinds
from espalier_lab.scheduling.seed_split import SeedSplit

SMALL = Family(jobs=20)


class Plain:
    """A cluster on which each other job on a node costs half, by the share of its GPUs; node 1 is slow."""

    def slowness(self, node: int) -> float:
        return 2.0 if node == 1 else 1.0

    def interference(self, kind: int, other: int) -> float:
        return 0.5

    def nic_bytes(self) -> float:
        return 1e9

    def uplink_bytes(self) -> float:
        return 2.5e8


def occupied(draw: Any) -> Occupancy:
    """Return a cluster of 6 nodes with jobs on it."""
    occupancy = Occupancy(6, 4, 3)
    for number in range(draw(st.integers(0, 8))):
        size = draw(st.sampled_from((1, 2, 4)))
        choices = candidates(occupancy, size)
        if choices:
            nodes = choices[draw(st.integers(0, len(choices) - 1))]
            occupancy.add(f"j{number}", PlacedJob(draw(st.integers(0, KINDS - 1)), nodes))
    return occupancy


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16), shift=st.booleans())
def test_the_return_is_the_completion_time_whatever_is_chosen(seed: int, shift: bool) -> None:
    environment = PlacementEnvironment(SMALL, shift=shift)
    observation, info = environment.reset(seed=seed)
    rng, total, over = np.random.default_rng(seed), 0.0, False
    while not over:
        assert environment.observation_space.contains(observation)
        action = rng.choice(np.flatnonzero(info["action_mask"]))
        observation, reward, over, truncated, info = environment.step(action)
        assert not truncated
        total += reward
    assert all(job.completed_at is not None for job in environment.cluster.jobs.values())
    assert -total * 3600 == pytest.approx(info["mean_seconds"] * SMALL.jobs)
    with pytest.raises(ResetNeeded):
        environment.step(0)


def test_actions_beyond_the_candidates_are_refused_or_begin_again() -> None:
    one, two = PlacementEnvironment(SMALL), PlacementEnvironment(SMALL, illegal="wrap")
    # The first job of the episode is one worker: a candidate for each node.
    number = next(index for index in range(99) if episode(SMALL, SeedSplit.TRAIN, index).arrivals[0].gpus == 1)
    _, info = one.reset(options={"episode": number})
    two.reset(options={"episode": number})
    count = int(info["action_mask"].sum())
    assert count == SMALL.nodes
    for action in (MOST, -1, 0.5, None):
        for environment in (one, two):
            with pytest.raises(IllegalActionError, match=f"action {action} is not legal; legal: 0, 1"):
                environment.step(action)  # type: ignore[arg-type]
    with pytest.raises(IllegalActionError, match=f"action {count + 1} is not legal; .*action_mask.* is 1"):
        one.step(count + 1)
    with pytest.raises(ValueError, match="illegal is 'stop'; choose 'raise' or 'wrap'"):
        PlacementEnvironment(SMALL, illegal="stop")
    seen, reward, *_ = one.step(1)
    again, same, *_ = two.step(count + 1)
    assert reward == same
    assert all(np.array_equal(seen[key], again[key]) for key in seen)


def test_an_episode_can_be_played_again_and_no_purpose_shares_one() -> None:
    environment = PlacementEnvironment(SMALL, "judge")
    one, _ = environment.reset(options={"episode": 7})
    two, _ = environment.reset(options={"episode": 7})
    assert all(np.array_equal(one[key], two[key]) for key in one)
    drawn = [episode(SMALL, purpose, 7) for purpose in SeedSplit]
    assert len({tuple(each.arrivals) for each in drawn}) == len(SeedSplit)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_candidates_fit_and_are_there_whenever_the_gang_fits(data: st.DataObject) -> None:
    occupancy = occupied(data.draw)
    free = list(occupancy.free)
    for size in (1, 2, 4, 8):
        found = candidates(occupancy, size)
        assert bool(found) == (sum(free) >= size)
        assert len(set(found)) == len(found) <= MOST
        for nodes in found:
            assert sum(count for _, count in nodes) == size
            assert all(0 < count <= free[node] for node, count in nodes)
            assert list(nodes) == sorted(nodes)
            assert len({node for node, _ in nodes}) == len(nodes)
        if found:
            assert {consolidate(occupancy, size), first_fit(occupancy, size), emptiest(occupancy, size)} <= set(found)
    assert occupancy.free == free


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_job_that_has_gone_leaves_the_cluster_as_it_was(data: st.DataObject) -> None:
    occupancy = occupied(data.draw)
    before = (list(occupancy.free), list(occupancy.exchanging_on), list(occupancy.exchanging_of))
    jobs = [{**node} for node in occupancy.on_node]
    for nodes in candidates(occupancy, 4):
        occupancy.add("new", PlacedJob(3, nodes))
        occupancy.remove("new")
    assert (occupancy.free, occupancy.exchanging_on, occupancy.exchanging_of) == before
    assert occupancy.on_node == jobs


def test_a_step_takes_what_the_formula_says() -> None:
    table = kinds()
    occupancy = Occupancy(4, 4, 2)
    alone = PlacedJob(0, ((0, 2),))
    occupancy.add("alone", alone)
    assert step_time(Plain(), occupancy, "alone", alone) == (pytest.approx(table[0].compute_seconds), 0.0)
    beside = PlacedJob(1, ((0, 2),))
    occupancy.add("beside", beside)
    assert step_time(Plain(), occupancy, "alone", alone).compute == pytest.approx(table[0].compute_seconds * 1.25)
    wide = PlacedJob(2, ((1, 2), (2, 2)))  # in both racks
    occupancy.add("wide", wide)
    found = step_time(Plain(), occupancy, "wide", wide)
    assert found.compute == pytest.approx(table[2].compute_seconds * 2)
    assert found.exchange == pytest.approx(1.5 * table[2].gradient_bytes / 2.5e8)
    occupancy.add("too", PlacedJob(2, ((1, 1), (3, 1))))
    assert step_time(Plain(), occupancy, "wide", wide).exchange == pytest.approx(3 * table[2].gradient_bytes / 2.5e8)


@pytest.mark.parametrize("placer", [*RULES, "random", "oracle"])
def test_gangs_start_in_the_order_in_which_they_came(placer: str) -> None:
    class Watched:
        def __init__(self) -> None:
            self.order: list[str] = []
            rule = {"random": Random(1), "oracle": Oracle()}
            self.placer = rule.get(placer) or PlacementRule(RULES[placer])

        def choose(self, cluster: PlacementCluster, pending: PendingGang) -> int:
            self.order.append(pending.job.name)
            assert all(0 <= free <= SMALL.node_gpus for free in cluster.occupancy.free)
            return self.placer.choose(cluster, pending)

    watched = Watched()
    drawn = episode(SMALL, SeedSplit.TRAIN, 3, shift=True)
    assert run(PlacementCluster(drawn), watched) > 0
    assert watched.order == [arrival.name for arrival in drawn.arrivals]


def test_a_node_that_is_opened_strands_its_other_gpus() -> None:
    cluster = PlacementCluster(episode(SMALL, SeedSplit.TRAIN, 3))
    job, there, *_ = cluster.jobs.values()
    cluster.occupancy.add(there.name, PlacedJob(there.kind, ((0, 1),)))
    pending = PendingGang(job, (((0, 2),), ((1, 2),), ((1, 4),), ((0, 1), (1, 1), (2, 2))))
    truth = Oracle().performance(cluster)
    there.steps_left = 1.0
    more = seconds_added(truth, cluster, pending, 3.0) - seconds_added(truth, cluster, pending)
    assert more == pytest.approx(3 * job.seconds_alone() * np.array([0, 0.5, 0, 0.75 + 0.5]))
    # What it costs decides: the empty node is better by the true performance, and worse once that counts.
    alike = PendingGang(job, (((0, 1),), ((1, 1),)))
    assert Oracle().choose(cluster, alike) == 1
    assert Oracle(opening=100.0).choose(cluster, alike) == 0


def test_after_a_shift_the_second_cluster_decides_the_speeds() -> None:
    drawn = episode(SMALL, SeedSplit.TRAIN, 5, shift=True)
    assert drawn.task_at(0.0) is drawn.tasks[0]
    assert drawn.task_at(drawn.shift_at) is drawn.tasks[1]
    times = [arrival.at for arrival in drawn.arrivals]
    assert all(one <= two for one, two in itertools.pairwise(times))
    assert drawn.shift_at == times[SMALL.jobs // 2]


def test_what_trainers_measure_is_of_the_jobs_that_were_beside_them() -> None:
    cluster, ended = PlacementCluster(episode(SMALL, SeedSplit.TRAIN, 1)), False
    truth, asked = Truth(cluster.episode.tasks[0]), cluster.decisions()
    pending = next(asked, None)
    while pending is not None:
        measured = cluster.measured_in
        for name, placed in measured.jobs.items():
            assert cluster.jobs[name].step_time == step_time(truth, measured, name, placed)
        ended |= any(name not in cluster.occupancy.jobs for name in measured.jobs)
        try:
            pending = asked.send(0)
        except StopIteration:
            pending = None
    assert ended, "no job ended when another one was placed"
