"""How the operator accesses the API server: the pod's own account in a cluster, a kubeconfig elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from kubernetes.aio.config.kube_config import refresh_token

CONNECTIONS: Final = 64
"""Requests at once."""


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
