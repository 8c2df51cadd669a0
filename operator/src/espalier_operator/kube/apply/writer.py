"""Writes one job's status, objects and Events from its state, in this order.

The status is written first, because it stores the state: if the operator ends after that, its successor reads the
status and takes the same steps. Every step is idempotent.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from espalier_core.k8s import resources
from espalier_core.k8s.resources import Raw
from espalier_core.types.job import API_VERSION, KIND
from espalier_core.types.reasons import SENTENCES, Reason
from espalier_core.types.status import JobStatus
from espalier_operator.clock import Backoff, Clock
from espalier_operator.job.view import Trouble
from espalier_operator.kube.apply.steps import (
    Annotate,
    BoostWorkload,
    CreatePod,
    CreateWorkload,
    DeleteJob,
    DeletePod,
    KueueStep,
    Step,
    extra_workload_steps,
    steps,
    workload_steps,
)
from espalier_operator.kube.client import ApiRefusalError, KubeClient, NotOwnedError
from espalier_operator.kube.metrics.exporter import OperatorMetrics
from espalier_operator.kube.metrics.measurements import measurements
from espalier_operator.kube.metrics.series import owner
from espalier_operator.kube.objects import names
from espalier_operator.kube.objects.events import LONGEST_MESSAGE, EventObject, events
from espalier_operator.kube.objects.kueue import BOOST, NO_KUEUE
from espalier_operator.kube.objects.manifests import owned_objects, worker_secret
from espalier_operator.kube.objects.pods import Pod
from espalier_operator.kube.reports import TOO_LARGE
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.state.due import FlushPriority, PendingChanges
from espalier_operator.kube.state.managed_job import ManagedJob
from espalier_operator.kube.watch.store import Store
from espalier_operator.loop import BackendError
from espalier_operator.model import WorkerRole

logger = logging.getLogger(__name__)

PODS_AT_ONCE: Final = 8
"""Maximum number of pods of one job that are created or deleted at the same time."""
_TOO_MUCH: Final = (400, 413, 422)


class JobWriter:
    """Makes all writes for jobs."""

    def __init__(
        self, client: KubeClient, store: Store, settings: KubeSettings, clock: Clock, metrics: OperatorMetrics
    ) -> None:
        """Join the parts."""
        self._metrics = metrics
        self._client, self._store, self._settings, self._clock = client, store, settings, clock

    async def flush(self, job: ManagedJob) -> None:
        """Reconcile a job: write its status if due, then take the steps that follow.

        Failures are retried with increasing delays.
        """
        due, now = job.take_due(), self._clock.now()
        status = job.status(now)
        state, pods, placement, before = job.state, job.pods, job.placement, job.written

        # 1. Write the status, from which an operator continues when it starts. If that fails, nothing else is done.
        news: tuple[EventObject, ...] = ()
        if job.must_write(status, due, now):
            try:
                if not await self._write(job, status, now):
                    # It is gone, or another client has changed it. Until the watch reports it, it counts as unwritten.
                    job.mark_dirty(PendingChanges.NONE, due)
                    job.writing.failed(now)
                    job.plan_ahead(status, now)
                    return
            except BackendError as error:
                job.mark_dirty(PendingChanges.NONE, max(due, FlushPriority.CHANGES))
                self._failed(job, error, "cannot write its status")
                return
            job.writing.succeeded()
            news = events(before, status)

        if self._settings.kueue and not job.asking.holds(now):
            # 2. Request quota from Kueue, or give it back.
            base, active = job.kueue.base, not job.kueue.is_deactivated
            asked: list[KueueStep] = [
                *workload_steps(job.job, state, pods, base, self._settings, active),
                *extra_workload_steps(job.job, state, pods, job.kueue.extras, job.wished, self._settings),
            ]
            if base is not None and (boost := job.kueue.boost(job.facts, now)) is not None:
                asked.append(BoostWorkload(workload=base, boost=boost))
            if asked:
                await self._attempt(job, job.asking, self._ask(job, asked))

        if job.job is not None and not job.doing.holds(now):
            # 3. Announce the allocation to the leader, end pods, remove an expired job.
            due_steps = steps(job.job, state, pods, placement, status, now, self._settings)
            await self._attempt(job, job.doing, self._change(job, due_steps))

            # 4. Create missing pods, and the objects that they need.
            creations = [step for step in due_steps if isinstance(step, CreatePod)]
            if (creations or job.lacks_report) and not job.making.holds(now):
                await self._attempt(job, job.making, self._make(job, creations))

        # 5. Post Events, which are for people, so no worker waits for them.
        await self._post(job, news)
        await self._complain(job)

        # 6. Set the next due time as of the observation, so that anything that came due meanwhile is handled too.
        job.plan_ahead(status, now)

    async def end_pods(self, pods: Iterable[Pod]) -> None:
        """End the `pods` that are not being ended. Raises `BackendError` where that fails for one."""
        await self._end([DeletePod(pod=pod) for pod in pods if not pod.deleting and not pod.ended])

    # ---- status and Events

    async def _write(self, job: ManagedJob, status: JobStatus, now: float) -> bool:
        """Write the status; return False if the job is gone or has changed since it was last seen."""
        namespace, name, uid = _name(job)
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        seen = self._store.job(uid)
        if seen is None:
            return False
        job.sent = status
        answer = await self._client.put_status(resources.JOBS, namespace, name, uid, seen.version, body)
        if answer is None:
            return False
        self._metrics.add(measurements(job.written, status, owner(job)))
        self._metrics.signals.written(uid, status.allocation.generation, self._clock.now())
        job.wrote(status, answer.get("status"), now)
        self._store.jobs.put(answer)
        return True

    def _failed(self, job: ManagedJob, error: BackendError, what: str) -> None:
        self._metrics.failed("status")
        now = self._clock.now()
        refusal = error.status if isinstance(error, ApiRefusalError) else None
        too_much = refusal is not None and refusal.code in _TOO_MUCH and not refusal.is_denial
        if too_much and job.report.mute():
            logger.error("%s: %s with its leader's last report, which is left out: %s", job.key, what, error)
        else:
            job.writing.failed(now)
            logger.warning("%s: %s: %s; retrying in %.0f s", job.key, what, error, job.writing.until - now)
        job.plan_ahead(job.status(now), now)

    async def _post(self, job: ManagedJob, news: Iterable[EventObject]) -> None:
        """Post Events. They are for people, so a failure delays nothing else."""
        for event in news:
            try:
                await self._client.create(event_of(job, event, self._clock.now()), owner=None)
            except BackendError as error:
                self._metrics.failed("event")
                text = "%s: cannot post an Event: %s: %s: %s"
                logger.log(_level(error), text, job.key, event.reason, event.message, error)

    async def _complain(self, job: ManagedJob) -> None:
        """Report once the problems of a job that continues: with its new specification, its report or its logs."""
        goes_on = job.job is not None and job.state.outcome is None
        problems = "; ".join(job.problems.problems) if job.problems is not None and goes_on else None
        if problems is not None:
            how = "keeps its base workers, and replaces none" if job.is_remnant else "continues with the one it had"
            await self._warn_once(job, Reason.INVALID_SPEC, f"its specification is invalid; it {how}: {problems}")
        if job.report.problem == TOO_LARGE:  # other problems have any text, and would make any number of Events
            await self._warn_once(job, Reason.NO_REPORT, TOO_LARGE)
        if goes_on and job.program.is_forbidden:
            remedy = "set rbac.podLogs in the operator's chart, or read spec.program.progress.metrics instead"
            await self._warn_once(job, Reason.LOGS_FORBIDDEN, f"{SENTENCES[Reason.LOGS_FORBIDDEN]}: {remedy}")
        asked = [pod.name for pod in job.pods.base if pod is not None and pod.asked_to_leave]
        if goes_on and asked and job.job is not None and not job.job.terms.base_preemptible:
            how = f"{asked[0]} stays, as spec.preemption.base is not Checkpoint"
            await self._warn_once(job, Reason.EVICTION_REQUESTED, f"{SENTENCES[Reason.EVICTION_REQUESTED]}; {how}")

    async def _warn_once(self, job: ManagedJob, reason: Reason, message: str, same: str | None = None) -> None:
        """Post a warning, unless it repeats the last one of this reason, by `same` or by the message."""
        text = message[:LONGEST_MESSAGE]
        mark = text if same is None else same
        if mark != job.complaints.get(reason):
            job.complaints[reason] = mark
            await self._post(job, [EventObject(reason=str(reason), message=text, warning=True)])

    # ---- objects

    async def _attempt(self, job: ManagedJob, backoff: Backoff, attempt: Awaitable[None]) -> None:
        """Attempt a change of a job's objects, and delay the next attempt if it fails."""
        try:
            await attempt
        except BackendError as error:
            backoff.failed(self._clock.now())
            self._metrics.failed("objects")
            wait = backoff.until - self._clock.now()
            logger.log(_level(error), "%s: %s; retrying in %.0f s", job.key, error, wait)
        else:
            backoff.succeeded()

    async def _change(self, job: ManagedJob, due: Iterable[Step]) -> None:
        """Notify the leader, end pods, remove the job. A refusal by the API server does not prevent the rest."""
        deletions: list[DeletePod] = []
        others: list[Awaitable[None]] = []
        for step in due:
            match step:
                case DeletePod():
                    deletions.append(step)
                case Annotate():
                    others.append(self._annotate(step))
                case DeleteJob():
                    others.append(self._remove(job, step))
                case CreatePod():
                    pass  # after these; it may be refused for long
        await _all(*others, self._end(deletions))

    async def _make(self, job: ManagedJob, creations: Sequence[CreatePod]) -> None:
        try:
            await self._equip(job)
        except (ApiRefusalError, NotOwnedError) as error:
            if creations:  # otherwise it runs without the missing objects
                job.reject(_trouble(error))
            raise
        for start in range(0, len(creations), PODS_AT_ONCE):
            await _all(*(self._create(job, step.manifest) for step in creations[start : start + PODS_AT_ONCE]))

    async def _ask(self, job: ManagedJob, due: Iterable[KueueStep]) -> None:
        namespace, *_ = _name(job)
        for step in due:
            name = "" if isinstance(step, CreateWorkload) else step.workload.key.removeprefix(f"{namespace}/")
            try:
                if isinstance(step, CreateWorkload):
                    answer = await self._client.create(step.manifest, owner=None)  # its name contains the job's UID
                elif isinstance(step, BoostWorkload):
                    body = {"metadata": {"annotations": {BOOST: step.boost}}}
                    answer = await self._client.patch(resources.WORKLOADS, namespace, name, step.workload.uid, body)
                else:
                    answer = await self._client.delete(resources.WORKLOADS, namespace, name, step.workload.uid)
            except BackendError as error:
                missing = isinstance(error, ApiRefusalError) and error.status.is_not_found
                job.miss_workload(NO_KUEUE if missing else f"its Workload cannot be made: {error}")
                raise
            job.miss_workload("")
            if answer is not None and answer.get("kind") == resources.WORKLOADS.kind:
                self._store.workloads.put(answer)

    async def _end(self, due: Sequence[DeletePod]) -> None:
        for start in range(0, len(due), PODS_AT_ONCE):
            await _all(*(self._delete(step) for step in due[start : start + PODS_AT_ONCE]))

    async def _remove(self, job: ManagedJob, step: DeleteJob) -> None:
        namespace, name, _ = _name(job)
        await self._client.delete(resources.JOBS, namespace, name, step.uid)

    async def _annotate(self, step: Annotate) -> None:
        body = {"metadata": {"annotations": step.annotations}}
        pod = step.pod
        answer = await self._client.patch(resources.PODS, pod.namespace, pod.name, pod.uid, body)
        if answer is not None:
            self._store.pods.put(answer)

    async def _delete(self, step: DeletePod) -> None:
        pod = step.pod
        answer = await self._client.delete(resources.PODS, pod.namespace, pod.name, pod.uid)
        if answer is not None and answer.get("kind") == "Pod" and "resourceVersion" in answer["metadata"]:
            self._store.pods.put(answer)  # one that is gone at once may come without a version; the watch tells

    async def _equip(self, job: ManagedJob) -> None:
        """Create the objects that the job's pods need."""
        if job.job is None:
            return
        if job.job.terms.trains_together:
            # Each time: no pod starts without it, and no error would say so. An existing one is not read, as its name
            # contains the job's UID.
            await self._client.create(worker_secret(job.job, secrets.token_bytes(32)), owner=None)
        if job.equipped == job.job.generation and not job.lacks_report:
            return
        for manifest in owned_objects(job.job, isolated=self._settings.worker_network_policies):
            answer = await self._client.create(manifest, owner=job.uid)
            if answer is not None and manifest["kind"] == resources.NETWORK_POLICIES.kind:
                await self._update(answer, manifest["spec"])
            if answer is not None and manifest["kind"] == resources.CONFIG_MAPS.kind:
                self._store.reports.indexer.put(answer)
        job.equipped = job.job.generation

    async def _update(self, policy: Raw, spec: Raw) -> None:
        """Update a NetworkPolicy to the ports of a changed template."""
        if policy["spec"] != spec:
            given = policy["metadata"]
            await self._client.patch(
                resources.NETWORK_POLICIES, given["namespace"], given["name"], given["uid"], {"spec": spec}
            )

    async def _create(self, job: ManagedJob, manifest: Raw) -> None:
        base = manifest["metadata"]["labels"][names.ROLE_LABEL] == WorkerRole.BASE
        try:
            answer = await self._client.create(manifest, owner=job.uid)
        except (ApiRefusalError, NotOwnedError) as error:
            trouble = _trouble(error)
            refusal = error.status if isinstance(error, ApiRefusalError) else None
            if refusal is not None and refusal.is_forbidden and not refusal.exceeds_quota:
                job.equipped = None  # its account may have been deleted
            if base:
                job.reject(trouble)
            else:
                job.reject_extra(trouble)
                name = manifest["metadata"]["name"]
                same = trouble.message.replace(name, "")  # of all extra workers
                await self._warn_once(job, trouble.reason, f"extra worker {name}: {trouble.message}", same)
            raise
        if base:
            job.reject(None)
        else:
            job.reject_extra(None)
        if answer is not None:
            self._store.pods.put(answer)


def event_of(job: ManagedJob, event: EventObject, now: float) -> dict[str, Any]:
    """Return a Kubernetes Event about `job`."""
    namespace, name, uid = _name(job)
    time = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        # Named here and not by the server, so that posting it twice after a lost answer gives one Event.
        "metadata": {"name": f"{name}.{secrets.token_hex(8)}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": name,
            "namespace": namespace,
            "uid": uid,
        },
        "reason": event.reason,
        "message": event.message,
        "type": "Warning" if event.warning else "Normal",
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": "espalier-operator"},
        "reportingComponent": "espalier-operator",
    }


def _name(job: ManagedJob) -> tuple[str, str, str]:
    namespace, _, name = job.key.partition("/")
    return namespace, name, job.uid


def _level(error: BackendError) -> int:
    """Return the log level of `error`: refusals in a terminating namespace are expected."""
    return (
        logging.DEBUG if isinstance(error, ApiRefusalError) and error.status.namespace_terminates else logging.WARNING
    )


def _trouble(error: BackendError) -> Trouble:
    if not isinstance(error, ApiRefusalError):
        return Trouble(reason=Reason.POD_REJECTED, message=str(error))
    return Trouble(reason=Reason.POD_REJECTED, message=error.status.message, final=error.status.is_invalid)


async def _all(*doing: Any) -> None:
    """Await all concurrently, then raise the first failure."""
    for result in await asyncio.gather(*doing, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
