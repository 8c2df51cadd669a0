"""The end of a base worker: whether it is the job's, a failure, or the deed of somebody else. Pure.

An end is judged once: the same change of the record that counts it raises the worker's attempt, so that another look,
by this operator or the next, sees a worker that has not been started yet. An attempt whose pod was seen and is gone
without a trace was ended from outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from espalier_api.reasons import SENTENCES, Reason
from espalier_api.report import Report, TrainerPhase
from espalier_operator.exits import Failure, judge_exit
from espalier_operator.facts import Ended
from espalier_operator.kube.crew import PAST, Crew
from espalier_operator.kube.objects.pods import MAX_MESSAGE, Pod
from espalier_operator.kube.record import Record
from espalier_operator.kube.settings import KubeSettings

REPORT_SECONDS: Final = 3.0
"""How long the report of a leader that has ended is waited for: it may come after the pod's end."""
LINGER_SECONDS: Final = 60.0
"""How long a leader that has said its last word may take to end."""
REJECTED_SECONDS: Final = 10.0
"""Before a pod that ended before it began (a node refused it) is made again."""
_NEEDS_WORD: Final = (0, 2, 3, 130, 143)
"""Exit codes whose meaning, or message, the last report decides."""


def judge(record: Record, crew: Crew, index: int, now: float, settings: KubeSettings) -> Record:
    """Return the record after a look at base worker `index`."""
    pod, known = crew.worker(index), record.pod_uids[index]
    leads = index == 0
    if leads and (verdict := _completed(crew, known or (pod.uid if pod else ""), pod, now)) is not None:
        return replace(record, ended=verdict)
    if pod is None:
        return _outside(record, index, Reason.PREEMPTED) if known else record
    if pod.uid in crew.lost:
        return _outside(record, index, Reason.NODE_LOST)
    if not pod.done:
        if leads and _lingers(crew, now):
            return _overdue(record, crew, now, settings)
        return record if known == pod.uid else record.with_worker(index, uid=pod.uid)
    if leads:
        return _judge_leader(record, crew, pod, now, settings)
    if _is_outside(pod):
        return _outside(record, index, Reason.PREEMPTED, _again_at(pod, now))
    if pod.exit_code == 0 or record.stopping is not None:
        return record  # a user's own worker that is done before its leader
    text = f"base worker {index}: {_words(f'exit code {pod.exit_code}', pod.message)}"
    return _failed(record, index, text, now, settings)


def turning_points(crew: Crew) -> Iterator[float]:
    """Yield the times at which `judge` may change its answer by the passing of time alone."""
    leader = crew.leader
    if leader is None:
        return
    if leader.done and leader.finished_at is not None:
        yield leader.finished_at + REPORT_SECONDS
    elif crew.said in PAST and crew.report is not None:
        yield crew.report.updated_time.timestamp() + LINGER_SECONDS


def _completed(crew: Crew, uid: str, pod: Pod | None, now: float) -> Ended | None:
    """Return the end of a leader that said that it completed, whatever became of its pod after that."""
    word = crew.word_of(uid)
    if word is None or word.phase is not TrainerPhase.COMPLETED:
        return None
    if pod is not None and not pod.done and pod.uid not in crew.lost and not _lingers(crew, now):
        return None  # it has its pod's end still before it
    return Ended(reason=word.reason or Reason.COMPLETED, failed=False, message=word.message[:MAX_MESSAGE])


def _judge_leader(record: Record, crew: Crew, pod: Pod, now: float, settings: KubeSettings) -> Record:
    word = crew.word_of(pod.uid)
    if _may_speak_still(pod, word, now):
        return record
    if _is_outside(pod):
        return _outside(record, 0, Reason.PREEMPTED, _again_at(pod, now))
    code = 1 if pod.exit_code is None else pod.exit_code
    verdict = judge_exit(code, word)
    if pod.started_at is None:
        verdict = Failure(f"it could not be started, exit code {code}")  # of an init container, or the runtime's
    if isinstance(verdict, Ended):
        message = verdict.message if word is not None and word.message else _words(verdict.message, pod.message)
        return replace(record, ended=replace(verdict, message=message[:MAX_MESSAGE]))
    if record.stopping is not None:
        return record  # it ended as it was asked to
    if isinstance(verdict, Failure):
        return _failed(record, 0, _words(verdict.message, pod.message), now, settings)
    return _outside(record, 0, Reason.PREEMPTED)


def _overdue(record: Record, crew: Crew, now: float, settings: KubeSettings) -> Record:
    """Take a leader that said its last word, and does not end, at its word. That it completed is seen to elsewhere."""
    word = crew.report
    if word is None or record.stopping is not None:
        return record  # the demand to stop has a deadline of its own
    if word.phase is TrainerPhase.STOPPED:
        return _outside(record, 0, Reason.PREEMPTED)
    if word.reason in (Reason.INVALID_SPEC, Reason.LOSS_NOT_FINITE):
        return replace(record, ended=Ended(reason=word.reason, failed=True, message=word.message[:MAX_MESSAGE]))
    return _failed(record, 0, _words("it failed and did not end", word.message), now, settings)


def _may_speak_still(pod: Pod, word: Report | None, now: float) -> bool:
    """Return whether the last report of a leader that has ended may be on its way."""
    if pod.exit_code not in _NEEDS_WORD or pod.finished_at is None or (word is not None and word.phase in PAST):
        return False
    return abs(now - pod.finished_at) < REPORT_SECONDS  # a node whose clock is far ahead is not waited for


def _lingers(crew: Crew, now: float) -> bool:
    word = crew.report
    return crew.said in PAST and word is not None and now >= word.updated_time.timestamp() + LINGER_SECONDS


def _is_outside(pod: Pod) -> bool:
    return pod.deleting or pod.disrupted or pod.exit_code is None


def _again_at(pod: Pod, now: float) -> float | None:
    """Return when a worker that was ended from outside may start again: at once, unless its node refused it."""
    return now + REJECTED_SECONDS if pod.started_at is None and not pod.deleting else None


def _outside(record: Record, index: int, reason: Reason, not_before: float | None = None) -> Record:
    """Count a worker that somebody else ended."""
    if record.stopping is not None:
        return record  # nobody is started again who is about to be ended
    again = replace(record.with_worker(index, attempt=record.attempts[index] + 1, uid=""), not_before=not_before)
    if index != 0:
        return again
    return replace(
        again, restarts=record.restarts + 1, preemptions=record.preemptions + 1, last_failure=SENTENCES[reason]
    )


def _failed(record: Record, index: int, message: str, now: float, settings: KubeSettings) -> Record:
    """Count a failure and put the next start off, twice as long each time."""
    failures = record.failures + 1
    wait = min(settings.restart_seconds * 2.0 ** min(failures - 1, 30), settings.max_restart_seconds)
    again = record.with_worker(index, attempt=record.attempts[index] + 1, uid="")
    return replace(
        again,
        failures=failures,
        restarts=record.restarts + (index == 0),
        last_failure=message[:MAX_MESSAGE],
        not_before=now + wait,
    )


def _words(*texts: str) -> str:
    return ": ".join(text for text in texts if text)
