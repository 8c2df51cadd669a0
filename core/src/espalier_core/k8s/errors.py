"""Requests to an API server, their errors with explanations for people, and the policy of retries, for all parts.

Pure: `espalier_core.k8s.client` and the operator's asynchronous client send the requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from espalier_core.console import CommandError
from espalier_core.k8s.resources import JOBS, Raw, Resource

_FAILED_TEST: Final = "the server rejected our request due to an error in our request"
"""The message of API servers for a JSON patch whose `test` fails."""
QUOTA_EXCEEDED: Final = "exceeded quota"
"""Part of an API server's message when a ResourceQuota leaves no room for an object."""
_DENIED: Final = re.compile(
    '(?s)admission webhook ".*" denied the request|.*failed calling webhook "|.* denied request: |admission plugin "'
)
"""Beginnings of messages of webhooks and policies, or about uncallable ones. Their codes and reasons may be any."""
_INVALID: Final = {
    400: re.compile(r'\w+ in version "[^"]*" cannot be handled as a |the object provided is unrecognized'),
    422: re.compile(r'[\w.]+ "[^"]*" is invalid: '),
}
"""Beginnings of messages, by code, when an API server itself cannot read an object, or finds it invalid."""
_LONGEST_MESSAGE: Final = 2000
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
Body = Raw | list[Raw]
"""Body of a request: an object, or the operations of a JSON patch."""


@dataclass(frozen=True, slots=True)
class Status:
    """A failure as an API server states it (`kind: Status`)."""

    code: int
    """HTTP status."""
    reason: str = ""
    message: str = ""
    is_from_api: bool = True
    """False for an answer of a proxy, or of an API server for a path that it does not serve."""

    @classmethod
    def of(cls, code: int, body: bytes) -> Status:
        """Read the body of an answer; proxies may answer with something other than a Status."""
        try:
            return cls.of_object(json.loads(body), code)
        except (ValueError, AttributeError):
            return cls(code, "", body[:200].decode(errors="replace").strip(), is_from_api=False)

    @classmethod
    def of_object(cls, status: Mapping[str, Any], code: int = 500) -> Status:
        """Read a Status, as in the ERROR event of a watch; `code` is for one without a code."""
        message = str(status.get("message") or "")[:_LONGEST_MESSAGE]
        stated = status.get("code")
        # Answers of proxies may have a code that is not an HTTP status, such as gRPC's.
        if status.get("kind") == "Status" and isinstance(stated, int) and stated >= 400:
            code = stated
        return cls(code, str(status.get("reason") or ""), message)

    def __str__(self) -> str:
        """Return `Forbidden (the API server's message)`."""
        name = self.reason or f"HTTP status {self.code}"
        return f"{name} ({self.message[:300]})" if self.message else name

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later without a change by anybody."""
        if self.code == 409:
            return self.reason == "Conflict" and not self.is_other_uid
        return self.code in (408, 429) or self.code >= 500

    @property
    def is_forbidden(self) -> bool:
        """Whether the right for the request is missing, or it is denied."""
        return self.code == 403

    @property
    def is_expired(self) -> bool:
        """Whether the API server no longer has the version to continue from."""
        return self.code == 410

    @property
    def is_not_found(self) -> bool:
        """Whether there is no such object, or no such kind."""
        return self.code == 404 and not self.is_denial

    @property
    def already_exists(self) -> bool:
        """Whether an object of this name is there already."""
        return self.code == 409 and self.reason == "AlreadyExists" and not self.is_denial

    @property
    def is_other_uid(self) -> bool:
        """Whether the object of this name is another one than the request meant."""
        if self.code == 409:
            return "UID in precondition" in self.message
        immutable = "metadata.uid" in self.message and "field is immutable" in self.message
        return self.code == 422 and (immutable or self.message == _FAILED_TEST)

    @property
    def is_denial(self) -> bool:
        """Whether an admission webhook or policy denies the request, or a webhook cannot be called."""
        return _DENIED.match(self.message) is not None

    @property
    def is_invalid(self) -> bool:
        """Whether the API server itself finds the object invalid, so that it will never accept it."""
        begins = _INVALID.get(self.code)
        return begins is not None and begins.match(self.message) is not None

    @property
    def exceeds_quota(self) -> bool:
        """Whether a ResourceQuota of the namespace leaves no room for the object."""
        return self.code == 403 and QUOTA_EXCEEDED in self.message

    @property
    def namespace_terminates(self) -> bool:
        """Whether the namespace is being deleted, and everything in it with it."""
        return self.code == 403 and "because it is being terminated" in self.message


@dataclass(frozen=True, slots=True)
class Call:
    """A request."""

    verb: str
    """The verb of RBAC; `discover` lists the served kinds."""
    resource: Resource
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the query; empty values are left out."""
    body: Body | None = None
    media: str = "application/json"
    """Media type of the body."""
    accept: str = "application/json"

    @property
    def method(self) -> str:
        """Return the HTTP method."""
        return {"create": "POST", "patch": "PATCH", "delete": "DELETE"}.get(self.verb, "GET")

    @property
    def path(self) -> str:
        """Return the path, without the query."""
        discovers = self.verb == "discover"
        return self.resource.root if discovers else self.resource.path(self.namespace, self.name, self.subresource)

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Return the query."""
        return [(name, value) for name, value in self.query.items() if value]

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers for the formats."""
        given = {} if self.body is None else {"Content-Type": self.media}
        return {"Accept": f"{self.accept}, */*;q=0.5", **given}

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class ApiError(Exception):
    """A request did not succeed."""

    def __init__(self, message: str, call: Call, status: Status | None = None, retry_after: str | None = None) -> None:
        """`status` is None if no answer came; `retry_after` is a header of the answer."""
        super().__init__(message)
        self.call, self.status, self.retry_after = call, status, retry_after


class UnreachableError(ApiError):
    """The API server does not answer, or cannot at the moment: a retry may help."""


class InsecureError(ApiError):
    """The API server's certificate is not trusted."""


class RefusedError(ApiError):
    """The API server refuses the request, and would refuse it again."""

    status: Status


class ExpiredError(RefusedError):
    """The API server no longer has the version to continue from (410): everything must be listed again."""


def error_of(status: Status, call: Call, retry_after: str | None = None) -> ApiError:
    """Return the error for an answer; `retry_after` is a header of the answer."""
    if status.is_transient or status.is_denial:
        message = f"the API server cannot answer now ({status.code}): {status.message}"
        return UnreachableError(message, call, status, retry_after)
    return (ExpiredError if status.is_expired else RefusedError)(str(status), call, status)


def cause_of(error: Exception) -> str:
    """Return a client's error in a few words, without the objects with which urllib3 begins."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^HTTPS?Connection(Pool)?\([^)]*\): ", "", text)[:300]


@dataclass(frozen=True, slots=True)
class Retries:
    """The deadline and the retries of a request, in seconds."""

    deadline: float = 10.0
    """Deadline of one try."""
    tries: int = 5
    first_wait: float = 0.1
    """Wait before the second try; doubles with each further try."""
    longest_wait: float = 5.0

    def wait(self, tried: int, retry_after: str | None = None, jitter: float = 1.0) -> float:
        """Return the seconds to wait after `tried` tries.

        `jitter`, from 0 to 1, spreads clients over time; `retry_after` is the header of the server's answer.
        """
        backoff = min(self.first_wait * 2.0 ** min(tried - 1, 100), self.longest_wait)
        asked = float(retry_after) if retry_after is not None and retry_after.isdecimal() else 0.0
        return max(backoff * (0.5 + jitter / 2), min(asked, self.longest_wait))


class ClientError(CommandError):
    """A person's request cannot be carried out; `message` has the cause, `hint` the remedy."""

    def __str__(self) -> str:
        """Return both."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ClusterError(ClientError):
    """The cluster refuses or fails the person's request."""

    exit_code = 1


class ForbiddenError(ClusterError):
    """The person lacks a right; the message names it."""


class NotFoundError(ClientError):
    """The object or the job does not exist."""


@contextmanager
def for_a_person() -> Iterator[None]:
    """Turn an `ApiError` into a `ClientError`."""
    try:
        yield
    except ApiError as error:
        raise cluster_error(error) from error


def cluster_error(error: ApiError) -> ClientError:
    """Return an error in the terms of a person."""
    if isinstance(error, InsecureError):
        return ClusterError(str(error), "the kubeconfig's certificate-authority is not that server's")
    if not isinstance(error, RefusedError):
        hint = "is the cluster running? `kubectl cluster-info` asks the same" if error.status is None else ""
        return ClusterError(str(error), hint)
    status, call = error.status, error.call
    match status.code:
        case 401:
            return ClusterError(
                "the API server rejects the credentials (401)",
                "the kubeconfig's user has no or expired credentials; log in to the cluster again",
            )
        case 403:
            return ForbiddenError(status.message, f"you need the right to {_right(call)}")
        case 404 if not status.is_from_api and call.resource is JOBS:
            return ClusterError(
                f"the cluster does not know {_full_name(JOBS)}: Espalier is not installed in it",
                f"kubectl apply -f crds/{_full_name(JOBS)}.yaml, and then the operator",
            )
        case 404:
            return NotFoundError(status.message)
        case 409 if status.already_exists:
            return ClusterError(status.message, "delete it first, or give the new one another name")
        case code:
            return ClusterError(f"the API server refuses ({code}): {status.message}")


def _right(call: Call) -> str:
    right = f"{call.verb} {_full_name(call.resource)}"
    if not call.resource.namespaced:
        return f"{right} in the cluster"
    if call.namespace is None:
        return f"{right} in all namespaces; -n NAMESPACE reads one namespace only"
    return f"{right} in namespace {call.namespace}"


def _full_name(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural
