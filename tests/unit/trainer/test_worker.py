"""Workers that do not lead, and what a process finds out before it trains: real processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forked import Forked
from waiting import PATIENCE, until

pytestmark = pytest.mark.slow

JOB = {
    "apiVersion": "espalier.dev/v1alpha1",
    "kind": "AdaptiveTrainingJob",
    "metadata": {"name": "t", "namespace": "team", "uid": "u", "generation": 2, "resourceVersion": "5"},
    "spec": {"timeBudgetSeconds": 1, "adaptation": {"mode": "Off"}},
}


@pytest.fixture
def start(tmp_path):
    """Start a trainer on a job with `spec`, with its log in `tmp_path`."""
    processes = []

    def begin(spec=None, **variables):
        (tmp_path / "job.json").write_text(json.dumps({**JOB, "spec": {**JOB["spec"], **(spec or {})}}))
        environment = {
            "PATH": os.environ["PATH"],
            "ESPALIER_JOB_FILE": str(tmp_path / "job.json"),
            "PYTHONPATH": str(tmp_path),
            **variables,
        }
        processes.append(Forked("espalier_trainer", env=environment, out=tmp_path / "log", cwd=tmp_path))
        return processes[-1]

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)


def _logged(tmp_path: Path, process, what: str) -> str:
    log = tmp_path / "log"
    until(lambda: what in log.read_text() or process.poll() is not None, what)
    assert what in log.read_text()
    return log.read_text()


@pytest.mark.parametrize(("role", "index"), [("extra", "0"), ("base", "2")])
def test_worker_that_does_not_lead_imports_and_waits_until_sigterm(start, tmp_path, role, index):
    (tmp_path / "mine.py").write_text("print('my code is imported', flush=True)\ndef net(): ...\ndef data(): ...\n")
    training = {"model": {"entrypoint": "mine:net"}, "dataset": {"entrypoint": "mine:data"}}
    checkpoints, report = tmp_path / "checkpoints", tmp_path / "report.json"
    process = start(
        {"training": training},
        ESPALIER_WORKER_ROLE=role,
        ESPALIER_WORKER_INDEX=index,
        ESPALIER_CHECKPOINT_DIR=str(checkpoints),
        ESPALIER_REPORT_FILE=str(report),
    )
    log = _logged(tmp_path, process, "is ready")
    assert "my code is imported" in log
    assert f"{role} worker {index} of job team/t is ready" in log
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert not checkpoints.exists()
    assert not report.exists()


@pytest.mark.parametrize(
    ("code", "part", "entrypoint"),
    [
        ("print('busy', flush=True)\ntime.sleep(600)\ndef net(): ...\n", "model", "slow:net"),
        ("def data():\n    print('busy', flush=True)\n    time.sleep(600)\n", "dataset", "slow:data"),
    ],
    ids=["imports", "loads its data"],
)
def test_worker_that_is_asked_to_end_before_it_is_ready_ends_at_once(start, tmp_path, code, part, entrypoint):
    (tmp_path / "slow.py").write_text(f"import time\n{code}")
    training = {part: {"entrypoint": entrypoint}, "elasticBatch": "keepGlobal"}
    rendezvous = str(tmp_path / "rendezvous")
    process = start({"training": training}, ESPALIER_WORKER_ROLE="extra", ESPALIER_RENDEZVOUS=rendezvous)
    _logged(tmp_path, process, "busy")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_worker_whose_code_cannot_be_imported_says_so(start, tmp_path):
    process = start({"training": {"model": {"entrypoint": "nowhere:net"}}}, ESPALIER_WORKER_ROLE="extra")
    assert process.wait(PATIENCE) == 2
    assert "training.model.entrypoint" in (tmp_path / "log").read_text()


def test_gpus_of_another_name_are_no_matter_to_the_trainer(start, tmp_path):
    limits = {"limits": {"amd.com/gpu": 1}}
    template = {"spec": {"containers": [{"name": "trainer", "image": "mine", "resources": limits}]}}
    process = start({"template": template}, ESPALIER_CHECKPOINT_DIR=str(tmp_path / "checkpoints"))
    assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()


def test_checkpoint_folder_that_cannot_be_written_is_named_with_the_remedy(start, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    process = start({"checkpoint": {"path": str(blocked / "checkpoints")}})
    assert process.wait(PATIENCE) == 2
    log = (tmp_path / "log").read_text()
    assert f"spec.checkpoint.path: {blocked / 'checkpoints'} cannot be written" in log
    assert "mount a volume there" in log
    assert "Traceback" not in log


def test_job_of_another_name_than_the_environment_says_is_refused(start, tmp_path):
    process = start(
        ESPALIER_JOB_NAME="other", ESPALIER_JOB_NAMESPACE="team", ESPALIER_CHECKPOINT_DIR=str(tmp_path / "checkpoints")
    )
    assert process.wait(PATIENCE) == 2
    assert "say 'team/other', but the job of" in (tmp_path / "log").read_text()


def test_no_temporary_folder_is_reported_before_torch_says_something_else(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    environment = {"PATH": os.environ["PATH"], "ESPALIER_JOB_FILE": str(tmp_path / "job.json")}
    done = subprocess.run(
        [sys.executable, "-m", "espalier_trainer"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        # As on a read-only root file system, no file can be written; that binds root as well.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert done.returncode == 2, done.stderr
    assert "mount an emptyDir at /tmp" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_only_clusters_and_traces_need_is_not_imported():
    code = """
import sys, espalier_trainer.launch.main, espalier_trainer.launch.session
print(sorted({"kubernetes", "opentelemetry.sdk"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("module", ["espalier_trainer", "espalier_agent"])
def test_sigterm_is_handled_before_the_long_imports(module, tmp_path):
    """A container's first process gets no signal that it does not handle; here it comes as torch is imported."""
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nprint('goes on')\n")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(tmp_path),
        "ESPALIER_JOB_FILE": str(tmp_path / "job.json"),
    }
    command = [sys.executable, "-m", module, *(["serve", "--port", "0"] if module == "espalier_agent" else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout) == (143, "")
