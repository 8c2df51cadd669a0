"""Reading from the API server of a kubeconfig's context: deadlines on every call, errors in a person's words."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from espalier_cli.cluster.errors import ClusterError, ExpiredError, UnreachableError, error_of
from espalier_cli.errors import BadInput
from espalier_operator.kube.objects.resources import Resource
from espalier_operator.kube.snapshot import Listed

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0
SILENCE_SECONDS = 10.0
"""After a watch should have ended its connection counts as dead."""
ATTEMPTS = 3
"""Of one read, where the API server does not answer or is overloaded."""
PAUSE_SECONDS = 0.3
"""Before the second attempt; doubles."""
PAGE = 500
DEEPEST = 40_000
"""The API server stores what is nested ten thousand deep; a list with one such job in it is read all the same."""
_SKEW_SECONDS = 2.0
"""Clocks closer than this are taken for equal: the API server tells its time in whole seconds."""

Object = dict[str, Any]
T = TypeVar("T")


class Cluster:
    """Reads objects of one cluster as plain JSON. Safe to use from several threads."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        """Read by `api`; `namespace` is the one of the kubeconfig's context."""
        self._api, self.namespace = api, namespace
        self._ahead = 0.0
        self._watches: set[Any] = set()
        self._closed = False
        self._closing = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def now(self) -> float:
        """Return the time (epoch seconds) by the cluster's clock: times in statuses are of it, not of this machine."""
        return time.time() + self._ahead

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        """Return one object; `NotFoundError` where there is none."""
        return self._read(resource, "get", resource.path(namespace, name), namespace, {})

    def list_all(
        self, resource: Resource, namespace: str | None = None, *, attempts: int = ATTEMPTS, **by: str
    ) -> Listed:
        """Return all objects of `namespace` (None: of all), in pages; `by` is a label or field selector."""
        path = resource.path(namespace)
        parameters = {**by, "limit": str(PAGE)}
        items: list[Object] = []
        while True:
            try:
                page = self._read(resource, "list", path, namespace, parameters, attempts)
            except ExpiredError:
                # The pages took too long to be of one moment: all at once, which cannot expire.
                page, items = self._read(resource, "list", path, namespace, by, attempts), []
            items += page.get("items") or []
            token = page["metadata"].get("continue")
            if not token:
                return Listed(items=items, version=int(page["metadata"]["resourceVersion"]))
            parameters["continue"] = token

    @contextmanager
    def watch(
        self, resource: Resource, namespace: str, since: int, seconds: int, **by: str
    ) -> Iterator[Iterator[Object]]:
        """Give the changes after `since` (a resource version), for at most `seconds`; bookmarks among them."""
        parameters = {**by, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": str(since)}
        parameters["timeoutSeconds"] = str(seconds)
        response = self._request(
            resource, "watch", resource.path(namespace), namespace, parameters, seconds + SILENCE_SECONDS
        )
        try:
            with self._closing:
                if self._closed:  # while it was opened, so that `close` could not shut it down
                    raise UnreachableError(f"{self._api.configuration.host}: closed", "the watch is over")
                self._watches.add(response)
            yield self._changes(resource, namespace, response)
        finally:
            self._watches.discard(response)
            response.close()

    def close(self) -> None:
        """Close the connections; watches in other threads end with `UnreachableError`."""
        with self._closing:
            self._closed = True
            watches = list(self._watches)
        for response in watches:
            with suppress(RuntimeError, OSError, ValueError):  # its thread closed it meanwhile
                response.shutdown()
        self._api.close()  # type: ignore[no-untyped-call]

    def at_once(self, *calls: Callable[[], T]) -> list[T]:
        """Return what `calls` return, made side by side; the first error of any is raised."""
        with ThreadPoolExecutor(len(calls), thread_name_prefix="espalier-read") as pool:
            return [future.result() for future in [pool.submit(call) for call in calls]]

    # ---- the edge

    def _read(
        self,
        resource: Resource,
        verb: str,
        path: str,
        namespace: str | None,
        parameters: dict[str, str],
        attempts: int = ATTEMPTS,
    ) -> Object:
        for attempt in range(1, attempts + 1):
            try:
                response = self._request(resource, verb, path, namespace, parameters, READ_SECONDS)
                with _in_words(self._api.configuration.host):
                    body: Object = json.loads(response.data)
                return body
            except UnreachableError:
                if attempt == attempts:
                    raise
                time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        raise ValueError(f"attempts is {attempts}; must be at least 1")

    def _request(
        self,
        resource: Resource,
        verb: str,
        path: str,
        namespace: str | None,
        parameters: dict[str, str],
        seconds: float,
    ) -> Any:
        """Return the urllib3 response, unread, of a request that was answered with success."""
        words = self._api.param_serialize(
            "GET", path, query_params=list(parameters.items()), auth_settings=["BearerToken"]
        )
        with _in_words(self._api.configuration.host):
            response = self._api.call_api(*words, _request_timeout=(CONNECT_SECONDS, seconds)).response
            if 200 <= response.status < 300:
                self._note_time(response.headers.get("Date"))
                return response
            data = response.data
        raise error_of(response.status, data, resource, verb, namespace)

    def _changes(self, resource: Resource, namespace: str, response: Any) -> Iterator[Object]:
        buffer = b""
        with _in_words(self._api.configuration.host):
            for chunk in response.stream(amt=None):
                *lines, buffer = (buffer + chunk).split(b"\n")
                for line in filter(None, lines):
                    change: Object = json.loads(line)
                    if change["type"] == "ERROR":
                        code = int(change["object"].get("code") or 500)
                        raise error_of(code, json.dumps(change["object"]).encode(), resource, "watch", namespace)
                    yield change

    def _note_time(self, date: str | None) -> None:
        with suppress(TypeError, ValueError):
            ahead = parsedate_to_datetime(date or "").timestamp() + 0.5 - time.time()
            self._ahead = ahead if abs(ahead) > _SKEW_SECONDS else 0.0


def connect(kubeconfig: Path | None, context: str | None) -> Cluster:
    """Return the cluster of `context` (default: the current one); nothing is asked of it yet.

    `BadInput` where the kubeconfig (default: as kubectl finds it) is missing or cannot be used.
    """
    import yaml
    from kubernetes import client, config

    sys.setrecursionlimit(max(DEEPEST, sys.getrecursionlimit()))
    files = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    if not any(Path(file).expanduser().is_file() for file in files.split(os.pathsep)):
        raise BadInput(
            f"no kubeconfig: {files} does not exist",
            "--kubeconfig FILE or KUBECONFIG names one; whoever runs the cluster hands it out",
        )
    configuration = client.Configuration()
    configuration.retries = False  # we try again ourselves, with a pause
    try:
        contexts, current = config.list_kube_config_contexts(files)  # type: ignore[no-untyped-call]
        known = {entry["name"]: entry["context"] for entry in contexts}
        if context is not None and context not in known:
            raise BadInput(f"{files}: there is no context {context!r}", f"there are: {', '.join(sorted(known))}")
        make: Callable[..., ApiClient] = config.new_client_from_config
        api = make(files, context, client_configuration=configuration)
        chosen = current["context"] if context is None else known[context]
    except (config.ConfigException, yaml.YAMLError, OSError, TypeError, AttributeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"{files}: is no usable kubeconfig: {reason}", "`kubectl config view` shows it") from error
    return Cluster(api, chosen.get("namespace") or "default")


@contextmanager
def _in_words(host: str) -> Iterator[None]:
    """Turn the client's errors into ours."""
    import urllib3.exceptions
    from kubernetes.client.exceptions import ApiException

    try:
        yield
    except ApiException as error:  # TLS, with status 0: what the server said is not raised by `call_api`
        reason = " ".join(str(error.reason).split())
        raise ClusterError(
            f"{host}: no secure connection: {reason}", "the kubeconfig's certificate-authority is not that server's"
        ) from error
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        reason = re.sub(r"^HTTPS?Connection(Pool)?\([^)]*\): ", "", " ".join(str(error).split()))
        raise UnreachableError(
            f"{host} does not answer: {reason}", "is the cluster running? `kubectl cluster-info` asks the same"
        ) from error
