"""Reading from the API server of a kubeconfig's context: errors in a person's words, several reads at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from espalier_cli.cluster.errors import for_a_person
from espalier_cli.errors import InputError
from espalier_core.k8s.errors import Retries
from espalier_core.k8s.lists import Listing
from espalier_core.k8s.resources import Raw, Resource

if TYPE_CHECKING:
    from espalier_core.k8s.client import Client

RETRIES: Final = Retries(deadline=30.0, tries=3, first_wait=0.3)
CONNECT_SECONDS: Final = 5.0
DEEPEST: Final = 40_000
"""The API server stores what is nested ten thousand deep; a list with one such job in it is read all the same."""

T = TypeVar("T")


class Cluster:
    """Reads objects of one cluster. Safe to use from several threads."""

    def __init__(self, client: Client, namespace: str) -> None:
        """Read by `client`; `namespace` is the one of the kubeconfig's context."""
        self.client, self.namespace = client, namespace

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def now(self) -> float:
        """Return the time (epoch seconds) by the cluster's clock: times in statuses are of it, not of this machine."""
        return self.client.now()

    def get(self, resource: Resource, namespace: str | None, name: str) -> Raw:
        """Return one object; `NotFoundError` where there is none."""
        with for_a_person():
            return self.client.get(resource, namespace, name)

    def list_all(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        """Return all objects of `namespace` (None: of all) that the selectors choose."""
        with for_a_person():
            return self.client.list(resource, namespace, labels=labels, fields=fields)

    def at_once(self, *calls: Callable[[], T]) -> list[T]:
        """Return what `calls` return, made in parallel; the first error of any is raised."""
        with ThreadPoolExecutor(len(calls), thread_name_prefix="espalier-read") as pool:
            return [future.result() for future in [pool.submit(call) for call in calls]]


def connect(kubeconfig: Path | None, context: str | None) -> Cluster:
    """Return the cluster of `context` (default: the current one); nothing is asked of it yet.

    `InputError` where the kubeconfig (default: as kubectl finds it) is missing or cannot be used.
    """
    from espalier_core.k8s.client import Client
    from espalier_core.k8s.connection import NoAccessError, api_of_context

    sys.setrecursionlimit(max(DEEPEST, sys.getrecursionlimit()))
    try:
        api, namespace = api_of_context(kubeconfig, context)
    except NoAccessError as error:
        raise InputError(str(error), error.hint) from error
    return Cluster(Client(api, RETRIES, CONNECT_SECONDS), namespace)
