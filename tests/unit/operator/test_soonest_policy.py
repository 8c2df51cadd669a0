"""Policies by what is left: which job would be done soonest, and what is known of the rest of its work."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_lab.scheduling.allocation.workloads import StepByStep
from espalier_operator.policies.settings import configured
from espalier_operator.policies.view import Candidate, Decision, View
from speed_curves import Amdahl


def job(key: str, *, base: int = 1, most: int = 4, gpus: int = 1, at: float = 0.0, **facts: float) -> Candidate:
    return Candidate(
        key=key,
        submitted_at=at,
        min_workers=base,
        max_workers=most,
        gpus_per_worker=gpus,
        **facts,
    )


def decide(gpus: int, *jobs: Candidate, **speed_models: Amdahl) -> Decision:
    return configured("soonest").decide(View(now=100.0, gpus=gpus, jobs=jobs, speed_models=speed_models))


def workers(decision: Decision) -> dict[str, int]:
    return {share.job: share.workers for share in decision.shares}


LONG, SHORT = Amdahl(1e5, 0.01, 1.0), Amdahl(1e2, 0.01, 1.0)


def test_a_job_that_ends_soon_gets_more_than_one_that_does_not() -> None:
    assert workers(decide(5, job("long"), job("short", at=1.0), long=LONG, short=SHORT)) == {"short": 4, "long": 1}
    assert workers(decide(1, job("long"), job("short", at=1.0), long=LONG, short=SHORT)) == {"short": 1, "long": 0}


def test_of_equal_jobs_that_which_scales_better_gets_more() -> None:
    scales, stops = Amdahl(1000.0, 0.0, 1.0), Amdahl(1000.0, 0.9, 0.1)
    assert workers(decide(5, job("scales"), job("stops"), scales=scales, stops=stops)) == {"scales": 4, "stops": 1}


def test_a_job_of_which_nothing_is_known_gets_its_base_workers_and_spare_ones() -> None:
    (share,) = decide(8, job("new", base=2, most=6)).shares
    assert (share.workers, share.spare) == (2, 4)
    both = {share.job: share for share in decide(8, job("new"), job("short"), short=SHORT).shares}
    assert (both["new"].workers, both["new"].spare, both["short"].workers, both["short"].spare) == (1, 3, 4, 0)


def test_a_program_that_says_that_it_ends_soon_starts_first() -> None:
    old, soon = job("old", done=0.1, service=1000.0), job("soon", at=9.0, done=0.9, service=1000.0)
    assert workers(decide(1, old, soon)) == {"soon": 1, "old": 0}


Drawn = tuple[int, int, int, float, float, float]
"""Base workers, further ones, GPUs of each; the parts of a step, and steps that are left."""
SHARED, SERIAL, STEPS = st.floats(0.01, 10), st.floats(0.001, 1), st.floats(1, 1e5)
JOBS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(1, 2), SHARED, SERIAL, STEPS), max_size=6)


@given(st.integers(1, 24), JOBS)
def test_no_more_than_all_gpus_are_shared_out_and_no_job_gets_less_than_it_needs(
    gpus: int, drawn: Iterable[Drawn]
) -> None:
    view = _view(gpus, drawn)
    given_out = workers(configured("soonest").decide(view))
    assert sorted(given_out) == sorted(job.key for job in view.jobs)
    assert sum(given_out[job.key] * job.gpus_per_worker for job in view.jobs) <= gpus
    for each in view.jobs:
        assert given_out[each.key] == 0 or each.min_workers <= given_out[each.key] <= each.max_workers


def test_it_is_the_rule_that_learned_allocation_imitates() -> None:
    """But for ties up to rounding, which random numbers do not have."""
    draw = random.Random(0)
    for _ in range(100):
        drawn = [
            (draw.randint(1, 3), draw.randint(0, 5), draw.randint(1, 2), *map(draw.uniform, (0, 0, 1), (10, 1, 1e4)))
            for _ in range(draw.randint(0, 6))
        ]
        view = _view(draw.randint(1, 24), drawn)
        assert workers(configured("soonest").decide(view)) == workers(StepByStep("soonest").decide(view))


def _view(gpus: int, drawn: Iterable[Drawn]) -> View:
    jobs, speed_models = [], {}
    for index, (base, more, each, shared, serial, steps) in enumerate(drawn):
        key = f"job{index}"
        jobs.append(job(key, base=base, most=base + more, gpus=each, at=float(index)))
        speed_models[key] = Amdahl(steps, serial, shared)
    return View(now=100.0, gpus=gpus, jobs=tuple(jobs), speed_models=speed_models)


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
