"""Nodes that refuse or fail workers: which jobs avoid them, for how long, and what they do where no other is left."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_operator.model import (
    Avoided,
    Blame,
    Node,
    Placement,
    Promise,
)
from espalier_operator.model.actions import GrantExtra, Plan, Replace, Requeue
from espalier_operator.model.nodes import avoided_by_all, blaming, trained_on
from operator_world import facts
from operator_world.facts import decide, foreign, kinds, starts, worker

NOW = 100_000.0
HALF_AN_HOUR = 1800.0
BROKEN, GOOD = Node(name="broken", gpu_type="", allocatable=2), Node(name="good", gpu_type="", allocatable=4)
"""The broken node is the fuller one, so it comes first."""


def refusal(node: str = "broken", ago: float = 1.0, **change: Any) -> Blame:
    return Blame(**{"node": node, "at": NOW - ago, "refused": True, "message": "Allocate failed", **change})


job = partial(facts.job, "ns/a")
running = partial(job, admitted_at=0.0, gpu_type="", generation=1)
trains = partial(running, 1, 2, **facts.TRAINS)


def planned(*given: Any, nodes: tuple[Node, ...] = (BROKEN, GOOD), now: float = NOW, **seen: Any) -> Plan:
    return decide(*given, nodes, now=now, **seen)


# ---- where a job starts


def test_a_job_starts_on_another_node_than_the_one_that_refused_it_until_that_is_long_ago() -> None:
    assert planned(job()).placements["ns/a"].base == {0: "broken"}
    assert planned(job(blames=(refusal(),))).placements["ns/a"].base == {0: "good"}
    assert planned(job(blames=(refusal(ago=HALF_AN_HOUR),))).placements["ns/a"].base == {0: "broken"}
    assert planned(job(blames=(refusal(ago=HALF_AN_HOUR, times=2),))).placements["ns/a"].base == {0: "good"}


def test_a_gang_avoids_the_node_if_all_of_it_fits_elsewhere_and_uses_it_otherwise() -> None:
    assert set(planned(job(4, blames=(refusal(ago=60.0),))).placements["ns/a"].base.values()) == {"good"}
    found = planned(job(5, blames=(refusal(ago=60.0),))).placements["ns/a"].base
    assert sorted(map(str, found.values())) == ["broken", *["good"] * 4]


def test_where_only_that_node_is_free_it_is_tried_again_later_each_time() -> None:
    for times, seconds in ((1, 10.0), (2, 20.0), (8, 1280.0), (9, 1800.0), (30, 1800.0)):
        waits = job(blames=(refusal(ago=0.0, times=times),))
        found = planned(waits, nodes=(BROKEN,))
        assert (found.actions, found.refusals["ns/a"].reason) == ((), Reason.NODES_AVOIDED)
        assert found.wake_at == NOW + seconds
        assert planned(waits, nodes=(BROKEN,), now=NOW + seconds).actions == starts("ns/a", on="")


def test_a_running_job_waits_with_its_gpus_for_a_short_time_and_gives_them_back_for_a_long_one() -> None:
    first = planned(running(blames=(refusal(ago=0.0),)), nodes=(BROKEN,))
    assert (first.actions, first.placements, first.wake_at) == ((), {}, NOW + 10.0)
    again = planned(running(blames=(refusal(ago=10.0),)), nodes=(BROKEN,))
    assert again.placements["ns/a"].base == {0: "broken"}
    often = planned(running(2, blames=(refusal(ago=0.0, times=5),)), nodes=(BROKEN,))
    assert [(type(action), action.reason) for action in often.actions] == [(Requeue, Reason.NODES_AVOIDED)]
    leads = running(2, leader_running=True, trained=True, blames=(refusal(ago=0.0, times=5),))
    stays = planned(leads, worker("ns/a", node="broken"), nodes=(BROKEN,))
    assert stays.actions == (), "its leader trains"


def test_a_worker_whose_node_others_have_filled_does_not_wait_there_until_another_is_tried_again() -> None:
    waits = running(blames=(refusal(ago=0.0),)), worker("ns/a", pinned_to="good")
    found = planned(*waits, foreign(4, "good"))
    assert found.actions == (Replace(job="ns/a", workers=(0,), pinned=True, reason=Reason.GPU_LOST),)
    assert not found.placements


def test_a_job_that_is_refused_does_not_keep_its_gpus_while_a_node_is_not_tried_again() -> None:
    refused = {"refused_since": NOW - 20.0, "trouble": Reason.IMAGE_PULL_FAILED, "last_failure": "no such image"}
    half = running(2, blames=(refusal(ago=0.0),), **refused)
    found = planned(half, worker("ns/a", node="good"), nodes=(BROKEN, replace(GOOD, allocatable=1)))
    assert found.actions == (Requeue(job="ns/a", reason=Reason.IMAGE_PULL_FAILED, message="no such image"),)


def test_a_worker_that_failed_at_start_is_restarted_on_its_node_at_once_where_that_is_the_only_one() -> None:
    failed = running(blames=(refusal(ago=0.0, times=3, refused=False),))
    assert planned(failed, nodes=(BROKEN,)).placements["ns/a"].base == {0: "broken"}
    assert planned(failed).placements["ns/a"].base == {0: "good"}


def test_a_node_on_which_its_program_failed_is_better_than_one_that_refused_the_job() -> None:
    both = running(blames=(refusal(ago=60.0), refusal("good", ago=1.0, refused=False)))
    assert planned(both).placements["ns/a"].base == {0: "good"}


def test_lent_gpus_are_those_of_other_nodes_first() -> None:
    base, full = worker("ns/a", node="good"), (BROKEN, replace(GOOD, allocatable=1))
    lends = trains(blames=(refusal(ago=60.0),))
    assert planned(lends, base).placements["ns/a"].extra == ("good",)
    assert planned(lends, base, nodes=full).placements["ns/a"].extra == ("broken",)
    assert GrantExtra not in kinds(planned(trains(blames=(refusal(ago=5.0),)), base, nodes=full))


def test_a_lent_worker_that_its_node_refused_is_made_again_on_another() -> None:
    given = worker("ns/a", node="good"), Promise(job="ns/a", extra=1, expires_at=NOW + 9.0)
    seen = {"placements": {"ns/a": Placement(base={}, extra=("broken",), moved=frozenset())}}
    lent = trains(extra=1, blames=(refusal(ago=1.0),))
    assert planned(lent, *given, **seen).placements["ns/a"].extra == ("good",)
    assert planned(replace(lent, blames=()), *given, **seen).placements["ns/a"].extra == ("broken",)


def test_a_node_that_failed_several_jobs_is_avoided_by_others_too() -> None:
    given = job(), Avoided(node="broken", jobs=2, until=NOW + 50.0)
    found = planned(*given)
    assert (found.placements["ns/a"].base, found.wake_at) == ({0: "good"}, NOW + 50.0)
    assert planned(*given, nodes=(BROKEN,)).placements["ns/a"].base == {0: "broken"}
    assert planned(*given, now=NOW + 50.0).placements["ns/a"].base == {0: "broken"}


# ---- who is to blame


def test_a_node_is_avoided_by_all_if_it_refused_two_jobs_as_long_as_both_avoid_it() -> None:
    one, other = (refusal(ago=1000.0),), (refusal(ago=10.0, message="the last"),)
    assert avoided_by_all([one, other], NOW) == (Avoided(node="broken", jobs=2, until=NOW + 800.0, message="the last"),)
    assert avoided_by_all([one], NOW) == ()
    assert avoided_by_all([one, other], NOW + 800.0) == ()


def test_jobs_that_fail_wherever_they_start_blame_no_node_for_others() -> None:
    for refused in (True, False):
        everywhere = tuple(refusal(node, refused=refused) for node in ("a", "b", "c"))
        assert avoided_by_all([everywhere] * 3, NOW) == ()
    assert avoided_by_all([(refusal(refused=False),)] * 3, NOW) == (), "their programs may be the cause"


def test_a_job_that_has_trained_elsewhere_since_is_believed_whatever_failed_it() -> None:
    believed = trained_on((refusal("a", refused=False), refusal("b")), {"c"})
    assert [each.node for each in avoided_by_all([believed, believed], NOW)] == ["a", "b"]
    assert trained_on(believed, {"a", "b"}) == ()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 20_000.0)), max_size=40))
def test_blames_are_one_a_node_the_newest_last_and_counted_in_a_row(steps: list[tuple[str, float]]) -> None:
    blames: tuple[Blame, ...] = ()
    at = 0.0
    for node, seconds in steps:
        at += seconds
        before = next((blame for blame in blames if blame.node == node), None)
        blames = blaming(blames, Blame(node=node, at=at, refused=True))
        assert blames[-1].node == node
        assert blames[-1].at == at
        if before is None or blames[-1].times == 1:
            assert before is None or at >= before.at + 2.0 * HALF_AN_HOUR
        else:
            assert blames[-1].times == before.times + 1
        assert blames[-1].barred_until < blames[-1].avoided_until
    assert len({blame.node for blame in blames}) == len(blames)
