"""Reports into a ConfigMap: the training loop hands them over, and a thread patches them in.

A leader that was given up may still run after its successor has started. So a leader reads the ConfigMap before its
first report, and patches only the version that it has read or written last. Where it finds a report of a later attempt,
it stops reporting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from espalier_core.files.documents import DocumentError, dumps, loads
from espalier_core.k8s.client import Client
from espalier_core.k8s.errors import ApiError, RefusedError, Retries
from espalier_core.k8s.resources import CONFIG_MAPS, Raw
from espalier_core.types.events import AnyEvent
from espalier_core.types.job import REPORT_KEY, AdaptiveTrainingJob
from espalier_core.types.report import MAX_METRICS, MAX_NAME, MAX_REPORT_BYTES, Report
from espalier_trainer.kube.watch import uid_of
from espalier_trainer.signals.report import INTERVAL_WALL_SECONDS, EventRecorder

logger = logging.getLogger(__name__)

MAX_MESSAGE_CHARACTERS: Final = 4096
LONGEST_INTERVAL_WALL_SECONDS: Final = 10.0
"""Maximum interval of reports of a job without other news. The operator writes mere figures no more often, and a
thousand jobs that report every two seconds keep a core of the API server busy."""
RETRIES: Final = Retries(tries=6, first_wait=0.25, longest_wait=10.0)
"""Number and times of attempts to send a report; in training a newer one replaces it long before."""
FLUSH_DELAY: Final = 0.25
"""Delay between attempts while the process waits to end."""
CONFLICTS: Final = 3
"""Number of immediate retries of a report because the ConfigMap was changed by others."""
FLUSH_WALL_SECONDS: Final = 5.0
"""Seconds that the end of the process waits until the last report is sent."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """An unsent report, and the number of its next attempt."""

    report: Report
    attempt: int = 1


class ConfigMapReporter:
    """A `Reporter`: the newest report is in a ConfigMap; events are recorded by `events`.

    Training never waits: `publish` builds the report (some 100 µs) and leaves it for the thread. A newer report
    replaces an unsent one. Failures cause one warning until reporting works again.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        events: EventRecorder,
        clock: Callable[[], float] = time.monotonic,
        attempt: int | None = None,
        job_uid: str = "",
    ) -> None:
        """`attempt` is how often the leader was replaced before; None if unknown, and then nothing is compared.

        `job_uid` is the UID of the job, '' if unknown.
        """
        self._client, self._namespace, self._name = client, namespace, name
        self._place = f"ConfigMap {namespace}/{name}"
        self._events = events
        self._clock = clock
        self._attempt, self._job_uid = attempt, job_uid
        self._version: str | None = None
        """Version of the ConfigMap last read or written; None if it must be read before it is written."""
        self._superseded = ""
        self._due, self._interval = 0.0, INTERVAL_WALL_SECONDS
        self._changed = threading.Condition()
        self._pending: _Pending | None = None
        self._urgent = False
        self._ends: float | None = None
        self._failures = 0
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def superseded(self) -> str:
        """Return the reason why reporting has stopped, a report of a later attempt; '' while there is none."""
        return self._superseded

    def previous_used_seconds(self, job: AdaptiveTrainingJob) -> float:
        """Return the budget seconds that an earlier incarnation last reported; 0 where there is no usable report.

        Calls the API server, with the duration of a call.
        """
        try:
            found = self._client.get(CONFIG_MAPS, self._namespace, self._name)
            report = loads((found.get("data") or {}).get(REPORT_KEY, ""), Report, self._place)
        except (ApiError, DocumentError) as error:
            logger.info("no earlier report is known: %s", error)
            return 0.0
        if report.job != job.key or not _may_belong_to(found, self._job_uid or uid_of(job)):
            return 0.0  # left over from a deleted job of the same name
        return report.used_seconds

    def publish(self, make: Callable[[], Report], *, urgent: bool = False) -> None:
        """Hand over the report that `make` builds, if it is urgent or due; without news, the interval grows."""
        now = self._clock()
        if not (urgent or now >= self._due):
            return
        interval = INTERVAL_WALL_SECONDS if urgent else self._interval
        self._due, self._interval = now + interval, min(2 * interval, LONGEST_INTERVAL_WALL_SECONDS)
        report = make()
        with self._changed:
            self._pending = _Pending(report)
            self._urgent = self._urgent or urgent
            self._changed.notify()

    def record(self, event: AnyEvent) -> None:
        """Pass on the event."""
        self._events.record(event)

    def close(self) -> None:
        """Wait until the last report is sent, for `FLUSH_WALL_SECONDS` at most."""
        if self._ends is not None:
            return
        with self._changed:
            self._ends = time.monotonic() + FLUSH_WALL_SECONDS
            self._changed.notify()
        self._thread.join(FLUSH_WALL_SECONDS)
        if self._thread.is_alive() or self._failures:
            logger.warning("the last report did not reach %s within %g s", self._place, FLUSH_WALL_SECONDS)

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            if error := self._send(taken.report):
                self._keep(taken, error)
                self._pause()

    def _next(self) -> _Pending | None:
        """Wait for a report; return None when the process ends and no report, or no time, is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is not None or self._ends is not None)
            taken, self._pending, self._urgent = self._pending, None, False
            return None if self._ends is not None and time.monotonic() >= self._ends else taken

    def _keep(self, failed: _Pending, error: ApiError) -> None:
        """Keep an unsent report, unless there is a newer one or retrying is useless."""
        with self._changed:
            worth_it = failed.attempt < RETRIES.tries if self._ends is None else not isinstance(error, RefusedError)
            if self._pending is None and worth_it:
                self._pending = _Pending(failed.report, failed.attempt + 1)

    def _pause(self) -> None:
        """Wait before the next attempt, briefly if a report is urgent or the process ends."""
        seconds = RETRIES.wait(self._failures)
        with self._changed:
            if self._ends is None:
                self._changed.wait_for(lambda: self._urgent or self._ends is not None, seconds)
            else:
                self._changed.wait(FLUSH_DELAY)

    def _send(self, report: Report) -> ApiError | None:
        """Patch the report in; return the error, None if there was none."""
        if self._superseded:
            return None
        try:
            self._write({REPORT_KEY: report_text(report)})
        except ApiError as error:
            self._version = None  # it may have been written although no answer came
            self._failures += 1
            if not self._warned and (isinstance(error, RefusedError) or self._failures > 1):
                self._warned = True
                logger.warning("%s: the report cannot be written: %s; training continues", self._place, error)
            return error
        self._failures = 0
        if self._warned:
            self._warned = False
            logger.info("%s: reports are written again", self._place)
        return None

    def _write(self, data: dict[str, str]) -> None:
        """Patch `data` in unless a later attempt has reported."""
        place = CONFIG_MAPS, self._namespace, self._name
        if self._attempt is None:
            self._client.merge_patch(*place, {"data": data})
            return
        for tried in range(1 + CONFLICTS):
            if self._version is None:
                found = self._client.get(*place)
                if (later := self._later_attempt(found)) is not None:
                    self._superseded = (
                        f"{self._place}: attempt {later} has taken over from attempt {self._attempt}, and reports"
                    )
                    logger.warning("%s; this leader stops reporting", self._superseded)
                    return
                self._version = found["metadata"]["resourceVersion"]
            try:
                body = {"metadata": {"resourceVersion": self._version}, "data": data}
                self._version = self._client.merge_patch(*place, body)["metadata"]["resourceVersion"]
                return
            except ApiError as error:
                self._version = None
                if tried == CONFLICTS or error.status is None or error.status.code != 409:
                    raise

    def _later_attempt(self, found: Raw) -> int | None:
        """Return the attempt that wrote the report in the ConfigMap, if a later one of the same job; else None."""
        if self._attempt is None or not _may_belong_to(found, self._job_uid):
            return None
        try:
            attempt = loads((found.get("data") or {}).get(REPORT_KEY, ""), Report, self._place).attempt
        except DocumentError:
            return None
        return attempt if attempt is not None and attempt > self._attempt else None


def _may_belong_to(found: Raw, job_uid: str | None) -> bool:
    owners = {owner.get("uid") for owner in found["metadata"].get("ownerReferences") or ()}
    return not job_uid or not owners or job_uid in owners


def report_text(report: Report, limit: int = MAX_REPORT_BYTES) -> str:
    """Return the document of `report` in at most `limit` bytes, so that the operator reads it.

    Parts that do not fit are left out, oldest first: the probabilities of adaptations, then adaptations, then the end
    of the message and the figures that the status has no room for. Nearly always everything fits.
    """
    text = dumps(report)
    if len(text) <= limit:  # ASCII: characters are bytes
        return text
    entries = [entry.model_copy(update={"probabilities": {}}) for entry in report.adaptations[:-1]]
    shorter = report.model_copy(update={"adaptations": (*entries, *report.adaptations[-1:])})
    while len(text := dumps(shorter)) > limit and shorter.adaptations:
        shorter = shorter.model_copy(update={"adaptations": shorter.adaptations[1 + len(shorter.adaptations) // 8 :]})
    if len(text) > limit:
        metrics = [metric for metric in report.metrics if len(metric.name) <= MAX_NAME][:MAX_METRICS]
        update = {"message": report.message[:MAX_MESSAGE_CHARACTERS], "metrics": tuple(metrics)}
        shorter = shorter.model_copy(update=update)
        while len(text := dumps(shorter)) > limit and shorter.metrics:
            shorter = shorter.model_copy(update={"metrics": shorter.metrics[: len(shorter.metrics) // 2]})
    return text
