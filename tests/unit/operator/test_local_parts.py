"""The parts of the local backend that need no process."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import resource
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.files.documents import write_text_atomically
from espalier_core.types.events import GPUsChanged, Warned
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_core.types.result import read_history
from espalier_operator.clock import ScaledClock
from espalier_operator.job.ends import Failure, LeaderPreemption, judge_exit
from espalier_operator.local import GpuChange, LocalRun, LocalRunError, LocalSettings
from espalier_operator.local.files import EventTail, HistoryFile, program_variables
from espalier_operator.local.process import Process, told_of
from espalier_operator.local.workers import Gpus, Holder, LeaderProcess, Timeline, cuda_devices
from espalier_operator.model import Ended, WorkerRole
from waiting import PATIENCE, until


def report(phase: TrainerPhase, reason: Reason | None = None, message: str = "") -> Report:
    return Report(job="j", incarnation="x", phase=phase, reason=reason, message=message, updated_time=datetime.now(UTC))


@pytest.mark.parametrize("program", [{}, {"program": {}}])
def test_a_command_of_a_template_gets_its_variables_and_finds_this_python(program):
    """As on a cluster, where the template's image has the Python that Espalier is installed in."""
    container = {
        "name": "trainer",
        "command": ["python", "train.py"],
        "env": [{"name": "RATE", "value": "0.1"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    spec = {"timeBudgetSeconds": 5, "template": {"spec": {"containers": [container]}}, **program}
    kind = {"apiVersion": "espalier.dev/v1alpha1", "kind": "AdaptiveTrainingJob"}
    job = AdaptiveTrainingJob.model_validate({**kind, "metadata": {"name": "own"}, "spec": spec})
    found = program_variables(job)
    assert found["RATE"] == "0.1"
    assert "NODE" not in found
    assert found["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert ("ESPALIER_WORKERS" in found) == bool(program)


LEFT_EARLY = "exit code 0 before its loop or its budget was over; loop.stop() ends a loop early"


@pytest.mark.parametrize(
    ("code", "said", "verdict"),
    [
        (-15, report(TrainerPhase.TRAINING), LeaderPreemption("ended by SIGTERM")),
        (-15, None, Failure("ended by SIGTERM; see its log")),
        (-9, report(TrainerPhase.TRAINING), Failure("ended by SIGKILL; see its log")),
        (-2, report(TrainerPhase.FAILED, Reason.TRAINER_FAILED, "why"), Failure("ended by SIGINT: why")),
        (0, report(TrainerPhase.EVALUATING), Failure(LEFT_EARLY)),
        (0, report(TrainerPhase.EVALUATING, Reason.COMPLETED), Ended(reason=Reason.COMPLETED, failed=False)),
        (143, report(TrainerPhase.EVALUATING, Reason.BUDGET_EXHAUSTED), LeaderPreemption("exit code 143")),
        (4, None, Failure("exit code 4; see its log")),
    ],
)
def test_exit_codes(code, said, verdict):
    """Signals, and what a leader that evaluates has said; the rest stands in `test_kube_ends.py`."""
    assert judge_exit(code, said) == verdict


def test_a_timeline_gives_each_change_once_and_announces_departures():
    timeline = Timeline([GpuChange(at_seconds=30, change=-2, notice_seconds=10), GpuChange(at_seconds=10, change=1)])
    assert timeline.has_arrivals_ahead
    assert [change.change for change in timeline.advance(15)] == [1]
    assert not timeline.has_arrivals_ahead
    assert timeline.departing() == (0, None)
    assert timeline.advance(6) == []
    assert timeline.departing() == (2, 9)
    assert [change.change for change in timeline.advance(9)] == [-2]
    assert timeline.departing() == (0, None)
    assert timeline.advance(1000) == []
    assert Timeline([GpuChange(at_seconds=1, change=1)], seconds=5.0, done=1).advance(9) == []


def test_a_scaled_clock_goes_on_where_it_stood():
    wall = itertools.count()
    clock = ScaledClock(10.0, 100.0, lambda: float(next(wall)))
    assert [clock.now(), clock.now()] == [110.0, 120.0]
    assert clock.wall_seconds(5) == 0.5
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="time scale"):
            ScaledClock(bad)


def test_gpus_go_free_ones_first_then_lent_then_base_of_the_least():
    gpus = Gpus(5)
    a, b = Holder("a", WorkerRole.BASE, 0), Holder("b", WorkerRole.BASE, 0)
    lent = [Holder("a", WorkerRole.EXTRA, 0), Holder("a", WorkerRole.EXTRA, 1)]
    for holder in (a, b, *lent):
        assert gpus.hold(holder, 1)
        assert gpus.hold(holder, 1), "holding twice is holding once"
    assert len(gpus.free) == 1
    assert gpus.change(-2, ["a", "b"]) == [lent[1]]
    assert gpus.change(-2, ["a", "b"]) == [lent[0], b]
    assert gpus.of("a", WorkerRole.BASE) == {0: ("0",)}
    assert (gpus.total, gpus.free) == (1, [])
    assert not gpus.hold(b, 1)
    assert gpus.change(1) == []
    assert gpus.hold(b, 1)


@given(st.lists(st.tuples(st.sampled_from("hrc"), st.integers(-3, 3), st.integers(0, 5)), max_size=40))
def test_no_gpu_has_two_holders(steps):
    gpus = Gpus(4)
    for what, count, who in steps:
        holder = Holder(f"job{who % 3}", WorkerRole.EXTRA if who % 2 else WorkerRole.BASE, who)
        if what == "h":
            gpus.hold(holder, abs(count))
        elif what == "r":
            gpus.release(holder)
        else:
            gpus.change(count)
        held = [
            d
            for job in ("job0", "job1", "job2")
            for role in WorkerRole
            for ds in gpus.of(job, role).values()
            for d in ds
        ]
        assert len(held) == len(set(held))
        assert len(held) + len(gpus.free) == gpus.total


def test_named_devices_are_handed_out_and_run_out():
    gpus = Gpus(1, ["GPU-a", "GPU-b"])
    assert gpus.free == ["GPU-a"]
    gpus.change(1)
    assert gpus.free == ["GPU-a", "GPU-b"]
    with pytest.raises(LocalRunError, match="1 more GPUs must arrive, and only 0 devices are left"):
        gpus.change(1)


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        *[(None, ("0", "1", "2")), ("", ()), ("2,0", ("2", "0")), ("GPU-7", ("GPU-7",))],
        *[("-1", ()), ("NoDevFiles", ()), ("1,3,0", ("1",)), ("1,-1,0", ("1",))],
    ],
)
def test_cuda_devices_are_found_without_torch(tmp_path, monkeypatch, visible, found):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nprintf '0\\n1\\n2\\n'\n")
    smi.chmod(smi.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert cuda_devices() == found


def test_a_child_that_nobody_could_find_again_is_ended_at_once(tmp_path, monkeypatch):
    """The disk may be full, so that no pid file can be written."""
    made, start = [], subprocess.Popen

    def started(*given, **options):
        made.append(start(*given, **options))
        return made[-1]

    monkeypatch.setattr(subprocess, "Popen", started)
    with pytest.raises(FileNotFoundError):
        Process(["/bin/sleep", "600"], {}, tmp_path / "log", tmp_path / "missing" / "pid")
    assert [child.returncode for child in made] == [-signal.SIGKILL]


@pytest.mark.parametrize(("ended_before", "code"), [(False, None), (True, 3)])
def test_a_leader_that_is_killed_with_its_gpu_has_not_failed_by_itself(tmp_path, ended_before, code):
    """Also where nobody looks between the loss of the GPU and the end of the process."""
    leading = LeaderProcess(tmp_path)
    leading.start(["sh", "-c", "exit 3" if ended_before else "sleep 60"], {}, attempt=0, now=0.0)
    if ended_before:
        os.waitid(os.P_PID, leading.process.pid, os.WEXITED | os.WNOWAIT)
    leading.lose(Reason.GPU_LOST)
    os.waitid(os.P_PID, leading.process.pid, os.WEXITED | os.WNOWAIT)
    leading.ended(leading.poll(), now=1.0)
    seen = leading.of(0)
    assert (seen.running, seen.lost) == (False, Reason.GPU_LOST)
    assert (None if seen.end is None else seen.end.code) == code


def test_a_child_that_is_ending_may_be_given_less_time(tmp_path):
    """One with a long grace period is ended by the end of the run, too."""
    deaf = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    )
    process = Process([sys.executable, "-c", deaf], {}, tmp_path / "log", tmp_path / "pid")
    until(lambda: (tmp_path / "log").read_bytes() == b"1\n", lambda: "it does not run")
    process.terminate(600.0)
    assert process.poll() is None
    process.terminate(0.0)
    process.terminate(600.0)
    until(lambda: process.poll() == -signal.SIGKILL, lambda: "it still runs")


def test_no_driver_means_no_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda_devices() == ()
    broken = tmp_path / "nvidia-smi"
    broken.write_text("#!/bin/sh\nexit 9\n")
    broken.chmod(0o755)
    assert cuda_devices() == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time_scale": 0.0}, "time scale 0.0: it must be a positive number"),
        ({"gpus": -1}, "gpus -1: it must be 0 or more"),
        ({"gpus": 10**11}, "up to 100000000000 GPUs at once; at most 10000"),
        ({"changes": (GpuChange(at_seconds=5, change=10**11),)}, "at most 10000 are allowed"),
        ({"agent_url": "localhost:8500"}, "agent URL 'localhost:8500': it must be http://HOST"),
        ({"changes": (GpuChange(at_seconds=5, change=-2),)}, "2 GPUs depart at 5 s, when fewer are left"),
        ({"changes": (GpuChange(at_seconds=-5, change=2),)}, "times must be 0 or more"),
        (
            {"changes": (GpuChange(at_seconds=5, change=2),), "devices": ("0", "1")},
            r"up to 3 GPUs at once and this machine offers 2 \(0, 1\)",
        ),
    ],
)
def test_settings_that_contradict_themselves_are_refused(tmp_path, settings, message):
    with pytest.raises(LocalRunError, match=message):
        LocalSettings(directory=tmp_path, **settings)


def warned(message: str) -> Warned:
    return Warned(time=datetime.now(UTC), used_seconds=1, reason="Test", message=message)


def test_half_a_line_of_events_waits_for_the_rest(tmp_path):
    file = tmp_path / "events.jsonl"
    tail = EventTail(file)
    assert tail.poll() == []
    line = warned("a").model_dump_json(by_alias=True)
    file.write_text(line[:10])
    assert tail.poll() == []
    file.write_text(line + "\nnonsense\n" + line[:5])
    assert [event.message for _, event in tail.poll()] == ["a"]
    assert tail.damaged_lines == 1


def test_a_history_is_continued_without_telling_anything_twice(tmp_path: Path):
    leader = tmp_path / "events.jsonl"
    told = []
    history = HistoryFile(tmp_path, told.append)
    leader.write_text(warned("one").model_dump_json(by_alias=True) + "\n")
    history.follow()
    history.add(warned("ours"))
    with leader.open("a") as file:
        file.write(warned("two").model_dump_json(by_alias=True) + "\n")
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"cut off')
    again = HistoryFile(tmp_path, told.append)
    again.follow()
    assert [event.message for event in told] == ["one", "ours", "two"]
    assert [event.message for event in read_history(tmp_path / "history.jsonl")] == ["one", "ours", "two"]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_message_with_a_separator_of_lines_is_one_line_of_the_history(tmp_path, separator):
    history = HistoryFile(tmp_path, lambda event: None)
    history.add(warned(f"one{separator}half"))
    history.add(warned("two"))
    read = read_history(tmp_path / "history.jsonl")
    assert [event.message for event in read] == [f"one{separator}half", "two"]


def test_a_history_that_cannot_be_written_is_warned_about_once(tmp_path, caplog):
    told = []
    history = HistoryFile(tmp_path, told.append)
    (tmp_path / "history.jsonl").mkdir()
    history.add(warned("one"))
    history.add(warned("two"))
    assert [event.message for event in told] == ["one", "two"]
    assert len(caplog.records) == 1


def test_what_did_not_fit_on_the_disk_leaves_no_half_line(tmp_path):
    """A limit on the size of files cuts a write short as a full disk does."""
    history = HistoryFile(tmp_path, lambda event: None)
    history.add(warned("one"))
    path = tmp_path / "history.jsonl"
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
        history.add(warned("lost"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    history.add(warned("two"))
    assert [event.message for event in read_history(path)] == ["one", "two"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of files and processes")
async def test_a_run_is_woken_by_files_that_are_written_and_by_ends_of_processes(tmp_path):
    report = tmp_path / "report.json"
    news = asyncio.Event()
    with told_of([tmp_path], ["report.json"], news.set) as told:
        assert told
        for happen in (
            lambda: report.write_text("{}"),
            lambda: write_text_atomically(report, "[]"),
            lambda: subprocess.Popen(["true"]).wait(),
        ):
            news.clear()
            happen()
            async with asyncio.timeout(PATIENCE):
                await news.wait()
        news.clear()
        (tmp_path / "state.json").write_text("{}")
        for _ in range(3):  # the kernel has told of it already
            await asyncio.sleep(0)
        assert not news.is_set()


def test_a_run_in_another_thread_is_not_woken_by_its_processes(tmp_path):
    async def tells() -> bool:
        with told_of([tmp_path], ["report.json"], lambda: None) as told:
            return told

    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(asyncio.run, tells()).result()


def test_the_next_change_of_gpus_or_its_notice_is_known():
    changes = (GpuChange(at_seconds=5, change=1), GpuChange(at_seconds=9, change=-1, notice_seconds=2))
    timeline, moments = Timeline(changes), []
    while math.isfinite(step := timeline.next_in):
        timeline.advance(step)
        moments.append(timeline.seconds)
    assert moments == [5, 7, 9]


def test_an_arrival_is_recorded_with_the_budget_that_is_used_by_then(tmp_path, job_of):
    """However long ago the job was looked at last."""
    now, events = 0.0, []
    child = SimpleNamespace(pid=1, poll=lambda: None, terminate=lambda grace: None, kill=lambda: None)
    settings = LocalSettings(
        directory=tmp_path,
        agent_command=None,
        start_up_allowance_wall_seconds=1.0,
        changes=(GpuChange(at_seconds=4.0, change=1),),
    )
    run = LocalRun(
        [job_of("one", timeBudgetSeconds=60)],
        settings,
        lambda _, event: events.append(event),
        start=lambda *_: child,
        monotonic=lambda: now,
    )

    async def until_it_trains_and_then_once() -> float:
        nonlocal now
        while not run.view().jobs[0].used_seconds:
            now += 0.5
            await run.step()
        before = run.view().jobs[0].used_seconds
        now += 8.0
        await run.step()
        return before

    before = asyncio.run(until_it_trains_and_then_once())
    (arrival,) = (event for event in events if isinstance(event, GPUsChanged))
    assert arrival.used_seconds == before + 8.0
