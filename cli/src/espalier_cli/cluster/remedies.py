"""For every reason: what would change it, and the commands to type next. Pure.

`{name}`, `{namespace}`, `{leader}` (the leader's pod) and `{queue}` are filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from espalier_api.reasons import Reason

_LOGS: Final = "kubectl logs -n {namespace} {leader}"
_DESCRIBE: Final = "kubectl describe pod -n {namespace} {leader}"
_EDIT: Final = "kubectl edit atj -n {namespace} {name}"
_AGENT: Final = "kubectl get pods -A -l app.kubernetes.io/name=espalier-agent"
_TOP: Final = "espalier top"


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would change a reason."""

    text: str
    """A sentence or two."""
    commands: tuple[str, ...] = ()
    """What to type to see more, or to change it."""


REMEDIES: Final[dict[Reason, Remedy]] = {
    Reason.NO_FREE_GPU: Remedy("A job that ends, a node that is added, or a smaller minReplicas.", (_TOP,)),
    Reason.QUOTA_EXCEEDED: Remedy("A job of queue {queue} that ends, or a larger share for the queue."),
    Reason.TOO_LARGE: Remedy(
        "Nodes that are added or come back, or a job made anew with a smaller minReplicas or fewer GPUs a worker.",
        (_TOP,),
    ),
    Reason.TOO_LITTLE_BUDGET_LEFT: Remedy(
        "Nothing needs to be done: it trains on with its base GPUs to the end of its budget."
    ),
    Reason.COOLDOWN: Remedy("Time; a smaller spec.preemption.cooldownSeconds in the next job makes it shorter."),
    Reason.MIN_RUNTIME: Remedy(
        "Time; spec.preemption.minRuntimeSeconds of the jobs that hold lent GPUs says how long."
    ),
    Reason.AT_MAX_REPLICAS: Remedy("Only a larger spec.maxReplicas."),
    Reason.NO_REPORT: Remedy(
        "An image that uses the trainer library (espalier_trainer), with the job's ServiceAccount, so that it can "
        "write its report. Without reports it is budgeted and completed as it is, and lent nothing.",
        (_LOGS,),
    ),
    Reason.ADAPTATION_OFF: Remedy("spec.adaptation.mode Auto, or DryRun; or spec.training.elasticBatch."),
    Reason.RECLAIM_PENDING: Remedy("Time: when it has given GPUs back, it may be lent some again."),
    Reason.GPUS_GRANTED: Remedy("Nothing needs to be done: its pods are starting."),
    Reason.EXTRA_GPUS_GRANTED: Remedy("Nothing needs to be done."),
    Reason.NEEDED_BY_OTHER_JOB: Remedy(
        "Nothing needs to be done: it goes on with fewer GPUs. A higher priority keeps more of them.", (_TOP,)
    ),
    Reason.GPU_LOST: Remedy(
        "A GPU of its type that becomes free, or the node coming back; it goes on from its checkpoint.",
        ("kubectl get nodes", _TOP),
    ),
    Reason.RECLAIM_ACKNOWLEDGED: Remedy("Nothing needs to be done."),
    Reason.RECLAIM_FORCED: Remedy(
        "A longer spec.preemption.noticeSeconds, if its steps take longer than the notice; its log says what it did.",
        (_LOGS,),
    ),
    Reason.AGENT_UNAVAILABLE: Remedy(
        "An agent that answers within spec.adaptation.decisionTimeoutSeconds; until then spec.adaptation.fallback "
        "decides, and training goes on.",
        (_AGENT,),
    ),
    Reason.AGENT_DECLINED: Remedy("Nothing needs to be done: by its policy the model is best left as it is."),
    Reason.ILLEGAL_ADVICE: Remedy(
        "An agent of this Espalier's version: it advised a growth point that the model does not have.", (_AGENT,)
    ),
    Reason.STILL_CARRIED: Remedy("Nothing needs to be done."),
    Reason.NOT_CHEAPER: Remedy("Nothing needs to be done: a smaller model would hardly be trained faster."),
    Reason.TOO_LATE_TO_DISTIL: Remedy("Nothing needs to be done; spec.timeBudgetSeconds says how long the job has."),
    Reason.CANNOT_SHRINK: Remedy(
        "Nothing needs to be done: it goes on as it is. Layers that were added can be taken out again, and no more."
    ),
    Reason.DISTILLING: Remedy("Time: both models are compared on the validation split, and the better one is kept."),
    Reason.DISTILLED: Remedy("Nothing needs to be done; spec.adaptation.onReclaim: Keep would keep the grown model."),
    Reason.LARGER_IS_BETTER: Remedy(
        "Nothing needs to be done; spec.adaptation.onReclaim: Keep would save the time of the trial."
    ),
    Reason.GPUS_CAME_BACK: Remedy("Nothing needs to be done."),
    Reason.TRIAL_FAILED: Remedy("Nothing needs to be done: the message says what happened.", (_LOGS,)),
    Reason.IMAGE_PULL_FAILED: Remedy(
        "The right image name and tag, or an imagePullSecret for its registry; the kubelet tries again by itself.",
        (_DESCRIBE,),
    ),
    Reason.UNSCHEDULABLE: Remedy(
        "A node that fits the template's nodeSelector, affinity, tolerations, CPU and memory requests.",
        (_DESCRIBE, "kubectl get nodes"),
    ),
    Reason.POD_REJECTED: Remedy(
        "What the message names: a ResourceQuota with room, a template that pod security admits, an object that is "
        "missing.",
        ("kubectl get resourcequota -n {namespace}", _DESCRIBE),
    ),
    Reason.PREEMPTED: Remedy("Nothing needs to be done: it is started again from its checkpoint.", (_DESCRIBE,)),
    Reason.NODE_LOST: Remedy(
        "Nothing needs to be done: it is started again elsewhere, from its checkpoint.", ("kubectl get nodes",)
    ),
    Reason.PRE_RUNNING_DEADLINE_EXCEEDED: Remedy(
        "See what kept it from training, then make it anew, with a longer spec.preRunningDeadlineSeconds if it only "
        "starts slowly.",
        (_DESCRIBE, _LOGS),
    ),
    Reason.CRASH_LOOP: Remedy(
        "Mend what its log says, then make the job anew; spec.backoffLimit allows more tries.", (_LOGS,)
    ),
    Reason.TOO_MANY_PREEMPTIONS: Remedy(
        "Make it anew with a larger spec.maxPreemptions (or none), or a higher priority.", (_TOP,)
    ),
    Reason.TRAINER_FAILED: Remedy("Mend what its log says.", (_LOGS,)),
    Reason.LOSS_NOT_FINITE: Remedy(
        "Make it anew with a smaller spec.training.optimizer.learningRate, or look at the data.", (_LOGS,)
    ),
    Reason.INVALID_SPEC: Remedy("Mend the fields that the message names.", (_EDIT,)),
    Reason.SUSPENDED: Remedy(
        "spec.suspend: false; its budget and its checkpoint are kept meanwhile.",
        ('kubectl patch atj -n {namespace} {name} --type merge -p \'{{"spec":{{"suspend":false}}}}\'',),
    ),
    Reason.RUNNING: Remedy("Nothing needs to be done."),
    Reason.STARTING: Remedy("Time: images are pulled, libraries imported, the model is built.", (_DESCRIBE, _LOGS)),
    Reason.BUDGET_EXHAUSTED: Remedy(
        "Nothing needs to be done. For a longer training make a job with a larger spec.timeBudgetSeconds."
    ),
    Reason.GPU_BUDGET_EXHAUSTED: Remedy(
        "Nothing needs to be done. For a longer training make a job with a larger spec.gpuSecondsBudget."
    ),
    Reason.BUDGET_ENFORCED: Remedy(
        "See why its trainer did not end by itself: a step or an evaluation longer than the grace, or a process that "
        "hangs.",
        (_LOGS,),
    ),
    Reason.COMPLETED: Remedy("Nothing needs to be done."),
    Reason.INTERRUPTED: Remedy("The same command again; it goes on from its checkpoint."),
}
"""By reason; there is one for every reason."""


def remedy_for(reason: Reason, *, name: str, namespace: str, leader: str, queue: str) -> Remedy:
    """Return the remedy with its places filled in."""
    remedy = REMEDIES[reason]
    places = {"name": name, "namespace": namespace, "leader": leader, "queue": queue}
    return Remedy(remedy.text.format(**places), tuple(command.format(**places) for command in remedy.commands))
