"""The runs of a collection as data, and what it is given in words."""

from __future__ import annotations

import itertools

import pytest

from espalier_agent.data import carried_tables
from espalier_core.growth.deepen import deepened
from espalier_lab.growth.collect.cost import StepCost, StepCostError, parse_cost
from espalier_lab.growth.collect.plan import CollectionRun, RunPurpose, next_run, runs_for

POINTS = ("block0", "block1", "block2")


def test_there_is_one_run_for_each_edge_and_each_comes_after_its_parent() -> None:
    runs = runs_for([4, 5], points=3, decisions=3, controls=False)
    assert len(runs) == len(set(runs)) == 2 * (1 + 4 + 16 + 64)
    assert sum(run.ends(3) for run in runs) == 2 * 64
    for index, run in enumerate(runs):
        assert run.parent is None or run.parent in runs[:index]
        assert (run.parent is None) == (run.kind is RunPurpose.TRUNK)
    leaves = {run.actions for run in runs if run.ends(3) and run.seed == 4}
    assert leaves == set(itertools.product(range(4), repeat=3))


def test_controls_go_on_from_the_trunk_but_for_the_nets_from_scratch() -> None:
    plain = set(runs_for([0], points=3, decisions=2, controls=False))
    controls = {run for run in runs_for([0], points=3, decisions=2, controls=True) if run not in plain}
    assert controls == {
        CollectionRun(RunPurpose.RESTART, 0),
        CollectionRun(RunPurpose.THROUGHPUT, 0),
        *(CollectionRun(RunPurpose.SCRATCH, 0, (point, point)) for point in range(3)),
    }
    for run in controls:
        assert run.ends(2)
        assert run.parent == (None if run.kind is RunPurpose.SCRATCH else CollectionRun(RunPurpose.TRUNK, 0))


def test_keys_differ() -> None:
    runs = runs_for(range(12), points=12, decisions=2, controls=True)
    assert len({run.key for run in runs}) == len(runs)


def test_runs_are_taken_depth_first_so_that_few_checkpoints_wait() -> None:
    """One at a time: besides the trunk there is at most one checkpoint on each level between."""
    runs = runs_for([0], points=3, decisions=3, controls=True)
    done: set[CollectionRun] = set()
    most = 0
    while (run := next_run(runs, done, done)) is not None:
        done.add(run)
        waiting = [
            one for one in done if not one.ends(3) and any(other.parent == one and other not in done for other in runs)
        ]
        most = max(most, len(waiting))
    assert len(done) == len(runs)
    assert most == 3


def test_no_run_begins_before_its_parent_is_done() -> None:
    runs = runs_for([0], points=1, decisions=2, controls=False)
    trunk, first = runs[0], CollectionRun(RunPurpose.EDGE, 0, (0,))
    assert next_run(runs, done=set(), begun={trunk}) is None
    assert next_run(runs, done={trunk}, begun={trunk}) == first
    assert next_run(runs, done={trunk}, begun={trunk, first}) == CollectionRun(RunPurpose.EDGE, 0, (1,))


def test_a_step_costs_more_for_each_layer_added() -> None:
    cost = parse_cost("2,0.5,0.25,0", POINTS)
    assert cost == StepCost(0.002, (("block0", 0.0005), ("block1", 0.00025), ("block2", 0.0)))
    start = carried_tables("digits")[0].architecture
    architecture = deepened(deepened(deepened(start, "block0"), "block1"), "block0")
    assert cost(None) == cost(start) == 0.002
    assert cost(architecture) == pytest.approx(0.00325)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2,1,1", "3 numbers; write 4 numbers of ms: a step, then what a layer adds at block0, block1, block2"),
        ("2,1,1,1,1", "5 numbers"),
        ("2,1,x,1", "not numbers"),
        ("", "not numbers"),
        ("0,1,1,1", "a step must cost more than 0"),
        ("2,1,-1,1", "a layer not less than 0"),
        ("nan,1,1,1", "a step must cost more than 0"),
        ("2,inf,1,1", "a step must cost more than 0"),
    ],
)
def test_a_step_cost_that_cannot_be_used_is_named_with_what_is_wanted(text: str, message: str) -> None:
    with pytest.raises(StepCostError, match=f"--step-cost '{text}': .*{message}"):
        parse_cost(text, POINTS)
