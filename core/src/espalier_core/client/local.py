"""Jobs of this machine: each is a process of `espalier run`, in a folder with the job's name."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from espalier_core.base import nearest
from espalier_core.client.jobs import JobClient, JobHandle, read_job
from espalier_core.console import error_in
from espalier_core.files.documents import (
    HISTORY_FILE,
    JOB_FILE,
    REPORT_FILE,
    RESULT_FILE,
    TRAINER_LOG,
    DocumentError,
    grown_lines,
    read_document,
)
from espalier_core.files.locks import holder, runs
from espalier_core.k8s.errors import ClientError, NotFoundError
from espalier_core.k8s.jobs import Event
from espalier_core.types.event_lines import told
from espalier_core.types.events import EVENT, Warned
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.pod_template import DEFAULT_GPU_RESOURCE
from espalier_core.types.report import Report
from espalier_core.types.result import RunResult, read_history, read_result, so_far

SUBMISSION_FILE, _SUBMITTED_JOB, _RUN_LOG = "submission.json", "submitted.json", "run.log"
_OWN: Final = ("output", "restart", "json")  # options of `espalier run` set by the client, or not read
_POLL_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 120.0  # for a checkpoint and the end of all processes


class LocalClient(JobClient):
    """The runs in a folder."""

    def __init__(self, folder: Path, options: Mapping[str, object]) -> None:
        """Pass `options` to each `espalier run`: True is a flag, a list an option that is repeated."""
        if own := [name for name in options if name in _OWN]:
            raise ClientError(f"connect: {own[0]}: cannot be set here; `result` reads the output in FOLDER/JOB")
        self.folder, self._options = folder.absolute(), list(_words(options))

    def submit(self, job: str | Path | Mapping[str, Any] | AdaptiveTrainingJob) -> LocalHandle:
        found = read_job(job, DEFAULT_GPU_RESOURCE)
        if find_spec("espalier_cli") is None:
            raise ClientError("a job of this machine needs espalier-cli", "pip install 'espalier-cli[train]'")
        handle = LocalHandle(self.folder / found.metadata.name)
        try:
            handle.folder.mkdir(parents=True)
        except FileExistsError:
            hint = "delete it first, or give the job another name"
            raise ClientError(f"metadata.name: {handle.folder} exists already", hint) from None
        except OSError as error:
            raise ClientError(f"folder: {error.filename}: cannot be created: {error.strerror}") from error
        file = handle.folder / _SUBMITTED_JOB
        file.write_text(json.dumps(found.to_json(), indent=1), encoding="utf-8")
        words = [sys.executable, "-m", "espalier_cli", "run", str(file), "--output", str(file.parent), *self._options]
        submission = json.dumps({"command": words, "directory": str(Path.cwd())}, indent=1)
        (handle.folder / SUBMISSION_FILE).write_text(submission, encoding="utf-8")
        try:
            handle.resume()
        except ClientError:
            shutil.rmtree(handle.folder)
            raise
        return handle

    def job(self, name: str) -> LocalHandle:
        handle = LocalHandle(self.folder / name)
        if handle.exists:
            return handle
        known = [each.name for each in self.jobs()]
        raise NotFoundError(f"there is no job {name!r} in {self.folder}", nearest(name, known))

    def jobs(self) -> list[JobHandle]:
        entries = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        return [handle for entry in entries if (handle := LocalHandle(entry)).exists]


class LocalHandle(JobHandle):
    """A run of this machine, identified by its folder, whoever started it."""

    place = "machine"

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name

    @property
    def exists(self) -> bool:
        """Whether it is the folder of a run."""
        return (self.folder / HISTORY_FILE).is_file() or (self.folder / SUBMISSION_FILE).is_file()

    def read_job(self) -> AdaptiveTrainingJob:
        """Return the job."""
        files = (self.folder / JOB_FILE, self.folder / _SUBMITTED_JOB)
        if (found := next((file for file in files if file.is_file()), None)) is None:
            raise NotFoundError(f"{self.folder}: is not the folder of a single job; it has no {JOB_FILE}")
        return read_job(found, DEFAULT_GPU_RESOURCE)

    def result(self) -> RunResult:
        job, running = self.read_job(), self._runner() is not None
        try:
            if not running and (self.folder / RESULT_FILE).is_file():
                return read_result(self.folder / RESULT_FILE)
            events = read_history(self.folder / HISTORY_FILE) if (self.folder / HISTORY_FILE).is_file() else ()
            report = read_document(self.folder / REPORT_FILE, Report) if (self.folder / REPORT_FILE).is_file() else None
        except DocumentError as error:
            raise ClientError(str(error)) from error
        return so_far(job, events, report, runs=running, log=str(self.folder / TRAINER_LOG))

    def wait(self, timeout: float | None = None) -> RunResult:
        self._until_ended(timeout)
        return self.result()

    def events(self, *, follow: bool = False) -> Iterator[Event]:
        for number, line in enumerate(self._lines(HISTORY_FILE, follow=follow)):
            try:
                event = EVENT.validate_json(line)
            except ValidationError:  # cut off by a kill
                continue
            if (said := told(event)) is not None:
                uid, warns = f"{self.name}-{number}", isinstance(event, Warned)
                yield Event(uid, self.name, event.time.timestamp(), *said, warning=warns, times=1)

    def logs(self, *, follow: bool = False) -> Iterator[bytes]:
        return self._lines(TRAINER_LOG, follow=follow)

    def suspend(self) -> None:
        if (pid := self._runner()) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            self._until_ended(_STOP_SECONDS)

    def resume(self) -> None:
        if self._runner() is not None:
            return
        submission, history, log = self._submission(), self.folder / HISTORY_FILE, self.folder / _RUN_LOG
        before = history.stat().st_size if history.is_file() else 0
        (self.folder / RESULT_FILE).unlink(missing_ok=True)
        with log.open("ab") as output:
            began, where = output.tell(), submission["directory"]
            start = partial(subprocess.Popen, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            child = start(submission["command"], cwd=where, start_new_session=True)
        threading.Thread(target=child.wait, daemon=True).start()  # reap the child when it ends
        while not (history.is_file() and history.stat().st_size > before):
            if (code := child.poll()) is not None:
                if code:
                    raise ClientError(error_in(log.read_bytes()[began:].decode(errors="replace")))
                return
            time.sleep(_POLL_SECONDS)

    def delete(self) -> None:
        self._submission()
        self.suspend()
        shutil.rmtree(self.folder)

    def _submission(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / SUBMISSION_FILE).read_bytes())
        except FileNotFoundError:
            hint = "use the command that started it, or remove its folder yourself"
            raise ClientError(f"{self.folder}: was not submitted by a client (no {SUBMISSION_FILE})", hint) from None
        return found

    def _runner(self) -> int | None:
        """Return the id of the process that runs it now, alone or with other jobs; None if there is none."""
        return next((pid for folder in (self.folder, self.folder.parent) if (pid := holder(folder))), None)

    def _lines(self, file: str, *, follow: bool) -> Iterator[bytes]:
        self.read_job()
        return grown_lines(self.folder / file, lambda: follow and self._runner() is not None)

    def _until_ended(self, timeout: float | None) -> None:
        end, pid = None if timeout is None else time.monotonic() + timeout, self._runner()
        while pid is not None:
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"{self.name} still runs after {timeout:g} s; wait with a longer timeout")
            time.sleep(_POLL_SECONDS)
            # It writes its result after it has released its folder.
            pid = self._runner() or (None if (self.folder / RESULT_FILE).is_file() or not runs(pid) else pid)


def _words(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if each is not None and each is not False:
                yield from [f"--{name.replace('_', '-')}", *([] if each is True else [str(each)])]
