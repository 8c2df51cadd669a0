"""Trainer processes that fail: what they say, with which exit code, and whether a start again could help."""

from __future__ import annotations

import ctypes
import errno
import os
import traceback

import pytest
import torch

from espalier_core.causes import cause_in, in_one_line
from espalier_core.types.events import CheckpointSaved, TrainerStarted, Warned
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_trainer.errors import DatasetError
from espalier_trainer.training.progress import may_pass, sentence
from trainer_processes import ended
from waiting import until

USERS = """
import errno, os
import torch
from torch import nn

def bad_constructor(width=4):
    raise RuntimeError(f"no {width} heads")

class Trains(nn.Sequential):
    def forward(self, inputs):
        if self.training:
            return super().forward(inputs, None)
        return super().forward(inputs)

def bad_in_training():
    return Trains(nn.Flatten(), nn.Linear(64, 10))

class Late(nn.Sequential):
    # The model is run in training mode before its first step, too; only a step changes its weights.
    def forward(self, inputs):
        start = vars(self).setdefault("start", self[1].weight.detach().clone())
        if self.training and not torch.equal(start, self[1].weight):
            raise TypeError("late")
        return super().forward(inputs)

def bad_later():
    return Late(nn.Flatten(), nn.Linear(64, 10))

def far_data():
    raise OSError(errno.EIO, os.strerror(errno.EIO))
"""


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(USERS.splitlines(), start=1) if text in line)


@pytest.mark.parametrize(
    ("part", "entrypoint", "code", "said", "line", "function"),
    [
        ("model", "bad_constructor", 2, "RuntimeError: no 4 heads", "raise RuntimeError", "bad_constructor"),
        (
            "model",
            "bad_in_training",
            2,
            "TypeError: Sequential.forward() takes 2 positional arguments but 3 were given",
            "return super().forward(inputs, None)",
            "forward",
        ),
        ("model", "bad_later", 1, "TypeError: late", 'raise TypeError("late")', "forward"),
        ("dataset", "far_data", 1, "OSError: [Errno 5] Input/output error", "raise OSError", "far_data"),
    ],
)
def test_the_cause_is_reported_with_its_place_and_decides_whether_the_job_is_started_again(
    workplace, make_job, tmp_path, part, entrypoint, code, said, line, function
):
    (tmp_path / "users.py").write_text(USERS)
    job = make_job(training={part: {"entrypoint": f"users:{entrypoint}"}}, timeBudgetSeconds=60)
    place = workplace(job, python_path=(str(tmp_path),))
    place.allocate(1)
    assert ended(place.start(), place) == code, place.log
    report = place.report()
    sentence = f"{said} ({tmp_path / 'users.py'}:{line_of(line)}, in {function})"
    reason = Reason.INVALID_SPEC if code == 2 else Reason.TRAINER_FAILED
    assert (report.phase, report.reason, report.message) == (TrainerPhase.FAILED, reason, sentence)
    assert place.log.splitlines()[-1] == sentence
    assert "Traceback (most recent call last):" in place.log
    assert cause_in(place.log) == sentence


SMALL_DISK = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
os.makedirs({folder!r}, exist_ok=True)
for call in (
    lambda: libc.unshare(0x00020000),  # CLONE_NEWNS
    lambda: libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None),  # MS_REC | MS_PRIVATE
    lambda: libc.mount(b"tmpfs", {folder!r}.encode(), b"tmpfs", 0, {size!r}.encode()),
):
    if call() != 0:
        raise OSError(ctypes.get_errno(), "a small file system cannot be mounted")
"""
"""A file system of a few KiB for checkpoints, which only this process sees."""


def require_mounts() -> None:
    """Skip the test where no file system can be mounted; never in CI, where tests run as root."""
    child = os.fork()
    if child == 0:
        os._exit(0 if ctypes.CDLL(None).unshare(0x00020000) == 0 else 1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        reason = "a private mount namespace needs root (CAP_SYS_ADMIN): run this test as root"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def on_a_disk_of(kib, workplace, make_job, tmp_path):
    """Train with checkpoints on a disk of this size, until one has failed or the third is there.

    Returns the place, the exit code and the checkpoints left.
    """
    require_mounts()
    job = make_job(timeBudgetSeconds=3600, adaptation={"mode": "Off"}, checkpoint={"intervalSeconds": 0.2})
    place = workplace(job)
    # Only the process sees the disk.
    place.run = (
        f"from espalier_trainer.launch.main import main; code = main(); import shutil; "
        f"shutil.copytree({str(place.checkpoints)!r}, {str(tmp_path / 'kept')!r}); sys.exit(code)"
    )
    place.prelude = SMALL_DISK.format(folder=str(place.checkpoints), size=f"size={kib}k")
    place.allocate(1)
    process = place.start()

    def seen(kind):
        return [event for event in place.events() if isinstance(event, kind)]

    until(lambda: seen(Warned) or len(seen(CheckpointSaved)) >= 3, lambda: place.log)
    place.allocate(1, stop=Reason.GPU_BUDGET_EXHAUSTED)
    code = ended(process, place)
    return place, code, len(list((tmp_path / "kept").glob("checkpoint-*")))


@pytest.mark.parametrize(("kib", "left"), [(16, 0), (88, 1)])
def test_a_disk_that_is_full_at_the_end_is_no_complete_job(workplace, make_job, tmp_path, kib, left):
    """A checkpoint has about 52 KiB: there is no room for one, or for one and no second beside it."""
    place, code, checkpoints = on_a_disk_of(kib, workplace, make_job, tmp_path)
    report = place.report()
    assert (code, report.phase, report.reason) == (2, TrainerPhase.FAILED, Reason.CHECKPOINT_NOT_WRITTEN), place.log
    assert os.strerror(errno.ENOSPC) in report.message
    assert checkpoints == left
    assert ("there is none yet" in report.message) == (left == 0)
    assert "CheckpointFailed" in {event.reason for event in place.events() if isinstance(event, Warned)}


def test_the_older_checkpoint_gives_way_where_three_do_not_fit(workplace, make_job, tmp_path):
    place, code, checkpoints = on_a_disk_of(144, workplace, make_job, tmp_path)
    assert (code, place.report().phase, checkpoints) == (0, TrainerPhase.COMPLETED, 2), place.log
    assert sum(isinstance(event, CheckpointSaved) for event in place.events()) >= 3
    assert not [event for event in place.events() if isinstance(event, Warned)]


def test_a_new_job_of_the_same_name_goes_on_from_the_checkpoint_of_one_that_failed(workplace, make_job, tmp_path):
    """So on Kubernetes, where a job is created again: the other job's UID, its attempts begin at 0."""
    later = 'self.seen = vars(self).get("seen", 0) + 1\n            if self.seen > 300: raise TypeError'
    (tmp_path / "users.py").write_text(USERS.replace("raise TypeError", later))
    job = make_job(
        training={"model": {"entrypoint": "users:bad_later"}},
        timeBudgetSeconds=3600,
        checkpoint={"intervalSeconds": 0.001},
        adaptation={"mode": "Off"},
    )
    place = workplace(job, python_path=(str(tmp_path),))
    place.prelude = "os.environ.update(ESPALIER_JOB_UID='first', ESPALIER_ATTEMPT='3')"
    place.allocate(1)
    assert ended(place.start(), place) == 1, place.log
    assert list(place.checkpoints.glob("checkpoint-*")), "one was written before the step that failed"
    (place.folder / "report.json").unlink()  # it goes with the job
    (tmp_path / "users.py").write_text(USERS.replace("if self.training and", "if False and"))
    place.prelude = "os.environ.update(ESPALIER_JOB_UID='second', ESPALIER_ATTEMPT='0')"
    process = place.start()
    until(lambda: sum(isinstance(event, TrainerStarted) for event in place.events()) == 2, lambda: place.log)
    place.allocate(1, stop=Reason.GPU_BUDGET_EXHAUSTED)
    assert ended(process, place) == 0, place.log
    started = [event for event in place.events() if isinstance(event, TrainerStarted)][-1]
    assert started.resumed
    assert started.step > 0
    assert started.used_seconds > 0


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.EIO, "x"), True),
        (OSError(errno.ESTALE, "x"), True),
        (ConnectionResetError(errno.ECONNRESET, "x"), True),
        (TimeoutError(), True),
        (MemoryError(), True),
        (torch.distributed.DistNetworkError("The client socket has timed out after 5000ms"), True),
        (torch.distributed.DistBackendError("an unhandled system error"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), True),
        (FileNotFoundError(errno.ENOENT, "x"), False),
        (PermissionError(errno.EACCES, "x"), False),
        (ImportError("x"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (KeyError("x"), False),
        (DatasetError("x"), False),
    ],
)
def test_what_may_pass(error, passes):
    assert may_pass(error) is passes
    try:
        raise ValueError("the user's own words") from error
    except ValueError as wrapped:
        assert may_pass(wrapped) is passes


def test_the_lines_of_a_message_are_joined_and_cut():
    with pytest.raises(RuntimeError) as found:
        torch.nn.Linear(2, 2).load_state_dict({"other": torch.zeros(2)})
    joined = (
        "RuntimeError: Error(s) in loading state_dict for Linear: Missing key(s) in state_dict: "
        '"weight", "bias". Unexpected key(s) in state_dict: "other".'
    )
    assert sentence(found.value).startswith(f"{joined} ({__file__}:")
    log = "".join(traceback.format_exception(found.value))
    assert cause_in(f"{log}12:00 INFO what a process says as it ends\n").startswith(f"{joined} ({__file__}:")
    with pytest.raises(ValueError, match="first") as long:
        raise ValueError("first line\nsecond line\n\n" + "third " * 100)
    cut = sentence(long.value).partition(" (")[0]
    assert cut.startswith("ValueError: first line second line third third")
    assert len(cut) == 300
    assert in_one_line("") == ""


def test_a_cause_names_the_line_of_a_syntax_error_and_of_what_an_error_was_raised_from():
    log = (
        "Traceback (most recent call last):\n"
        '  File "/home/u/mine.py", line 3, in load\n    open(path)\n'
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/v/lib/python3.11/site-packages/lib.py", line 9, in get\n    raise Bad("x") from error\n'
        "lib.Bad: x\nsecond line\n"
        "2026-01-01 INFO the last line of the log\n"
    )
    assert cause_in(log) == "lib.Bad: x (/home/u/mine.py:3, in load)"
    syntax = (
        "Traceback (most recent call last):\n"
        '  File "<frozen runpy>", line 1, in run\n'
        "  File \"/home/u/net.py\", line 4\n    def f(\n         ^\nSyntaxError: '(' was never closed\n"
    )
    assert cause_in(syntax) == "SyntaxError: '(' was never closed (/home/u/net.py:4)"
    frames = "".join(f'  File "/src/{part}/espalier_{part}/a.py", line 1, in f\n' for part in ("core", "agent", "cli"))
    ours = f'Traceback (most recent call last):\n  File "/home/u/mine.py", line 3, in load\n{frames}ValueError: x\n'
    assert cause_in(ours) == "ValueError: x (/home/u/mine.py:3, in load)"
    assert cause_in("one\ntwo\n\n") == "two"
    assert cause_in("") == ""
