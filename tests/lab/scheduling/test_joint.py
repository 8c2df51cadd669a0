"""Gangs that start together: what placements cost in arrays, and where a burst is placed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier_lab.scheduling.placement.candidates import Nodes, candidates
from espalier_lab.scheduling.placement.cluster import PlacementCluster
from espalier_lab.scheduling.placement.costs import Gang, PlacementCosts
from espalier_lab.scheduling.placement.joint import MOST_TRIED, one_by_one, together
from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.performance import Truth, step_time
from espalier_lab.scheduling.placement.placers import Oracle, run, run_together
from espalier_lab.scheduling.placement.tasks import KINDS, Family, draw_task, episode, kinds
from espalier_lab.scheduling.seed_split import SeedSplit

FAMILY = Family(nodes=6, rack_nodes=3, jobs=20)
Situation = tuple[Truth, Occupancy, dict[str, float], list[Gang]]


@st.composite
def situations(draw: Any) -> Situation:
    """A cluster with jobs on it, and gangs that start."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    occupancy, steps = Occupancy(FAMILY.nodes, FAMILY.node_gpus, FAMILY.rack_nodes), dict[str, float]()
    for number in range(draw(st.integers(0, 6))):
        choices = candidates(occupancy, int(rng.choice((1, 2, 3, 6))))
        if choices:
            nodes = choices[int(rng.integers(len(choices)))]
            occupancy.add(f"runs{number}", PlacedJob(int(rng.integers(KINDS)), nodes))
            steps[f"runs{number}"] = float(rng.uniform(1, 1000))
    gangs = []
    for number in range(draw(st.integers(1, 6))):
        unit = int(rng.choice((1, 1, 2)))
        size = unit * int(rng.choice((1, 2, 3, 4)))
        gangs.append(Gang(f"starts{number}", int(rng.integers(KINDS)), size, float(rng.uniform(1, 1000)), unit))
    return Truth(draw_task(FAMILY, rng)), occupancy, steps, gangs


def total_seconds(situation: Situation, places: list[Nodes | None], opening: float) -> float:
    """Return the seconds that all jobs take from now on, one job at a time by the formula, and what opening costs."""
    truth, occupancy, steps, gangs = situation
    all_steps = {**steps, **{gang.name: gang.steps for gang in gangs}}
    after = Occupancy(FAMILY.nodes, FAMILY.node_gpus, FAMILY.rack_nodes, occupancy.jobs.items())
    for gang, nodes in zip(gangs, places, strict=True):
        if nodes is not None:
            after.add(gang.name, PlacedJob(gang.kind, nodes))
    assert min(after.free) >= 0, "a node has fewer GPUs than it gives"
    total = sum(all_steps[name] * step_time(truth, after, name, placed).total for name, placed in after.jobs.items())
    for node, there in enumerate(after.on_node):
        if there and not occupancy.on_node[node]:
            longest = max(all_steps[name] * kinds()[kind].compute_seconds for name, (kind, _) in there.items())
            total += opening * longest * after.free[node] / FAMILY.node_gpus
    return total


def added(truth: Truth, occupancy: Occupancy, gang: Gang, nodes: Nodes, steps_left: dict[str, float]) -> float:
    """Return the seconds that a gang takes, and those by which it delays others, one job at a time by the formula."""
    others = dict(occupancy.jobs)
    placed = PlacedJob(gang.kind, nodes)
    before = {name: step_time(truth, occupancy, name, other).total for name, other in others.items()}
    occupancy.add(gang.name, placed)
    delays = [
        steps_left[name] * (step_time(truth, occupancy, name, other).total - before[name])
        for name, other in others.items()
    ]
    total = gang.steps * step_time(truth, occupancy, gang.name, placed).total + sum(delays)
    occupancy.remove(gang.name)
    return total


@settings(max_examples=60, deadline=None)
@given(situations())
def test_costs_in_arrays_are_those_of_the_formula(situation: Situation) -> None:
    truth, occupancy, steps, gangs = situation
    costs = PlacementCosts(truth, occupancy, steps)
    known = {**steps, **{gang.name: gang.steps for gang in gangs}}
    for gang in gangs:
        choices = candidates(costs.occupancy, gang.gpus)
        if not choices:
            continue
        assert all(costs.occupancy.free[node] >= count for nodes in choices for node, count in nodes)
        expected = [added(truth, costs.occupancy, gang, nodes, known) for nodes in choices]
        np.testing.assert_allclose(costs.added(gang, choices), expected, rtol=1e-9)
        costs.add(gang.name, PlacedJob(gang.kind, choices[-1]), gang.steps)
    for gang in gangs:  # what was added and removed leaves no trace
        if gang.name in costs.occupancy.jobs:
            costs.remove(gang.name)
    if choices := candidates(occupancy, 2):
        probe = Gang("probe", 0, 2, 10.0)
        np.testing.assert_allclose(
            costs.added(probe, choices), PlacementCosts(truth, occupancy, steps).added(probe, choices), rtol=1e-9
        )


@settings(max_examples=60, deadline=None)
@given(situations(), st.sampled_from((0.0, 0.5, 4.0)))
def test_together_is_never_dearer_than_one_by_one_and_has_room(situation: Situation, opening: float) -> None:
    truth, occupancy, steps, gangs = situation
    before = dict(occupancy.jobs)
    single = one_by_one(PlacementCosts(truth, occupancy, steps, opening), gangs)
    joint = together(truth, occupancy, steps, gangs, opening)
    assert occupancy.jobs == before, "it was to be asked, not changed"
    assert [nodes is None for nodes in joint] == [nodes is None for nodes in single]
    for gang, nodes in zip(gangs, joint, strict=True):
        if nodes is not None:
            assert sum(count for _, count in nodes) == gang.gpus
            assert all(count % gang.unit == 0 for _, count in nodes)
    assert total_seconds(situation, joint, opening) <= total_seconds(situation, single, opening) * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(situations(), st.sampled_from((0.5, 4.0)))
def test_what_gangs_add_is_what_they_cost_in_all(situation: Situation, opening: float) -> None:
    """In whatever order they come, with what opening nodes costs; so a search by it ends."""
    truth, occupancy, steps, gangs = situation
    costs, places, sums = PlacementCosts(truth, occupancy, steps, opening), list[Nodes | None](), 0.0
    for gang in gangs:
        choices = candidates(costs.occupancy, gang.gpus)
        places.append(choices[-1] if choices else None)
        if choices:
            sums += float(costs.added(gang, [choices[-1]])[0])
            costs.add(gang.name, PlacedJob(gang.kind, choices[-1]), gang.steps)
    before = total_seconds((truth, occupancy, steps, []), [], opening)
    assert before + sums == pytest.approx(total_seconds(situation, places, opening), rel=1e-9)
    for gang, nodes in reversed(list(zip(gangs, places, strict=True))):  # and each taken off again
        if nodes is not None:
            costs.remove(gang.name)
    assert not costs._longest.any()


def test_two_gangs_that_would_stand_in_each_others_way_part() -> None:
    """The short job comes first and takes the fast node; together it leaves it to the long one, which gains more."""

    class TwoNodes:
        def slowness(self, node: int) -> float:
            return 2.0 if node == 1 else 1.0

        def interference(self, kind: int, other: int) -> float:
            return 5.0

        def nic_bytes(self) -> float:
            return 1e9

        def uplink_bytes(self) -> float:
            return 1e9

    nodes = Occupancy(2, 1, 2)
    gangs = [Gang("short", 0, 1, 10.0), Gang("long", 0, 1, 1000.0)]
    assert one_by_one(PlacementCosts(TwoNodes(), nodes, {}), gangs) == [((0, 1),), ((1, 1),)]
    # Nodes are full, so only an exchange of the two helps.
    assert together(TwoNodes(), nodes, {}, gangs) == [((1, 1),), ((0, 1),)]


def test_a_large_burst_is_placed_without_being_moved() -> None:
    truth = Truth(draw_task(Family(nodes=100), np.random.default_rng(1)))
    gangs = [Gang(f"g{index}", index % KINDS, 1, 1.0 + index) for index in range(MOST_TRIED)]
    occupancy = Occupancy(100, 4, 4)
    assert together(truth, occupancy, {}, gangs) == one_by_one(PlacementCosts(truth, occupancy, {}), gangs)


def test_episodes_are_played_to_their_ends_with_bursts() -> None:
    drawn = episode(FAMILY, SeedSplit.TRAIN, 3)
    cluster = PlacementCluster(drawn)
    assert run_together(cluster, Oracle()) == pytest.approx(cluster.job_seconds / FAMILY.jobs)
    assert all(job.completed_at is not None for job in cluster.jobs.values())
    alone = episode(Family(nodes=6, jobs=1), SeedSplit.TRAIN, 3)
    assert run_together(PlacementCluster(alone), Oracle()) == pytest.approx(run(PlacementCluster(alone), Oracle()))
