"""Proof of the job in a request to the agent: the audience of the token that the operator mounts into the leader's pod.

Kubernetes issues a token for an audience only to a ServiceAccount of a namespace. So who holds one for the audience of
a job may run pods, or may create tokens, in the namespace of the account.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

AUDIENCE: Final = "espalier-agent"
"""First part of the audience; namespace, name and UID of the job follow, separated by `/`."""
TOKEN_SECONDS: Final = 3600
"""Lifetime of a token. The kubelet replaces it when four fifths are over."""
MAX_TOKEN: Final = 8192
"""Maximum length of a token, in characters; those of Kubernetes have about 1200."""
_ACCOUNT: Final = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """Which job an audience names."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """`namespace/name`, as in requests to the agent."""
        return f"{self.namespace}/{self.name}"

    @property
    def audience(self) -> str:
        """The audience of a token that proves this job."""
        return f"{AUDIENCE}/{self.namespace}/{self.name}/{self.uid}"

    @classmethod
    def of_audience(cls, audience: str) -> Self | None:
        """Return the job that `audience` names; None where it names none."""
        first, *rest = audience.split("/")
        return cls(*rest) if first == AUDIENCE and len(rest) == 3 and all(rest) else None


def namespace_of_account(username: str) -> str | None:
    """Return the namespace in `system:serviceaccount:NAMESPACE:NAME`; None for other users."""
    namespace, _, name = username.removeprefix(_ACCOUNT).partition(":")
    return namespace if username.startswith(_ACCOUNT) and namespace and name else None
