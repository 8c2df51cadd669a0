"""The remedy for every reason: what would change it, and the commands to run next. Pure.

`{name}`, `{namespace}`, `{leader}` (the leader's pod) and `{queue}` are filled in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from espalier_core.types.reasons import Reason

_LOGS: Final = "kubectl logs -n {namespace} {leader}"
_DESCRIBE: Final = "kubectl describe pod -n {namespace} {leader}"
_EDIT: Final = "kubectl edit atj -n {namespace} {name}"
_AGENT: Final = "kubectl get pods -A -l app.kubernetes.io/name=espalier-agent"
_TOP: Final = "espalier top"
_WORKLOADS: Final = "kubectl describe workloads.kueue.x-k8s.io -n {namespace} -l espalier.dev/job={name}"


@dataclass(frozen=True, slots=True)
class Remedy:
    """The remedy for a reason."""

    text: str
    """A sentence or two."""
    commands: tuple[str, ...] = ()
    """Commands that show more, or change it."""


REMEDIES: Final[dict[Reason, Remedy]] = {
    Reason.NO_FREE_GPU: Remedy("A job that ends, a node that is added, or a smaller minReplicas.", (_TOP,)),
    Reason.QUOTA_EXCEEDED: Remedy(
        "A job of queue {queue} or of its cohort that ends, or a larger quota. If it needs more than the queue "
        "may ever hold, only the latter.",
        ("kubectl get queue {queue}", _TOP),
    ),
    Reason.MIN_RUNTIME: Remedy(
        "The end of preemption.minRuntimeSeconds of the jobs that borrowed; then they save a checkpoint and stop.",
        ("kubectl get queue {queue}", _TOP),
    ),
    Reason.RESOURCE_QUOTA_EXCEEDED: Remedy(
        "A pod of the namespace that ends (for a limit of count/pods: that is deleted), a larger ResourceQuota, or "
        "workers that request less (a LimitRange of the namespace may add requests).",
        ("kubectl get resourcequota,limitrange -n {namespace}", _EDIT),
    ),
    Reason.QUEUE_NOT_FOUND: Remedy(
        "Set spec.queue to a queue that the namespace may use, or ask an administrator to create queue {queue} or to "
        "add the namespace to its spec.namespaces.",
        ("kubectl get queues", _EDIT),
    ),
    Reason.PRIORITY_TOO_HIGH: Remedy(
        "Lower spec.priority (or spec.priorityClassName), or name another queue in spec.queue.",
        ("kubectl get queue {queue}", _EDIT),
    ),
    Reason.TOO_LARGE: Remedy(
        "More nodes, or a new job with a smaller minReplicas or fewer GPUs per worker.",
        (_TOP,),
    ),
    Reason.HELD_BY_POLICY: Remedy(
        "Wait: the policy decides again when jobs come, go or progress. `espalier plan` shows what another "
        "policy would do.",
        (_TOP, "espalier snapshot --output cluster.json", "espalier plan --snapshot cluster.json --policy fair"),
    ),
    Reason.TOO_LITTLE_BUDGET_LEFT: Remedy(
        "No action is needed: it trains with its base GPUs to the end of its budget."
    ),
    Reason.COOLDOWN: Remedy("Wait. A smaller spec.preemption.cooldownSeconds shortens the time for the next job."),
    Reason.EXTRA_WORKERS_LOST: Remedy(
        "Find out why they ended: the events of their pods show the cause (a lost node, memory, ephemeral storage, an "
        "exit code).",
        ("kubectl get events -n {namespace}", _TOP),
    ),
    Reason.AT_MAX_REPLICAS: Remedy("Only a larger spec.maxReplicas."),
    Reason.NO_REPORT: Remedy(
        "An image that uses the trainer library (espalier_trainer), with the job's ServiceAccount, so that it can "
        "write its report. A job without reports runs to the end of its budget, but is lent nothing.",
        (_LOGS,),
    ),
    Reason.LOGS_FORBIDDEN: Remedy(
        "The program runs as it is. To see its progress, let it serve metrics (spec.program.progress.metrics), or have "
        "an administrator set rbac.podLogs in the operator's chart: then the operator may read all logs."
    ),
    Reason.ADAPTATION_OFF: Remedy("Set spec.adaptation.mode to Auto or DryRun, or set spec.training.elasticBatch."),
    Reason.RECLAIM_PENDING: Remedy("Wait: when it has given GPUs back, it can be lent some again."),
    Reason.GPUS_GRANTED: Remedy("No action is needed: its pods are starting."),
    Reason.EXTRA_GPUS_GRANTED: Remedy("No action is needed."),
    Reason.NEEDED_BY_OTHER_JOB: Remedy(
        "No action is needed: it continues with fewer GPUs. A higher priority keeps more of them.", (_TOP,)
    ),
    Reason.GPU_LOST: Remedy(
        "A GPU of its type that becomes free, or the return of the node; the job resumes from its checkpoint.",
        ("kubectl get nodes", _TOP),
    ),
    Reason.NODES_AVOIDED: Remedy(
        "GPUs on another node, or the repair of what the message names: the device plugin, the driver or the runtime "
        "of the node. The node is tried again after a while, each time later.",
        ("kubectl get nodes", _TOP),
    ),
    Reason.QUOTA_RECLAIMED: Remedy(
        "No action is needed: it saves a checkpoint, waits for its quota, and resumes. With spec.preemption.base: "
        "Never it would keep its base GPUs.",
        ("kubectl get queues",),
    ),
    Reason.NODE_DEPARTING: Remedy(
        "No action is needed: it saves a checkpoint and resumes where GPUs are free. With spec.preemption.base: Never "
        "it would stay until the node has gone.",
        ("kubectl get nodes", _TOP),
    ),
    Reason.EVICTION_REQUESTED: Remedy(
        "No action is needed: an extra worker is given back, and base workers save a checkpoint and resume where GPUs "
        "are free. With spec.preemption.base: Never they stay.",
        ("kubectl get evictionrequests -n {namespace}", _TOP),
    ),
    Reason.PREEMPTED_BY_POLICY: Remedy(
        "No action is needed: it saves a checkpoint, waits for its turn, and resumes. With spec.preemption.base: Never "
        "it would keep its base GPUs.",
        (_TOP,),
    ),
    Reason.EVICTED_BY_KUEUE: Remedy(
        "No action is needed: it saves a checkpoint, gives its quota back, and resumes when Kueue admits it again. Its "
        "budget is kept.",
        (_WORKLOADS,),
    ),
    Reason.WAITING_FOR_KUEUE: Remedy(
        "What Kueue's message names: quota of its LocalQueue's ClusterQueue, an admission check, a queue that does not "
        "exist. Without Kueue, remove the label kueue.x-k8s.io/queue-name from the job.",
        (_WORKLOADS, "kubectl get localqueues -n {namespace}"),
    ),
    Reason.RECLAIM_ACKNOWLEDGED: Remedy("No action is needed."),
    Reason.RECLAIM_FORCED: Remedy(
        "A longer spec.preemption.noticeSeconds, if its steps take longer than the notice; its log shows what it did.",
        (_LOGS,),
    ),
    Reason.AGENT_UNAVAILABLE: Remedy(
        "An agent that answers within spec.adaptation.decisionTimeoutSeconds; until then spec.adaptation.fallback "
        "decides, and training continues.",
        (_AGENT,),
    ),
    Reason.ACTIONS_UNKNOWN: Remedy(
        "Set adaptation.fallback to Heuristic or Random, allow an action that the policy knows in adaptation.actions, "
        "or serve a policy that has learned them.",
        (_AGENT,),
    ),
    Reason.ILLEGAL_ADVICE: Remedy(
        "An agent of the same version as this Espalier: it advised a growth point that the model does not have.",
        (_AGENT,),
    ),
    Reason.STILL_CARRIED: Remedy("No action is needed."),
    Reason.NOT_CHEAPER: Remedy("No action is needed: a smaller model would hardly train faster."),
    Reason.TRIAL_NOT_BETTER: Remedy(
        "No action is needed; spec.adaptation.trials: Off would carry out advice without trying it."
    ),
    Reason.TOO_LATE_TO_DISTIL: Remedy("No action is needed; spec.timeBudgetSeconds sets how long the job has."),
    Reason.CANNOT_SHRINK: Remedy(
        "No action is needed: the model stays as it is. Only layers that were added can be removed again."
    ),
    Reason.DISTILLING: Remedy("Wait: both models are compared on the validation split, and the better one is kept."),
    Reason.DISTILLED: Remedy("No action is needed; spec.adaptation.onReclaim: Keep would keep the grown model."),
    Reason.LARGER_IS_BETTER: Remedy(
        "No action is needed; spec.adaptation.onReclaim: Keep would save the time of the trial."
    ),
    Reason.GPUS_CAME_BACK: Remedy("No action is needed."),
    Reason.TRIAL_FAILED: Remedy("No action is needed: the message shows what happened.", (_LOGS,)),
    Reason.IMAGE_PULL_FAILED: Remedy(
        "The right image name and tag, or an imagePullSecret for its registry. It is tried again by itself, each time "
        "after a longer wait; a change of its specification is tried at once.",
        (_DESCRIBE,),
    ),
    Reason.UNSCHEDULABLE: Remedy(
        "What the message names: a node that fits the template's nodeSelector, affinity, tolerations, CPU and memory "
        "requests, of which a LimitRange of the namespace may add some; or a claim that does not exist.",
        (_DESCRIBE, "kubectl get nodes"),
    ),
    Reason.POD_REJECTED: Remedy(
        "What the message names: a ResourceQuota with room, a template that pod security or a policy admits, a webhook "
        "that answers, an object that is missing. It is tried again by itself, each time after a longer wait; a change "
        "of its specification is tried at once.",
        ("kubectl get resourcequota -n {namespace}", _DESCRIBE),
    ),
    Reason.VOLUME_UNAVAILABLE: Remedy(
        "What the message names: a claim, Secret or ConfigMap that does not exist, or a volume that another node "
        "holds.",
        ("kubectl get pvc -n {namespace}", _DESCRIBE),
    ),
    Reason.SCHEDULING_GATED: Remedy(
        "Whoever set the gates (a queueing system, a policy of the namespace) removes them. Until then its GPUs are "
        "for others, and no deadline runs.",
        (_DESCRIBE,),
    ),
    Reason.NODES_REQUESTED: Remedy(
        "No action is needed while the autoscaler adds nodes. If it adds none, its events on the pods say why: a "
        "limit, a label or taint that differs from operator.gpu.nodeGroups, no machines. After seconds.nodeWait the "
        "job waits again.",
        (_DESCRIBE, "kubectl get nodes"),
    ),
    Reason.PREEMPTED: Remedy("No action is needed: it is restarted from its checkpoint.", (_DESCRIBE,)),
    Reason.NODE_LOST: Remedy(
        "No action is needed: it is restarted on another node, from its checkpoint, after the tolerationSeconds of its "
        "pod for node.kubernetes.io/unreachable.",
        ("kubectl get nodes",),
    ),
    Reason.PRE_RUNNING_DEADLINE_EXCEEDED: Remedy(
        "Find out what kept it from training, then create it again, with a longer spec.preRunningDeadlineSeconds if it "
        "only starts slowly.",
        (_DESCRIBE, _LOGS),
    ),
    Reason.CRASH_LOOP: Remedy(
        "Fix the error in its log, then create the job again; spec.backoffLimit allows more attempts.", (_LOGS,)
    ),
    Reason.TOO_MANY_PREEMPTIONS: Remedy(
        "Create it again with a larger spec.maxPreemptions (or none), or a higher priority.", (_TOP,)
    ),
    Reason.TRAINER_FAILED: Remedy("Fix the error that the message names.", (_LOGS,)),
    Reason.LOSS_NOT_FINITE: Remedy(
        "Create it again with a smaller spec.training.optimizer.learningRate, or check the data.", (_LOGS,)
    ),
    Reason.NOTHING_TRAINED: Remedy(
        "Fix the failure that the message names, or create it again with a larger spec.timeBudgetSeconds.", (_LOGS,)
    ),
    Reason.CHECKPOINT_NOT_WRITTEN: Remedy(
        "Free space on the volume of spec.checkpoint.path, or enlarge it; then create the job again with the same "
        "name: it continues from the last checkpoint that was written.",
        (_LOGS,),
    ),
    Reason.INVALID_SPEC: Remedy(
        "Correct what the message names: fields of the job, or the code at the place that it gives. A job that has "
        "failed is created again with the same name; it continues from its last checkpoint.",
        (_EDIT, _LOGS),
    ),
    Reason.SUSPENDED: Remedy(
        "Set spec.suspend to false; until then its budget and its checkpoint are kept.",
        ("espalier resume -n {namespace} {name}",),
    ),
    Reason.RUNNING: Remedy("No action is needed."),
    Reason.STARTING: Remedy("Wait: images are pulled, libraries are imported, the model is built.", (_DESCRIBE, _LOGS)),
    Reason.BUDGET_EXHAUSTED: Remedy(
        "No action is needed. To train longer, create a job with a larger spec.timeBudgetSeconds."
    ),
    Reason.GPU_BUDGET_EXHAUSTED: Remedy(
        "No action is needed. To train longer, create a job with a larger spec.gpuSecondsBudget."
    ),
    Reason.BUDGET_ENFORCED: Remedy(
        "Find out why its trainer did not end by itself: a step or an evaluation longer than the grace period, or a "
        "process that hangs. If it has failed, create it again with the same name: it continues from its last "
        "checkpoint.",
        (_LOGS,),
    ),
    Reason.COMPLETED: Remedy("No action is needed."),
    Reason.INTERRUPTED: Remedy(
        "Run the same command again, with the same --output; the job resumes from its checkpoint."
    ),
}
"""The remedy for every reason."""


_NOT_LENT: Final = Remedy("No action is needed: a program runs with minReplicas workers, and is lent no others.")
_OF_PROGRAMS: Final = {Reason.ADAPTATION_OFF: _NOT_LENT, Reason.AT_MAX_REPLICAS: _NOT_LENT}
"""Remedies for a job with `spec.program` where those of other jobs do not apply."""


def remedy_for(reason: Reason, *, name: str, namespace: str, leader: str, queue: str, program: bool = False) -> Remedy:
    """Return the remedy with its placeholders filled in; `program`: for a job with `spec.program`."""
    remedy = (program and _OF_PROGRAMS.get(reason)) or REMEDIES[reason]
    places = {"name": name, "namespace": namespace, "leader": leader, "queue": queue}
    return Remedy(remedy.text.format(**places), tuple(command.format(**places) for command in remedy.commands))
