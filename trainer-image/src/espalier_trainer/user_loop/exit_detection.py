"""Detection of a loop that a script leaves by `break` or `return` without `Loop.stop()`; works for one release more.

Delete this file then: a loop that is left without `stop()` has failed.
"""

from __future__ import annotations

import gc
import inspect
import warnings
from types import CodeType, FrameType, TracebackType


def looping(frame: FrameType | None) -> CodeType | None:
    """Return the code of the loop over a generator that `frame` runs; generators in between (tqdm) are not loops."""
    while frame is not None and frame.f_code.co_flags & inspect.CO_GENERATOR:
        frame = frame.f_back
    return None if frame is None else frame.f_code


def was_left(frame: FrameType | None, loop: CodeType | None) -> bool:
    """Return whether `frame` closes a generator because `loop` was left, and warn; False where an exception ended it.

    An exception that passes through a frame has a traceback that refers to it. Where this cannot be determined, because
    the script keeps the iterator, or an exception caught in the loop's function, the answer is False: a failure.
    """
    if loop is None or looping(frame) is not loop:
        return False
    gc.collect()  # frees exceptions that only refer to themselves
    while frame is not None:
        between = frame.f_code is not loop
        # The exception that closes a generator in between is raised in it, not below.
        traces = (one for one in gc.get_referrers(frame) if isinstance(one, TracebackType))
        if any(one.tb_next is not None or not between for one in traces):
            return False
        if not between:
            break
        frame = frame.f_back
    text = "call loop.stop() before a break or return that leaves epochs(): alone, it fails from the next release on"
    with warnings.catch_warnings(action="always"):  # closing a generator cannot raise
        warnings.warn_explicit(text, FutureWarning, loop.co_filename, 0 if frame is None else frame.f_lineno)
    return True
