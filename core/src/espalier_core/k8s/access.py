"""Reads of an API server on behalf of a person: errors in words, several reads in parallel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from espalier_core.base import nearest
from espalier_core.k8s.errors import ClientError, ForbiddenError, Retries, for_a_person
from espalier_core.k8s.jobs import Job, job_of
from espalier_core.k8s.resources import JOBS, Listing, Raw, Resource

if TYPE_CHECKING:
    from espalier_core.k8s.client import Client

RETRIES: Final = Retries(deadline=30.0, tries=3, first_wait=0.3)
CONNECT_SECONDS: Final = 5.0
T = TypeVar("T")


class Cluster:
    """Reads objects of one cluster. Safe to use from several threads."""

    def __init__(self, client: Client, namespace: str) -> None:
        """Read with `client`; `namespace` is the one of the kubeconfig's context."""
        self.client, self.namespace = client, namespace

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def now(self) -> float:
        """Return the time (epoch seconds) by the cluster's clock, which set the times in statuses."""
        return self.client.now()

    def get(self, resource: Resource, namespace: str | None, name: str) -> Raw:
        """Return one object; raise `NotFoundError` if it does not exist."""
        with for_a_person():
            return self.client.get(resource, namespace, name)

    def list_all(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Listing:
        """Return all objects of `namespace` (None: of all) that match the selectors."""
        with for_a_person():
            return self.client.list(resource, namespace, labels=labels, fields=fields)

    def jobs(self, namespace: str | None) -> list[Job]:
        """Return the jobs of `namespace` (None: of all), by namespace and name."""
        return sorted(map(job_of, self.list_all(JOBS, namespace).items), key=lambda job: (job.namespace, job.name))

    def nearest_job(self, namespace: str, name: str) -> str:
        """Return a hint at the job that may be meant by a name that no job of `namespace` has."""
        known = [job.name for job in self.jobs(namespace)]
        if near := nearest(name, known):
            return near
        everywhere: list[Job] = []
        with suppress(ForbiddenError):
            everywhere = self.jobs(None)
        if elsewhere := [job.namespace for job in everywhere if job.name == name]:
            return f"there is one in namespace {elsewhere[0]}: -n {elsewhere[0]}"
        return f"there are: {', '.join(known[:10])}" if known else "espalier list -A shows all jobs"

    def at_once(self, *calls: Callable[[], T]) -> list[T]:
        """Return the results of `calls`, made in parallel; raise the first error of any."""
        with ThreadPoolExecutor(len(calls), thread_name_prefix="espalier-read") as pool:
            return [future.result() for future in [pool.submit(call) for call in calls]]


def connect(kubeconfig: Path | None, context: str | None, retries: Retries = RETRIES) -> Cluster:
    """Return the cluster of `context` (default: the current one) without sending a request yet.

    Raise `ClientError` if the kubeconfig (default: as kubectl finds it) is missing or cannot be used.
    """
    from espalier_core.k8s.client import Client, NoAccessError, api_of_context  # takes half a second

    try:
        api, namespace = api_of_context(kubeconfig, context)
    except NoAccessError as error:
        raise ClientError(str(error), error.hint) from error
    return Cluster(Client(api, retries, min(CONNECT_SECONDS, retries.deadline)), namespace)
