"""The allocation in the job's own status: a thread watches the job, the training loop reads an attribute."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from espalier_core.k8s.client import Client, api_of_process
from espalier_core.k8s.errors import Retries
from espalier_core.k8s.reflector import Change, Changed, Disconnected, Reconnected, Reflector, Rhythm
from espalier_core.k8s.resources import JOBS
from espalier_core.types.allocation import Allocation, AllocationDocument
from espalier_core.types.job import AdaptiveTrainingJob, allocation_document
from espalier_core.types.status import JobStatus

logger = logging.getLogger(__name__)

CALL_WALL_SECONDS: Final = 4.0
"""Maximum seconds of one call. A busy API server answers in tens of milliseconds."""
RHYTHM: Final = Rhythm(watch=300, silence=45.0, retries=Retries(first_wait=0.2, longest_wait=15.0))
"""While a job trains, the operator writes its used budget every 10 s. So silence means that the operator is away, or
that a connection died silently."""
ANSWER_WALL_SECONDS: Final = 5.0
"""Seconds that the start of training waits for the first answer."""


def connect() -> Client:
    """Return a client of the API server of this pod's cluster, or outside, of the one in `KUBECONFIG`.

    It makes no request yet, and callers decide on retries. Raises `NoAccessError`.
    """
    return Client(api_of_process("espalier-trainer"), Retries(deadline=CALL_WALL_SECONDS, tries=1))


def uid_of(job: AdaptiveTrainingJob) -> str | None:
    """Return the UID that the API server gave the job; None where the job file lacks it."""
    uid = (job.metadata.model_extra or {}).get("uid")
    return uid if isinstance(uid, str) else None


class JobWatch:
    """An `AllocationSource`: the job's status at its API server.

    An outage, or a status that cannot be parsed, causes one warning. A broken watch does not.
    """

    def __init__(
        self,
        client: Client,
        job: AdaptiveTrainingJob,
        heard: Callable[[Allocation], None] = lambda allocation: None,
    ) -> None:
        """`heard` is called, in the watch's thread, with the allocation of each status that is read."""
        self._job, self._heard = job, heard
        self._document: AllocationDocument | None = None
        self._found = False
        self._answered = threading.Event()
        self._warned = False
        self._warnings: list[str] = []
        self._lock = threading.Lock()
        self._reflector = Reflector(
            client,
            JOBS,
            job.metadata.namespace,
            f"metadata.name={job.metadata.name}",
            self._take,
            rhythm=RHYTHM,
            synced=self._synced,
        )

    def start(self) -> None:
        """Start watching."""
        self._reflector.start()

    @property
    def running(self) -> bool:
        """Whether the thread is running."""
        return self._reflector.is_alive()

    def latest(self) -> AllocationDocument | None:
        """Return the last status of the job as a document."""
        return self._document

    def settle(self) -> None:
        """Wait for the first answer, or the first failure."""
        self._answered.wait(ANSWER_WALL_SECONDS)

    def take_warnings(self) -> tuple[str, ...]:
        """Return the problems since the last call."""
        if not self._warnings:  # called at every step boundary
            return ()
        with self._lock:
            taken = tuple(self._warnings)
            self._warnings.clear()
        return taken

    def close(self) -> None:
        """Stop the watch. Waits one second at most: a thread that is in a call ends after it."""
        self._reflector.stop()
        self._reflector.join(1.0)

    # ---- in the reflector's thread

    def _take(self, change: Change) -> None:
        match change:
            case Changed(object=manifest):
                self._found = True
                if uid_of(self._job) in (None, manifest["metadata"].get("uid")):  # else a later job of the same name
                    self._read(manifest)
            case Disconnected(error=error):
                self._warn(str(error))
            case Reconnected():
                logger.info("watching job %s again", self._job.key)
                self._warned = False
        self._answered.set()

    def _read(self, manifest: Mapping[str, Any]) -> None:
        try:
            document = document_of(self._job, manifest)
            self._warned = False
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            self._warn(f"the job cannot be parsed ({' '.join(str(error).split())[:300]})")
            return
        if document is not None:
            self._heard(document.allocation)
            self._document = document

    def _synced(self) -> None:
        if not self._found:
            self._warn("there is no such job")
        self._answered.set()

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            with self._lock:
                self._warnings.append(f"cannot watch job {self._job.key}: {problem}; continuing with the annotation")


def document_of(job: AdaptiveTrainingJob, manifest: Mapping[str, Any]) -> AllocationDocument | None:
    """Return the document that follows from a job of the API server; None before it has an allocation.

    Only the parts that the document needs are read, so that a newer operator may extend the rest. Raises `ValueError`
    where those parts cannot be parsed.
    """
    seen = manifest.get("status") or {}
    if "allocation" not in seen:
        return None
    status = JobStatus.model_validate({key: seen[key] for key in ("allocation", "timeBudget") if key in seen})
    known = seen.get("scheduling") or {}
    asked = {key: known[key] for key in ("stopping", "gated", "trained") if known.get(key) is not None}
    status = status.model_copy(update={"scheduling": status.scheduling.model_validate(asked)})
    spec = manifest.get("spec") or {}
    terms = {"time_budget_seconds": spec.get("timeBudgetSeconds"), "min_replicas": spec.get("minReplicas")}
    given = {key: value for key, value in terms.items() if value is not None}
    current = job.model_copy(update={"spec": job.spec.model_copy(update=given)})
    return allocation_document(current, status)
