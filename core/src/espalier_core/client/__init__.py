"""Python client for jobs on a cluster or on this machine; the commands for jobs of a cluster are built on it."""

from __future__ import annotations

from pathlib import Path

from espalier_core.client.jobs import JobClient, JobHandle
from espalier_core.client.local import LocalClient
from espalier_core.k8s.errors import ClientError, NotFoundError

__all__ = ["ClientError", "JobClient", "JobHandle", "NotFoundError", "connect"]


def connect(
    *,
    folder: str | Path | None = None,
    namespace: str | None = None,
    kubeconfig: Path | None = None,
    context: str | None = None,
    **options: object,
) -> JobClient:
    """Return a client for the jobs of this machine, or of a namespace of a cluster.

    With `folder`, each job is a run of this machine, in a folder of its name there; `options` are those of `espalier
    run`, such as `gpus=2`, `simulate=True` or `arrive=["30%:1"]`. Without it, the cluster is the one of `context` in
    `kubeconfig` (defaults: kubectl's), and `namespace` defaults to the context's.

    Raise `ClientError` where that is not possible. No request is sent to a cluster yet.
    """
    if folder is not None:
        named = {"namespace": namespace, "kubeconfig": kubeconfig, "context": context}
        if both := [name for name, value in named.items() if value is not None]:
            raise ClientError(f"connect: folder is for this machine, and {both[0]} for a cluster; give one of them")
        return LocalClient(Path(folder), options)
    if options:
        raise ClientError(f"connect: {', '.join(options)}: options of `espalier run` need folder=..., this machine")
    from espalier_core.client.cluster import ClusterClient
    from espalier_core.k8s.access import connect as connect_cluster

    return ClusterClient(connect_cluster(kubeconfig, context), namespace)
