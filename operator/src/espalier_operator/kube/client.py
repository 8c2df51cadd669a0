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
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.aio.config.kube_config import refresh_token

from espalier_core.k8s import resources
from espalier_core.k8s.errors import JSON_PATCH, MERGE_PATCH, Call, Retries, Status
from espalier_core.k8s.resources import Listing, Pages, Raw, Resource, controller_of, key_of, resource_of
from espalier_operator.kube.reading import IDENTITIES, IDENTITIES_PAGE, identities_of
from espalier_operator.loop import BackendError

logger = logging.getLogger(__name__)

PAGE: Final = 200
"""Objects in one answer to a list. Nodes are 10 kB and more each: while an answer is read nothing else is done."""
POD_LOGS: Final = "pods/log"
"""How requests for logs of pods are counted."""
WEBHOOK_SECONDS: Final = 30.0
"""How long the API server may wait for an admission webhook, before it says that it was that one."""
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
        identities: bool = False,
    ) -> Listing:
        """Return all objects that the selectors choose, of each what `keep` returns of it when its page has come.

        `identities`: of each only which it is, and of which version.
        """
        size, read = (IDENTITIES_PAGE, identities_of) if identities else (PAGE, json.loads)
        pages, accept = Pages(size, labels, fields, keep), IDENTITIES if identities else "application/json"
        while True:
            call = Call("list", resource, namespace, query=pages.query, accept=accept)
            try:
                page = await self._request(call, read)
            except ApiRefusalError as refusal:
                if not refusal.status.is_expired or not pages.restart():
                    raise
            else:
                try:
                    listing = pages.take(page)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    # A server that starts or stops, and what stands before it, answer so now and then.
                    raise BackendError(f"{call}: the answer is not a list: {error!r}") from error
                if listing is not None:
                    return listing

    async def serves(self, resource: Resource) -> bool:
        """Return whether the API server serves this kind: a CRD is served a moment after it exists."""
        known = await self._present(Call("discover", resource)) or {}
        return any(each.get("name") == resource.plural for each in known.get("resources") or ())

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Raw | None:
        """Return an object, None where it is not there."""
        return await self._present(Call("get", resource, namespace, name))

    async def changes(self, resource: Resource, since: int, *, labels: str, fields: str) -> builtins.list[Raw]:
        """Return the events since a version as far as they come within a second; 410 where that is too long ago."""
        query = {"watch": "true", "resourceVersion": str(since), "timeoutSeconds": "1"}
        query |= {"labelSelector": labels, "fieldSelector": fields}
        read = lambda body: [json.loads(line) for line in body.splitlines()]  # noqa: E731
        events: builtins.list[Raw] = await self._request(Call("watch", resource, query=query), read)
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
            made: Raw = await self._request(Call("create", resource, namespace, body=manifest), held=WEBHOOK_SECONDS)
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
        return await self._present(Call("patch", resource, namespace, name, body=whole, media=MERGE_PATCH))

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
        call = Call("patch", resource, namespace, name, "status", body=operations, media=JSON_PATCH)
        return await self._present(call)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Raw | None:
        """Delete the object of this UID and return the server's answer; None where it is gone already."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        body["propagationPolicy"] = "Background"
        return await self._present(Call("delete", resource, namespace, name, body=body))

    async def review(self, token: str, audience: str) -> Raw:
        """Return the status of a TokenReview for `audience`; it is tried once."""
        kind = resources.TOKEN_REVIEWS
        call = Call("create", kind, body=kind.review({"token": token, "audiences": [audience]}))
        reviewed: Raw = await self._request(call, tries=1)
        return reviewed.get("status") or {}

    async def log(self, namespace: str, name: str, container: str, *, lines: int, limit: int) -> bytes:
        """Return the newest `lines` of a container's log, at most `limit` bytes of them; it is tried once."""
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(limit)}
        call = Call("get", resources.PODS, namespace, name, "log", query)
        found: bytes = await self._request(call, lambda body: body, tries=1)
        return found[:limit]

    # ---- one request

    async def _present(self, call: Call) -> Raw | None:
        """Return what `_request` returns; None where the object is not there, or is another of the same name."""
        try:
            answer: Raw = await self._request(call)
            return answer
        except ApiRefusalError as refusal:
            if refusal.status.is_not_found or refusal.status.is_other_uid:
                return None
            raise

    async def _request(
        self, call: Call, read: Callable[[bytes], Any] = json.loads, *, tries: int | None = None, held: float = 0
    ) -> Any:
        deadline = self._retries.deadline + held
        tries = tries or self._retries.tries
        for tried in range(1, tries + 1):
            if call.method != "GET" and not self._may_write():
                raise BackendError(f"{call}: not sent: this operator no longer holds the lease")
            begun, refusal, retry_after = asyncio.get_running_loop().time(), None, None
            try:
                async with asyncio.timeout(deadline):
                    code, headers, answer = await self._send(call)
            except TimeoutError:
                code, trouble = 0, f"no answer in {deadline:g} s"
            except (aiohttp.ClientError, OSError) as error:
                code, trouble = 0, f"{type(error).__name__}: {error}"
            else:
                if not 200 <= code < 300:
                    status = Status.of(code, answer)
                    refusal, retry_after = ApiRefusalError(str(call), status), headers.get("Retry-After")
                    trouble = str(refusal)
            self._count(call, code, begun)
            if code and refusal is None:
                try:
                    return read(answer)
                except ValueError as error:  # the page of a proxy, or half an answer
                    raise BackendError(f"{call}: the answer cannot be read: {error}") from error
            if refusal is not None and not refusal.status.is_transient:
                raise refusal
            if tried < tries:
                wait = self._retries.wait(tried, retry_after, self._random.random())
                logger.debug("%s; trying again in %.2f s", trouble, wait)
                await asyncio.sleep(wait)
        if refusal is not None and refusal.status.is_denial:
            raise refusal
        raise BackendError(f"{call}: tried {tries} times: {trouble}")

    def _count(self, call: Call, code: int, begun: float) -> None:
        plural = call.resource.plural if call.subresource != "log" else POD_LOGS
        self.requests[call.verb, plural, code] += 1
        self._requested(call.verb, plural, code, asyncio.get_running_loop().time() - begun)

    async def _send(self, call: Call) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request and read the whole answer: its code, headers and body."""
        headers = {**self._api.default_headers, **call.headers}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], call.path, call.method, None)
        url = f"{self._api.configuration.host}{call.path}{'?' + urlencode(call.parameters) if call.parameters else ''}"
        response = await self._api.call_api(call.method, url, headers, body=call.body, _preload_content=False)
        return response.status, response.headers, await response.response.read()


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
