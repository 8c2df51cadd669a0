"""Accepts progress posted by programs in the protocol of Kubeflow Trainer (`KUBEFLOW_TRAINER_SERVER_*`).

Only the leader of a job may post for it. It proves its identity by a token for an audience of this job, which the
kubelet mounts into its pod; the API server reviews the token, and names the pod.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web

from espalier_operator.clock import Clock
from espalier_operator.kube.client import ApiRefusalError, KubeClient
from espalier_operator.kube.objects.worker_pod import POSTS_AUDIENCE
from espalier_operator.kube.state.progress import Poster
from espalier_operator.loop import BackendError
from espalier_operator.programs import values_of_post

KEPT_SECONDS: Final = 60.0
"""Seconds for which the review of a token is cached."""
REVIEWS: Final = 4
"""Maximum number of concurrent reviews; further posts are refused for the moment, as the next one comes soon."""
_LONGEST_TOKEN: Final = 8192
_POD: Final = "authentication.kubernetes.io/pod-uid"
_FORBIDDEN: Final = "the operator may not; bind its ServiceAccount to a ClusterRole with `create` of tokenreviews"


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
