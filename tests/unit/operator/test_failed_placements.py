"""Gangs that find no GPUs, and those for which they are not looked for again."""

from __future__ import annotations

from espalier_core.types.reasons import Reason
from espalier_operator.cluster.node_index import NodePool
from espalier_operator.planner.starting import Attempt, FailedPlacements


def attempt(workers: int, cpu: int, *, gpus: int = 1, group: int = 0, kept: tuple[int, ...] = ()) -> Attempt:
    node_pool = NodePool("x", (group,), (("cpu", cpu),) if cpu else (), frozenset((group,)))
    return (node_pool,), gpus, workers, kept


def test_a_gang_that_requests_no_less_than_one_that_was_in_vain_is_hopeless() -> None:
    failed_placements, first = FailedPlacements(), attempt(4, 100)
    failed_placements.add(first, Reason.NO_FREE_GPU)
    assert failed_placements.reason(first) is Reason.NO_FREE_GPU
    assert failed_placements.reason(attempt(4, 100)) is None, "another site is another attempt"
    for hopeless in (attempt(4, 100), attempt(5, 100), attempt(4, 101), attempt(9, 900)):
        assert failed_placements.is_hopeless(hopeless)
    for open_ in (
        attempt(3, 900),
        attempt(9, 99),
        attempt(4, 0),
        attempt(4, 100, gpus=2),
        attempt(4, 100, group=1),
        attempt(4, 100, kept=(0,)),
    ):
        assert not failed_placements.is_hopeless(open_)


def test_a_gang_with_fewer_workers_that_request_more_is_distinguished() -> None:
    failed_placements = FailedPlacements()
    failed_placements.add(attempt(4, 100), Reason.NO_FREE_GPU)
    failed_placements.add(attempt(2, 200), Reason.UNSCHEDULABLE)
    assert failed_placements.is_hopeless(attempt(3, 200))
    assert not failed_placements.is_hopeless(attempt(3, 100))


def test_hope_is_for_gangs_that_were_not_tried() -> None:
    failed_placements, first = FailedPlacements(), attempt(4, 100)
    failed_placements.add(first, Reason.NO_FREE_GPU)
    failed_placements.expire()
    assert not failed_placements.is_hopeless(attempt(5, 100))
    assert failed_placements.reason(first) is Reason.NO_FREE_GPU
