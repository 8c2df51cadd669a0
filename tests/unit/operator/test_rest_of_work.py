"""What policies make of the part of its work that a program says it has done."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Candidate, Decision, View


def program(key: str, done: float | None, *, service: float = 1000.0, at: float = 0.0, gpus: int = 1) -> Candidate:
    return Candidate(
        key=key, submitted_at=at, min_workers=gpus, max_workers=gpus, service=service, done=done, workers=gpus
    )


class Alike:
    """One step a second on each type."""

    def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
        return 1.0


def asked(policy: str, *jobs: Candidate, gpus: int = 1, typed: bool = False) -> Decision:
    types = {"a": gpus, "b": gpus} if typed else {}
    view = View(now=5000.0, gpus=gpus, jobs=jobs, gpu_types=types, speeds=Alike() if typed else None, continuous=True)
    return configured(policy).decide(view)


def served(decision: Decision) -> list[str]:
    return [share.job for share in decision.shares if share.workers]


@given(st.floats(0.001, 1), st.floats(1, 1e6))
def test_the_rest_is_what_the_same_pace_leaves(done: float, service: float) -> None:
    rest = program("a", done, service=service).rest
    assert rest is not None
    assert math.isclose(rest + service, service / done)


@pytest.mark.parametrize(("done", "service"), [(None, 1000.0), (0.0, 1000.0), (0.5, 0.0), (1e-320, 9.0), (1e-300, 9.0)])
def test_who_has_not_begun_or_does_not_say_has_no_known_rest(done: float | None, service: float) -> None:
    assert program("a", done, service=service).rest is None


def test_gittins_serves_who_ends_soonest_and_needs_no_samples_for_it() -> None:
    jobs = [program("half", 0.5, service=90_000.0), program("soon", 0.9, service=90_000.0), program("new", None)]
    decision = asked("gittins", *jobs)
    assert [share.job for share in decision.shares] == ["soon", "half", "new"]
    assert decision.follows_progress
    assert not asked("gittins", program("new", None)).follows_progress


def test_optimus_starts_those_that_end_soon_before_older_ones_of_their_size() -> None:
    old, soon, slow = program("old", None), program("soon", 0.9, at=1.0), program("slow", 0.1, at=2.0)
    assert served(asked("optimus", old, slow, soon)) == ["soon"]
    assert served(asked("optimus", old, slow)) == ["old"], "one that says that it takes long gains nothing by it"
    small = program("small", None, at=9.0)
    assert served(asked("optimus", program("wide", 0.99, gpus=2), small, gpus=2)) == ["small"], "size comes first"


def test_goodput_by_type_counts_the_rest_of_a_job_where_that_is_less_than_it_has_run() -> None:
    old, soon = program("a", None, service=5000.0), program("b", 0.99, service=5000.0)
    assert served(asked("goodput", old, replace(old, key="c"), soon, typed=True))[0] == "b"
    late = program("b", 0.01, service=5000.0)
    assert served(asked("goodput", old, late, typed=True)) == ["a", "b"], "it is no worse for a job to say it"


def test_the_shortest_makespan_takes_the_rest_of_programs() -> None:
    """Both have had as much; the one with most left gets most of the fast GPU."""

    class Fast:
        def steps_per_second(self, job: str, gpu_type: str, beside: str | None = None) -> float:
            return 4.0 if gpu_type == "a" else 1.0

    jobs = (program("most", 0.1), program("least", 0.9))
    view = View(now=5000.0, gpus=2, jobs=jobs, gpu_types={"a": 1, "b": 1}, speeds=Fast(), continuous=True)
    decision = configured("gavel:objective=makespan").decide(view)
    assert {share.job: share.gpu_type for share in decision.shares} == {"most": "a", "least": "b"}
