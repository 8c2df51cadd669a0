"""Local runs with real processes: trainers that crash, hang, keep silent, lie; runs that are cut off and taken up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from espalier_core.files.documents import read_document, write_document
from espalier_core.types.events import AllocationChanged, GPUsChanged, JobChanged, TrainerStarted, Warned
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_core.types.status import JobPhase
from espalier_operator.local import GpuChange, LocalRunError
from espalier_operator.local.backend import mark
from espalier_operator.local.settings import RunState, run_lock
from waiting import until

pytestmark = pytest.mark.slow


def of_container(*command):
    """A template whose container runs this command."""
    return {"spec": {"containers": [{"command": command, "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}


ONE_RUN = """
import asyncio, sys
from pathlib import Path
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_operator.local import LocalSettings, run_local
job = AdaptiveTrainingJob.model_validate_json(Path(sys.argv[1]).read_text())
settings = LocalSettings(directory=Path(sys.argv[2]), agent_command=None, stop_wall_seconds=1.0)
asyncio.run(run_local([job], settings, lambda name, event: None, asyncio.Event()))
"""


def test_a_crashed_leader_is_started_again_with_its_budget_kept(local_run, job_of):
    story = local_run([job_of("one", "exit-after=0.4", "exits=2")])
    outcome = story.outcomes["one"]
    assert (outcome.phase, outcome.reason) == (JobPhase.COMPLETE, Reason.BUDGET_EXHAUSTED)
    assert (outcome.restarts, outcome.failures) == (2, 2)
    assert outcome.used_seconds >= 1.75
    starts = [event.used_seconds for event in story.told("one", TrainerStarted)]
    assert starts[0] == 0
    assert starts == sorted(set(starts)), "the budget continues, by what each leader has reported"


def test_a_failed_job_is_taken_up_again_when_its_mistake_is_mended(local_run, job_of):
    first = local_run([job_of("one", "exit-after=0.5", "exit-code=2")]).outcomes["one"]
    assert (first.phase, first.reason) == (JobPhase.FAILED, Reason.INVALID_SPEC)
    story = local_run([job_of("one", backoffLimit=0)])  # also its specification may have been the mistake
    second = story.outcomes["one"]
    assert (second.phase, second.reason, second.failures) == (JobPhase.COMPLETE, Reason.BUDGET_EXHAUSTED, 0)
    assert story.told("one", TrainerStarted)[0].used_seconds == pytest.approx(first.used_seconds)
    said = story.told("one", Warned)[0].message
    assert said.startswith("it had failed (InvalidSpec: ")
    assert said.endswith("it continues from its checkpoint")
    assert local_run([job_of("one", backoffLimit=0)]).events == [], "a complete job has ended for good"


def test_the_time_that_a_trainer_takes_to_end_is_not_counted(local_run, job_of):
    """It used up short budgets: a crash at step 0 was followed by a complete job."""
    story = local_run([job_of("one", "fail=0.2", timeBudgetSeconds=600)])
    outcome = story.outcomes["one"]
    assert (outcome.phase, outcome.reason) == (JobPhase.FAILED, Reason.INVALID_SPEC)
    ending = {view.jobs[0].used_seconds for view in story.views if view.jobs[0].doing is TrainerPhase.FAILED}
    assert ending == {outcome.used_seconds}
    assert outcome.used_seconds >= 0.2


def test_a_failed_job_without_a_checkpoint_begins_again_with_its_whole_budget(local_run, job_of):
    job = job_of("one", "exit-after=0.5", "exit-code=2", "exits=1", maxReplicas=2)
    change = {"gpus": 1, "changes": (GpuChange(at_seconds=0.3, change=1),)}
    assert local_run([job], **change).outcomes["one"].phase is JobPhase.FAILED
    checkpoints = local_run.directory / "checkpoints"
    (checkpoints / "environment.json").unlink()
    (checkpoints / "exits").rename(local_run.directory / "exits")
    story = local_run([job_of("one", maxReplicas=2)], **change)
    assert story.outcomes["one"].phase is JobPhase.COMPLETE
    assert story.told("one", Warned)[0].message.endswith("it left no checkpoint, and starts from the beginning")
    assert story.told("one", TrainerStarted)[0].used_seconds == 0
    assert story.told("one", GPUsChanged)[0].used_seconds > 0.2, "GPUs come again, too, and not at once"


def test_a_cause_that_a_program_has_printed_is_reported_and_the_report_of_others_is_not(local_run, job_of):
    fails = of_container(sys.executable, "-c", "import sys; print('hello'); [][1]")
    story = local_run([job_of("one", backoffLimit=1, template=fails)])
    outcome = story.outcomes["one"]
    cause = "exit code 1: IndexError: list index out of range"
    assert (outcome.reason, outcome.message) == (Reason.CRASH_LOOP, f"2 failures, backoffLimit 1; the last: {cause}")
    assert f"{cause}; started again in" in [event.message for event in story.told("one", JobChanged)][1]


def test_a_command_that_does_not_exist_fails_with_its_name(local_run, job_of):
    story = local_run([job_of("one", template=of_container("/no/such/trainer"))])
    assert story.outcomes["one"].reason is Reason.TRAINER_FAILED
    assert "/no/such/trainer" in story.outcomes["one"].message


def test_a_leader_past_its_budget_and_grace_is_ended_by_force_and_has_failed(local_run, job_of):
    story = local_run(
        [job_of("one", "overrun=yes", "ignore-term=yes", timeBudgetSeconds=1)],
        grace_wall_seconds=0.3,
        stop_wall_seconds=0.3,
    )
    outcome = story.outcomes["one"]
    assert (outcome.phase, outcome.reason) == (JobPhase.FAILED, Reason.BUDGET_ENFORCED)
    assert outcome.exit_code == -signal.SIGKILL
    assert outcome.used_seconds >= 1.2


def test_a_hang_says_since_when_and_does_not_use_up_the_rest_of_the_budget(local_run, job_of):
    def hang(story):
        if 0.3 < story.jobs[0].used_seconds < 5:
            os.kill(json.loads((local_run.directory / "trainer.pid").read_text())["pid"], signal.SIGSTOP)
        return False

    quick = {"grace_wall_seconds": 0.2, "stop_wall_seconds": 0.2}
    first = local_run([job_of("one", timeBudgetSeconds=5)], hang, **quick).outcomes["one"]
    when = f"after {first.report.used_seconds:.3g} s of 5 s, is of step {first.report.step} (Training)"
    assert (first.phase, first.reason) == (JobPhase.FAILED, Reason.BUDGET_ENFORCED)
    assert first.message == f"its trainer did not report its end; the last report, {when}"
    second = local_run([job_of("one", timeBudgetSeconds=5)])
    assert second.outcomes["one"].reason is Reason.BUDGET_EXHAUSTED
    assert second.told("one", TrainerStarted)[0].used_seconds < 5


STUBBORN = """
[ "$ESPALIER_WORKER_ROLE" = extra ] || exec "$@"
trap 'touch "$0/asked"' TERM
while :; do sleep 0.02; done
"""
"""A worker that does not end when it is asked, and says that it was. Its folder is $0."""


def test_a_worker_that_does_not_end_is_ended_when_the_run_says_so(local_run, job_of, tmp_path):
    trainer = job_of("one").spec.template.spec.containers[0].command
    template = of_container("bash", "-c", STUBBORN, str(tmp_path), *trainer)
    job = job_of("one", maxReplicas=2, training={"elasticBatch": "keepGlobal"}, template=template)
    local_run([job], gpus=2, stop_wall_seconds=2.0)
    assert (tmp_path / "asked").exists(), "it was killed without having been asked"


def test_the_deadline_to_start_is_wall_time_at_any_time_scale(local_run, job_of):
    """Importing torch takes as long when budgets pass faster."""
    job = job_of("one", "startup=0.8", preRunningDeadlineSeconds=12, timeBudgetSeconds=20)
    assert local_run([job], time_scale=20.0).outcomes["one"].reason is Reason.BUDGET_EXHAUSTED


@pytest.mark.parametrize("damage", ["half", "future"])
def test_unreadable_reports_are_warned_about_and_survived(local_run, job_of, damage):
    def warnings(story):
        return [event for event in story.told("one", Warned) if event.reason == "UnreadableReport"]

    job = job_of("one", f"damage={damage}", timeBudgetSeconds=600)
    story = local_run([job], lambda story: warnings(story) and story.jobs[0].step > 20)
    report = story.outcomes["one"].report
    assert len(warnings(story)) <= report.step, "once for each"
    assert report.reason is Reason.SUSPENDED, "the last one was read"


def test_a_stopped_run_is_taken_up_with_its_budget(local_run, job_of):
    job = job_of("one")
    first = local_run([job], stop_when=lambda story: story.jobs[0].used_seconds > 0.7)
    before = first.outcomes["one"]
    assert (before.phase, before.reason, before.exit_code) == (JobPhase.SUSPENDED, Reason.INTERRUPTED, 143)
    second = local_run([job])
    after = second.outcomes["one"]
    assert after.reason is Reason.BUDGET_EXHAUSTED
    assert after.used_seconds > 1.9
    assert second.told("one", TrainerStarted)[0].used_seconds == pytest.approx(before.used_seconds)
    changes = [event for story in (first, second) for event in story.told("one", AllocationChanged)]
    generations = [event.allocation.generation for event in changes]
    assert generations == sorted(set(generations)), "generations continue over a resume"
    third = local_run([job])
    assert (third.outcomes["one"].reason, third.events) == (Reason.BUDGET_EXHAUSTED, []), "what is over stays over"


def test_a_stop_ends_the_deaf_too(local_run, job_of):
    jobs = [job_of("polite", timeBudgetSeconds=60), job_of("deaf", "ignore-term=yes", timeBudgetSeconds=60)]
    story = local_run(
        jobs, gpus=2, stop_when=lambda story: all(job.used_seconds > 0 for job in story.jobs), stop_wall_seconds=4.0
    )
    assert (story.outcomes["polite"].exit_code, story.outcomes["deaf"].exit_code) == (143, -signal.SIGKILL)


@pytest.mark.parametrize("option", ["", "ignore-term=yes"])
def test_a_run_whose_scheduler_was_killed_is_taken_up(local_run, job_of, tmp_path, option):
    """SIGKILL of the scheduler: its trainer ends or is ended, and the budget continues where it stood."""
    job = job_of("one", *filter(None, [option]), timeBudgetSeconds=2.5)
    job_file = tmp_path.parent / f"{tmp_path.name}.json"
    job_file.write_text(json.dumps(job.to_json()))
    scheduler = subprocess.Popen([sys.executable, "-c", ONE_RUN, str(job_file), str(tmp_path)])
    used = wait_until_used(tmp_path, 0.5)
    trainer = json.loads((tmp_path / "trainer.pid").read_text())["pid"]
    scheduler.send_signal(signal.SIGKILL)
    scheduler.wait()
    if not option:
        until(lambda: has_ended(trainer), "the orphan ends")  # the kernel told it (PR_SET_PDEATHSIG)
    else:
        assert Path(f"/proc/{trainer}").exists()
    story = local_run([job], stop_wall_seconds=1.0)
    outcome = story.outcomes["one"]
    assert outcome.reason is Reason.BUDGET_EXHAUSTED
    assert outcome.used_seconds >= 2.2
    assert story.told("one", TrainerStarted)[0].used_seconds >= used - 0.05
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert sum('"TrainerStarted"' in line for line in lines) == 2, "no event is told twice"


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or is a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_used(folder: Path, seconds: float) -> float:
    def used() -> float | None:
        try:
            found = read_document(folder / "state.json", RunState).jobs[0].state.used_seconds
        except FileNotFoundError:
            return None
        return found if found >= seconds else None

    found: float = until(used, "the run gets on")
    return found


def test_another_specification_in_the_same_folder_is_refused(local_run, job_of):
    local_run([job_of("one", timeBudgetSeconds=0.2)])
    with pytest.raises(LocalRunError, match=r"state\.json: the specification of default/one has changed since"):
        local_run([job_of("one", timeBudgetSeconds=0.3)])
    with pytest.raises(LocalRunError, match=r"belongs to a run of default/one, not of default/two"):
        local_run([job_of("two")])
    (local_run.directory / "state.json").write_text("{")
    with pytest.raises(LocalRunError, match=r"not complete JSON.*choose another output folder"):
        local_run([job_of("one")])


def test_a_report_of_another_job_is_left_aside(local_run, job_of):
    report = Report(job="default/one", incarnation="x", used_seconds=50, updated_time=datetime.now(UTC))
    mark(local_run.directory, ["two"])
    write_document(local_run.directory / "report.json", report)
    story = local_run([job_of("two", "startup=0.5", timeBudgetSeconds=0.3)])
    assert "is a report of job 'default/one'" in story.told("two", Warned)[0].message
    assert story.outcomes["two"].reason is Reason.BUDGET_EXHAUSTED
    assert story.outcomes["two"].used_seconds < 10


def test_the_agent_is_kept_running_and_ended_with_the_run(local_run, job_of, tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import sys, time, pathlib\n"
        "count = pathlib.Path(sys.argv[0]).with_suffix('.count')\n"
        "starts = int(count.read_text()) if count.exists() else 0\n"
        "count.write_text(str(starts + 1))\n"
        "print(sys.argv[1:], flush=True)\n"
        "time.sleep(0.2 if starts == 0 else 600)\n"
    )
    log = tmp_path / "agent.log"
    story = local_run(
        [job_of("one", timeBudgetSeconds=600)],
        lambda story: story.jobs[0].used_seconds > 0 and log.read_text().count("\n") == 2,
        agent_command=(sys.executable, str(agent)),
    )
    assert story.outcomes["one"].reason is Reason.INTERRUPTED
    assert (tmp_path / "agent.count").read_text() == "2"
    first, second = log.read_text().splitlines()
    assert first == second, "a restarted agent has the same address"
    environment = json.loads((tmp_path / "checkpoints" / "environment.json").read_text())
    port = environment["ESPALIER_AGENT_URL"].removeprefix("http://127.0.0.1:")
    assert f"'--port', '{port}'" in first
    assert not (tmp_path / "agent.pid").exists()


def test_two_runs_in_one_folder_are_refused(local_run, job_of):
    """Before anything in it is changed: the other one writes there."""
    local_run([job_of("one", timeBudgetSeconds=0.3)])
    (local_run.directory / "worker-base-0-1.pid").write_text("")
    before = {path.name: path.read_bytes() for path in local_run.directory.iterdir() if path.is_file()}
    with run_lock(local_run.directory), pytest.raises(LocalRunError, match="another run uses this folder"):
        local_run([job_of("one", timeBudgetSeconds=0.4)])
    assert {path.name: path.read_bytes() for path in local_run.directory.iterdir() if path.is_file()} == before
    local_run([job_of("one", timeBudgetSeconds=0.3)])
    assert not [*local_run.directory.glob("*.pid")], "what names processes that are gone is gone, too"


def test_a_folder_that_cannot_be_made_is_named_with_the_cause(local_run, job_of):
    local_run.directory = local_run.directory / "file" / "out"
    local_run.directory.parent.write_text("")
    with pytest.raises(LocalRunError, match=r"file/out: cannot create the folder for results: Not a directory"):
        local_run([job_of("one")])
