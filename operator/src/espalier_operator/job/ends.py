"""The end of a base worker: the end of the job, a failure, or a preemption from outside.

An end is judged once: the change of state that counts it also raises the worker's attempt, so the next observation, by
this scheduler or its successor, finds a worker that has not been started yet. A base worker that was done before its
leader is recorded as completed; what happens to its pod after that does not matter. An attempt whose incarnation was
seen and has vanished without an observed end was ended from outside.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from espalier_core.types.environment import ExitCode
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.report import Report, TrainerPhase
from espalier_operator.clock import doubled
from espalier_operator.job.state import LAST_PHASES, End, JobState, Observation, Timing, WorkerStart
from espalier_operator.job.transitions import MAX_MESSAGE
from espalier_operator.model import Blame, Ended, JobTerms
from espalier_operator.model.nodes import blaming

_STOPPED_CODES: Final = (-signal.SIGTERM, ExitCode.STOPPED, -signal.SIGINT, ExitCode.INTERRUPTED)
_NEEDS_REPORT: Final = (ExitCode.COMPLETE, ExitCode.INVALID, ExitCode.LOSS_NOT_FINITE, *_STOPPED_CODES)
"""Exit codes whose meaning or message depends on the last report."""
_BUDGETS: Final = (Reason.BUDGET_EXHAUSTED, Reason.GPU_BUDGET_EXHAUSTED)

_MAX_CAUSE: Final = 1000
"""Maximum length of a message kept for each of several nodes, in characters."""
_OOM: Final = "OOMKilled"
"""The kubelet's reason for the end of a container that exceeded its memory."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of the leader: it is counted, and the leader is started again."""

    message: str


@dataclass(frozen=True, slots=True)
class LeaderPreemption:
    """An end of the leader from outside: it is started again, and no failure is counted."""

    message: str


def judge_exit(
    code: int, report: Report | None, cause: str = "", *, silent: bool = True
) -> Ended | Failure | LeaderPreemption:
    """Return the meaning of exit `code` (negative: the signal), given the last report of that process, if any.

    `cause` is the cause according to the backend or the log, for a process that has reported none. `silent`: no process
    of the job has ever reported.

    A trainer is complete by its report of the end, see `_trained`; a job that is silent does not use the trainer
    library, and is complete by exit code 0. A report of failure with any reason but `TrainerFailed` fails the job, as
    it would recur. Any other failure is retried: a code alone means no more, as a script may end with any code.
    A leader stopped by a signal that the scheduler did not send was preempted, provided that it had started to train:
    a leader that always ends by SIGTERM before that counts as failed.
    """
    if report is None:
        if code == 0 and silent:
            return Ended(reason=Reason.COMPLETED, failed=False, message=cause)
        return Failure(_with_cause(_describe(code), cause))
    if (trained := _trained(report, code, cause)) is not None:
        return trained
    phase, failed = report.phase, report.phase is TrainerPhase.FAILED
    message = (report.message if failed else "") or cause
    if failed and report.reason not in (None, Reason.TRAINER_FAILED):
        return Ended(reason=report.reason, failed=True, message=message)
    stopped = phase is TrainerPhase.STOPPED or code in _STOPPED_CODES
    if stopped and not failed and phase is not TrainerPhase.STARTING:
        return LeaderPreemption(_describe(code))
    if code != 0 or message:
        return Failure(_with_cause(_describe(code), message))
    if report.step == 0 and (failed or phase is TrainerPhase.STARTING):
        return Ended(reason=Reason.NOTHING_TRAINED, failed=True, message="it ended with exit code 0 before it trained")
    return Failure("exit code 0 before its loop or its budget was over; loop.stop() ends a loop early")


def judge(state: JobState, seen: Observation, index: int, terms: JobTerms, now: float, timing: Timing) -> JobState:
    """Return the state after an observation of base worker `index`."""
    after, worker = _judge(state, seen, index, terms, now, timing), seen.worker(index)
    if worker is not None and after is state and _is_stuck(worker, now, timing) and not state.ending:
        message = "" if worker.stuck is None else worker.stuck[1]
        if not worker.stuck_by_node:
            end = End(code=1, at=None, external=False, message=message)
            after = failed(state, index, _joined("it could not be started", message), terms, now, timing)
            return blaming_node(after, replace(worker, end=end), after.last_failure, now, timing)
        worker = replace(worker, end=End(code=None, at=None, external=True, by_node=True, message=message))
        after = _ended_by_others(state, index, Reason.PREEMPTED, _again_at(worker, now, timing))
    if worker is None or worker.end is None or after.attempts == state.attempts:
        return after
    end, said = worker.end, after.last_failure
    if end.by_node and worker.started_at is None:
        said = f"node {worker.node} refused it: {end.message}"
        after = replace(after, preemptions=state.preemptions)  # nothing was taken from it
    elif end.external and (end.by_node or index == 0):
        said = _joined(said if index == 0 else "", f"node {worker.node}" if end.by_node else "", end.message)
    return blaming_node(replace(after, last_failure=said[:MAX_MESSAGE]), worker, said, now, timing)


def blaming_node(state: JobState, worker: WorkerStart, message: str, now: float, timing: Timing) -> JobState:
    """Return the state after the end of a worker: its node is blamed if it refused or ended it, or it failed at start.

    The node is not blamed where the worker exceeded its own limits, or was ended from outside.
    """
    end = worker.end
    if end is None or worker.node is None:
        return state
    ran = 0.0 if worker.started_at is None or end.at is None else end.at - worker.started_at
    own = end.code not in (None, 0) and not (end.external or end.overran or _OOM in end.message)
    if not (end.by_node or (own and ran < timing.start_up_allowance)):
        return state
    new = Blame(node=worker.node, at=now, message=message[:_MAX_CAUSE], refused=end.by_node, loan=worker.loan)
    return replace(state, blames=blaming(state.blames, new))


def _judge(state: JobState, seen: Observation, index: int, terms: JobTerms, now: float, timing: Timing) -> JobState:
    worker, known = seen.worker(index), state.incarnations[index]
    leads = index == 0
    if index in state.completed_workers:
        return state
    if (verdict := _completed(state, seen, index, now, timing)) is not None:
        return replace(state, ended=verdict)
    if worker is None:
        return _ended_by_others(state, index, Reason.PREEMPTED) if known else state
    if worker.lost is not None and worker.end is None:
        return _ended_by_others(state, index, worker.lost)
    if worker.end is None:
        if leads and _lingers(state, seen, now, timing):
            return _overdue(state, seen, terms, now, timing)
        return state if known == worker.id else state.with_worker(index, incarnation=worker.id)
    if leads:
        return _judge_leader(state, seen, worker, worker.end, terms, now, timing)
    if worker.end.external:
        return _ended_by_others(state, index, Reason.PREEMPTED, _again_at(worker, now, timing))
    if state.stopping is not None:
        return state
    if _is_done(worker.end) and not seen.trains:
        return replace(state, completed_workers=(*state.completed_workers, index))
    code = 1 if worker.end.code is None else worker.end.code
    text = f"base worker {index}: {_joined(f'exit code {code}', worker.end.message)}"
    return failed(state, index, text, terms, now, timing)


def _is_done(end: End) -> bool:
    """Return whether a worker ended by itself and without a failure."""
    return end.code == 0 and not end.overran and not end.external


def failed(state: JobState, index: int, message: str, terms: JobTerms, now: float, timing: Timing) -> JobState:
    """Count a failure and delay the next start, twice as long each time; after `backoffLimit` no start follows."""
    failures = state.failures + 1
    wait = doubled(timing.restart, state.failures, timing.max_restart)
    again = state.with_worker(index, attempt=state.attempts[index] + 1, incarnation="")
    return replace(
        again,
        failures=failures,
        restarts=state.restarts + (index == 0 and failures <= terms.backoff_limit),
        last_failure=message[:MAX_MESSAGE],
        not_before=now + wait,
    )


def _is_stuck(worker: WorkerStart, now: float, timing: Timing) -> bool:
    """Return whether a worker's node has failed to start it for so long that it is replaced."""
    return worker.end is None and worker.stuck is not None and now >= worker.stuck[0] + timing.promise


def turning_points(state: JobState, seen: Observation, timing: Timing) -> Iterator[float]:
    """Yield the times at which the result of `judge` may change without a new observation."""
    yield from (each.stuck[0] + timing.promise for each in seen.base if each is not None and each.stuck is not None)
    leader = seen.leader
    if leader is None:
        return
    if leader.end is not None and leader.end.at is not None:
        yield leader.end.at + timing.report
    elif (since := done_since(state, seen)) is not None:
        yield since + timing.leave
        yield _ends_by(since, state, timing)


def _completed(state: JobState, seen: Observation, index: int, now: float, timing: Timing) -> Ended | None:
    """Return the end of a job whose leader reported completion, however its workers ended after that.

    The leader's process is about to end. Wait for it, unless another worker would have to be started.
    """
    leader, worker, known = seen.leader, seen.worker(index), state.incarnations[index]
    report = seen.report_of(state.incarnations[0] or (leader.id if leader else ""))
    if report is None or report.phase is not TrainerPhase.COMPLETED:
        return None
    end = None if leader is None else leader.end
    code = 0 if end is None or end.external or end.code is None else end.code
    if (verdict := _trained(report, code, "" if end is None else end.message)) is None:
        return None
    if worker is None:
        goes_on = index > 0 and not known
    elif index == 0:
        stays = worker.end is None and worker.lost is None and not worker.removed
        goes_on = stays and not _lingers(state, seen, now, timing)
    else:
        stays = worker.lost is None and not worker.removed
        goes_on = stays and (worker.running if worker.end is None else _is_done(worker.end))
    return None if goes_on else replace(verdict, message=verdict.message[:MAX_MESSAGE])


def if_forced(seen: Observation, terms: JobTerms) -> Ended | None:
    """Return the outcome of a job that is ended by force; None for a program, where no leader has ever reported, and
    where the last leader has stopped in order as requested: the budget then gives the reason.

    The job is complete where its training was over. Otherwise it has failed; the message quotes its last report.
    """
    report = seen.report
    if report is None or seen.program or (report.phase is TrainerPhase.STOPPED and not seen.leader_runs):
        return None
    evaluates = report.phase is TrainerPhase.EVALUATING
    if report.phase is TrainerPhase.COMPLETED or (evaluates and report.reason in _BUDGETS):
        message = report.message or ("its code after the loop did not end" if evaluates else "")
        return Ended(reason=report.reason or Reason.COMPLETED, failed=False, message=message)
    when = f"after {report.used_seconds:.3g} s of {terms.time_budget_seconds:g} s"
    message = f"its trainer did not report its end; the last report, {when}, is of step {report.step} ({report.phase})"
    if report.phase is TrainerPhase.STARTING:
        message += "; a start-up of more than 120 s (operator.seconds.startUpAllowance) counts as training"
    return Ended(reason=Reason.BUDGET_ENFORCED, failed=True, message=message)


def _trained(report: Report, code: int, cause: str) -> Ended | None:
    """Return the end of a job whose leader has reported that its training is over and its last checkpoint is written.

    The leader reports `Completed` as it ends, or `Evaluating` with a reason while code after the script's loop runs.
    A used-up budget completes the job whatever that code does; a loop that the script ended itself needs exit code 0.
    """
    reason, evaluates = report.reason, report.phase is TrainerPhase.EVALUATING
    if report.phase is not TrainerPhase.COMPLETED and not (evaluates and reason is not None):
        return None
    if code != 0 and (reason not in _BUDGETS or (evaluates and code in _STOPPED_CODES)):
        return None
    after = "" if code == 0 or code in _STOPPED_CODES else f"after its training: {_joined(_describe(code), cause)}"
    return Ended(reason=reason or Reason.COMPLETED, failed=False, message=report.message or after)


def _judge_leader(
    state: JobState, seen: Observation, leader: WorkerStart, end: End, terms: JobTerms, now: float, timing: Timing
) -> JobState:
    if seen.program:
        return _judge_program(state, seen, leader, end, terms, now, timing)
    report = seen.report_of(leader.id)
    if _may_report_still(end, report, now, timing):
        return state
    if end.external:
        return _ended_by_others(state, 0, Reason.PREEMPTED, _again_at(leader, now, timing))
    code = 1 if end.code is None else end.code
    verdict = judge_exit(code, report, end.message, silent=seen.report is None)
    if end.overran:
        # It may have ended in order on SIGTERM, but would exceed the limit again.
        verdict = Failure(_joined(_describe(code), end.message))
    elif leader.started_at is None:
        # The code is that of an init container, or the runtime's.
        verdict = Failure(_joined(_describe_unstarted(code), end.message))
    if isinstance(verdict, Ended):
        message = verdict.message
        if verdict.reason is Reason.NOTHING_TRAINED and state.last_failure:
            message = f"{message}; the last failure: {state.last_failure}"
        return replace(state, ended=replace(verdict, message=message[:MAX_MESSAGE]))
    if state.stopping is not None:
        return state  # it ended as requested
    if isinstance(verdict, Failure):
        return failed(state, 0, verdict.message, terms, now, timing)
    return replace(_ended_by_others(state, 0, Reason.PREEMPTED), stopped_itself=True)


def _judge_program(
    state: JobState, seen: Observation, leader: WorkerStart, end: End, terms: JobTerms, now: float, timing: Timing
) -> JobState:
    """Judge the leader of a program by its exit code alone: 0 ends the job, any other is a failure."""
    if seen.unread and end.at is not None and abs(now - end.at) < timing.report:
        return state
    if end.external:
        return _ended_by_others(state, 0, Reason.PREEMPTED, _again_at(leader, now, timing))
    if state.stopping is not None:
        return state  # it ended as requested
    if end.code == 0 and not end.overran:
        return replace(state, ended=Ended(reason=Reason.COMPLETED, failed=False, message=end.message[:MAX_MESSAGE]))
    code = 1 if end.code is None else end.code
    text = _describe(code) if leader.started_at is not None else _describe_unstarted(code)
    return failed(state, 0, _with_cause(text, end.message), terms, now, timing)


def _overdue(state: JobState, seen: Observation, terms: JobTerms, now: float, timing: Timing) -> JobState:
    """Judge a leader that does not end, by the last report that it sent; `_completed` judges a completed one."""
    report = seen.report
    if report is None or state.stopping is not None:
        return state  # the request to stop has its own deadline
    if report.phase is TrainerPhase.STOPPED:
        return replace(_ended_by_others(state, 0, Reason.PREEMPTED), stopped_itself=True)
    if report.reason not in (None, Reason.TRAINER_FAILED):
        return replace(state, ended=Ended(reason=report.reason, failed=True, message=report.message[:MAX_MESSAGE]))
    return failed(state, 0, _joined("it failed and did not end", report.message), terms, now, timing)


def _may_report_still(end: End, report: Report | None, now: float, timing: Timing) -> bool:
    """Return whether the last report of a leader that has ended may still arrive."""
    if end.code not in _NEEDS_REPORT or end.at is None or (report is not None and report.phase in LAST_PHASES):
        return False
    return abs(now - end.at) < timing.report  # a node whose clock is far ahead is not waited for


def done_since(state: JobState, seen: Observation) -> float | None:
    """Return when the leader was first seen to report its end, by the scheduler's clock; None before that."""
    leader = seen.leader
    return None if leader is None or seen.phase not in LAST_PHASES else state.watch_of(leader.id).done_since


def _lingers(state: JobState, seen: Observation, now: float, timing: Timing) -> bool:
    since = done_since(state, seen)
    return since is not None and now >= _ends_by(since, state, timing)


def _ends_by(since: float, state: JobState, timing: Timing) -> float:
    """Return how long to wait for the process of a leader after its last report: not beyond the deadline of a stop,
    after which a job that is complete would run again.
    """
    by = since + timing.linger
    return by if state.stopping is None else min(by, state.stopping.deadline)


def _again_at(worker: WorkerStart, now: float, timing: Timing) -> float | None:
    """Return the time before which a worker ended from outside must not restart; None unless its node refused it."""
    return now + timing.rejected_restart if worker.started_at is None and not worker.removed else None


def _ended_by_others(state: JobState, index: int, reason: Reason, not_before: float | None = None) -> JobState:
    """Record that a worker was ended from outside."""
    if state.stopping is not None:
        return state  # the job is about to be ended: no worker is started again
    again = state.with_worker(index, attempt=state.attempts[index] + 1, incarnation="")
    again = replace(again, not_before=not_before)
    if index != 0:
        return again
    return replace(
        again, restarts=state.restarts + 1, preemptions=state.preemptions + 1, last_failure=SENTENCES[reason]
    )


def _describe_unstarted(code: int) -> str:
    return f"it could not be started, exit code {code}"


def _with_cause(text: str, cause: str) -> str:
    """Return `text` with its cause, or with a hint where to look for it."""
    return f"{text}: {cause}" if cause else f"{text}; see its log"


def _joined(*texts: str) -> str:
    return ": ".join(text for text in texts if text)


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"
