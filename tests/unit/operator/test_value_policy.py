"""The policy `value`: spare GPUs where their best use gains most, and back when it gains no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.measurements import Bid, BidUse
from espalier_lab.simulator.growth import GrowingJob, GrowthCurve
from espalier_lab.simulator.jobs import FixedJob, SimulatedJob
from espalier_lab.simulator.latencies import LATENCIES
from espalier_lab.simulator.planned import Planned
from espalier_lab.simulator.rounds import Rounds, SimulatedNode
from espalier_lab.simulator.spares import fill
from espalier_operator.policies.settings import configured
from espalier_operator.policies.value import AGAIN_SECONDS, ValuePolicy
from espalier_operator.policies.view import Candidate, Decision, Share, View
from speed_curves import Amdahl

CURVE = GrowthCurve(model="m", moments=(0.2, 0.6), gains=((0.0, 0.1, 0.3), (0.0, 0.05, 0.1)), waits=(0.1, 0.2))


def running(key: str, most: int = 2, priority: int = 0, submitted_at: float = 0.0) -> Candidate:
    return Candidate(key=key, submitted_at=submitted_at, min_workers=1, max_workers=most, workers=1, priority=priority)


NOTHING = Bid(use=BidUse.NOTHING, workers=1, gain=0, low=0, high=0, seconds=0)


def growing(gain: float, seconds: float = 100.0) -> tuple[Bid, ...]:
    return Bid(use=BidUse.GROWTH, workers=2, gain=gain, low=gain, high=gain, seconds=seconds), NOTHING


def working(*gains: float) -> tuple[Bid, ...]:
    """Return bids for a second worker, a third, ..., each for 100 s."""
    workers = (
        Bid(use=BidUse.WORKER, workers=place, gain=gain, low=0, high=gain, seconds=100)
        for place, gain in enumerate(gains, 2)
    )
    return *workers, NOTHING


def decided(
    jobs: list[Candidate], bids: Mapping[str, tuple[Bid, ...]], gpus: int, policy: ValuePolicy | None = None
) -> Decision:
    return (policy or ValuePolicy()).decide(View(now=50.0, gpus=gpus, jobs=tuple(jobs), bids=bids))


def lent(decision: Decision) -> list[str]:
    """Return who is to have an extra worker for certain, in order."""
    return [share.job for share in decision.shares if share.workers > 1]


def share_of(decision: Decision, job: str) -> Share:
    return next(share for share in decision.shares if share.job == job)


def test_the_gpu_goes_where_a_second_of_it_gains_most() -> None:
    jobs = [running("old"), running("slow", submitted_at=1.0), running("quick", submitted_at=2.0)]
    bids = {"old": growing(0.01), "slow": growing(0.04, 400.0), "quick": growing(0.03)}
    decision = decided(jobs, bids, gpus=4)
    assert lent(decision) == ["quick"]
    assert decision.until == 50.0 + AGAIN_SECONDS, "the others wait, and what they gain falls with time"
    assert share_of(decision, "old").spare == 1, "while nobody better asks for it"
    assert lent(decided(jobs, bids, gpus=5)) == ["quick", "old"]
    assert lent(decided(jobs, bids, gpus=4, policy=ValuePolicy(predicts=False))) == ["old"]


def test_a_loan_is_not_broken_off_for_little() -> None:
    holder, other = replace(running("holder"), workers=2), running("other", submitted_at=1.0)
    assert lent(decided([holder, other], {"holder": growing(0.1), "other": growing(0.12)}, gpus=3)) == ["holder"]
    assert lent(decided([holder, other], {"holder": growing(0.1), "other": growing(0.13)}, gpus=3)) == ["other"]


def test_two_decisions_count_where_they_gain_more_by_the_second_than_the_first_alone() -> None:
    job = GrowingJob("g", 0.0, 1, 1000.0, replace(CURVE, lacks=0.5))
    best, _ = job.bids
    assert (best.gain, best.seconds) == (pytest.approx(0.6), pytest.approx(200.0)), "0.3 of the 0.5 that it lacks"


def test_workers_are_lent_by_their_worth_one_by_one() -> None:
    jobs = [running("a", most=4), running("b", most=4), running("c")]
    bids = {"a": working(0.3, 0.2, 0.1), "b": working(0.25, 0.05), "c": growing(0.15)}
    for gpus, extra in ((4, (1, 0, 0)), (5, (1, 1, 0)), (6, (2, 1, 0)), (7, (2, 1, 1)), (9, (3, 2, 1))):
        decision = decided(jobs, bids, gpus)
        assert tuple(share_of(decision, key).workers - 1 for key in "abc") == extra
    assert share_of(decision, "b").spare == 0, "its fourth worker is worth nothing"


def test_the_best_use_of_a_gpu_counts() -> None:
    both = (*working(0.1)[:1], *growing(0.3))
    assert lent(decided([running("a"), running("b")], {"a": both, "b": working(0.2)}, gpus=3)) == ["a"]
    assert lent(decided([running("a"), running("b")], {"a": both, "b": working(0.4)}, gpus=3)) == ["b"]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 3), st.lists(st.floats(-0.1, 0.5), max_size=3), st.floats(-0.1, 1)),
        max_size=8,
    ),
    st.integers(0, 20),
)
def test_a_decision_that_is_carried_out_stays(drawn: list[tuple[int, int, list[float], float]], gpus: int) -> None:
    jobs = [
        Candidate(
            key=str(place), submitted_at=place, min_workers=1, max_workers=4, gpus_per_worker=size, workers=1 + has
        )
        for place, (size, has, _, _) in enumerate(drawn)
    ]
    bids = {str(place): (*working(*gains)[:-1], *growing(gain)) for place, (_, _, gains, gain) in enumerate(drawn)}
    first = decided(jobs, bids, gpus)
    again = decided([replace(job, workers=share_of(first, job.key).workers) for job in jobs], bids, gpus)
    assert {share.job: share.workers for share in again.shares} == {share.job: share.workers for share in first.shares}


def test_its_old_name_warns() -> None:
    with pytest.warns(FutureWarning, match="`growth` is `value` now"):
        assert configured("growth:predicts=false,untold=0.1") == ValuePolicy(predicts=False)


def test_who_gains_nothing_hands_its_gpu_back_though_nobody_needs_it() -> None:
    for nothing in ((NOTHING,), growing(0.0), growing(-0.02), working(0.0)):
        grown = share_of(decided([running("a")], {"a": nothing}, gpus=9), "a")
        assert (grown.workers, grown.spare) == (1, 0)


def test_a_job_of_which_nothing_is_known_gets_what_is_left() -> None:
    jobs = [running("unknown", most=4), running("known", submitted_at=1.0)]
    for gpus in (3, 9):
        decision = decided(jobs, {"known": growing(0.1)}, gpus=gpus)
        assert lent(decision) == ["known"]
        assert share_of(decision, "unknown").spare == 1, "it may grow, whatever its agent forecasts"
    assert lent(decided(jobs, {"known": growing(0.1)}, gpus=3, policy=ValuePolicy(predicts=False))) == ["unknown"]


def test_a_job_that_has_not_bid_for_workers_yet_gets_as_many_as_make_it_faster() -> None:
    """Yolov3 with a batch of 16 (Pollux) trains 1.82, 1.24 and 1.42 times as fast with two, three and four workers."""

    class Measured(Amdahl):
        def step_seconds(self, workers: int) -> float:
            return 1 / (1.0, 1.82, 1.24, 1.42)[workers - 1]

    speed_models = {"a": Measured(100, 0, 1), "b": Amdahl(100, serial=0.99, shared=0.01)}
    jobs = (running("a", most=4), running("b", most=4))
    decision = ValuePolicy().decide(
        View(now=50.0, gpus=8, jobs=jobs, bids={"b": (NOTHING,)}, speed_models=speed_models)
    )
    assert share_of(decision, "a").workers + share_of(decision, "a").spare == 2
    assert (share_of(decision, "b").workers, share_of(decision, "b").spare) == (1, 0)


def test_priority_multiplies_what_a_job_gains() -> None:
    jobs = [running("a"), running("b", priority=3)]
    assert lent(decided(jobs, {"a": growing(0.03), "b": growing(0.01)}, gpus=3)) == ["b"]


def test_jobs_that_wait_come_before_loans() -> None:
    waiting = Candidate(key="waits", submitted_at=9.0, min_workers=1, max_workers=1)
    assert lent(decided([running("a"), waiting], {"a": growing(0.1)}, gpus=2)) == []


def test_jobs_that_wait_and_fit_come_before_loans_though_others_do_not_fit() -> None:
    large, small = (
        Candidate(key=key, submitted_at=9.0, min_workers=size, max_workers=size)
        for key, size in (("large", 9), ("small", 2))
    )
    jobs, known = [running("a", most=2), large, small], {"a": growing(0.1)}
    for continuous in (False, True):
        view = View(now=50.0, gpus=3, jobs=tuple(jobs), bids=known, continuous=continuous)
        assert share_of(ValuePolicy().decide(view), "a").workers == 1
        assert share_of(ValuePolicy().decide(replace(view, gpus=4)), "a").workers == 2


def test_by_rounds_a_job_starts_as_early_as_under_fair() -> None:
    """A job that does not fit waits, too; a loan took the GPU of the one that fits."""
    starts = []
    for policy in ("fair", "value"):
        grows = GrowingJob("a", 0.0, 5, 6000.0, CURVE)
        large, small = FixedJob("large", 60.0, 8, 600.0), FixedJob("b", 120.0, 3, 600.0)
        Rounds((grows, large, small), (SimulatedNode("n", 8),), configured(policy)).run()
        starts.append([small.held[0].start, grows.completed_at, large.completed_at])
    assert starts[0][0] == 120.0
    assert starts[1] == starts[0]


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans(), st.integers(-1, 1)), max_size=8))
def test_by_rounds_base_gpus_go_as_under_fair(drawn: list[tuple[int, bool, bool, int]]) -> None:
    """Size, whether it runs, whether it may grow, priority."""
    free, jobs = 12, []
    for place, (size, runs, grows, priority) in enumerate(drawn):
        runs = runs and size <= free
        free -= size if runs else 0
        key, workers = str(place), size if runs else 0
        most = size + grows
        jobs.append(
            Candidate(
                key=key, submitted_at=place, min_workers=size, max_workers=most, workers=workers, priority=priority
            )
        )
    base = {job.key: job.min_workers for job in jobs}
    view = View(now=50.0, gpus=12, jobs=tuple(jobs))
    served = [
        {key for key, count in fill(configured(policy).decide(view).shares, base, 12).items() if count}
        for policy in ("fair", "value")
    ]
    assert served[0] == served[1]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 3), st.floats(-0.1, 0.5), st.floats(0, 1000), st.integers(-2, 2)),
        max_size=12,
    ),
    st.integers(0, 20),
)
def test_no_more_is_lent_than_is_free_and_nobody_who_gains_more_waits(
    drawn: list[tuple[int, int, float, float, int]], gpus: int
) -> None:
    jobs = [
        Candidate(
            key=str(place),
            submitted_at=place,
            min_workers=1,
            max_workers=1 + most,
            gpus_per_worker=size,
            workers=1,
            priority=priority,
        )
        for place, (most, size, _, _, priority) in enumerate(drawn)
    ]
    bids = {str(place): growing(gain, seconds) for place, (_, _, gain, seconds, _) in enumerate(drawn)}
    decision = decided(jobs, bids, gpus)
    chosen = {share.job for share in decision.shares if share.workers > 1}
    known = {job.key: job for job in jobs}
    assert {share.job for share in decision.shares} == set(known)
    free = gpus - sum(job.gpus_per_worker for job in jobs)
    assert sum(known[key].gpus_per_worker for key in chosen) <= max(0, free)
    assert all(bids[key][0].rate > 0 and known[key].max_workers > 1 for key in chosen)
    alike = {key for key, job in known.items() if (job.gpus_per_worker, job.priority) == (1, 0) and job.max_workers > 1}
    worst = min((bids[key][0].rate for key in chosen & alike), default=None)
    assert worst is None or all(bids[key][0].rate <= worst for key in alike - chosen)


def simulated(policy: str, *jobs: SimulatedJob, gpus: int) -> None:
    Planned(jobs, (SimulatedNode("n", gpus),), configured(policy), LATENCIES["realistic"]).run()


def test_through_the_planner_the_gpu_goes_to_who_gains_and_comes_back_for_the_next() -> None:
    def jobs() -> tuple[GrowingJob, GrowingJob, GrowingJob]:
        return (
            GrowingJob("barren", 0.0, 1, 3000.0, CURVE.fruitless),
            GrowingJob("first", 0.0, 1, 3000.0, CURVE),
            GrowingJob("second", 60.0, 1, 6000.0, CURVE),
        )

    held = jobs()
    simulated("fair", *held, gpus=4)
    barren, first, second = jobs()
    simulated("value", barren, first, second, gpus=4)
    assert (barren.lent_seconds, barren.decisions) == (0.0, 0)
    assert first.accuracy_gained == pytest.approx(0.3)
    assert second.accuracy_gained > 0.2
    assert sum(job.accuracy_gained for job in held) < 0.4
    assert first.lent_seconds < 800, "two decisions take a fifth of its budget"
    assert first.preemptions <= 1


def test_a_job_that_waits_gets_the_lent_gpu() -> None:
    grows, other = GrowingJob("g", 0.0, 1, 3000.0, CURVE), FixedJob("o", 120.0, 1, 600.0)
    simulated("value", grows, other, gpus=2)
    assert other.completed_at is not None
    assert other.completed_at < 120 + 600 + 180
    assert grows.accuracy_gained > 0
