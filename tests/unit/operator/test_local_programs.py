"""Programs that know nothing of the library, run on this machine as real processes."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from typing import Any

import pytest

from espalier_core.types.events import JobChanged, ProgressRead
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.program import MetricsProgress
from espalier_core.types.reasons import Reason
from espalier_core.types.report import Metric
from espalier_core.types.status import JobPhase
from espalier_operator.local import LocalRun, LocalRunError, LocalSettings
from espalier_operator.local.progress import PIECE_BYTES, LogTail, fetch

pytestmark = pytest.mark.slow

COUNTS = r"step (?P<step>\d+)/(?P<steps>\d+)(, loss (?P<loss>[0-9.]+))?"
RESUMES = """
file=$ESPALIER_CHECKPOINT_DIR/step
step=$(cat $file 2>/dev/null || echo 0)
trap 'exit 143' TERM
while [ $step -lt 12 ]; do sleep 0.1; step=$((step + 1)); echo $step >$file; echo "step $step/12"; done
"""


def program(name: str, *command: str, progress: Any = None, **spec: Any) -> AdaptiveTrainingJob:
    container = {"command": list(command), "resources": {"limits": {"nvidia.com/gpu": 1}}}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    return AdaptiveTrainingJob.model_validate(
        {
            "apiVersion": "espalier.dev/v1alpha1",
            "kind": "AdaptiveTrainingJob",
            "metadata": {"name": name},
            "spec": {
                "timeBudgetSeconds": 20,
                "program": {} if progress is None else {"progress": progress},
                "template": template,
                **spec,
            },
        }
    )


def shell(name: str, script: str, pattern: str | None = COUNTS, **spec: Any) -> AdaptiveTrainingJob:
    progress = None if pattern is None else {"log": {"pattern": pattern}}
    return program(name, "sh", "-c", script, progress=progress, **spec)


def test_a_program_runs_to_its_end_and_the_last_line_is_read_even_without_its_end(local_run) -> None:
    story = local_run([shell("one", "echo 'step 1/3, loss 0.7'; sleep 0.3; printf 'step 3/3, loss 0.25'")])
    outcome = story.outcomes["one"]
    assert (outcome.phase, outcome.reason, outcome.exit_code) == (JobPhase.COMPLETE, Reason.COMPLETED, 0)
    assert outcome.used_seconds > 0.25
    last = story.told("one", ProgressRead)[-1]
    assert (last.step, last.done, last.metrics) == (3, 1.0, (Metric(name="loss", value=0.25),))
    assert [event.phase for event in story.told("one", JobChanged)] == ["Starting", "Running", "Complete"]


def test_nothing_is_read_of_a_program_that_does_not_say_where(local_run) -> None:
    story = local_run([shell("one", "echo 'step 1/3'; sleep 0.2", pattern=None)])
    assert story.outcomes["one"].reason is Reason.COMPLETED
    assert story.told("one", ProgressRead) == []


def test_the_end_of_the_budget_is_sigterm_and_a_normal_end(local_run) -> None:
    script = "trap 'echo step 9/9; exit 7' TERM; while true; do sleep 0.05; done"
    story = local_run([shell("one", script, timeBudgetSeconds=2)])  # on a busy machine a shell may begin late
    outcome = story.outcomes["one"]
    assert (outcome.phase, outcome.reason) == (JobPhase.COMPLETE, Reason.BUDGET_EXHAUSTED)
    assert (outcome.failures, outcome.exit_code) == (0, 7)
    assert story.told("one", ProgressRead)[-1].step == 9


def test_a_program_that_ignores_sigterm_is_killed_after_its_grace_period(local_run) -> None:
    story = local_run([shell("one", "trap '' TERM; while true; do sleep 0.05; done", timeBudgetSeconds=0.3)])
    outcome = story.outcomes["one"]
    assert (outcome.phase, outcome.reason) == (JobPhase.COMPLETE, Reason.BUDGET_EXHAUSTED)


def test_an_interrupted_program_resumes_where_it_stopped(local_run) -> None:
    jobs = [shell("one", RESUMES.replace("12", "30"))]

    def has_begun(story: Any) -> bool:
        file = next(local_run.directory.rglob("step"), None)
        return file is not None and int(file.read_text() or 0) >= 3  # empty for a moment while it is written

    first = local_run(jobs, stop_when=has_begun)
    assert first.outcomes["one"].phase is JobPhase.SUSPENDED
    reached = first.told("one", ProgressRead)[-1].step
    assert 0 < reached < 30
    second = local_run(jobs)
    assert second.outcomes["one"].reason is Reason.COMPLETED
    steps = [event.step for event in second.told("one", ProgressRead)]
    assert steps[0] >= reached
    assert steps[-1] == 30
    assert second.outcomes["one"].used_seconds >= first.outcomes["one"].used_seconds


def test_a_preempted_program_gives_its_gpu_to_the_next_and_resumes_after_it(local_run) -> None:
    """Whoever takes the run up knows what the policy has noted of its jobs."""
    preemption = {"base": "Checkpoint", "minRuntimeSeconds": 0}
    jobs = [
        shell("long", RESUMES.replace("12", "30"), preemption=preemption),
        shell("short", "sleep 0.2; echo 'step 1/1'", priority=10),
    ]
    policy = "las:thresholds=0.3"
    story = local_run(jobs, gpus=1, policy=policy, submit_at={"short": 0.4})
    assert {outcome.reason for outcome in story.outcomes.values()} == {Reason.COMPLETED}
    assert Reason.PREEMPTED_BY_POLICY in [event.reason for event in story.told("long", JobChanged)]
    assert story.outcomes["long"].failures == 0
    steps = [event.step for event in story.told("long", ProgressRead)]
    assert steps == sorted(steps)
    assert steps[-1] == 30
    settings = LocalSettings(directory=local_run.directory, gpus=1, policy=policy, agent_command=None)
    assert LocalRun(jobs, settings, lambda *_: None).policy_memory.memory


def test_each_worker_of_a_program_is_a_process_that_knows_its_place(local_run, tmp_path) -> None:
    script = f'echo "$ESPALIER_WORKERS $ESPALIER_LEADER" >{tmp_path}/is-$ESPALIER_WORKER_INDEX; sleep 0.5'
    leader = f"export ESPALIER_WORKER_INDEX=${{ESPALIER_WORKER_INDEX:-0}}; {script}"
    story = local_run([shell("one", leader, minReplicas=2, maxReplicas=2)], gpus=2)
    assert story.outcomes["one"].reason is Reason.COMPLETED
    assert {path.name: path.read_text() for path in tmp_path.glob("is-*")} == {
        "is-0": "2 127.0.0.1\n",
        "is-1": "2 127.0.0.1\n",
    }


SERVES = """
import http.server, sys, threading
page = b'steps_done 30\\nloss{split="test"} 0.5\\n'
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(page); served.set()
    def log_message(self, *_): pass
served = threading.Event()
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Page)
threading.Thread(target=server.serve_forever, daemon=True).start()
served.wait(20)
threading.Event().wait(0.5)
"""


def test_the_metrics_of_a_program_are_fetched(local_run) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    series = {"step": "steps_done", "loss": 'loss{split="test"}'}
    progress = {"metrics": {"port": port, "series": series}, "steps": 60}
    story = local_run([program("one", sys.executable, "-c", SERVES, str(port), progress=progress)])
    assert story.outcomes["one"].reason is Reason.COMPLETED
    last = story.told("one", ProgressRead)[-1]
    assert (last.step, last.done, last.metrics) == (30, 0.5, (Metric(name="loss", value=0.5),))


def test_metrics_that_come_drop_by_drop_are_not_waited_for() -> None:
    """Each part comes in time, the whole page never; the end of a run would wait for it."""
    answered = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not answered.wait(0.05):
                    connection.sendall(b"loss 1\n")

        dripping = threading.Thread(target=drip)
        dripping.start()
        found = fetch(MetricsProgress(port=listener.getsockname()[1], series={"loss": "loss"}))
        answered.set()
        dripping.join()
    assert found == {}


def test_a_program_without_a_command_cannot_be_run_here(local_run) -> None:
    job = program("one", "sh")
    container = {"image": "an/image", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    bare = job.to_json() | {"spec": job.spec.to_json() | {"template": {"spec": {"containers": [container]}}}}
    with pytest.raises(LocalRunError, match=r"containers\[0\] has no command; images are not run on this machine"):
        local_run([AdaptiveTrainingJob.model_validate(bare)])


def test_a_log_is_followed_by_whole_lines_and_the_newest_part_of_a_flood(tmp_path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    tail = LogTail(path)
    with path.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert tail.poll(ended=False) == b"one\n"
        file.write(b"o\rthree")
        assert tail.poll(ended=False) == b"two\r"
        assert tail.poll(ended=True) == b"three"
        file.write(b"x" * PIECE_BYTES + b"\n" + b"y" * 9 + b"\nrest")
        assert tail.poll(ended=False) == b"y" * 9 + b"\n"
        file.write(b"z" * (3 * PIECE_BYTES))
        for _ in range(3):
            assert tail.poll(ended=False) == b""
        file.write(b"\nlast\n")
        assert tail.poll(ended=False).endswith(b"\nlast\n")
