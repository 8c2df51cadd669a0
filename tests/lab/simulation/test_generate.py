"""Jobs drawn at random: by a seed, as many as asked for, with the load that was asked for; intervals over seeds."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier_lab.intervals import Interval
from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.gavel import Throughputs
from espalier_lab.simulator.generate import GENERATORS, Diurnal, Poisson, generate, generate_typed
from espalier_operator.policies.settings import takes_seed
from small_simulations import figures, refusal, simulated


@given(st.sampled_from(sorted(GENERATORS)), st.integers(0, 99), st.integers(2, 60), st.sampled_from([1, 3, 64]))
@settings(max_examples=40, deadline=None)
def test_a_seed_always_gives_the_same_jobs_that_fit(name: str, seed: int, count: int, gpus: int) -> None:
    first, again = (GENERATORS[name](jobs=count).draw(seed, gpus, gpus) for _ in range(2))
    assert first == again
    assert first != GENERATORS[name](jobs=count).draw(seed + 1, gpus, gpus)
    moments = [job.submitted_at for job in first]
    assert moments == sorted(moments)
    assert moments[0] == 0
    assert all(1 <= job.gpus <= gpus and 0 < job.duration <= 86_400 for job in first)


def test_the_load_is_that_which_was_asked_for() -> None:
    for seed in range(3):
        jobs = Poisson(jobs=5000, load=0.7, sigma=1.0).draw(seed, 64, 64)
        work = sum(job.gpus * job.duration for job in jobs)
        assert work / (64 * jobs[-1].submitted_at) == pytest.approx(0.7, rel=0.05)


@pytest.mark.parametrize("count", [2, 5, 20])
def test_the_load_of_few_jobs_is_higher_by_one_interval(count: int) -> None:
    parts = []
    for seed in range(2000):
        jobs = Poisson(jobs=count, load=0.7).draw(seed, 64, 64)
        implied = sum(job.gpus * job.duration for job in jobs) / (64 * 0.7)
        parts.append(jobs[-1].submitted_at / implied)
    assert statistics.fmean(parts) == pytest.approx((count - 1) / count, rel=0.05)


@pytest.mark.parametrize("durations", ["lognormal", "pareto"])
def test_durations_have_their_median(durations: str) -> None:
    jobs = Poisson(jobs=5000, durations=durations).draw(0, 64, 64)  # type: ignore[arg-type]
    assert statistics.median(job.duration for job in jobs) == pytest.approx(1144, rel=0.1)


def test_sizes_are_those_of_philly_or_as_chosen() -> None:
    philly = Poisson(jobs=5000).draw(0, 64, 64)
    assert sum(job.gpus == 1 for job in philly) / 5000 == pytest.approx(76_627 / 82_224, abs=0.01)
    chosen = Poisson(jobs=3000, sizes=(2, 8)).draw(0, 64, 64)
    assert sum(job.gpus == 2 for job in chosen) / 3000 == pytest.approx(0.5, abs=0.05)
    assert {job.gpus for job in chosen} == {2, 8}


def test_by_day_more_jobs_come_than_by_night() -> None:
    jobs = Diurnal(jobs=4000, amplitude=1.0, sigma=0.5).draw(1, 8, 8)
    assert jobs[-1].submitted_at > 3 * 86_400
    whole = [job.submitted_at for job in jobs if job.submitted_at < jobs[-1].submitted_at // 86_400 * 86_400]
    by_day = sum(moment % 86_400 < 43_200 for moment in whole) / len(whole)
    assert by_day == pytest.approx(0.5 + 1 / math.pi, abs=0.03)  # the mean of 1 + sin over half a period


def test_jobs_on_types_of_gpu_are_kinds_that_were_measured(gavel: Path) -> None:
    throughputs = Throughputs(gavel)
    jobs = generate_typed("generate:poisson:jobs=60,sizes=1/4", 3, {"v100": 8, "p100": 16, "k80": 24}, throughputs)
    assert {job.gpus for job in jobs} == {1, 4}
    assert all(throughputs.steps_per_second("v100", job.kind) > 0 for job in jobs)
    with pytest.raises(TraceError, match=r"sizes: 3 GPUs were not measured"):
        generate_typed("generate:poisson:sizes=3", 0, {"v100": 8}, throughputs)


def test_only_measured_sizes_are_drawn_of_those_of_philly(tmp_path: Path) -> None:
    """With others between the smallest and the largest, there is no kind of job for them."""

    def sizes(*measured: int) -> set[int]:
        speeds = {f"('a', {size})": {"null": 1.0} for size in measured}
        (tmp_path / "simulation_throughputs.json").write_text(json.dumps({"v100": speeds}))
        jobs = generate_typed("generate:poisson:jobs=400", 0, {"v100": 8}, Throughputs(tmp_path))
        return {job.gpus for job in jobs}

    assert sizes(1, 4) == {1, 4}
    assert sizes(2, 3, 8, 16) == {2, 8}
    with pytest.raises(TraceError, match=r"sizes: jobs of 1/2/4/8/16/32 GPUs were not measured.*name some of 3/5"):
        sizes(3, 5)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("generate:pareto", "'pareto' is not a generator; known: poisson, diurnal"),
        ("generate:poisson:jobs=0", "jobs: 0 is not between 1 and 1,000,000"),
        ("generate:poisson:load=0", "load: 0 is not above 0"),
        ("generate:poisson:load=nan", "load: nan is not above 0"),
        ("generate:poisson:durations=uniform", "durations: 'uniform': Input should be 'lognormal' or 'pareto'"),
        ("generate:poisson:amplitude=1", "amplitude: unknown setting of generator poisson; it takes jobs, load"),
        ("generate:diurnal:amplitude=2", "amplitude: 2 is not between 0 and 1"),
        ("generate:poisson:median=1e-320", "median: 9.99989e-321 is not between 0.001 and 1e+09 seconds"),
        ("generate:poisson:longest=1e300,median=1e200", "median: 1e+200 is not between 0.001 and 1e+09 seconds"),
        ("generate:poisson:longest=inf", "longest: inf is not between 0.001 and 1e+09 seconds"),
        ("generate:poisson:durations=pareto,alpha=0.001", "alpha: 0.001 is not at least 0.1"),
        ("generate:poisson:load=1e-12", "load: 1e-12: the last job comes after "),
        ("generate:diurnal:load=1e-300", "load: 1e-300: the last job comes after "),
        ("generate:diurnal:period=1e-307", "period: 1e-307 is not between 0.001 and 1e+09 seconds"),
        ("generate:poisson:sizes=1/0", "sizes: 1/0: each must be 1 GPU or more"),
        ("generate:poisson:sizes=16", "sizes: 16 GPUs do not fit; a job may have 8"),
    ],
)
def test_bad_settings_are_named(text: str, complaint: str) -> None:
    with pytest.raises(TraceError) as error:
        generate(text, 0, 8)
    assert complaint in str(error.value)
    assert text in str(error.value)
    refusal(text, "--cluster", "2x4")


def test_durations_of_the_heaviest_tail_are_numbers() -> None:
    jobs = Poisson(jobs=5000, durations="pareto", alpha=0.1, longest=1e9, load=1e3).draw(0, 64, 64)
    assert all(0 < job.duration <= 1e9 for job in jobs)


def test_what_is_named_twice_is_no_further_sample() -> None:
    trace = "generate:poisson:jobs=3"
    found = figures(trace, trace, "--cluster", "2x4", "--policy", "fifo", "--policy", "fifo", "--seeds", 2)
    assert [mean["seeds"] for mean in found["means"]] == [2]


def test_the_interval_of_a_mean_is_student_s() -> None:
    found = Interval.of([1.0, 2.0, 3.0, 4.0])
    half = 3.182446 * statistics.stdev([1, 2, 3, 4]) / 2  # t of 3 degrees of freedom at 97.5 %
    assert found == pytest.approx((2.5, 2.5 - half, 2.5 + half))
    assert Interval.of([7.0]) == (7.0, None, None)


def test_seeds_have_runs_means_and_paired_differences() -> None:
    trace = "generate:poisson:jobs=30,load=2,sigma=1"
    arguments = (trace, "--cluster", "2x4", "--policy", "fifo", "--policy", "las", "--seeds", 3)
    found = figures(*arguments)
    jcts: dict[str, list[float]] = {"fifo": [], "las": []}
    for run in found["runs"]:
        assert run["trace"] == trace
        assert run["seed"] == len(jcts[run["policy"]])
        jcts[run["policy"]].append(run["averageJctSeconds"])
    assert len(set(jcts["fifo"])) == 3
    for mean in found["means"]:
        assert mean["averageJctSeconds"]["mean"] == pytest.approx(statistics.fmean(jcts[mean["policy"]]))
    (difference,) = found["differences"]
    assert (difference["policy"], difference["minus"]) == ("las", "fifo")
    pairs = list(zip(jcts["las"], jcts["fifo"], strict=True))
    assert difference["averageJctSeconds"]["mean"] == pytest.approx(statistics.fmean(a - b for a, b in pairs))
    assert difference["lowerJctSeeds"] == sum(a < b for a, b in pairs)
    table = simulated(*arguments)
    assert "±" in table.stdout
    assert f"{difference['lowerJctSeeds']} of 3" in table.stdout


def test_seeds_are_those_of_policies_too_where_they_draw(gavel: Path, tmp_path: Path) -> None:
    trace = gavel / "max_min_fairness.trace"
    options = ["--format", "gavel", "--cluster", "8:16:24"]
    found = figures(trace, *options, "--policy", "gandiva", "--policy", "goodput", "--seeds", 2)
    jcts = {
        policy: {run.get("seed"): run["averageJctSeconds"] for run in found["runs"] if run["policy"] == policy}
        for policy in ("gandiva", "goodput")
    }
    assert {policy: [*seeds] for policy, seeds in jcts.items()} == {"gandiva": [0, 1], "goodput": [None]}
    assert len(set(jcts["gandiva"].values())) == 2
    (difference,) = found["differences"]
    expected = [jcts["goodput"][None] - jct for jct in jcts["gandiva"].values()]
    assert difference["averageJctSeconds"]["mean"] == pytest.approx(statistics.fmean(expected))
    assert difference["averageJctSeconds"]["high"] is not None
    plain = tmp_path / "t.csv"
    plain.write_text("timestamp,duration,num_gpus\n0,60,1\n")
    assert "--seeds 2: nothing is drawn at random" in refusal(
        plain, "--cluster", "1x1", "--policy", "fifo", "--seeds", 2
    )


def test_what_is_not_drawn_is_simulated_once(tmp_path: Path) -> None:
    """Repeated, it would look like a sample that does not vary."""
    fixed, drawn = tmp_path / "t.csv", "generate:poisson:jobs=5,sigma=1"
    fixed.write_text("timestamp,duration,num_gpus\n0,60,1\n")
    arguments = (fixed, drawn, "--cluster", "1x1", "--policy", "fifo", "--policy", "las", "--seeds", 3)
    found = figures(*arguments)
    assert [(mean["trace"], mean["seeds"]) for mean in found["means"]] == [
        *((str(fixed), 1) for _ in range(2)),
        *((drawn, 3) for _ in range(2)),
    ]
    assert [run.get("seed") for run in found["runs"]] == [None, None, 0, 1, 2, 0, 1, 2]
    assert found["differences"][0]["averageJctSeconds"] == {"mean": 0.0, "low": None, "high": None}
    assert simulated(*arguments).exit_code == 0


@pytest.mark.parametrize(
    ("policy", "typed", "continuous", "expected"),
    [
        ("fifo", True, False, True),
        ("fifo", True, True, False),
        ("fifo", False, False, False),
        ("fifo:seed=3", True, False, False),
        ("gandiva", True, False, True),
        ("gandiva", True, True, False),
        ("gavel", True, False, False),
        ("gavel:heterogeneity=false", True, False, True),
        ("gavel:heterogeneity=false", True, True, True),
        ("gavel:heterogeneity=false", False, False, False),
        ("las", True, False, False),
    ],
)
def test_a_policy_takes_a_seed_where_it_draws(policy: str, typed: bool, continuous: bool, expected: bool) -> None:
    assert takes_seed(policy, typed=typed, continuous=continuous) is expected


@pytest.mark.parametrize("options", [("gavel",), ("fifo", "--driver", "plan")])
def test_seeds_of_policies_that_draw_nothing_are_refused(options: tuple[str, ...], gavel: Path) -> None:
    trace = gavel / "max_min_fairness.trace"
    assert "--seeds 2: nothing is drawn at random" in refusal(
        trace, "--format", "gavel", "--cluster", "8:16:24", "--seeds", 2, "--policy", *options
    )
