"""Why a trainer fails: the cause in one sentence, and whether the same start would fail again."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from typing import Final

from torch.distributed import DistError

from espalier_core.causes import cause_in, place_in
from espalier_core.types.environment import ExitCode
from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_trainer.errors import LossNotFiniteError, TrainerError
from espalier_trainer.training.progress import Ending

_LASTING: Final = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EEXIST,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    )
)
"""Errors of the operating system that a wrong path or missing rights cause."""
_OF_A_DEVICE: Final = ("CUDA", "cuDNN", "CUBLAS", "NCCL", "Gloo", "out of memory", "DataLoader worker")
"""Parts of the messages of torch's `RuntimeError` that speak of a device, a connection or a killed process."""


def sentence(error: BaseException) -> str:
    """Return the cause in one sentence, with the user's file and line where the error has passed one."""
    text = "".join(traceback.format_exception(error))
    if not isinstance(error, TrainerError | LossNotFiniteError):
        return cause_in(text, ends_with_it=True)
    place = place_in(text)
    return f"{error} ({place})" if place else str(error)


def ending_of(error: BaseException, *, stepped: bool) -> Ending:
    """Return how a run ends by an exception; `stepped` tells whether this process has taken a step before.

    The reason `TrainerFailed` is for what may go better when the same job is started again: any error after a step, and
    one of the surroundings before. All else would only be repeated: it is for the author of the job.
    """
    if isinstance(error, LossNotFiniteError):
        return Ending(TrainerPhase.FAILED, Reason.LOSS_NOT_FINITE, sentence(error))
    passes = may_pass(error) or isinstance(error, KeyboardInterrupt)
    mistake = not passes and (isinstance(error, TrainerError) or not stepped)
    return Ending(TrainerPhase.FAILED, Reason.INVALID_SPEC if mistake else Reason.TRAINER_FAILED, sentence(error))


def exit_code_of(reason: Reason) -> ExitCode:
    """Return the exit code of a run that failed for `reason`."""
    return _CODES.get(reason, ExitCode.INVALID)


_CODES: Final = {Reason.LOSS_NOT_FINITE: ExitCode.LOSS_NOT_FINITE, Reason.TRAINER_FAILED: ExitCode.ERROR}


def may_pass(error: BaseException) -> bool:
    """Return whether the same start may succeed later: the error, or one that it came from, is of the surroundings.

    Of the surroundings are memory, devices, connections (those of torch.distributed too) and file systems, but not a
    wrong path or missing rights.
    """
    return any(_is_of_the_surroundings(each) for each in _chain(error))


def _is_of_the_surroundings(error: BaseException) -> bool:
    if isinstance(error, MemoryError | DistError):
        return True
    if isinstance(error, OSError):
        return error.errno not in _LASTING
    # torch.OutOfMemoryError is a RuntimeError too.
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _OF_A_DEVICE)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those that it was raised from or while handling."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
