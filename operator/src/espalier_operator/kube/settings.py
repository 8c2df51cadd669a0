"""Settings of the operator: one frozen dataclass, a sentence under each field. Times in wall-clock seconds."""

from __future__ import annotations

from dataclasses import dataclass

from espalier_api.pod_template import DEFAULT_GPU_RESOURCE
from espalier_operator.facts import DEFAULT_POLICY
from espalier_operator.job.state import Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeSettings:
    """An operator's settings."""

    policy: str = DEFAULT_POLICY
    """Scheduling policy: who gets which GPUs. An installed package may add others."""
    gpu_resource: str = DEFAULT_GPU_RESOURCE
    """The extended resource that is counted and lent."""
    gpu_type_label: str = "nvidia.com/gpu.product"
    """The node label that tells types of GPU apart; nodes without it have the type ''."""
    tolerated_taints: tuple[str, ...] = (DEFAULT_GPU_RESOURCE,)
    """Keys of taints that workers are given a toleration for. Nodes with other NoSchedule or NoExecute taints are not
    counted."""
    trainer_image: str = "espalier-trainer:latest"
    """For jobs whose template names no image."""
    image_pull_policy: str | None = None
    """Of the trainer image; None: Kubernetes' default for its tag."""
    agent_url: str | None = None
    """The installation's agent, for jobs that name none."""
    extra_priority_class: str | None = "espalier-extra"
    """PriorityClass of the pods of extra workers. Its value should not be below that of other people's pods, which
    would then evict extra workers before the scheduler can give notice."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces in which jobs are looked after; empty: all."""
    grace_seconds: float = 10.0
    """How long past its budget a job may go on, or a tenth of the budget if that is longer, before it is ended."""
    start_up_allowance_seconds: float = 120.0
    """A leader that sends no report is counted as training when it has run for so long."""
    promise_seconds: float = 120.0
    """How long extra workers that were granted may take to be bound to a node."""
    pre_running_deadline_seconds: float = 900.0
    """For jobs that set no preRunningDeadlineSeconds: nobody holds GPUs for ever without training."""
    restart_seconds: float = 1.0
    """Before the first restart of a leader that failed; doubles with each failure, up to `max_restart_seconds`."""
    max_restart_seconds: float = 60.0
    """Before any restart of a leader that failed, however often it did."""
    persist_seconds: float = 8.0
    """How often the figures of a running job are written to its status while nothing else changes."""
    resync_seconds: float = 300.0
    """How often everything is listed again, in case an event was lost. With 5,000 nodes the API server takes seconds to
    answer, in which everybody else waits for it."""

    @property
    def timing(self) -> Timing:
        """What of it the life of a job goes by."""
        return Timing(
            start_up_allowance=self.start_up_allowance_seconds,
            promise=self.promise_seconds,
            restart=self.restart_seconds,
            max_restart=self.max_restart_seconds,
        )
