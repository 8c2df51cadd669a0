"""Keeps the store up to date by complete lists at intervals, kopf's watches, and reads of doubtful pods.

The next list corrects omissions of kopf's watches (a lost event, a hanging stream). For nodes and pods it has only the
versions, and unknown ones are read. kopf is restarted when it ends; the lists continue meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import kopf
from kubernetes.aio.client.configuration import Configuration

from espalier_core.k8s import resources
from espalier_core.k8s.errors import Status
from espalier_core.k8s.resources import Listing
from espalier_operator.clock import Backoff, Clock
from espalier_operator.kube.client import ApiRefusalError, KubeClient
from espalier_operator.kube.objects import names
from espalier_operator.kube.settings import KubeSettings
from espalier_operator.kube.watch import handlers
from espalier_operator.kube.watch.handlers import end, recorded_tasks
from espalier_operator.kube.watch.indexer import Indexer
from espalier_operator.kube.watch.store import CLUSTER_WIDE, NAMESPACED, Store, optional_kinds
from espalier_operator.loop import BackendError

logger = logging.getLogger(__name__)

_LOOKS_AT_ONCE: Final = 8
_READ_ONE_BY_ONE: Final = 50
"""Maximum number of objects read one by one after a list of versions; if more are new, all are listed in full."""
_LATE_SECONDS: Final = 0.5
"""Delay of a report of a job that reports too often, in addition to the delay by its rate."""
_IDENTITY: Final = ("namespace", "name", "uid", "resourceVersion")
_LONG_ENOUGH: Final = 60.0
"""Seconds that kopf must have run for its end not to count as another failure in a row."""


class Informer:
    """Reads from the API server for the store."""

    def __init__(
        self,
        client: KubeClient,
        configuration: Configuration,
        store: Store,
        settings: KubeSettings,
        clock: Clock,
        listed: Callable[[], None],
        doubt: asyncio.Event,
        kopf_started: Callable[[], None] = lambda: None,
    ) -> None:
        """Take `listed`, called after complete lists, and `kopf_started`, called after kopf has set signal handlers.

        `doubt` is set when the store has doubtful pods.
        """
        self._client, self._configuration, self._store = client, configuration, store
        self._settings, self._clock, self._listed, self._kopf_started = settings, clock, listed, kopf_started
        self._large: dict[resources.Resource, Indexer[Any]] = {
            resources.NODES: store.nodes,
            resources.PODS: store.pods,
        }
        """Indexers of kinds with thousands of objects."""
        self._relist = asyncio.Event()
        self._doubt = doubt
        self._refused: dict[resources.Resource, Status] = {}
        """Kinds that could not be listed for lack of a definition or of rights, with the API server's answer."""

    async def run(self) -> None:
        """Keep the store up to date until cancelled."""
        await self._list_patiently()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(CLUSTER_WIDE, ()))
            group.create_task(self._follow((resources.PODS,), (), workers=True))
            group.create_task(self._follow(NAMESPACED, self._settings.watch_namespaces))
            for resource, namespaced in optional_kinds(self._settings):
                namespaces = self._settings.watch_namespaces if namespaced else ()
                group.create_task(self._follow((resource,), namespaces))
            group.create_task(self._list_regularly())
            group.create_task(self._look_at_doubtful())
            group.create_task(self._read_late_reports())

    # ---- lists

    async def list_all(self) -> None:
        """List every kind once. Raises `BackendError` where one fails, so that nothing is concluded from absence."""
        classes = await self._client.list(resources.PRIORITY_CLASSES, None)
        self._store.replace(resources.PRIORITY_CLASSES, classes.items, classes.version)
        nodes = await self._list_large(resources.NODES)
        self._store.replace(resources.NODES, (), nodes.version, [*map(resources.key_of, nodes.items)])
        for resource, namespaced in optional_kinds(self._settings):
            await self._list_optional(resource, self._settings.watch_namespaces if namespaced else ())
        await self._list_namespaced(resources.JOBS, "")
        if self._store.listed_at is None:
            await self._hear_of_ends()
        pods = await self._list_large(resources.PODS, fields=names.LIVE_PODS)
        own = await self._list_large(resources.PODS, labels=names.OWN_PODS)
        taken = [resources.key_of(pod) for found in (pods, own) for pod in found.items]
        self._store.replace(resources.PODS, (), pods.version, taken)
        await self._list_namespaced(resources.CONFIG_MAPS, names.REPORTS)
        self._store.all_listed()
        self._listed()

    async def _hear_of_ends(self) -> None:
        """Record workers that ended and were deleted while no operator ran.

        API servers keep events for minutes, and at least for 75 s. An end that an earlier operator has not recorded
        came after the last version of its job. If that is too old, later ends may still be known.
        """
        since = sorted(self._store.versions_of_running_jobs())
        while since:
            try:
                events = await self._client.changes(
                    resources.PODS, since[0], labels=names.WORKERS, fields=names.ENDED_PODS
                )
            except ApiRefusalError as refusal:
                if not refusal.status.is_expired:
                    raise
                since = since[(len(since) + 1) // 2 :]
            else:
                for event in events:
                    self._store.take(resources.PODS, event["type"], event["object"])
                return

    async def _list_large(self, resource: resources.Resource, **selectors: Any) -> Listing:
        """List a kind with thousands of objects, and record new ones; return the identities of all.

        Once the kind is known, only the versions are listed, as the watches have brought nearly all objects.
        """
        if self._large[resource].listed_version is not None:
            new: dict[str, resources.Raw] = {}

            def compare(identity: resources.Raw) -> resources.Raw:
                key = resources.key_of(identity)
                if not self._large[resource].is_current(key, resources.version_of(identity)):
                    new[key] = identity["metadata"]
                return identity

            found = await self._client.list(resource, None, **selectors, keep=compare, identities=True)
            if len(new) <= _READ_ONE_BY_ONE:
                for metadata in new.values():
                    await self._read_again(resource, metadata)
                return found
        return await self._client.list(resource, None, **selectors, keep=self._taking(resource))

    async def _read_again(self, resource: resources.Resource, metadata: resources.Raw) -> None:
        """Record the current state of an object, by a list, which the operator may make of all kinds."""
        name = f"metadata.name={metadata['name']}"
        await self._client.list(resource, metadata.get("namespace"), fields=name, keep=self._taking(resource))

    def _taking(self, resource: resources.Resource) -> Callable[[resources.Raw], resources.Raw]:
        """Return a function that records an object of a page at once, and returns only its identity and version.

        All pods or nodes of a large cluster would take half a gigabyte.
        """

        def take(raw: resources.Raw) -> resources.Raw:
            self._store.take(resource, None, raw)
            return {"metadata": {key: raw["metadata"][key] for key in _IDENTITY if key in raw["metadata"]}}

        return take

    async def _list_optional(self, resource: resources.Resource, namespaces: Sequence[str]) -> None:
        """List a kind for which an installation of an earlier chart may lack the definition or the right to read."""
        try:
            lists = [await self._client.list(resource, namespace) for namespace in namespaces or (None,)]
        except ApiRefusalError as refusal:
            if refusal.status.code not in (403, 404):
                raise
            plural = resource.plural
            known = self._store.count(resource)  # an API server that has just started may not know a kind yet
            if self._refused.get(resource) != refusal.status:
                self._refused[resource] = refusal.status
                what = f"count as last read ({known})" if known else "do not count"
                text = "%s cannot be read and %s; install crds/ and the chart's roles: %s"
                logger.warning(text, plural, what, refusal)
            self._store.replace(resource, (), 0)
        else:
            if self._refused.pop(resource, None) is not None:
                logger.info("%s are readable now", resource.plural)
            items = [item for found in lists for item in found.items]
            self._store.replace(resource, items, min(found.version for found in lists))

    async def _list_namespaced(self, resource: resources.Resource, labels: str) -> None:
        namespaces: Sequence[str | None] = self._settings.watch_namespaces or (None,)
        lists = [await self._client.list(resource, namespace, labels=labels) for namespace in namespaces]
        items = [item for found in lists for item in found.items]
        self._store.replace(resource, items, min(found.version for found in lists))

    async def _list_patiently(self) -> None:
        backoff = Backoff(longest=10.0)
        while True:
            try:
                await self.list_all()
                return
            except BackendError as error:
                pause = backoff.failed(self._clock.now())
                logger.warning("cannot list the cluster; retrying in %.0f s: %s", pause, error)
                await asyncio.sleep(pause)

    async def _list_regularly(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.resync_seconds):
                    await self._relist.wait()
            self._relist.clear()  # before the list, which need not satisfy requests made during it
            await self._list_patiently()

    # ---- kopf

    async def _follow(
        self, watched: tuple[resources.Resource, ...], namespaces: Sequence[str], *, workers: bool = False
    ) -> None:
        backoff = Backoff(longest=20.0)
        while True:
            begun = self._clock.now()
            try:
                await self._require_served(watched)
                await self._run_kopf(watched, namespaces, workers=workers)
                trouble = "it ended by itself"
            except asyncio.CancelledError:
                raise
            except Exception as error:
                trouble = f"{type(error).__name__}: {error}"
            now = self._clock.now()
            if now - begun > _LONG_ENOUGH:
                backoff.succeeded()
            pause = backoff.failed(now)
            plurals = ", ".join(resource.plural for resource in watched)
            unreadable = not self._refused.keys().isdisjoint(watched)  # the list has warned of it once
            level = logging.DEBUG if unreadable else logging.WARNING
            logger.log(level, "the watch of %s ended, starting again in %.0f s: %s", plurals, pause, trouble)
            await asyncio.sleep(pause)
            if self._refused.keys().isdisjoint(watched):
                self._relist.set()

    async def _require_served(self, watched: Iterable[resources.Resource]) -> None:
        """Raise `BackendError` where a kind is not served: kopf would watch the others and never check again."""
        if any(resource in self._refused for resource in watched):
            raise BackendError("it could not be listed")
        missing = [resource.plural for resource in watched if not await self._client.serves(resource)]
        if missing:
            raise BackendError(f"the API server does not know {', '.join(missing)}; is the CRD installed?")

    async def _run_kopf(
        self, watched: tuple[resources.Resource, ...], namespaces: Sequence[str], *, workers: bool
    ) -> None:
        """Run kopf until one of its tasks ends, and end all that it started; `kopf.operator` would end ours too."""
        with recorded_tasks() as begun:
            tasks = await kopf.spawn_tasks(
                registry=handlers.registry_of(self._store, self._configuration, watched),
                settings=handlers.settings_of(workers=workers),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
            )
            self._kopf_started()
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                try:
                    await end(tasks)  # these end their own in order; tasks left after that were forgotten
                finally:
                    await end(begun)

    # ---- reports

    async def _read_late_reports(self) -> None:
        while True:
            await asyncio.sleep(_LATE_SECONDS)
            for key in self._store.reports.late():
                self._store.reports.read_late(key)
                await asyncio.sleep(0)  # all other tasks go first, however many reports there are

    # ---- doubtful pods

    async def _look_at_doubtful(self) -> None:
        """Read each doubtful pod again. A late or missing answer delays no other pod's."""
        limit, looking = asyncio.Semaphore(_LOOKS_AT_ONCE), set[str]()

        async def look(key: str) -> None:
            backoff = Backoff(first=0.5, longest=10.0)
            while (doubt := self._store.doubtful.get(key)) is not None:
                pod, version = doubt
                try:
                    async with limit:
                        found = await self._client.get(resources.PODS, pod.namespace, pod.name)
                except BackendError as error:
                    logger.warning("cannot read pod %s, which has ended or is gone: %s", pod.key, error)
                    await asyncio.sleep(backoff.failed(self._clock.now()))
                else:
                    self._store.settle(pod, version, found)
            looking.remove(key)

        async with asyncio.TaskGroup() as group:
            while True:
                await self._doubt.wait()
                self._doubt.clear()
                for key in self._store.doubtful.keys() - looking:
                    looking.add(key)
                    group.create_task(look(key))
