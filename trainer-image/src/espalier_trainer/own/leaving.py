"""Whether a script has left its loop on purpose."""

from __future__ import annotations

import dis
import inspect
from types import FrameType


def on_purpose(frame: FrameType | None) -> bool:
    """Return whether the loop over a generator that is being closed was left by `break` or `return`.

    `frame` is what closes it. Such a loop drops its iterator by an instruction of its own; an exception, also that of
    `sys.exit`, drops it at the instruction that raised it. Generators in between (tqdm) are closed by their loops.
    """
    while frame is not None:
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("POP_TOP", "POP_ITER"):
            return True
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            return False
        frame = frame.f_back
    return False
