"""The history of a cluster, written by the operator's own planner and audit log, and replayed under another policy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from espalier_core.estimates.goodput import StepTime
from espalier_lab.commands.simulate_command import simulate
from espalier_lab.scheduling.product.history import HistoryWorkload, workload_of
from espalier_lab.scheduling.seed_split import SeedSplit
from espalier_lab.simulator.errors import TraceError
from espalier_lab.simulator.history import read_history
from espalier_lab.simulator.jobs import RESTART_SECONDS, FixedJob, SimulatedJob
from espalier_lab.simulator.latencies import LATENCIES
from espalier_lab.simulator.measured import MeasuredJob
from espalier_lab.simulator.planned import Planned
from espalier_lab.simulator.rounds import SimulatedNode
from espalier_operator.kube.audit import AuditLog
from espalier_operator.model import JobFacts, JobTerms, Snapshot
from espalier_operator.model.actions import DECISIONS, EARLIER, Plan
from espalier_operator.policies.settings import configured
from policy_files import write_giving
from small_simulations import figures, refusal, simulated

NODES = (SimulatedNode("a", 4), SimulatedNode("b", 2))
EPOCH = 1_700_000_000.0


def jobs_of() -> list[SimulatedJob]:
    jobs: list[SimulatedJob] = [
        FixedJob(f"team/job-{index}", EPOCH + 400.0 * index, 1 + index % 4, 900.0 + 350.0 * (index * 7 % 5))
        for index in range(12)
    ]
    jobs[9].priority = 2
    return jobs


async def write(log: AuditLog, plans: Iterable[tuple[Snapshot, Plan]]) -> None:
    writing = asyncio.create_task(log.run())
    for snapshot, plan in plans:
        log.add(snapshot, plan)
        await log.written()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)


def operated(
    folder: Path, policy: str, monkeypatch: pytest.MonkeyPatch, jobs: list[SimulatedJob] | None = None
) -> list[SimulatedJob]:
    """Run jobs through the planner and the job state machine; have its decisions written by the operator's log."""
    jobs = jobs or jobs_of()
    planned = Planned(jobs, NODES, configured(policy), LATENCIES["realistic"])
    planned.now = EPOCH
    backend, seen = planned._backend, list[tuple[Snapshot, Plan]]()
    observe, apply = backend.observe, backend.apply
    latest: list[Snapshot] = []

    def observed(*arguments: object) -> Snapshot:
        snapshot = observe(*arguments)  # type: ignore[arg-type]
        # As on a cluster, where jobs have budgets: here a day.
        terms = [replace(job, terms=replace(job.terms, time_budget_seconds=86_400.0)) for job in snapshot.jobs]
        rules = replace(snapshot.rules, policy=policy)
        # Several plans follow at one moment here; an operator has made each a little later.
        at = snapshot.taken_at + 1e-5 * len(seen)
        latest[:] = [replace(snapshot, taken_at=at, jobs=tuple(terms), rules=rules)]
        return snapshot

    def applied(plan: Plan, now: float) -> None:
        seen.append((latest[0], plan))
        apply(plan, now)

    monkeypatch.setattr(backend, "observe", observed)
    monkeypatch.setattr(backend, "apply", applied)
    planned.run()
    asyncio.run(write(AuditLog(folder, 1 << 30), seen))
    return jobs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    operated(tmp_path / "audit", "las:thresholds=600/1200,lend=false", monkeypatch)
    return tmp_path / "audit"


AUDIT = ("--format", "audit")


def test_what_happened_is_read_as_it_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = operated(tmp_path / "audit", "las:thresholds=600/1200,lend=false", monkeypatch)
    history = read_history(tmp_path / "audit")
    assert history.nodes == list(NODES)
    assert history.left_out == 0
    happened = {job.name: job for job in history.happened}
    assert happened.keys() == {job.name for job in jobs}
    assert sum(job.evictions for job in jobs) > 0, "nobody was preempted"
    for job in jobs:
        past = happened[job.name]
        assert past.submitted_at == pytest.approx(job.submitted_at - EPOCH)
        assert (past.requested, past.evictions, past.priority) == (job.requested, job.evictions, job.priority)
        assert job.completed_at is not None
        assert 0 <= past.completed_at - (job.completed_at - EPOCH) <= 60, "recorded by the next plan"
        assert past.service == pytest.approx(job.service, rel=0.1)


def test_jobs_are_replayed_with_their_arrivals_sizes_priorities_and_durations(folder: Path) -> None:
    found = {job.name: job for job in read_history(folder).jobs()}
    originals = jobs_of()
    for original in originals:
        job = found[original.name]
        assert (job.submitted_at, job.requested) == (pytest.approx(original.submitted_at - EPOCH), original.requested)
        assert (job.priority, job.preemptible) == (original.priority, True)
        starts, rest = divmod(job.seconds_alone() - original.seconds_alone(), RESTART_SECONDS)
        assert (rest, starts >= 1) == (0, True), "its leader also ran while it started"


def test_the_same_policy_gives_about_what_happened_and_another_one_does_not(folder: Path) -> None:
    same = "las:thresholds=600/1200,lend=false"
    options = ("--driver", "plan", "--latency", "realistic", "--policy", same, "--policy", "fifo")
    happened, again, other = figures(folder, *AUDIT, *options)["runs"]
    assert (happened["policy"], happened["driver"], happened["jobs"]) == ("happened", "history", 12)
    assert again["averageJctSeconds"] == pytest.approx(happened["averageJctSeconds"], rel=0.1)
    assert other["evictions"] == 0 < happened["evictions"]
    table = simulated(folder, *AUDIT, "--policy", "fifo", "--cluster", "1x64")
    assert table.exit_code == 0, table.output
    assert "happened" in table.stdout


def test_a_log_that_ends_before_its_jobs_replays_them_for_their_budget(folder: Path) -> None:
    lines = (folder / DECISIONS).read_text().splitlines(keepends=True)
    (folder / EARLIER).write_text("".join(lines[:5]))
    (folder / DECISIONS).write_text("".join(lines[5:12]))
    history = read_history(folder)
    assert 0 < len(history.happened) < len(history.jobs())
    ended = {job.name for job in history.happened}
    rest = [job.seconds_alone() for job in history.jobs() if job.name not in ended]
    assert set(rest) == {86_400.0}
    for file in sorted(folder.glob("*.json.gz"))[:3]:  # the oldest snapshots are removed first
        file.unlink()
    assert read_history(folder).jobs()
    replayed = figures(folder, *AUDIT, "--policy", "fifo")["runs"]
    assert len({run["jobs"] for run in replayed}) == 1, "the same jobs are compared"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "decisions.jsonl:1: is not a line of an audit log"),
        ("[1]", "decisions.jsonl:1: is not a line of an audit log"),
        ('{"at": 1, "actions": []}', "decisions.jsonl:1: snapshot: is missing"),
        (
            '{"at": "noon", "snapshot": "a", "actions": []}',
            "decisions.jsonl:1: is not a line of an audit log: could not",
        ),
        ('{"at": 1, "snapshot": "a", "actions": [{"job": 3}]}', "decisions.jsonl:1: "),
        (
            '{"at": NaN, "snapshot": "a", "actions": []}',
            "decisions.jsonl:1: is not a line of an audit log: at: nan is no",
        ),
        (
            '{"at": 1, "snapshot": "a", "actions": [{"job": "a/b", "action": "GrantExtra", "extra": "2"}]}',
            "decisions.jsonl:1: is not a line of an audit log: actions: extra: '2' is not a number of workers",
        ),
        ('{"at": 1, "snapshot": "bad.json.gz", "actions": []}', "bad.json.gz: "),
        ('{"at": 1, "snapshot": "../gone", "actions": []}', "no job of the audit log ran on a GPU"),
        ('{"at": 1, "snapshot": "gone", "policy": "a\u2028b", "actions": []}', "no job of the audit log ran on a GPU"),
    ],
)
def test_damaged_logs_are_named(line: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / DECISIONS).write_text(line + "\n")
    (tmp_path / "bad.json.gz").write_text('{"kind": "Pod"}')
    with pytest.raises(TraceError) as error:
        read_history(tmp_path)
    assert complaint in str(error.value)


def test_options_of_a_history_are_checked(folder: Path, tmp_path: Path) -> None:
    for arguments, complaint in (
        ((tmp_path / "nowhere",), "is not a folder; name that of --audit-dir"),
        ((tmp_path,), f"has no {DECISIONS}"),
        ((folder, "--seeds", 2), "nothing is drawn at random"),
        ((folder, "--cluster", "1x1", "--policy", "fifo"), "needs 2 GPUs; the cluster has 1"),
    ):
        assert complaint in refusal(*arguments, *AUDIT)
    done = CliRunner().invoke(simulate, ["t.csv"])
    assert done.exit_code != 0
    assert "--cluster: is missing; only --format audit knows its cluster" in str(done.output) + str(done.exception)


def test_a_job_that_was_alone_on_the_cluster_was_treated_fairly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operated(tmp_path, "fifo", monkeypatch, [FixedJob("team/alone", EPOCH + 410.0, 2, 900.0)])
    for run in figures(tmp_path, *AUDIT, "--policy", "fifo")["runs"]:  # what happened, and the same by rounds
        assert run["finishTimeFairness"] == {
            "mean": pytest.approx(1.0, abs=1e-4),
            "worst": pytest.approx(1.0, abs=1e-4),
            "unfairFraction": 0.0,
        }


def test_a_log_in_milliseconds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operated(tmp_path, "fifo", monkeypatch, [FixedJob("team/alone", EPOCH, 2, 900.0)])
    lines = [json.loads(line) for line in (tmp_path / DECISIONS).read_text().splitlines()]
    (tmp_path / DECISIONS).write_text("".join(json.dumps(line | {"at": line["at"] * 1e3}) + "\n" for line in lines))
    with pytest.raises(TraceError, match=r"decisions.jsonl:1: .* at: 1.7e\+12 is not a time in seconds since 1970"):
        read_history(tmp_path)


def test_a_shadow_of_the_operators_own_policy_decides_the_same_and_another_one_does_not(folder: Path) -> None:
    same = "las:thresholds=600/1200,lend=false"
    found = figures(folder, *AUDIT, "--shadow", same)
    assert [run["policy"] for run in found["runs"]] == ["happened", same]
    (shadow,) = found["shadows"]
    assert shadow["same"] == shadow["plans"] == len((folder / DECISIONS).read_text().splitlines())
    assert shadow["differences"] == []


def test_a_policy_file_is_shadowed_and_its_completion_times_are_estimated(folder: Path, tmp_path: Path) -> None:
    learned = f"learned:file={write_giving(tmp_path / 'tiny.safetensors')}"
    options = ("--shadow", learned, "--driver", "plan", "--latency", "realistic")
    found = figures(folder, *AUDIT, *options)
    happened, again, estimated = found["runs"]
    assert [happened["policy"], again["policy"], estimated["policy"]] == [
        "happened",
        "las:thresholds=600/1200,lend=false",
        learned,
    ]
    assert again["averageJctSeconds"] == pytest.approx(happened["averageJctSeconds"], rel=0.1)
    (shadow,) = found["shadows"]
    assert 0 < shadow["same"] < shadow["plans"]
    assert {"operator", "shadow", "job", "at"} == shadow["differences"][0].keys()
    (folder / DECISIONS).with_name(sorted(folder.glob("*.json.gz"))[0].name).unlink()
    table = simulated(folder, *AUDIT, "--shadow", learned, "--policy", "fifo")
    assert "The snapshots of 1 others were removed." in table.stdout
    assert f"of {shadow['plans'] - 1} recorded plans, {learned} decides " in table.stdout
    done = CliRunner().invoke(simulate, [str(folder), "--cluster", "1x4", "--shadow", "fair"])
    assert "only an audit log has recorded decisions; add --format audit" in str(done.output) + str(done.exception)


def test_measured_speeds_make_jobs_faster_with_more_workers_and_others_are_as_they_were() -> None:
    terms = JobTerms(min_replicas=1, max_replicas=4, time_budget_seconds=900.0, trains_together=True)
    speeds = tuple(
        StepTime(nodes=1, workers=workers, batch_size=64 // workers, step_seconds=seconds, sync_seconds=0.0)
        for workers, seconds in ((1, 0.8), (2, 0.5))
    )
    facts = JobFacts(key="ns/a", terms=terms, submitted_at=0.0, speeds=speeds)
    ends = []
    for workers in (1, 2):
        job = MeasuredJob("a", 0.0, facts, 800.0, node_gpus=4)
        assert job.remaining_steps == pytest.approx(1000.0)
        job.pause_seconds = 0.0
        job.place((workers,))
        job.advance(0.0, 10_000.0)
        ends.append(job.completed_at)
    assert ends == [pytest.approx(800.0), pytest.approx(500.0)]
    assert (job.least_workers, job.most_workers, job.tried_workers) == (1, 4, 2)


def test_episodes_of_a_history_are_drawn_by_a_seed_and_judged_by_later_jobs(folder: Path) -> None:
    with pytest.raises(TraceError, match="has 12 jobs; at least 20 are needed"):
        workload_of(folder)
    history = read_history(folder)
    drawn = HistoryWorkload(history.nodes, 8, 0, history, range(12), 100.0)
    episodes = [[(job.name, job.submitted_at) for job in drawn.draw(SeedSplit.TRAIN, index)] for index in (1, 1, 2)]
    assert episodes[0] == episodes[1] != episodes[2]
    names = [job.name for job in history.jobs()]
    for purpose, (first, last) in enumerate(((0, 7), (7, 9), (9, 12))):
        found = {job.name.partition(" #")[0] for index in range(20) for job in drawn.draw(SeedSplit(purpose), index)}
        assert found == set(names[first:last])
