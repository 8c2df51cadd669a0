"""The contract between a backend and a trainer process: environment variables in, an exit code out."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final


class Role(StrEnum):
    """The kind of a worker; the value of `WORKER_ROLE`."""

    BASE = "base"
    EXTRA = "extra"


class ExitCode(IntEnum):
    """Exit codes of a trainer process."""

    COMPLETE = 0
    """The time budget is used up: the normal end."""
    ERROR = 1
    """An error after a step, or one of the environment (memory, devices, connections): the job is started again."""
    INVALID = 2
    """The same start would fail again: the job, its code, data or checkpoint; the message says what to change."""
    LOSS_NOT_FINITE = 3
    """The loss became NaN or infinite; the last good checkpoint is kept."""
    SUPERSEDED = 4
    """A later leader of the job has taken over; nothing was written after that."""
    INTERRUPTED = 130
    """Ended after SIGINT, with a checkpoint."""
    STOPPED = 143
    """Ended after SIGTERM, or because the scheduler asked for it, with a checkpoint to resume from."""


JOB_FILE: Final = "ESPALIER_JOB_FILE"
"""The job (YAML or JSON), as the user wrote it."""
ALLOCATION_FILE: Final = "ESPALIER_ALLOCATION_FILE"
"""The `AllocationDocument` that the scheduler rewrites at each change."""
REPORT_FILE: Final = "ESPALIER_REPORT_FILE"
"""The `Report` that the leader rewrites."""
EVENTS_FILE: Final = "ESPALIER_EVENTS_FILE"
"""JSON lines of `espalier_core.types.events` that the leader appends to. Optional."""
CHECKPOINT_DIR: Final = "ESPALIER_CHECKPOINT_DIR"
"""Overrides `spec.checkpoint.path`."""
LEADER_FILE: Final = "leader.json"
"""Not a variable: the file in that folder by which a leader claims it. It is no checkpoint."""
AGENT_URL: Final = "ESPALIER_AGENT_URL"
"""Overrides the default agent; `spec.adaptation.agent.url` takes precedence."""
AGENT_TOKEN_FILE: Final = "ESPALIER_AGENT_TOKEN_FILE"
"""On Kubernetes: the file with the token by which the agent knows which job reports an outcome. It is replaced from
time to time."""
TIME_SCALE: Final = "ESPALIER_TIME_SCALE"
"""Budget seconds per second of wall time; 1 if absent."""
SEED: Final = "ESPALIER_SEED"
"""Overrides `spec.training.seed`."""
JOB_NAME: Final = "ESPALIER_JOB_NAME"
"""On Kubernetes: the name of the job. With `JOB_NAMESPACE` it makes the trainer watch its own job."""
JOB_NAMESPACE: Final = "ESPALIER_JOB_NAMESPACE"
REPORT_CONFIG_MAP: Final = "ESPALIER_REPORT_CONFIG_MAP"
"""On Kubernetes: the ConfigMap, in the job's namespace, that the leader patches its report into."""
WORKER_ROLE: Final = "ESPALIER_WORKER_ROLE"
"""`base` or `extra`; base if absent."""
WORKER_INDEX: Final = "ESPALIER_WORKER_INDEX"
"""Index among the workers of this role, from 0; the leader is base worker 0. 0 if absent."""
WORKERS: Final = "ESPALIER_WORKERS"
"""For a program: the number of workers of the job."""
LEADER: Final = "ESPALIER_LEADER"
"""For a program: the host name or address of base worker 0."""
STATUS_URL: Final = "KUBEFLOW_TRAINER_SERVER_URL"
"""For a program: the URL for its progress, by the protocol of Kubeflow Trainer, which Hugging Face's Trainer uses."""
STATUS_TOKEN_FILE: Final = "KUBEFLOW_TRAINER_SERVER_TOKEN"
"""For a program: the file with the token that each such post carries."""
NODE: Final = "ESPALIER_NODE"
"""Name of the worker's node; the host's name if absent. Measured step times are kept by the number of nodes."""
GPU_TYPE: Final = "ESPALIER_GPU_TYPE"
"""Type of GPU of all workers of the job; unknown if absent. Measured step times are kept by it."""
RENDEZVOUS: Final = "ESPALIER_RENDEZVOUS"
"""Meeting point of a job's workers: the leader's `host:port`, or the path of a file that the leader writes its address
and a key into. Used by jobs with `spec.training.elasticBatch`."""
RENDEZVOUS_KEY_FILE: Final = "ESPALIER_RENDEZVOUS_KEY_FILE"
"""File with the job's key, at least 32 random bytes: workers and leader prove by it that they belong to the job. Needed
where `RENDEZVOUS` is `host:port`."""
LOG_TO: Final = "ESPALIER_LOG_TO"
"""`tensorboard`, `wandb` or `mlflow`: tracker to which the leader also writes its figures, next to the checkpoints.
None if absent."""
TRACES_ENDPOINT: Final = "ESPALIER_TRACES_ENDPOINT"
"""URL to which the leader exports spans of signals by OTLP over HTTP; nothing is exported if absent. Needs the extra
`otel` of the trainer's package, and an operator that exports traces."""
METRICS_PORT: Final = "ESPALIER_METRICS_PORT"
"""Port of the leader's metrics; none if absent."""
JOB_UID: Final = "ESPALIER_JOB_UID"
"""On Kubernetes: the UID of the job. With `ATTEMPT` it identifies the later one of two leaders of a job."""
ATTEMPT: Final = "ESPALIER_ATTEMPT"
"""On Kubernetes: the number of times that this base worker was replaced before, from 0; for an extra worker, the
generation of the allocation."""
INCARNATION: Final = "ESPALIER_INCARNATION"
"""`Report.incarnation` of the leader; on Kubernetes the UID of its pod. Generated if absent."""
