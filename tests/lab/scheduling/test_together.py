"""Numbers of workers and nodes that are free: jobs, configurations in arrays, the search, and the benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import together
from bench.command import main
from espalier_lab.scheduling.placement.beliefs import Prior
from espalier_lab.scheduling.placement.candidates import Nodes, candidates, emptiest
from espalier_lab.scheduling.placement.configurations import Configurations, Weighed, counts
from espalier_lab.scheduling.placement.elastic import MOST_WORKERS, ElasticCluster, ElasticJob, WantedWorkers
from espalier_lab.scheduling.placement.occupancy import Occupancy, PlacedJob
from espalier_lab.scheduling.placement.performance import Truth, step_time
from espalier_lab.scheduling.placement.placers import Oracle
from espalier_lab.scheduling.placement.sharing import ByModel, ByRule, Sharing, run_elastic
from espalier_lab.scheduling.placement.tasks import KINDS, Family, JobArrival, draw_task, episode
from espalier_lab.scheduling.seed_split import SeedSplit

FAMILY = Family(nodes=6, rack_nodes=3, jobs=12, load=1.0)


def test_more_workers_are_worth_less_each_and_the_authors_number_is_worth_one() -> None:
    for requested in (1, 2, 4, 8):
        job = ElasticJob(JobArrival("a", 0.0, 3, requested, 100.0), 4)
        worth = np.array([job.worth(workers) for workers in range(1, MOST_WORKERS + 1)])
        assert job.worth(requested) == pytest.approx(1.0)
        assert (np.diff(worth) > 0).all()
        assert (np.diff(worth, 2) < 0).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_configurations_take_as_long_as_one_job_after_the_other_by_the_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    occupancy, truth = Occupancy(6, 4, 3), Truth(draw_task(FAMILY, rng))
    jobs = []
    for number in range(6):
        choices = candidates(occupancy, int(rng.integers(1, 8)))
        if choices:
            kind, nodes = int(rng.integers(KINDS)), choices[int(rng.integers(len(choices)))]
            occupancy.add(f"j{number}", PlacedJob(kind, nodes))
            jobs.append(Weighed(ElasticJob(JobArrival(f"j{number}", 0.0, kind, 2, 10.0), 4), 1.0, nodes))
    found = Configurations(truth, occupancy, jobs)
    seconds = [step_time(truth, occupancy, each.job.name, occupancy.jobs[each.job.name]).total for each in jobs]
    now = np.array([counts(each.held, 6) for each in jobs])
    np.testing.assert_allclose(found.step_seconds(np.array([now, 0 * now]))[0], seconds)
    left = [10 / each.job.worth(sum(row)) * one for each, row, one in zip(jobs, now, seconds, strict=True)]
    assert found.losses(now[None])[0] == pytest.approx(np.log(left).sum())


class Watched(ByModel):
    """Checks each decision."""

    def places(self, cluster: ElasticCluster, wanted: WantedWorkers) -> Mapping[str, Nodes]:
        found = super().places(cluster, wanted)
        after = Occupancy(6, 4, 3, ((name, PlacedJob(0, nodes)) for name, nodes in found.items()))
        assert min(after.free) >= 0, "a node has fewer GPUs than it gives"
        assert list(found) == list(wanted.workers)
        numbers = {name: sum(gpus for _, gpus in nodes) for name, nodes in found.items()}
        assert all(1 <= number <= MOST_WORKERS for number in numbers.values())
        assert self._together or numbers == wanted.workers
        return found


@pytest.mark.parametrize(
    "sharing", [ByRule(emptiest), Watched(Oracle(), together=False), Watched(Oracle(), together=True)]
)
def test_episodes_are_played_to_their_ends_by_the_rules_numbers_or_others(sharing: Sharing) -> None:
    cluster = ElasticCluster(episode(FAMILY, SeedSplit.TRAIN, 2))
    assert run_elastic(cluster, sharing) == pytest.approx(cluster.job_seconds / FAMILY.jobs)
    assert all(job.completed_at is not None for job in cluster.jobs.values())


def test_the_benchmark_prints_a_table_for_each_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(together, "FAMILY", Family(jobs=4))
    main(["together", "--quick", "--train", "1", "--loads", "0.35", "1"])
    printed = capsys.readouterr().out
    for title in ("load 0.35, 2 episodes", "load 1, 2 episodes"):
        assert title in printed
    for name in ("consolidate", "first-fit", "emptiest", together.FIRST, together.TOGETHER, "oracle, together"):
        assert printed.count(name) >= 2


def test_a_run_that_was_stopped_goes_on_with_the_episodes_that_it_had_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(together, "FAMILY", Family(jobs=4))
    file = tmp_path / "episodes.jsonl"
    options = [*["together", "--train", "1", "--episodes", "2", "--loads", "1", "--work-dir"], str(tmp_path)]
    main(options)
    printed, lines = capsys.readouterr().out, file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:5]))
    played: list[tuple[str, int]] = []

    def play(name: str, prior: Prior, family: Family, index: int) -> together.Played:
        played.append((name, index))
        return original(name, prior, family, index)

    original = together.play
    monkeypatch.setattr(together, "play", play)
    main(options)
    # The first lines tell the machine with its load, the last one how long it took.
    assert capsys.readouterr().out.splitlines()[5:-1] == printed.splitlines()[5:-1]
    assert played == [(name, index) for name in together.WAYS for index in range(2)][5:]
    assert file.read_text() == "".join(lines)


def test_the_benchmark_times_a_decision(capsys: pytest.CaptureFixture[str]) -> None:
    main(["together", "--quick", "--decision", "3", "8"])
    assert " s of CPU time\n" in capsys.readouterr().out
    assert together.decision_seconds(3, 8) > 0
