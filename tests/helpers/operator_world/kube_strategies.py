"""Hypothesis strategies for what the Kubernetes backend remembers and decides."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from espalier_api.allocation import Direction
from espalier_api.reasons import Reason
from espalier_operator.actions import (
    Action,
    Admit,
    Fail,
    Finish,
    GrantExtra,
    NoticeReclaim,
    ReleaseExtra,
    Requeue,
    Stop,
)
from espalier_operator.facts import Ended, Reclaim, Stopping
from espalier_operator.job.state import Grant, JobState
from operator_world.kube_objects import EPOCH

TIMES = st.sampled_from([0.0, EPOCH, EPOCH + 0.000001, EPOCH + 0.333333, EPOCH + 7, EPOCH + 1e6])
"""Epoch seconds to the microsecond, as a status keeps them; few, as states have many."""
FIGURES = st.sampled_from([0.0, 1e-9, 1 / 3, 40.0, 1e12])
COUNTS = st.sampled_from([0, 1, 2, 5])
REASONS = st.sampled_from(Reason)
TEXTS = st.text(max_size=20)


def states() -> st.SearchStrategy[JobState]:
    """Records as any life of a job, and none, may leave them."""
    return st.builds(_with_uids, _plain_states(), st.lists(st.text("abc-", max_size=6), max_size=4))


def actions(job: str = "ns/one") -> st.SearchStrategy[Action]:
    """Any decision about one job."""
    key = st.just(job)
    return st.one_of(
        st.builds(Admit, job=key, gpu_type=st.sampled_from(("", "a"))),
        st.builds(GrantExtra, job=key, extra=COUNTS),
        st.builds(NoticeReclaim, job=key, extra=COUNTS, deadline=TIMES, reason=REASONS),
        st.builds(ReleaseExtra, job=key, extra=COUNTS, forced=st.booleans(), reason=REASONS),
        st.builds(Stop, job=key, deadline=TIMES, reason=REASONS),
        st.builds(Requeue, job=key, reason=REASONS),
        st.builds(Finish, job=key, reason=REASONS, message=TEXTS),
        st.builds(Fail, job=key, reason=REASONS, message=TEXTS),
    )


def _plain_states() -> st.SearchStrategy[JobState]:
    maybe_time = st.none() | TIMES
    return st.builds(
        JobState,
        grant=st.builds(
            Grant,
            generation=COUNTS,
            replicas=COUNTS,
            gpus=COUNTS,
            direction=st.sampled_from(Direction),
            reason=REASONS.map(str) | st.just(""),
            deadline=st.none() | TIMES,
        ),
        admitted_at=maybe_time,
        gpu_type=st.sampled_from((None, "", "a")),
        extra=COUNTS,
        extra_generation=COUNTS,
        reclaim=st.none() | st.builds(Reclaim, extra=COUNTS, deadline=TIMES, reason=REASONS),
        granted_at=maybe_time,
        changed_at=maybe_time,
        promised_until=maybe_time,
        stopping=st.none() | st.builds(Stopping, reason=REASONS, deadline=TIMES),
        used_seconds=FIGURES,
        gpu_seconds_used=FIGURES,
        counted_until=maybe_time,
        trained=st.booleans(),
        failures=COUNTS,
        unplaced=COUNTS,
        hold_until=maybe_time,
        last_failure=TEXTS,
        restarts=COUNTS,
        preemptions=COUNTS,
        attempts=st.lists(COUNTS, max_size=4).map(tuple),
        not_before=maybe_time,
        outcome=st.none() | st.builds(Ended, reason=REASONS, failed=st.booleans(), message=TEXTS.filter(bool)),
        ended=st.none() | st.builds(Ended, reason=REASONS, failed=st.booleans(), message=TEXTS),
    )


def _with_uids(state: JobState, uids: list[str]) -> JobState:
    padded = [*uids, *[""] * len(state.attempts)]
    return replace(state, incarnations=tuple(padded[: len(state.attempts)]))
