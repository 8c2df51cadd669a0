"""The client of the API server, and the operator's access to it.

Requests have a deadline; temporary failures are retried, refusals are raised. A thin transport over `kubernetes.aio`'s
`ApiClient`, which authenticates, keeps the connections and refreshes tokens; `espalier_core.k8s` interprets answers and
rules paging and retries. Only plain JSON is used: listing thousands of pods takes half the time of typed models.
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
"""Objects in one page of a list. Nodes have 10 kB and more each, and parsing a page blocks everything else."""
POD_LOGS: Final = "pods/log"
"""Name under which requests for logs of pods are counted."""
WEBHOOK_SECONDS: Final = 30.0
"""Seconds that the API server may wait for an admission webhook before it names it as the cause."""
CONNECTIONS: Final = 64
"""Maximum number of concurrent requests."""


class ApiRefusalError(BackendError):
    """The API server, an admission webhook or a policy refuses the request, and would refuse it again now."""

    def __init__(self, what: str, status: Status) -> None:
        """Keep the server's `status`."""
        super().__init__(f"{what}: {status.code} {status.reason}: {status.message}")
        self.status = status


class NotOwnedError(BackendError):
    """An object with this name exists already and has another owner."""


class KubeClient:
    """The operator's requests. They raise `BackendError` if all tries of a request failed."""

    def __init__(
        self,
        api: ApiClient,
        retries: Retries | None = None,
        requested: Callable[[str, str, int, float], None] = lambda verb, resource, code, seconds: None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        """Use an ApiClient, which the caller closes.

        `requested` is called for each try with verb, resource, HTTP code (0: no answer) and seconds. `may_write` is
        called before each try of a write: an operator that was frozen may no longer hold its Lease.
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
        """Return all objects chosen by the selectors, each as returned by `keep`, which is called page by page.

        `identities`: only the identity and version of each.
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
                    # A starting or stopping server, or a proxy before it, may answer so.
                    raise BackendError(f"{call}: the answer is not a list: {error!r}") from error
                if listing is not None:
                    return listing

    async def serves(self, resource: Resource) -> bool:
        """Return whether the API server serves this kind; a CRD is served a moment after its creation."""
        known = await self._present(Call("discover", resource)) or {}
        return any(each.get("name") == resource.plural for each in known.get("resources") or ())

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Raw | None:
        """Return an object; None where it does not exist."""
        return await self._present(Call("get", resource, namespace, name))

    async def changes(self, resource: Resource, since: int, *, labels: str, fields: str) -> builtins.list[Raw]:
        """Return the events since a version that arrive within a second; a refusal with 410 where it is too old."""
        query = {"watch": "true", "resourceVersion": str(since), "timeoutSeconds": "1"}
        query |= {"labelSelector": labels, "fieldSelector": fields}
        read = lambda body: [json.loads(line) for line in body.splitlines()]  # noqa: E731
        events: builtins.list[Raw] = await self._request(Call("watch", resource, query=query), read)
        for event in events:
            if event["type"] == "ERROR":
                raise ApiRefusalError("watch", Status.of_object(event["object"]))
        return events

    async def create(self, manifest: Raw, owner: str | None) -> Raw | None:
        """Create an object and return it as stored; return an existing one if it belongs to `owner` (a UID).

        Raises `NotOwnedError` where it belongs to another owner. Without `owner`, the owner is not checked, and None is
        returned where it exists already.
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
            raise BackendError(f"{resource.kind} {key_of(manifest)} was deleted while it was read")
        if controller_of(found).get("uid") != owner:
            raise NotOwnedError(
                f"{resource.kind} {name!r} exists already and is not this job's; delete it, or rename the job"
            )
        return found

    async def patch(self, resource: Resource, namespace: str, name: str, uid: str, body: Raw) -> Raw | None:
        """Merge `body` into the object of this UID and return the result; None where it no longer exists."""
        whole = {**body, "metadata": {**body.get("metadata", {}), "uid": uid}}
        return await self._present(Call("patch", resource, namespace, name, body=whole, media=MERGE_PATCH))

    async def put_status(
        self, resource: Resource, namespace: str, name: str, uid: str, version: str, status: Raw
    ) -> Raw | None:
        """Replace the status of the object of this UID and version; return the resulting object.

        None where it no longer exists or has changed. A merge patch could not distinguish an object from its namesake:
        in a write to a subresource the API server ignores metadata, including the UID.
        """
        operations: list[Raw] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status", "value": status},
        ]
        call = Call("patch", resource, namespace, name, "status", body=operations, media=JSON_PATCH)
        return await self._present(call)

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Raw | None:
        """Delete the object of this UID and return the server's answer; None where it no longer exists."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        body["propagationPolicy"] = "Background"
        return await self._present(Call("delete", resource, namespace, name, body=body))

    async def review(self, token: str, audience: str) -> Raw:
        """Return the status of a TokenReview for `audience`, in a single try."""
        kind = resources.TOKEN_REVIEWS
        call = Call("create", kind, body=kind.review({"token": token, "audiences": [audience]}))
        reviewed: Raw = await self._request(call, tries=1)
        return reviewed.get("status") or {}

    async def log(self, namespace: str, name: str, container: str, *, lines: int, limit: int) -> bytes:
        """Return the newest `lines` of a container's log, at most `limit` bytes, in a single try."""
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(limit)}
        call = Call("get", resources.PODS, namespace, name, "log", query)
        found: bytes = await self._request(call, lambda body: body, tries=1)
        return found[:limit]

    # ---- one request

    async def _present(self, call: Call) -> Raw | None:
        """Return the result of `_request`; None where the object does not exist, or is another of the same name."""
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
                except ValueError as error:  # a proxy's page, or half an answer
                    raise BackendError(f"{call}: the answer cannot be read: {error}") from error
            if refusal is not None and not refusal.status.is_transient:
                raise refusal
            if tried < tries:
                wait = self._retries.wait(tried, retry_after, self._random.random())
                logger.debug("%s; retrying in %.2f s", trouble, wait)
                await asyncio.sleep(wait)
        if refusal is not None and refusal.status.is_denial:
            raise refusal
        raise BackendError(f"{call}: tried {tries} times: {trouble}")

    def _count(self, call: Call, code: int, begun: float) -> None:
        plural = call.resource.plural if call.subresource != "log" else POD_LOGS
        self.requests[call.verb, plural, code] += 1
        self._requested(call.verb, plural, code, asyncio.get_running_loop().time() - begun)

    async def _send(self, call: Call) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request; return code, headers and body of the answer."""
        headers = {**self._api.default_headers, **call.headers}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], call.path, call.method, None)
        url = f"{self._api.configuration.host}{call.path}{'?' + urlencode(call.parameters) if call.parameters else ''}"
        response = await self._api.call_api(call.method, url, headers, body=call.body, _preload_content=False)
        return response.status, response.headers, await response.response.read()


class AccessError(Exception):
    """No API server and credentials were found; the message names the places searched."""


@asynccontextmanager
async def api_access(kubeconfig: Path | None = None) -> AsyncIterator[ApiClient]:
    """Yield a client of the cluster, whose credentials are kept fresh.

    The credentials come from `kubeconfig` if given, else from the pod's account, and outside a cluster from
    `$KUBECONFIG` or `~/.kube/config`. Raises `AccessError` where there are none.
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
    """Fill `configuration`; return a coroutine that keeps it fresh, None where it does so by itself."""
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
        raise AccessError(f"{tried}no usable kubeconfig: {error}; hint: {hint}") from error
    fresh: Coroutine[Any, Any, None] = refresh_token(loader, configuration)  # type: ignore[no-untyped-call]
    return fresh
