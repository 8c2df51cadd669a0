"""stdout and stderr of a command that works for hours: their reader may go, or their disk fill up, meanwhile."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self, TextIO

_READER_GONE: Final = (errno.EPIPE, errno.EIO)
"""Of a pipe, and of a terminal that was closed."""


class Terminal:
    """Within its context, what cannot be written to stdout or stderr is dropped instead of raised."""

    def __init__(self) -> None:
        self.is_gone = False
        """Whether whoever read stdout or stderr is gone."""
        self._call: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def when_gone(self, call: Callable[[], object]) -> None:
        """Call `call` once when the reader has gone, instead of what was set before; at once if it is gone already.

        It is perhaps called in another thread.
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
        """Take note that something could not be written to `stream`."""
        if error.errno not in _READER_GONE:
            return
        # Otherwise what the stream has kept would be tried again when the process ends, and change its exit code.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        with self._lock:
            was_gone, self.is_gone, call = self.is_gone, True, self._call
        if not was_gone:
            call()


def stopping_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a run to stop: not that of a closed terminal where it is ignored, as by nohup."""
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
