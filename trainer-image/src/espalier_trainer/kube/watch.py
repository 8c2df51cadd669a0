"""The allocation as the job's own status says it: a thread watches the job, the training loop reads an attribute."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from espalier_api.allocation import AllocationDocument
from espalier_api.job import GROUP, AdaptiveTrainingJob
from espalier_api.signal import allocation_document
from espalier_api.status import JobStatus
from espalier_trainer.kube.api import Api, CallError, Watch, uid_of

logger = logging.getLogger(__name__)

VERSION: Final = "v1alpha1"
PLURAL: Final = "adaptivetrainingjobs"
WATCH_WALL_SECONDS: Final = 300
"""How long one watch lasts; API servers want clients to come anew now and then."""
SILENCE_WALL_SECONDS: Final = 45.0
"""After this long without an event the watch is begun again. While a job trains, the operator writes its used budget
every 10 s, so silence means that the operator is away, or that a connection died without a word."""
FIRST_DELAY, LONGEST_DELAY = 0.2, 15.0
"""Wall seconds between two attempts: doubled each time, times a factor from 0.5 to 1.5 that spreads the jobs."""
ANSWER_WALL_SECONDS: Final = 5.0
"""How long the start of training waits for the first answer."""
_STEADY_WALL_SECONDS = 10.0
"""A watch that held this long was no part of an outage."""


class JobWatch:
    """An `AllocationSource`: the job's status at its API server.

    A watch that breaks is begun again by reading the job, so that nothing is missed and no version is ever too old
    for long. What goes wrong is warned about once per outage; a single break is none.
    """

    def __init__(self, api: Api, job: AdaptiveTrainingJob) -> None:
        self._api = api
        self._job = job
        self._collection = f"/apis/{GROUP}/{VERSION}/namespaces/{job.metadata.namespace}/{PLURAL}"
        self._document: AllocationDocument | None = None
        self._chance = random.Random()  # not the global generator: training is seeded by it
        self._answered = threading.Event()
        self._closed = threading.Event()
        self._watch: Watch | None = None
        self._failures = 0
        self._warned = False
        self._warnings: list[str] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="job-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether its thread is at work."""
        return self._thread.is_alive()

    def latest(self) -> AllocationDocument | None:
        """Return what the job's status last said."""
        return self._document

    def settle(self) -> None:
        """Wait for the first answer, or the first failure."""
        self._answered.wait(ANSWER_WALL_SECONDS)

    def take_warnings(self) -> tuple[str, ...]:
        """Return the complaints since this was last asked."""
        if not self._warnings:  # asked at every step boundary
            return ()
        with self._lock:
            taken = tuple(self._warnings)
            self._warnings.clear()
        return taken

    def close(self) -> None:
        """End the watch. Waits a second at most: a thread that is in a call is left behind."""
        self._closed.set()
        watch = self._watch
        if watch is not None:
            watch.close()
        self._thread.join(1.0)

    def _run(self) -> None:
        delay = FIRST_DELAY
        while not self._closed.is_set():
            begun = time.monotonic()
            try:
                self._follow()
            except CallError as error:
                self._failed(error)
            self._answered.set()
            if time.monotonic() - begun >= _STEADY_WALL_SECONDS:
                delay = FIRST_DELAY
            self._closed.wait(delay * self._chance.uniform(0.5, 1.5))
            delay = min(2 * delay, LONGEST_DELAY)

    def _follow(self) -> None:
        """Read the job, then take in its changes until the watch ends."""
        name = self._job.metadata.name
        version = self._take(self._api.get(f"{self._collection}/{name}"))
        query = {"fieldSelector": f"metadata.name={name}", "resourceVersion": version}
        self._watch = self._api.watch(self._collection, query, lasting=WATCH_WALL_SECONDS, silence=SILENCE_WALL_SECONDS)
        self._worked()
        if self._closed.is_set():
            self._watch.close()  # closed while it connected
        for event in self._watch:
            if event.get("type") in ("ADDED", "MODIFIED"):
                self._take(event.get("object"))

    def _take(self, manifest: Any) -> str:
        """Take in one state of the job and return its version."""
        try:
            metadata = manifest["metadata"]
            version = str(metadata["resourceVersion"])
            if uid_of(self._job) in (None, metadata.get("uid")):  # otherwise a later job of the same name
                self._document = document_of(self._job, manifest) or self._document
                self._answered.set()
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise CallError(f"the job cannot be understood ({' '.join(str(error).split())[:300]})") from error
        return version

    def _failed(self, error: CallError) -> None:
        self._failures += 1
        if self._closed.is_set() or self._warned or (self._failures < 2 and not error.refused):
            return
        self._warned = True
        with self._lock:
            self._warnings.append(f"cannot watch job {self._job.key}: {error}; going on by the annotation")

    def _worked(self) -> None:
        self._answered.set()
        self._failures = 0
        if self._warned:
            self._warned = False
            logger.info("watching job %s again", self._job.key)


def document_of(job: AdaptiveTrainingJob, manifest: Mapping[str, Any]) -> AllocationDocument | None:
    """Return the document that follows from a job as its API server has it; None before it has an allocation.

    Only what the document is made of is read, so that a newer operator may add to the rest what it likes. Raises
    `ValueError` where that part cannot be understood.
    """
    seen = manifest.get("status") or {}
    if "allocation" not in seen:
        return None
    status = JobStatus.model_validate({key: seen[key] for key in ("allocation", "timeBudget") if key in seen})
    stopping = (seen.get("scheduling") or {}).get("stopping")
    if stopping is not None:
        scheduling = status.scheduling.model_validate({"stopping": stopping})
        status = status.model_copy(update={"scheduling": scheduling})
    spec = manifest.get("spec") or {}
    known = {"time_budget_seconds": spec.get("timeBudgetSeconds"), "min_replicas": spec.get("minReplicas")}
    given = {key: value for key, value in known.items() if value is not None}
    current = job.model_copy(update={"spec": job.spec.model_copy(update=given)})
    return allocation_document(current, status)
