"""Reasons: one enum for conditions, events, metrics and `espalier explain`.

A reason is never a catch-all. Each has one sentence that explains when it occurs.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """A machine-readable cause; `SENTENCES` explains it to people."""

    NO_FREE_GPU = "NoFreeGPU"
    QUOTA_EXCEEDED = "QuotaExceeded"
    MIN_RUNTIME = "MinRuntime"
    RESOURCE_QUOTA_EXCEEDED = "ResourceQuotaExceeded"
    QUEUE_NOT_FOUND = "QueueNotFound"
    WAITING_FOR_KUEUE = "WaitingForKueue"
    PRIORITY_TOO_HIGH = "PriorityTooHigh"
    TOO_LARGE = "TooLarge"
    HELD_BY_POLICY = "HeldByPolicy"
    TOO_LITTLE_BUDGET_LEFT = "TooLittleBudgetLeft"
    COOLDOWN = "Cooldown"
    EXTRA_WORKERS_LOST = "ExtraWorkersLost"
    AT_MAX_REPLICAS = "AtMaxReplicas"
    NO_REPORT = "NoReport"
    LOGS_FORBIDDEN = "LogsForbidden"
    ADAPTATION_OFF = "AdaptationOff"
    RECLAIM_PENDING = "ReclaimPending"
    GPUS_GRANTED = "GPUsGranted"
    EXTRA_GPUS_GRANTED = "ExtraGPUsGranted"
    NEEDED_BY_OTHER_JOB = "NeededByOtherJob"
    GPU_LOST = "GPULost"
    NODES_AVOIDED = "NodesAvoided"
    QUOTA_RECLAIMED = "QuotaReclaimed"
    PREEMPTED_BY_POLICY = "PreemptedByPolicy"
    EVICTED_BY_KUEUE = "EvictedByKueue"
    NODE_DEPARTING = "NodeDeparting"
    EVICTION_REQUESTED = "EvictionRequested"
    RECLAIM_ACKNOWLEDGED = "ReclaimAcknowledged"
    RECLAIM_FORCED = "ReclaimForced"
    AGENT_UNAVAILABLE = "AgentUnavailable"
    ILLEGAL_ADVICE = "IllegalAdvice"
    ACTIONS_UNKNOWN = "ActionsUnknown"
    TRIAL_NOT_BETTER = "TrialNotBetter"
    STILL_CARRIED = "StillCarried"
    NOT_CHEAPER = "NotCheaper"
    TOO_LATE_TO_DISTIL = "TooLateToDistil"
    CANNOT_SHRINK = "CannotShrink"
    DISTILLING = "Distilling"
    DISTILLED = "Distilled"
    LARGER_IS_BETTER = "LargerIsBetter"
    GPUS_CAME_BACK = "GPUsCameBack"
    TRIAL_FAILED = "TrialFailed"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    UNSCHEDULABLE = "Unschedulable"
    POD_REJECTED = "PodRejected"
    VOLUME_UNAVAILABLE = "VolumeUnavailable"
    SCHEDULING_GATED = "SchedulingGated"
    NODES_REQUESTED = "NodesRequested"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    PRE_RUNNING_DEADLINE_EXCEEDED = "PreRunningDeadlineExceeded"
    CRASH_LOOP = "CrashLoop"
    TOO_MANY_PREEMPTIONS = "TooManyPreemptions"
    TRAINER_FAILED = "TrainerFailed"
    LOSS_NOT_FINITE = "LossNotFinite"
    NOTHING_TRAINED = "NothingTrained"
    CHECKPOINT_NOT_WRITTEN = "CheckpointNotWritten"
    INVALID_SPEC = "InvalidSpec"
    SUSPENDED = "Suspended"
    RUNNING = "Running"
    STARTING = "Starting"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    GPU_BUDGET_EXHAUSTED = "GPUBudgetExhausted"
    BUDGET_ENFORCED = "BudgetEnforced"
    COMPLETED = "Completed"
    INTERRUPTED = "Interrupted"


SENTENCES: dict[Reason, str] = {
    Reason.NO_FREE_GPU: "no GPUs are free for it; a job that ends or a GPU that is added would change that",
    Reason.QUOTA_EXCEEDED: "the quota of its queue is too small, used up or borrowed by others; it may borrow no more",
    Reason.MIN_RUNTIME: "the quota of its queue is borrowed by jobs that give it back after their minRuntimeSeconds",
    Reason.RESOURCE_QUOTA_EXCEEDED: "a ResourceQuota of its namespace has no room for its workers",
    Reason.QUEUE_NOT_FOUND: "its spec.queue names no queue that jobs of its namespace may use",
    Reason.WAITING_FOR_KUEUE: "Kueue, to whose queue its label assigns it, has not admitted its Workload yet",
    Reason.PRIORITY_TOO_HIGH: "its spec.priority is above the maxPriority of its queue; lower it or use another queue",
    Reason.TOO_LARGE: "it requests more GPUs than there are in total; lower minReplicas or add GPUs",
    Reason.HELD_BY_POLICY: "the scheduling policy gives it no more workers for now",
    Reason.TOO_LITTLE_BUDGET_LEFT: "too little of its time budget is left for extra GPUs to be worthwhile",
    Reason.COOLDOWN: "its allocation has just changed (preemption.cooldownSeconds)",
    Reason.EXTRA_WORKERS_LOST: "its extra workers ended or were evicted; each time in a row it waits twice as long",
    Reason.AT_MAX_REPLICAS: "it has all the workers that maxReplicas allows",
    Reason.NO_REPORT: "its workers sent no report: the image does not use the trainer library, or is still starting",
    Reason.LOGS_FORBIDDEN: "the operator may not read the logs of pods, so the progress of the program is not known",
    Reason.ADAPTATION_OFF: "its mode or model does not let it grow, and without elasticBatch extra GPUs would be idle",
    Reason.RECLAIM_PENDING: "it is giving GPUs back",
    Reason.GPUS_GRANTED: "its base GPUs were granted",
    Reason.EXTRA_GPUS_GRANTED: "spare GPUs were lent to it",
    Reason.NEEDED_BY_OTHER_JOB: "another job needs the GPUs that were lent to it",
    Reason.GPU_LOST: "a GPU that it used is gone, or is announced to go",
    Reason.NODES_AVOIDED: "the nodes with free GPUs have just refused or failed its workers; it tries them later",
    Reason.QUOTA_RECLAIMED: "its queue had borrowed its base GPUs, and their queue needs them; it resumes later",
    Reason.PREEMPTED_BY_POLICY: "the scheduling policy gives its base GPUs to another job; it resumes later",
    Reason.EVICTED_BY_KUEUE: "Kueue takes its quota back; it saves a checkpoint and resumes once Kueue admits it",
    Reason.NODE_DEPARTING: "a node of its base workers is about to go; it saves a checkpoint and resumes elsewhere",
    Reason.EVICTION_REQUESTED: "an EvictionRequest asks a pod of it to leave",
    Reason.RECLAIM_ACKNOWLEDGED: "it gave the lent GPUs back before the deadline",
    Reason.RECLAIM_FORCED: "it did not give the lent GPUs back in time, so they were taken",
    Reason.AGENT_UNAVAILABLE: "the agent did not answer in time; adaptation.fallback decided",
    Reason.ACTIONS_UNKNOWN: "the agent's policy knows none of the allowed actions; adaptation.fallback decided",
    Reason.ILLEGAL_ADVICE: "the agent's advice was not legal for the model; adaptation.fallback decided",
    Reason.TRIAL_NOT_BETTER: "the growth was tried on extra GPUs and trained no better than the model as it is",
    Reason.STILL_CARRIED: "GPUs were taken back, but the grown model is about as fast on the rest; it is kept",
    Reason.NOT_CHEAPER: "GPUs were taken back, but no smaller model has much cheaper steps; the grown one is kept",
    Reason.TOO_LATE_TO_DISTIL: "GPUs were taken back too late to teach a smaller model; the grown one is kept",
    Reason.CANNOT_SHRINK: "GPUs were taken back, but the model cannot be returned to an earlier size",
    Reason.DISTILLING: "GPUs were taken back: a smaller model learns from the grown one, which is kept for now",
    Reason.DISTILLED: "GPUs were taken back: a smaller model learned from the grown one and replaced it",
    Reason.LARGER_IS_BETTER: "a smaller model learned from the grown one but is not better; the grown one is kept",
    Reason.GPUS_CAME_BACK: "GPUs came back while a smaller model was tried; the grown one is kept",
    Reason.TRIAL_FAILED: "the trial of a smaller model could not be finished; the grown one is kept",
    Reason.IMAGE_PULL_FAILED: "its image cannot be pulled",
    Reason.UNSCHEDULABLE: "no node can run its pods",
    Reason.POD_REJECTED: "its pods are rejected (by quota, pod security, a webhook or policy, a missing object)",
    Reason.VOLUME_UNAVAILABLE: "a volume of its pods does not exist, or cannot be mounted",
    Reason.SCHEDULING_GATED: "its pods have scheduling gates, which somebody else removes; it holds no GPUs for them",
    Reason.NODES_REQUESTED: "its pods wait for nodes that were requested from the cluster's autoscaler",
    Reason.PREEMPTED: "its leader was ended from outside and is restarted from its checkpoint",
    Reason.NODE_LOST: "the node of its leader is gone or not ready",
    Reason.PRE_RUNNING_DEADLINE_EXCEEDED: "it did not start training within preRunningDeadlineSeconds",
    Reason.CRASH_LOOP: "its workers failed more often than backoffLimit allows",
    Reason.TOO_MANY_PREEMPTIONS: "its GPUs were taken from it more often than maxPreemptions allows",
    Reason.TRAINER_FAILED: "its trainer ended with an error",
    Reason.LOSS_NOT_FINITE: "its loss became NaN or infinite; no checkpoint was written after that",
    Reason.NOTHING_TRAINED: "its time budget was used up, or its program ended, before it took a step",
    Reason.CHECKPOINT_NOT_WRITTEN: "its last checkpoint could not be written, so it is not complete",
    Reason.INVALID_SPEC: "its specification, code or data cannot be run; `espalier validate --deep` tries them",
    Reason.SUSPENDED: "its spec.suspend is true",
    Reason.RUNNING: "it is training",
    Reason.STARTING: "its workers are starting",
    Reason.BUDGET_EXHAUSTED: "its time budget is used up, which is its normal end",
    Reason.GPU_BUDGET_EXHAUSTED: "its GPU budget is used up, which is a normal end",
    Reason.BUDGET_ENFORCED: "it exceeded its time budget and was ended by force",
    Reason.COMPLETED: "its trainer finished by itself",
    Reason.INTERRUPTED: "the run was stopped from outside; the same command with the same --output resumes it",
}
