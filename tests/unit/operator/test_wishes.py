"""What a policy wishes beyond who goes first: nodes. Met where that can be, and never in the way of anything else."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.reasons import Reason
from espalier_operator.clock import ScaledClock
from espalier_operator.loop import SchedulerLoop
from espalier_operator.model import JobFacts, Snapshot, Worker, WorkerRole, WorkerState
from espalier_operator.model.actions import Admit, GrantExtra, NoticeReclaim, Plan
from espalier_operator.planner import plan
from espalier_operator.policies.decisions import view_of
from espalier_operator.policies.view import Decision, Share, View
from operator_world import facts
from operator_world.facts import base_on, kinds, starts


@dataclass
class Wishing:
    """Returns the same shares at all times, and keeps what it saw."""

    shares: tuple[Share, ...]
    seen: View | None = None
    name: str = "wishing"
    queue_order: str = "by wish"

    def decide(self, view: View) -> Decision:
        self.seen = view
        return Decision(shares=self.shares)


def job(key: str = "ns/a", base: int = 2, most: int = 4, **changes: Any) -> JobFacts:
    return facts.job(key, base, most, cooldown_seconds=0.0, time_budget_seconds=1000.0, **changes)


def running(base_nodes: tuple[str, ...], **changes: Any) -> tuple[JobFacts, list[Worker]]:
    """Return a job that trains, with its workers."""
    given = {"cooldown_seconds": 0.0, "granted_at": None, "changed_at": None, **changes}
    found = facts.trains("ns/a", len(base_nodes), 4, **given)
    return found, base_on(found, *base_nodes)


world = partial(facts.world, now=100.0)


def planned(snapshot: Snapshot, *shares: Share) -> Plan:
    return plan(snapshot, Wishing(shares), 100.0)


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    wish=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    cordoned=st.integers(0, 7),
)
def test_a_job_starts_on_the_nodes_wished_where_they_have_room_else_where_it_can(
    sizes: list[int], wish: list[int], cordoned: int
) -> None:
    count = len(wish)
    nodes = [facts.node(f"n{index}", gpus, schedulable=index != cordoned) for index, gpus in enumerate(sizes)]
    snapshot = world(nodes, job(base=count, most=count))
    wished = tuple(f"n{index}" for index in wish)
    found = planned(snapshot, Share(job="ns/a", workers=count, nodes=wished))
    room = {node.name: node.allocatable for node in nodes if node.schedulable}
    if sum(room.values()) < count:
        assert not found.actions
        return
    assert kinds(found) == [Admit]
    chosen = found.placements["ns/a"].base
    assert all(room.get(node or "", 0) >= used for node, used in Counter(chosen.values()).items())
    if all(room.get(node, 0) >= used for node, used in Counter(wished).items()):
        assert chosen == dict(enumerate(wished))
    unknown = {*wished} - room.keys()
    assert bool(found.ignored) == bool(unknown)


def test_extra_workers_go_to_the_nodes_wished_and_base_workers_stay() -> None:
    """Without a wish they would be near the base workers."""
    runs, workers = running(("n0", "n0"))
    snapshot = world({"n0": 4, "n1": 1, "n2": 4}, runs, workers)
    share = Share(job="ns/a", workers=4)
    assert planned(snapshot, share).placements["ns/a"].extra == ("n0", "n0")
    wishful = planned(snapshot, replace(share, nodes=("n1", "n2", "n2", "n0")))
    assert wishful.actions == (GrantExtra(job="ns/a", extra=2),)
    assert wishful.placements["ns/a"].base == {}
    assert wishful.placements["ns/a"].extra == ("n1", "n2"), "the two of the wish on which it has no worker yet"
    full = planned(snapshot, replace(share, nodes=("n0", "n0", "n1", "n1")))
    assert sorted(filter(None, full.placements["ns/a"].extra)) == ["n0", "n1"], "one has no room: another node"


def test_a_wish_moves_nobody_and_takes_nothing_that_others_hold() -> None:
    runs, workers = running(("n0",))
    shares = Share(job="ns/a", workers=1, nodes=("n1",)), Share(job="ns/b", workers=1, nodes=("n0",))
    found = planned(world({"n0": 1, "n1": 1}, runs, workers, job("ns/b", 1, 1)), *shares)
    assert found.actions == starts("ns/b")
    assert found.placements["ns/b"].base == {0: "n1"}


def test_a_node_that_kube_scheduler_refused_is_not_wished_for_again() -> None:
    found = planned(
        world({"n0": 1, "n1": 1}, job(base=1, most=1, pinned=False)), Share(job="ns/a", workers=1, nodes=("n1",))
    )
    assert found.placements["ns/a"].base == {0: None}


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (Share(job="ns/a", workers=2, nodes=("n0", "n9")), "ns/a: there is no node n9 that takes workers"),
        (Share(job="ns/a", workers=2, nodes=("n0",)), "ns/a: it has 2 to 4 workers, not 1"),
        (Share(job="ns/a", workers=2, nodes=("n0",) * 5), "ns/a: it has 2 to 4 workers, not 5"),
        (Share(job="ns/a", workers=2, weight=Fraction(0)), "ns/a: its weight cannot be 0"),
        (Share(job="ns/a", workers=-1), "ns/a: it cannot have -1 workers and 0 spare ones"),
        (Share(job="ns/a", workers=2.5), "ns/a: it cannot have 2.5 workers"),
        (Share(job="ns/ghost", workers=2), "ns/ghost: there is no such job"),
    ],
)
def test_what_cannot_be_is_ignored_and_named(share: Share, said: str) -> None:
    found = planned(world({"n0": 8}, job()), share)
    (ignored,) = found.ignored
    assert said in ignored
    assert kinds(found) == ([Admit] if share.workers == 2 and share.job == "ns/a" else [])


def test_a_second_share_of_a_job_does_not_count() -> None:
    shares = Share(job="ns/a", workers=2), Share(job="ns/a", workers=0)
    found = planned(world({"n0": 8}, job()), *shares)
    assert found.ignored == ("ns/a: it has a share already",)
    assert kinds(found) == [Admit]


async def test_the_log_names_what_is_ignored_once(caplog: pytest.LogCaptureFixture) -> None:
    snapshot = world({"n0": 0}, job())
    policy = Wishing(tuple(Share(job=f"ns/{number}", workers=1) for number in range(7)))

    class Backend:
        async def observe(self) -> Snapshot:
            return snapshot

        async def apply(self, action: Any) -> None:
            raise AssertionError(action)

        def planned(self, snapshot: Snapshot, plan: Plan) -> None:
            assert len(plan.ignored) == 7

    loop = SchedulerLoop(Backend(), policy, ScaledClock())
    await loop.tick()
    await loop.tick()
    (record,) = caplog.records
    assert "policy wishing: ignored infeasible parts of its decision: ns/0: there is no such job" in record.message
    assert record.message.endswith("; and 2 more")


def test_a_policy_sees_where_workers_are_and_not_what_others_hold() -> None:
    runs, workers = running(("n0", "n1"), extra=1)
    extra = replace(workers[0], name="x", role=WorkerRole.EXTRA, node=None, pinned_to="n2")
    gone = replace(workers[0], name="y", state=WorkerState.TERMINATING)
    nodes = facts.node("n0", 4, departing=1), facts.node("n1", 4), facts.node("n2", 4)
    view = view_of(world(nodes, runs, extra, workers, gone, facts.foreign(2, "n1")), [runs], 100.0)
    assert view.held == {"ns/a": ("n0", "n1", "n2")}
    assert view.nodes == {"n0": 3, "n1": 2, "n2": 4}
    assert view.gpus == 9


# ---- lent GPUs that the policy does not want a job to have


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        (Share(job="ns/a", workers=1, spare=3), None),
        (Share(job="ns/a", workers=3), None),
        (Share(job="ns/a", workers=2), 1),
        (Share(job="ns/a", workers=1), 0),
        (Share(job="ns/a", workers=0), 0),
        (Share(job="ns/b", workers=1), None),
    ],
    ids=["spare", "all", "fewer", "none", "to-wait", "no-share"],
)
def test_what_is_more_than_a_share_is_handed_back_though_nobody_needs_it(share: Share, kept: int | None) -> None:
    """With notice, once it has had them for `minRuntimeSeconds`."""
    runs, workers = running(("n0",), extra=2, granted_at=50.0, changed_at=50.0)
    lent = [replace(workers[0], name=f"x{index}", role=WorkerRole.EXTRA, index=index) for index in (0, 1)]
    snapshot = world({"n0": 8}, runs, workers, lent)
    early = planned(snapshot, share)
    assert NoticeReclaim not in kinds(early), "60 s have not passed since 50"
    found = plan(snapshot, Wishing((share,)), 110.0)
    if kept is None:
        assert NoticeReclaim not in kinds(found)
        return
    assert early.wake_at == 110.0
    (notice,) = found.actions
    assert notice == NoticeReclaim(job="ns/a", extra=kept, deadline=140.0, reason=Reason.HELD_BY_POLICY)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({}, Reason.HELD_BY_POLICY), ({"base": 9}, Reason.TOO_LARGE), ({"hold_until": 120.0}, Reason.UNSCHEDULABLE)],
)
def test_a_job_that_the_policy_lets_wait_says_what_else_would_keep_it_waiting(
    changes: dict[str, Any], reason: Reason
) -> None:
    """Whatever the policy decides next, that must change first."""
    waits = job(**{"most": 9, **changes})
    found = planned(world({"n0": 8}, waits), Share(job="ns/a", workers=0))
    assert found.refusals["ns/a"].reason is reason
