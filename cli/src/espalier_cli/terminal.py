"""Terminal output of a command that runs for hours.

`Terminal` survives a reader that leaves and a disk that fills up, `Prints` shows the output of a job's code, and
`Silences` reports the activity of a job without recent output.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO

from rich.console import Console
from rich.text import Text

from espalier_core.types.report import TrainerPhase
from espalier_operator.local.run import JobView

_READER_GONE: Final = (errno.EPIPE, errno.EIO)
"""Errors of a pipe whose reader has left, and of a closed terminal."""
_LOGGED: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ ")
"""The beginning of a line logged by the trainer, whose content the events on the terminal show already."""
_MOST: Final = 10
"""Maximum number of lines shown at a time: a script that prints at every step must not bury everything else."""
_MOST_BYTES: Final = 1 << 20
FIRST_SECONDS: Final = 30.0
"""Seconds of silence before the first line; each further line comes after twice as long."""
_DOING: Final = {
    None: "starting up: it imports, loads data, builds the model, or looks for places to grow",
    TrainerPhase.STARTING: "starting up: it loads data, builds the model, or looks for places to grow",
    TrainerPhase.ADAPTING: "growing",
    TrainerPhase.EVALUATING: "evaluating",
}


class Terminal:
    """Within its context, output that cannot be written to stdout or stderr is dropped instead of raised."""

    def __init__(self) -> None:
        self.is_gone = False
        """Whether the reader of stdout or stderr is gone."""
        self._call: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def when_gone(self, call: Callable[[], object]) -> None:
        """Call `call` once when the reader has gone, replacing an earlier callback; at once if it is gone already.

        It may be called in another thread.
        """
        with self._lock:
            self._call, is_gone = call, self.is_gone
        if is_gone:
            call()

    def __enter__(self) -> Self:
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = _Lasting(sys.stdout, self), _Lasting(sys.stderr, self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.stdout, sys.stderr = self._before

    def failed(self, stream: TextIO, error: OSError) -> None:
        """Record a failed write to `stream`."""
        if error.errno not in _READER_GONE:
            return
        # Otherwise the stream would write its buffer again when the process ends, and change its exit code.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        with self._lock:
            was_gone, self.is_gone, call = self.is_gone, True, self._call
        if not was_gone:
            call()


def stopping_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a run to stop, without that of a closed terminal where it is ignored, as by nohup."""
    hangup = (signal.SIGHUP,) if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else ()
    return signal.SIGINT, signal.SIGTERM, *hangup


class _Lasting:
    """A text stream that drops what it cannot write."""

    def __init__(self, stream: TextIO, terminal: Terminal) -> None:
        self._stream, self._terminal = stream, terminal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError as error:
            self._terminal.failed(self._stream, error)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._terminal.failed(self._stream, error)


class Prints:
    """Reads the log of one job from its current end."""

    def __init__(self, job: str, log: Path) -> None:
        self._job, self._log = job, log
        try:
            self._place = log.stat().st_size
        except OSError:  # no log yet; whoever creates the folder reports its errors
            self._place = 0
        self._begun = b""
        """The last line, as long as it is incomplete."""
        self._shown: set[str] = set()

    def skip(self, text: str) -> None:
        """Record that `text` is on the terminal already, so that it is not shown again."""
        self._shown.add(text)

    def show(self, console: Console, *, ended: bool = False) -> None:
        """Print the lines added since; with `ended`, also an incomplete last line."""
        lines = self._new(ended)
        for line in lines[:_MOST]:
            console.print(Text(f"{self._job}  | {line}"), soft_wrap=True)
        if len(lines) > _MOST:
            console.print(Text(f"{self._job}  | ... {len(lines) - _MOST} more lines in {self._log}"), soft_wrap=True)

    def _new(self, ended: bool) -> list[str]:
        try:
            with self._log.open("rb") as file:
                file.seek(self._place)
                content = file.read(_MOST_BYTES)
        except OSError:
            content = b""
        self._place += len(content)
        *whole, self._begun = (self._begun + content).split(b"\n")
        if ended:
            whole, self._begun = [*whole, self._begun], b""
        texts = (line.decode(errors="replace").rstrip("\r").rpartition("\r")[2].rstrip() for line in whole)
        return [text for text in texts if text and not _LOGGED.match(text) and text not in self._shown]


class Silences:
    """The time since the last output of each job."""

    def __init__(self, jobs: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard = dict.fromkeys(jobs, clock())
        self._next = dict.fromkeys(self._heard, FIRST_SECONDS)

    def heard(self, job: str) -> None:
        """Record output of a job."""
        if job in self._heard:
            self._heard[job], self._next[job] = self._clock(), FIRST_SECONDS

    def lines(self, views: Iterable[JobView]) -> Iterator[tuple[str, str]]:
        """Yield name and line of jobs that hold GPUs and have been silent for long."""
        for view in views:
            if not view.gpus:
                self.heard(view.name)
            silent = self._clock() - self._heard.get(view.name, self._clock())
            if silent >= self._next.get(view.name, FIRST_SECONDS):
                self._next[view.name] *= 2
                doing = _DOING.get(view.doing, f"training, at step {view.step:,}")
                yield view.name, f"nothing new for {silent:.0f} s; {doing}"
