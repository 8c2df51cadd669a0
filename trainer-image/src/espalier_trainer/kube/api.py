"""The three calls that a trainer makes to an API server, each with a deadline.

They go through the official client's `ApiClient` (addresses, certificates, tokens and their renewal) but not through
its generated classes: importing those of core/v1 alone takes a second.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import OpenApiException
from kubernetes.client.rest import RESTResponse
from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.watch.watch import iter_resp_lines
from urllib3.exceptions import HTTPError, ReadTimeoutError

from espalier_api.job import AdaptiveTrainingJob

CALL_WALL_SECONDS: Final = 4.0
"""The longest that one call may take. A busy API server answers in tens of milliseconds."""

_REFUSALS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound"}


class NoAccessError(Exception):
    """There is no API server that this process could ask; the message says what is missing."""


class CallError(Exception):
    """A call to the API server failed; the message says why in a few words."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; 0 where there was no answer."""

    @property
    def refused(self) -> bool:
        """Whether the API server will go on answering so until somebody mends it."""
        return self.status in _REFUSALS


class Api:
    """An API server, with the rights of this process."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def get(self, path: str) -> dict[str, Any]:
        """Return the object at `path`; raises `CallError`."""
        return _object(self._read(self._send("GET", path)), path)

    def merge_patch(self, path: str, body: Mapping[str, Any]) -> None:
        """Merge `body` into the object at `path`; raises `CallError`."""
        headers = {"Content-Type": "application/merge-patch+json"}
        self._read(self._send("PATCH", path, body=body, headers=headers))

    def watch(self, path: str, query: Mapping[str, str], *, lasting: int, silence: float) -> Watch:
        """Watch the collection at `path`: for `lasting` seconds, or until it was silent for `silence` seconds.

        Returns when the API server has agreed; raises `CallError`.
        """
        asked = {**query, "watch": "true", "timeoutSeconds": str(lasting)}
        response = self._send("GET", path, query=asked, timeout=(CALL_WALL_SECONDS, silence))
        return Watch(response)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._client.close()  # type: ignore[no-untyped-call]

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | tuple[float, float] = CALL_WALL_SECONDS,
    ) -> RESTResponse:
        """Send a request and return the answer, unread; a status above 299 raises `CallError`."""
        try:
            request = self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", **(headers or {})},
                body=None if body is None else dict(body),
                auth_settings=["BearerToken"],
            )
            response = self._client.call_api(*request, _request_timeout=timeout)
        except (OpenApiException, ConfigException, HTTPError, OSError) as error:  # OSError: the token's file
            raise CallError(_cause(error)) from error
        if not 200 <= response.status <= 299:
            message = self._read(response)
            raise CallError(_refusal(response.status, message), response.status)
        return response

    def _read(self, response: RESTResponse) -> bytes:
        try:
            data: bytes = response.read()  # type: ignore[no-untyped-call]
        except (HTTPError, OSError) as error:
            raise CallError(_cause(error)) from error
        return data


class Watch:
    """The events of a watch: JSON objects with `type` and `object`."""

    def __init__(self, response: RESTResponse) -> None:
        self._response = response.response

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield events until the watch ends; raises `CallError` when it breaks or the API server ends it (410)."""
        try:
            for line in iter_resp_lines(self._response):  # type: ignore[no-untyped-call]
                event = _object(line.encode(), "watch")
                found = event.get("object")
                if event.get("type") == "ERROR":
                    status = found if isinstance(found, dict) else {}
                    raise CallError(str(status.get("message", "the watch failed")), int(status.get("code", 0)))
                yield event
        except ReadTimeoutError:
            return  # silent for long: a connection may have died without a word, so the watcher begins again
        except (HTTPError, OSError) as error:
            raise CallError(_cause(error)) from error
        finally:
            self._response.close()

    def close(self) -> None:
        """End it, from any thread."""
        with contextlib.suppress(RuntimeError, ValueError, OSError):  # it has ended already
            self._response.shutdown()


def connect() -> Api:
    """Return the API server of the cluster that this pod runs in, or that `KUBECONFIG` names outside of one.

    Nothing is asked of it yet. Raises `NoAccessError`.
    """
    configuration = Configuration()
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            configuration.proxy = None  # a proxy of the environment is for the world outside
        elif kubeconfig := os.environ.get("KUBECONFIG"):
            load_kube_config(  # type: ignore[no-untyped-call]
                kubeconfig, client_configuration=configuration
            )
        else:
            raise NoAccessError("neither KUBERNETES_SERVICE_HOST nor KUBECONFIG is set")
    except (ConfigException, OSError) as error:
        raise NoAccessError(str(error)) from error
    configuration.retries = False  # how often and when is decided by those who ask
    configuration.keep_alive = True
    client = ApiClient(configuration)
    client.user_agent = "espalier-trainer"
    return Api(client)


def uid_of(job: AdaptiveTrainingJob) -> str | None:
    """Return the UID that the API server gave the job, where its job file says it."""
    uid = (job.metadata.model_extra or {}).get("uid")
    return uid if isinstance(uid, str) else None


def _object(data: bytes, source: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CallError(f"{source}: the answer is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CallError(f"{source}: the answer is {type(value).__name__} where an object is expected")
    return value


def _refusal(status: int, body: bytes) -> str:
    """Return `Forbidden (what the API server said)`."""
    reason = _REFUSALS.get(status, f"HTTP status {status}")
    try:
        said = json.loads(body).get("message", "")
    except (ValueError, AttributeError):
        said = ""
    return f"{reason} ({str(said)[:300]})" if said else reason


def _cause(error: Exception) -> str:
    """Return a few words: urllib3 wraps causes, and names its own objects by their address."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text.rpartition('>: ')[2] or text}"[:300]
