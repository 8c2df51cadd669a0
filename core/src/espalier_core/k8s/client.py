"""A synchronous client of an API server: its address and this process's credentials (a pod's account, or a kubeconfig),
deadlines on every request, one kind of error, plain JSON.

It uses the official client's `ApiClient` (addresses, certificates, tokens and their renewal) but not its generated
classes: importing those of core/v1 alone takes a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final

import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException, OpenApiException
from kubernetes.config import ConfigException, load_incluster_config
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
from urllib3.exceptions import HTTPError

from espalier_core.k8s.errors import (
    MERGE_PATCH,
    Call,
    ExpiredError,
    InsecureError,
    Retries,
    Status,
    UnreachableError,
    cause_of,
    error_of,
)
from espalier_core.k8s.resources import PODS, Listing, Pages, Raw, Resource

_UNUSABLE: Final = (ConfigException, yaml.YAMLError, OSError, TypeError, AttributeError, KeyError, ValueError)
"""Errors of the client on a damaged kubeconfig; `ValueError`: it is not UTF-8, or a certificate is not base64."""
_TOKEN_SECONDS: Final = 60.0
"""Seconds for which a token from a file is used before the file is read again, as the client does in a pod."""
PAGE: Final = 500
"""Maximum number of objects in one answer to a list."""
_LONG_SECONDS: Final = 7 * 86400.0
"""Seconds for which a program may print nothing while its log is followed."""
_SKEW_SECONDS: Final = 2.0
"""Seconds by which clocks may differ and count as equal: an API server states its time in whole seconds."""


class NoAccessError(Exception):
    """No API server is available to this process; the message names what is missing, the hint a remedy."""

    def __init__(self, message: str, hint: str = "") -> None:
        """Keep both."""
        super().__init__(message)
        self.hint = hint


def api_of_process(user_agent: str) -> ApiClient:
    """Return the API server of the cluster that this pod runs in, or the one in `KUBECONFIG` outside of a pod.

    No request is sent yet. Raise `NoAccessError`.
    """
    configuration = Configuration()
    configuration.retries = False  # callers decide about retries
    configuration.keep_alive = True
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            configuration.proxy = None  # a proxy in the environment is for requests out of the cluster
        elif kubeconfig := os.environ.get("KUBECONFIG"):
            _use(_merged(kubeconfig), None, configuration)
        else:
            raise NoAccessError("neither KUBERNETES_SERVICE_HOST nor KUBECONFIG is set")
    except _UNUSABLE as error:
        raise NoAccessError(" ".join(str(error).split())) from error
    api = ApiClient(configuration)
    api.user_agent = user_agent
    return api


def api_of_context(kubeconfig: Path | None, context: str | None) -> tuple[ApiClient, str]:
    """Return the API server of a `context` (default: the current one) and the namespace that the context names.

    If `kubeconfig` is None, it is found as kubectl finds it. No request is sent yet. Raise `NoAccessError`.
    """
    files = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    configuration = Configuration()
    configuration.retries = False
    try:
        merged = _merged(files)
        known = [node["name"] for node in merged.config["contexts"]]
        if context is not None and context not in known:
            raise NoAccessError(f"{files}: there is no context {context!r}", f"there are: {', '.join(sorted(known))}")
        chosen = _use(merged, context, configuration)
        api = ApiClient(configuration)
    except _UNUSABLE as error:
        reason = " ".join(str(error).split())
        raise NoAccessError(
            f"{files}: is not a usable kubeconfig: {reason}", "`kubectl config view` shows it"
        ) from error
    return api, chosen.get("namespace") or "default"


def _merged(files: str) -> KubeConfigMerger:
    """Read the kubeconfigs in `files` as one. Raise `NoAccessError` if none exists."""
    if not any(Path(file).expanduser().is_file() for file in files.split(os.pathsep)):
        hint = "--kubeconfig FILE or KUBECONFIG names one; the cluster's administrator provides it"
        raise NoAccessError(f"no kubeconfig: {files} does not exist", hint)
    return KubeConfigMerger(files)  # type: ignore[no-untyped-call]


def _use(merged: KubeConfigMerger, context: str | None, configuration: Configuration) -> dict[str, Any]:
    """Fill `configuration` from a context (default: the current one), and return the context."""
    loader = KubeConfigLoader(  # type: ignore[no-untyped-call]
        merged.config, active_context=context, config_base_path=None, config_persister=merged.save_changes
    )
    _load(loader, configuration)
    chosen: dict[str, Any] = loader.current_context["context"]
    user = merged.config["users"].get_with_name(chosen.get("user"), safe=True)
    if user is not None and "tokenFile" in user["user"]:
        _read_again(loader, configuration)
    return chosen


def _load(loader: KubeConfigLoader, configuration: Configuration) -> None:
    """Fill `configuration`. Token files may end in a newline, which headers may not contain."""
    loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
    for name, value in configuration.api_key.items():
        configuration.api_key[name] = value.strip()


def _read_again(loader: KubeConfigLoader, configuration: Configuration) -> None:
    """Make requests read the file of a token again: it is replaced before the token expires, and the client reads it
    only once. While the file cannot be read, the previous token is used.
    """
    due = time.monotonic() + _TOKEN_SECONDS

    def refresh(configuration: Configuration) -> None:
        nonlocal due
        if time.monotonic() >= due:
            with contextlib.suppress(*_UNUSABLE):
                _load(loader, configuration)
            configuration.refresh_api_key_hook = refresh  # type: ignore[assignment]  # the loader has set its own
            due = time.monotonic() + _TOKEN_SECONDS

    configuration.refresh_api_key_hook = refresh  # type: ignore[assignment]


class Client:
    """Reads, creates, patches and deletes objects. Safe to use from several threads. All methods raise `ApiError`."""

    def __init__(self, api: ApiClient, retries: Retries, connect_seconds: float | None = None) -> None:
        """Take over `api`; `connect_seconds` limits the connection alone if it is less than the deadline."""
        self._api, self._retries, self._connect_seconds = api, retries, connect_seconds
        self._ahead = 0.0

    def now(self) -> float:
        """Return the time (epoch seconds) by the API server's clock, as far as answers have shown it."""
        return time.time() + self._ahead

    def get(self, resource: Resource, namespace: str | None, name: str) -> Raw:
        """Return an object."""
        return self._read(Call("get", resource, namespace, name))

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        tries: int | None = None,
    ) -> Listing:
        """Return all objects of `namespace` (None: of all) that match the selectors; `tries` is for each page."""
        pages = Pages(PAGE, labels, fields)
        while True:
            call = Call("list", resource, namespace, query=pages.query)
            try:
                page = self._read(call, tries)
            except ExpiredError:
                if not pages.restart():
                    raise
            else:
                with self.errors(call):
                    listing = pages.take(page)
                if listing is not None:
                    return listing

    def merge_patch(self, resource: Resource, namespace: str, name: str, body: Raw) -> Raw:
        """Merge `body` into an object, and return the object. With `metadata.resourceVersion` in `body`, the API server
        answers 409 if the object has changed since.
        """
        return self._read(Call("patch", resource, namespace, name, body=body, media=MERGE_PATCH))

    def create(self, resource: Resource, body: Raw, namespace: str | None = None) -> Raw:
        """Create an object or a review, and return the answer."""
        return self._read(Call("create", resource, namespace, body=body))

    def delete(self, resource: Resource, namespace: str, name: str) -> None:
        """Delete an object, and in the background its dependents."""
        self._read(Call("delete", resource, namespace, name))

    def log(self, namespace: str, pod: str, container: str, *, follow: bool) -> Iterator[bytes]:
        """Yield the log of a container, with `follow` until it ends."""
        query = {"container": container, "follow": "true" if follow else ""}
        call = Call("get", PODS, namespace, pod, "log", query)
        response = self._send(call, _LONG_SECONDS if follow else self._retries.deadline)
        try:
            with self.errors(call):
                yield from response.stream()
        finally:
            response.close()

    def watch(
        self, resource: Resource, namespace: str | None, since: int, *, seconds: int, silence: float, fields: str = ""
    ) -> Watch:
        """Watch changes after `since` (a resource version) for `seconds`, bookmarks included.

        After `silence` seconds without an event the connection counts as dead. Return once the watch is accepted.
        """
        query = {"fieldSelector": fields, "watch": "true", "allowWatchBookmarks": "true"}
        query |= {"resourceVersion": str(since), "timeoutSeconds": str(seconds)}
        call = Call("watch", resource, namespace, query=query)
        return Watch(self, call, self._send(call, silence))

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._api.close()  # type: ignore[no-untyped-call]

    @contextmanager
    def errors(self, call: Call) -> Iterator[None]:
        """Turn errors of the libraries beneath into an `ApiError`."""
        host = self._api.configuration.host
        try:
            yield
        except ApiException as error:  # a TLS error: `call_api` does not raise it for an answer
            raise InsecureError(f"{host}: no secure connection: {' '.join(str(error.reason).split())}", call) from error
        except (HTTPError, OpenApiException, ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            # OSError: a token's file; the last three: a malformed answer
            raise UnreachableError(f"{host} does not answer: {cause_of(error)}", call) from error

    # ---- one request

    def _read(self, call: Call, tries: int | None = None) -> dict[str, Any]:
        """Return the object in the answer; retry transient errors."""
        tried = 0
        while True:
            try:
                response = self._send(call, self._retries.deadline)
                with self.errors(call):
                    answer = json.loads(response.data)
                    if not isinstance(answer, dict):
                        raise ValueError(f"it sent {type(answer).__name__} where an object is expected")
                return answer
            except UnreachableError as error:
                tried += 1
                if tried >= (tries or self._retries.tries):
                    raise
                time.sleep(self._retries.wait(tried, error.retry_after))

    def _send(self, call: Call, seconds: float) -> Any:
        """Return the urllib3 response, unread, of a request that succeeded within `seconds`, which also limit each
        chunk.
        """
        whole = self._connect_seconds is None and call.verb != "watch"
        timeout = seconds if whole else (self._connect_seconds or self._retries.deadline, seconds)
        with self.errors(call):
            request = self._api.param_serialize(
                call.method,
                call.path,
                query_params=call.parameters,
                header_params=call.headers,
                body=call.body,
                auth_settings=["BearerToken"],
            )
            response = self._api.call_api(*request, _request_timeout=timeout).response
            if 200 <= response.status < 300:
                self._note_time(response.headers.get("Date"))
                return response
            data = response.data
        raise error_of(Status.of(response.status, data), call, response.headers.get("Retry-After"))

    def _note_time(self, date: str | None) -> None:
        with suppress(TypeError, ValueError):
            ahead = parsedate_to_datetime(date or "").timestamp() + 0.5 - time.time()
            self._ahead = ahead if abs(ahead) > _SKEW_SECONDS else 0.0


class Watch:
    """The events of a watch that an API server has accepted: objects with `type` and `object`."""

    def __init__(self, client: Client, call: Call, response: Any) -> None:
        """Take over `response`."""
        self._client, self._call, self._response = client, call, response

    def __iter__(self) -> Iterator[Raw]:
        """Yield events until the watch ends, and close it.

        Raise `ApiError` if it breaks, stays silent for too long, or the API server ends it by an ERROR event.
        """
        rest = b""
        try:
            with self._client.errors(self._call):
                for chunk in self._response.stream(amt=None):
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in filter(None, lines):
                        event: Raw = json.loads(line)
                        if event["type"] == "ERROR":
                            raise error_of(Status.of_object(event["object"]), self._call)
                        yield event
        finally:
            self._response.close()

    def close(self) -> None:
        """End it, from any thread."""
        with suppress(RuntimeError, ValueError, OSError):  # it has ended already
            self._response.shutdown()
