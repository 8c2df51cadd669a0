"""The client of the API server, and how the operator gets access to it.

Requests have a deadline; temporary failures are retried, refusals are raised. A thin transport over `kubernetes.aio`'s
`ApiClient`, which authenticates, keeps the connections and refreshes tokens; what answers mean, paging and retries are
`espalier_core.k8s`'s. Only plain JSON goes through it: thousands of pods are listed in half the time that typed models
take.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.aio.config.kube_config import refresh_token

from espalier_core.k8s import resources
from espalier_core.k8s.errors import Retries, Status
from espalier_core.k8s.resources import Listing, Pages, Raw, Resource, controller_of, key_of, resource_of
from espalier_operator.kube.reading import IDENTITIES, IDENTITIES_PAGE, identities_of
from espalier_operator.loop import BackendError

logger = logging.getLogger(__name__)

PAGE: Final = 200
"""Objects in one answer to a list. Nodes are 10 kB and more each: while an answer is read nothing else is done."""
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
POD_LOGS: Final = Resource("Pod", "", "v1", "pods/log")
"""For counting requests: the logs of pods."""
Body = Raw | list[Raw]
"""Of a request: an object, or the operations of a JSON patch."""
CONNECTIONS: Final = 64
"""Requests at once."""


class ApiRefusalError(BackendError):
    """The API server refuses the request, and would refuse it again now; or an admission webhook or policy does."""

    def __init__(self, what: str, status: Status) -> None:
        """Keep the server's `status`."""
        super().__init__(f"{what}: {status.code} {status.reason}: {status.message}")
        self.status = status


class NotOwnedError(BackendError):
    """There is already an object with this name, and it has another owner."""


@dataclass(frozen=True, slots=True)
class KubeResponse:
    """What came back."""

    code: int
    headers: Mapping[str, str]
    body: bytes


class KubeClient:
    """Requests as the operator needs them. `BackendError` where all tries of a request failed."""

    def __init__(
        self,
        api: ApiClient,
        retries: Retries | None = None,
        requested: Callable[[str, str, int, float], None] = lambda verb, resource, code, seconds: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take over an ApiClient, which stays the caller's to close.

        `requested` is called for each try: verb, resource, HTTP code (0: no answer) and the seconds that it took.
        `may_write` is asked before each try of a write: an operator that was frozen may no longer hold its Lease.
        """
        self._api, self._retries, self._requested = api, retries or Retries(), requested
        self._may_write = may_write
        self._random = random.Random()
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """Tries by verb, resource and HTTP code; 0 where no answer came."""

    async def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        keep: Callable[[Raw], Raw] = lambda raw: raw,
    ) -> Listing:
        """Return all objects that the selectors choose, of each what `keep` returns of it when its page has come."""
        return await self._all_pages(resource, namespace, Pages(PAGE, labels, fields, keep))

    async def list_identities(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        keep: Callable[[Raw], Raw] = lambda raw: raw,
    ) -> Listing:
        """Return all objects as `list` does, of each only which it is, and of which version."""
        pages = Pages(IDENTITIES_PAGE, labels, fields, keep)
        read, accept = identities_of, IDENTITIES
        return await self._all_pages(resource, namespace, pages, read=read, accept=accept)

    async def _all_pages(self, resource: Resource, namespace: str | None, pages: Pages, **given: Any) -> Listing:
        path = resource.path(namespace)
        while True:
            try:
                page = await self._request("list", "GET", resource, path, query=pages.query, **given)
            except ApiRefusalError as refusal:
                if not refusal.status.is_expired or not pages.restart():
                    raise
            else:
                try:
                    listing = pages.take(page)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    # A server that starts or stops, and what stands before it, answer so now and then.
                    raise BackendError(f"list {path}: the answer is not a list: {error!r}") from error
                if listing is not None:
                    return listing

    async def serves(self, resource: Resource) -> bool:
        """Return whether the API server serves this kind: a CRD is served a moment after it exists."""
        path = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
        known = await self._present("discover", "GET", resource, path) or {}
        return any(each.get("name") == resource.plural for each in known.get("resources") or ())

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Raw | None:
        """Return an object, None where it is not there."""
        return await self._present("get", "GET", resource, resource.path(namespace, name))

    async def changes(self, resource: Resource, since: int, *, labels: str, fields: str) -> builtins.list[Raw]:
        """Return the events since a version as far as they come within a second; 410 where that is too long ago."""
        query = {"watch": "true", "resourceVersion": str(since), "timeoutSeconds": "1"}
        query |= {"labelSelector": labels, "fieldSelector": fields}
        read = lambda body: [json.loads(line) for line in body.splitlines()]  # noqa: E731
        events: builtins.list[Raw] = await self._request(
            "watch", "GET", resource, resource.path(), query=query, read=read
        )
        for event in events:
            if event["type"] == "ERROR":
                raise ApiRefusalError("watch", Status.of_object(event["object"]))
        return events

    async def create(self, manifest: Raw, owner: str | None) -> Raw | None:
        """Make an object and return it as it is there; one that is there already and belongs to `owner` (a UID) is it.

        `NotOwnedError` where it belongs to somebody else. Without `owner` nobody asks whose it is, and None is
        returned where it was there.
        """
        resource = resource_of(manifest)
        namespace, name = manifest["metadata"].get("namespace"), manifest["metadata"]["name"]
        try:
            made: Raw = await self._request("create", "POST", resource, resource.path(namespace), body=manifest)
            return made
        except ApiRefusalError as refusal:
            if not refusal.status.already_exists:
                raise
        if owner is None:
            return None
        found = await self.get(resource, namespace, name)
        if found is None:
            raise BackendError(f"{resource.kind} {key_of(manifest)} went while it was looked at")
        if controller_of(found).get("uid") != owner:
            raise NotOwnedError(
                f"{resource.kind} {name!r} is there already and is not this job's: delete it, or name the job otherwise"
            )
        return found

    async def patch(self, resource: Resource, namespace: str, name: str, uid: str, body: Raw) -> Raw | None:
        """Merge `body` into the object of this UID and return it as it is then; None where there is none any more."""
        whole = {**body, "metadata": {**body.get("metadata", {}), "uid": uid}}
        path = resource.path(namespace, name)
        return await self._present("patch", "PATCH", resource, path, body=whole, media=MERGE_PATCH)

    async def put_status(
        self, resource: Resource, namespace: str, name: str, uid: str, version: str, status: Raw
    ) -> Raw | None:
        """Put `status` in place of that of the object of this UID and version; return the object as it is then.

        None where there is none any more, or somebody has changed it since. A merge patch could not tell an object from
        its namesake: in a write to a subresource the API server leaves metadata aside, the UID with it.
        """
        operations: list[Raw] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status", "value": status},
        ]
        path = resource.path(namespace, name, "status")
        return await self._present("patch", "PATCH", resource, path, body=operations, media=JSON_PATCH)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Raw | None:
        """Delete the object of this UID and return the server's answer; None where it is gone already."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        body["propagationPolicy"] = "Background"
        return await self._present("delete", "DELETE", resource, resource.path(namespace, name), body=body)

    async def review(self, token: str, audience: str) -> Raw:
        """Return the status of a TokenReview for `audience`; it is tried once."""
        kind = resources.TOKEN_REVIEWS
        body = kind.review({"token": token, "audiences": [audience]})
        reviewed: Raw = await self._request("create", "POST", kind, kind.path(), body=body, tries=1)
        return reviewed.get("status") or {}

    async def log(self, namespace: str, name: str, container: str, *, lines: int, limit: int) -> bytes:
        """Return the newest `lines` of a container's log, at most `limit` bytes of them; it is tried once."""
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(limit)}
        path = resources.PODS.path(namespace, name, "log")
        found: bytes = await self._request("get", "GET", POD_LOGS, path, query=query, read=lambda body: body, tries=1)
        return found[:limit]

    # ---- one request

    async def _present(self, verb: str, method: str, resource: Resource, path: str, **given: Any) -> Raw | None:
        """Return what `_request` returns; None where the object is not there, or is another of the same name."""
        try:
            answer: Raw = await self._request(verb, method, resource, path, **given)
            return answer
        except ApiRefusalError as refusal:
            if refusal.status.is_not_found or refusal.status.is_other_uid:
                return None
            raise

    async def _request(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Body | None = None,
        media: str = "application/json",
        accept: str = "application/json",
        read: Callable[[bytes], Any] = json.loads,
        tries: int | None = None,
    ) -> Any:
        what, tries = f"{verb} {path}", tries or self._retries.tries
        for tried in range(1, tries + 1):
            retry_after = None
            if method != "GET" and not self._may_write():
                raise BackendError(f"{what}: not sent: this operator no longer holds the lease")
            begun = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(self._retries.deadline):
                    answer = await self._send(method, path, query or {}, body, media, accept)
            except TimeoutError:
                code, trouble = 0, f"no answer in {self._retries.deadline:g} s"
            except (aiohttp.ClientError, OSError) as error:
                code, trouble = 0, f"{type(error).__name__}: {error}"
            else:
                code = answer.code
                if 200 <= code < 300:
                    self._count(verb, resource, code, begun)
                    try:
                        return read(answer.body)
                    except ValueError as error:  # the page of a proxy, or half an answer
                        raise BackendError(f"{what}: the answer cannot be read: {error}") from error
                refusal = ApiRefusalError(what, Status.of(code, answer.body))
                trouble = str(refusal)
                retry_after = _seconds(answer.headers.get("Retry-After"))
            self._count(verb, resource, code, begun)
            if code and not refusal.status.is_transient:
                raise refusal
            if tried < tries:
                wait = self._retries.wait(tried, retry_after, self._random.random())
                logger.debug("%s; trying again in %.2f s", trouble, wait)
                await asyncio.sleep(wait)
        if code and refusal.status.is_denial:
            raise refusal
        raise BackendError(f"{what}: tried {tries} times: {trouble}")

    def _count(self, verb: str, resource: Resource, code: int, begun: float) -> None:
        self.requests[verb, resource.plural, code] += 1
        self._requested(verb, resource.plural, code, asyncio.get_running_loop().time() - begun)

    async def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Body | None, media: str, accept: str
    ) -> KubeResponse:
        """Send one request and read the whole answer."""
        given = {name: value for name, value in query.items() if value}
        headers = {**self._api.default_headers, "Accept": f"{accept}, */*;q=0.5", "Content-Type": media}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
        url = f"{self._api.configuration.host}{path}{'?' + urlencode(given) if given else ''}"
        response = await self._api.call_api(method, url, headers, body=body, _preload_content=False)
        data: bytes = await response.response.read()
        return KubeResponse(response.status, response.headers, data)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None


class AccessError(Exception):
    """No API server and credentials were found; the message names the places searched."""


@asynccontextmanager
async def api_access(kubeconfig: Path | None = None) -> AsyncIterator[ApiClient]:
    """Give a client of the cluster; its credentials are kept fresh meanwhile.

    With `kubeconfig` that file, without it the pod's account, and out of a cluster `$KUBECONFIG` or `~/.kube/config`.
    `AccessError` where there is none of these.
    """
    configuration = Configuration(connection_pool_maxsize=CONNECTIONS)
    configuration.client_session_kwargs = {"trust_env": False}
    refreshing = await _load(configuration, kubeconfig)
    task = None if refreshing is None else asyncio.create_task(refreshing)
    api = ApiClient(configuration)
    api.user_agent = "espalier-operator"
    try:
        yield api
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await api.close()  # type: ignore[no-untyped-call]


async def _load(configuration: Configuration, kubeconfig: Path | None) -> Coroutine[Any, Any, None] | None:
    """Fill `configuration`; return what keeps it fresh, None where it does so by itself."""
    tried = ""
    if kubeconfig is None:
        try:
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]  # reads the token again every minute
            return None
        except ConfigException as error:
            tried = f"not in a pod of a cluster ({error}), and "
    try:
        file = None if kubeconfig is None else str(kubeconfig)
        loader = await load_kube_config(file, client_configuration=configuration, persist_config=False)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError) as error:
        hint = "give --kubeconfig FILE, or run it in a cluster"
        raise AccessError(f"{tried}no kubeconfig that can be used: {error}; hint: {hint}") from error
    fresh: Coroutine[Any, Any, None] = refresh_token(loader, configuration)  # type: ignore[no-untyped-call]
    return fresh
