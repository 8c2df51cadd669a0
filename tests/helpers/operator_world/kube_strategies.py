"""Hypothesis strategies for what the Kubernetes backend remembers and decides."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from espalier_core.types.allocation import Direction
from espalier_core.types.reasons import Reason
from espalier_operator.job.state import Grant, JobState
from espalier_operator.model import Ended, Reclaim, Stopping
from espalier_operator.model.actions import (
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
from operator_world.kube_objects import EPOCH

TIMES = st.sampled_from([0.0, EPOCH, EPOCH + 0.000001, EPOCH + 0.333333, EPOCH + 7, EPOCH + 1e6])
"""Epoch seconds to the microsecond, as a status keeps them; few, as states have many."""
FIGURES = st.sampled_from([0.0, 1e-9, 1 / 3, 40.0, 1e12])
COUNTS = st.sampled_from([0, 1, 2, 5])
REASONS = st.sampled_from(Reason)
TEXTS = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
STRANGE = st.sampled_from(
    (
        *("4k", "1e3", "-1", "0", "", "9" * 50, "Always", "Failed", "Running", "True"),
        *("2027-01-15T08:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2027-01-15T08:00:00+14:00"),
        *(-1, 0, 2**31, 2**53, 2**63, 2**70, 1e308, -1e308),
    )
)
"""Values that mean something somewhere, or nearly."""


@st.composite
def mutated(draw: st.DrawFn, whole: dict[str, Any]) -> dict[str, Any]:
    """`whole` with a few of its parts missing, null, of another kind, or doubled."""
    raw = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 4))):
        parent: Any = raw
        while True:
            keys = sorted(parent) if isinstance(parent, dict) else list(range(len(parent)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(parent[key], dict | list) and draw(st.integers(0, 3)):
                parent = parent[key]
                continue
            what = draw(st.sampled_from(("drop", "replace", "replace", "double")))
            if what == "drop":
                del parent[key]
            elif what == "double" and isinstance(parent, list):
                parent.append(copy.deepcopy(parent[key]))
            else:
                parent[key] = draw(JSON | STRANGE)
            break
    return raw


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
        extra_losses=COUNTS,
        lend_after=maybe_time,
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
