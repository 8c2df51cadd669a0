"""What the end of a leader's process means."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from espalier_api.reasons import Reason
from espalier_api.report import Report, TrainerPhase
from espalier_operator.facts import Ended

INVALID_SPEC_CODE = 2
LOSS_NOT_FINITE_CODE = 3
_STOPPED_CODES = (-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Failure:
    """The leader is to be started again, and the failure counted."""

    message: str


@dataclass(frozen=True, slots=True)
class Preemption:
    """The leader was ended by somebody else; it is started again and that is not its fault."""

    message: str


def judge_exit(code: int, report: Report | None) -> Ended | Failure | Preemption:
    """Return what exit `code` means (negative: the signal), given the last report of that process, if any.

    0 is an end; 2 (`InvalidSpec`) and 3 (`LossNotFinite`) would only happen again; the rest is worth another try. A
    leader stopped by a signal that the scheduler did not send was preempted, provided it had got to training: one
    that always ends itself by SIGTERM before that counts as failing.
    """
    phase = report.phase if report is not None else TrainerPhase.STARTING
    said = report.reason if report is not None else None
    message = report.message if report is not None else ""
    if code == INVALID_SPEC_CODE:
        return Ended(reason=Reason.INVALID_SPEC, failed=True, message=message or "exit code 2; see its log")
    if code == LOSS_NOT_FINITE_CODE:
        return Ended(reason=Reason.LOSS_NOT_FINITE, failed=True, message=message or "exit code 3; see its log")
    stopped = phase is TrainerPhase.STOPPED or code in _STOPPED_CODES
    if code == 0 and not stopped:
        reason = said if phase is TrainerPhase.COMPLETED and said is not None else Reason.COMPLETED
        return Ended(reason=reason, failed=False, message=message)
    if stopped and phase is not TrainerPhase.STARTING:
        return Preemption(_describe(code))
    return Failure(f"{_describe(code)}{': ' + message if message else '; see its log'}")


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
