"""A job's pods sorted: who is its leader, who else works for it, who is on the way out. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from espalier_api.report import Report, TrainerPhase
from espalier_operator.facts import Role
from espalier_operator.kube.objects.jobs import KubeJob
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.record import Record

PAST = (TrainerPhase.COMPLETED, TrainerPhase.STOPPED, TrainerPhase.FAILED)
"""What a leader says last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """A job's pods, and what its leader says."""

    base: tuple[Pod | None, ...]
    """By index, those of the current attempt; None where there is none."""
    extra: tuple[Pod, ...]
    """Those alive, in the order in which they are kept: the last is given back first."""
    rest: tuple[Pod, ...]
    """Of earlier attempts, ended, or on their way out."""
    lost: Container[str]
    """UIDs of pods whose node is gone, or not heard of."""
    report: Report | None
    """The last, whichever leader it is of."""

    def worker(self, index: int) -> Pod | None:
        """Return the pod of base worker `index`, None where there is none."""
        return self.base[index] if index < len(self.base) else None

    @property
    def leader(self) -> Pod | None:
        """The pod of the leader."""
        return self.worker(0)

    @property
    def fresh(self) -> bool:
        """Whether the report is of the leader that is there now."""
        return self.leader is not None and self.word_of(self.leader.uid) is not None

    @property
    def leader_runs(self) -> bool:
        """Whether the leader's process runs, as far as is known."""
        leader = self.leader
        return leader is not None and leader.phase == "Running" and not leader.done and leader.uid not in self.lost

    @property
    def said(self) -> TrainerPhase:
        """What the leader that is there now said last."""
        return self.report.phase if self.fresh and self.report is not None else TrainerPhase.STARTING

    def word_of(self, uid: str) -> Report | None:
        """Return the last report if it is of the leader in the pod of this UID."""
        return self.report if self.report is not None and self.report.incarnation == uid else None


def crew_of(job: KubeJob, record: Record, pods: Iterable[Pod], ready: Container[str], report: Report | None) -> Crew:
    """Sort the pods of `job`; `ready` are the names of the nodes that are there and heard of."""
    base: list[Pod | None] = [None] * len(record.attempts)
    extra, rest, lost = [], [], set()
    for pod in pods:
        if pod.job_uid != job.uid:
            continue
        if pod.node is not None and pod.node not in ready and not pod.ended:
            lost.add(pod.uid)
        if pod.role is Role.BASE and _is_current(pod, job, record):
            base[pod.index] = pod
        elif pod.role is Role.EXTRA and not (pod.done or pod.deleting or pod.uid in lost):
            extra.append(pod)
        else:
            rest.append(pod)
    extra.sort(key=lambda pod: (pod.index, pod.attempt))
    return Crew(base=tuple(base), extra=tuple(extra), rest=tuple(rest), lost=lost, report=report)


def last_word(record: Record, known: Report | None, found: Report) -> Report:
    """Return which report counts: `found`, or the `known` one where that is of the leader and `found` is not.

    A leader on a node that was given up may go on for a while and write over what its successor says.
    """
    leader = record.pod_uids[0] if record.pod_uids else ""
    successor_has_spoken = known is not None and known.incarnation == leader != found.incarnation
    return known if known is not None and successor_has_spoken else found


def _is_current(pod: Pod, job: KubeJob, record: Record) -> bool:
    workers = min(len(record.attempts), job.terms.min_replicas)
    return pod.index < workers and pod.attempt == record.attempts[pod.index]
