"""Progress of programs: read from the newest lines of their logs or a page of their metrics, or posted by them.

Reading runs concurrently with planning, which never waits for it. A tenant decides what a program writes and how slowly
it answers, so everything is bounded: the rate, size and number of reads.

Programs post in the protocol of Kubeflow Trainer (`KUBEFLOW_TRAINER_SERVER_*`). Only the leader of a job may post for
it. It proves its identity by a token for an audience of this job, which the kubelet mounts into its pod; the API server
reviews the token, and names the pod.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import aiohttp
from aiohttp import web

from espalier_core.types.program import LogProgress, MetricsProgress
from espalier_operator.clock import Clock
from espalier_operator.kube.client import ApiRefusalError, KubeClient
from espalier_operator.kube.objects.worker_pod import POSTS_AUDIENCE
from espalier_operator.kube.state.progress import Poster, ProgressSource
from espalier_operator.loop import BackendError
from espalier_operator.programs import MAX_PAGE_BYTES, LineReader, lines_of, values_of_page, values_of_post

logger = logging.getLogger(__name__)

EVERY: Final = 5.0
"""Seconds between two reads of a program."""
TICK: Final = 0.5
"""Seconds between two checks for due programs."""
STARTED_A_TICK: Final = 10
"""Maximum number of reads that begin in a tick; the others wait, the longest unread first."""
AT_ONCE: Final = 32
"""Maximum number of reads at the same time."""
LINES: Final = 100
"""Number of newest lines of a log that are read at a time."""
LOG_BYTES: Final = 64 * 1024
"""Maximum number of bytes of these lines."""
TIMEOUT: Final = 3.0
"""Time limit of a read, in seconds."""
KEPT_SECONDS: Final = 60.0
"""Seconds for which the review of a token is cached."""
REVIEWS: Final = 4
"""Maximum number of concurrent reviews; further posts are refused for the moment, as the next one comes soon."""
_LONGEST_TOKEN: Final = 8192
_POD: Final = "authentication.kubernetes.io/pod-uid"
_FORBIDDEN: Final = "the operator may not; bind its ServiceAccount to a ClusterRole with `create` of tokenreviews"


class ProgressReader:
    """Reads all programs of an operator in turn."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        sources: Callable[[], Iterable[ProgressSource]],
        take: Callable[[ProgressSource, Mapping[str, float] | None], None],
    ) -> None:
        """Take `sources`, the current ones, and `take`, which receives the values of one; None: it is forbidden."""
        self._client, self._clock, self._sources, self._take = client, clock, sources, take
        self._last: dict[str, float] = {}
        """Time of the last read, by pod."""
        self._ended: set[str] = set()
        """Pods whose last lines were read."""
        self._reads: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Read until cancelled."""
        async with _session() as session:
            try:
                while True:
                    self.start_due(session)
                    await asyncio.sleep(TICK)
            finally:
                for task in self._reads.values():
                    task.cancel()
                await asyncio.gather(*self._reads.values(), return_exceptions=True)

    def start_due(self, session: aiohttp.ClientSession) -> None:
        """Start due reads: ended programs first, then the longest unread."""
        now, sources = self._clock.now(), {source.leader.uid: source for source in self._sources()}
        self._last = {pod: at for pod, at in self._last.items() if pod in sources}
        self._ended &= sources.keys()
        due = [source for source in sources.values() if self._is_due(source, now)]
        due.sort(key=lambda source: (not source.leader.done, self._last.get(source.leader.uid, 0.0)))
        for source in due[: min(STARTED_A_TICK, AT_ONCE - len(self._reads))]:
            self._last[source.leader.uid] = now
            if source.leader.done:
                self._ended.add(source.leader.uid)
            self._reads[source.leader.uid] = task = asyncio.create_task(self._read(source, session))
            task.add_done_callback(partial(self._done, source.leader.uid))

    def _is_due(self, source: ProgressSource, now: float) -> bool:
        if source.leader.uid in self._reads or source.leader.uid in self._ended:
            return False
        return source.leader.done or now >= self._last.get(source.leader.uid, 0.0) + EVERY

    def _done(self, pod: str, task: asyncio.Task[None]) -> None:
        del self._reads[pod]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("cannot read the progress of pod %s", pod, exc_info=error)

    async def _read(self, source: ProgressSource, session: aiohttp.ClientSession) -> None:
        values: Mapping[str, float] | None = {}
        try:
            async with asyncio.timeout(TIMEOUT):
                if source.spec.log is not None:
                    values = await self._of_log(source, source.spec.log)
                elif source.spec.metrics is not None:
                    values = await self._of_metrics(source, source.spec.metrics, session)
        except (BackendError, aiohttp.ClientError, OSError, TimeoutError) as error:
            logger.debug("%s: cannot read its progress: %s", source.leader.key, error)
            if isinstance(error, ApiRefusalError) and error.status.is_forbidden:
                values = None
        finally:
            self._take(source, values)

    async def _of_log(self, source: ProgressSource, log: LogProgress) -> Mapping[str, float]:
        place, lines, data = (source.leader.namespace, source.leader.name, source.leader.container), LINES, b""
        while lines:
            data = await self._client.log(*place, lines=lines, limit=LOG_BYTES)
            if len(data) < LOG_BYTES:
                break
            # The kubelet counts bytes from the oldest of these lines, so the newest are missing. A progress bar without
            # ends of lines comes in pieces of 16 KiB, each of which counts as a line.
            lines = min(lines // 2, max(1, data.count(b"\n") // 2))
            data = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]  # a number that is cut is another number
        return await asyncio.to_thread(lambda: LineReader(log).values(lines_of(data)))

    async def _of_metrics(
        self, source: ProgressSource, metrics: MetricsProgress, session: aiohttp.ClientSession
    ) -> Mapping[str, float]:
        address = source.leader.address
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{metrics.port}{metrics.path}"
        async with session.get(url, allow_redirects=False) as answer:
            if answer.status != 200:
                return {}
            page = bytearray()
            async for piece in answer.content.iter_chunked(16 * 1024):
                page += piece
                if len(page) >= MAX_PAGE_BYTES:
                    break
        return await asyncio.to_thread(values_of_page, bytes(page), metrics)


def _session() -> aiohttp.ClientSession:
    """Return a session without proxies, cookies or decompression, by which a small answer could become a large one."""
    return aiohttp.ClientSession(
        trust_env=False, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, headers={"Accept": "text/plain"}
    )


class Posts:
    """Checks and accepts posts. Used from one event loop."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        poster: Callable[[str, str], Poster | None],
        take: Callable[[Poster, Mapping[str, float]], None],
    ) -> None:
        """Take `poster`, which returns the leader that may post for a job (namespace, name); None: none."""
        self._client, self._clock, self._poster, self._take = client, clock, poster, take
        self._known: dict[bytes, tuple[str, float]] = {}
        """UID of the pod and expiry of each reviewed token, by the token's hash."""
        self._reviews = 0

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a post: 200, or 400, 401, 403, 404, 413 or 503 with the reason."""
        poster = self._poster(request.match_info["namespace"], request.match_info["name"])
        if poster is None:
            return web.Response(status=404, text="there is no such program, or its leader does not run\n")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not 0 < len(token) <= _LONGEST_TOKEN:
            return web.Response(status=401, text="send the token of the job's leader: Authorization: Bearer TOKEN\n")
        try:
            pod = await self._pod_of(token.strip(), poster)
        except BackendError as error:
            refused = isinstance(error, ApiRefusalError) and error.status.is_forbidden
            return web.Response(status=503, text=f"cannot review the token: {_FORBIDDEN if refused else error}\n")
        if pod != poster.pod:
            return web.Response(status=403, text="the token does not belong to the job's leader\n")
        try:
            values = values_of_post(await request.read())
        except ValueError as error:
            return web.Response(status=400, text=f"the post {error}\n")
        self._take(poster, values)
        return web.json_response({})

    async def _pod_of(self, token: str, poster: Poster) -> str:
        """Return the UID of the pod proved by a token for the audience of this job; empty: none."""
        audience = poster.job.audience_of(POSTS_AUDIENCE)
        now, digest = self._clock.now(), hashlib.sha256(f"{audience} {token}".encode()).digest()
        pod, until = self._known.get(digest, ("", 0.0))
        if now < until:
            return pod
        if self._reviews >= REVIEWS:
            raise BackendError("too many reviews at the moment; try again")
        self._reviews += 1
        try:
            status = await self._client.review(token, audience)
        finally:
            self._reviews -= 1
        pod = ""
        if status.get("authenticated") is True and audience in (status.get("audiences") or ()):
            extra = (status.get("user") or {}).get("extra") or {}
            pod = next(iter(extra.get(_POD) or ()), "")
        self._known = {each: kept for each, kept in self._known.items() if now < kept[1]}
        self._known[digest] = pod, now + KEPT_SECONDS
        return pod
