"""The handlers of kopf, which turn watch events into facts, without decisions or API calls.

There are only `on.event` handlers: they need no annotations and no finalizers, so the operator never delays a deletion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakSet

import kopf
from kubernetes.aio.client.configuration import Configuration

from espalier_core.k8s.resources import Resource
from espalier_core.types.job import GROUP
from espalier_operator.kube.objects import names
from espalier_operator.kube.watch.store import Store

_BACKOFFS: Final = (0.2, 0.5, 1, 1, 2, 2, 3, 5, 5, 5)
"""Seconds between kopf's tries of a request; a restarting API server returns within them."""
CANCEL_AGAIN_SECONDS = 5.0
"""Seconds after which a task is cancelled again: longer than kopf's tasks take to end in order."""


class NoEssence(kopf.DiffBaseStorage):
    """Stores no last-handled state: `on.event` handlers do not need it, and kopf would copy every object."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        """Return an empty essence."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Return None, as nothing is stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Store nothing."""


def registry_of(store: Store, configuration: Configuration, watched: tuple[Resource, ...]) -> kopf.OperatorRegistry:
    """Return kopf's handlers for the kinds in `watched`, with a login by our client's credentials."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await connection_of(configuration)

    for resource in watched:
        _register(registry, store, resource)
    return registry


def _register(registry: kopf.OperatorRegistry, store: Store, resource: Resource) -> None:
    @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)
    async def record(event: kopf.RawEvent, **_: Any) -> None:
        store.take(resource, event["type"], event["object"])


def settings_of(*, workers: bool = False) -> kopf.OperatorSettings:
    """Return kopf's settings; pods are our `workers`, including ended ones, or all other live pods."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # we post Events ourselves, with reasons of one enum
    settings.scanning.disabled = True  # the CRD exists when we start; no rights on CRDs and namespaces are needed
    settings.watching.label_selectors["", "v1", "pods"] = names.WORKERS if workers else f"!{names.WORKERS}"
    if not workers:
        settings.watching.field_selectors["", "v1", "pods"] = names.LIVE_PODS
    settings.watching.label_selectors["", "v1", "configmaps"] = names.REPORTS
    settings.watching.chunk_size = 500
    # The task of each object waits this long for its next event and keeps the object: all pods, at the start.
    settings.queueing.idle_timeout = 0.1
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = _BACKOFFS
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = NoEssence()
    settings.process.ultimate_exiting_timeout = None
    return settings


async def connection_of(configuration: Configuration) -> kopf.ConnectionInfo:
    """Return the credentials in kopf's form, read again after a refresh."""
    key = await configuration.get_api_key_with_prefix("BearerToken")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        ca_data=configuration.ca_cert_data,
        insecure=not configuration.verify_ssl,
        scheme="Bearer" if key else None,
        token=key.split(" ", 1)[-1].strip() if key else None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )


# ---- tasks started by kopf, so that none outlives it

_Tasks = WeakSet["asyncio.Task[Any]"]
_RECORD: ContextVar[_Tasks | None] = ContextVar("_RECORD", default=None)


@contextmanager
def recorded_tasks() -> Iterator[Collection[asyncio.Task[Any]]]:
    """Yield the set of all existing tasks that are started inside, directly or by other tasks."""
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is not _record:
        loop.set_task_factory(_record)
    tasks: _Tasks = WeakSet()
    token = _RECORD.set(tasks)
    try:
        yield tasks
    finally:
        _RECORD.reset(token)


async def end(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel running tasks, and tasks that they start meanwhile, and wait until all have ended.

    A task that has not ended after a while is cancelled again: kopf's `stream` takes a cancellation for its own if it
    connects while kopf pauses, and then waits for the end of the pause. If cancelled, still wait for the tasks, as
    nothing else would cancel them again.
    """
    cancelled: asyncio.CancelledError | None = None
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        try:
            await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _record(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    **options: Any,
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    tasks = _RECORD.get()
    if tasks is not None:
        tasks.add(task)
    return task
