"""The agent as a process: it binds a port, prints its URL, and answers until it is stopped."""

from __future__ import annotations

import gc
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Final

import torch
import uvicorn

from espalier_agent.history.schema import check_file
from espalier_agent.policies.policy import load_policy, open_policy
from espalier_agent.service.app import create_app
from espalier_agent.service.proof import Authentication
from espalier_agent.service.serving import ServiceSettings
from espalier_core.files.documents import write_text_atomically
from espalier_core.metrics import CONTENT_TYPE, Metrics

DRAIN_SECONDS: Final = 1
"""Seconds that requests in flight may still take after SIGTERM or SIGINT."""


class ServerError(RuntimeError):
    """The server cannot be started. The message names the address and the reason."""


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    settings: ServiceSettings | None = None,
    *,
    url_file: Path | None = None,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then return within two seconds.

    Port 0 takes a free one. Once requests are accepted, the URL is passed to `announce` and written to `url_file`
    (atomically; removed at the end). Raise `FileNotFoundError` if the folder of `url_file` is missing, `ServerError` if
    the address is unavailable, `PolicyError` if the policy or its shadow cannot be read, `StoreError` if the database
    is of another version or another program, and `ReviewError` if tokens must be reviewed and there is no cluster. Must
    be called from the main thread, as it handles signals.
    """
    chosen = settings or ServiceSettings()
    # Before the port is bound, so that invalid settings are an ordinary error.
    if url_file is not None and not url_file.parent.is_dir():
        raise FileNotFoundError(f"--url-file {url_file}: there is no folder {url_file.parent}; make it first")
    policy = open_policy(chosen.policy_path)
    if chosen.shadow_path is not None:
        load_policy(chosen.shadow_path)
    if chosen.outcomes_path is not None:
        check_file(chosen.outcomes_path)
    app = create_app(chosen, policy)
    torch.set_num_threads(1)
    listener = _bind(host, port)
    url = _url(host, listener.getsockname()[1])

    def ready() -> None:
        if url_file is not None:
            write_text_atomically(url_file, url + "\n")
        if announce is not None:
            announce(url)

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        lifespan="on",
        server_header=False,
    )
    server = _UvicornServer(config, ready)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    # uvicorn handles both signals itself, and raises them again afterwards for the handlers that it found: these.
    # Without them, a server that was stopped normally would look killed.
    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with _metrics(host, chosen, app.state.metrics):
            server.run(sockets=[listener])
    finally:
        gc.unfreeze()
        for number, handler in previous.items():
            signal.signal(number, handler)
        listener.close()
        if url_file is not None:
            url_file.unlink(missing_ok=True)


def _metrics(host: str, settings: ServiceSettings, metrics: Metrics) -> AbstractContextManager[object]:
    if settings.metrics_tls_dir is None:
        return nullcontext()
    from espalier_agent.service.reviews import metrics_over_tls

    def scrape() -> tuple[str, bytes]:
        return CONTENT_TYPE, metrics.text()

    reviewed = settings.metrics_authentication is Authentication.TOKEN_REVIEW
    return metrics_over_tls(host, settings.metrics_port, settings.metrics_tls_dir, scrape, reviewed=reviewed)


class _UvicornServer(uvicorn.Server):
    """Calls `ready` once requests are accepted."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # Exclude imported objects from garbage collection: scanning them delayed each fiftieth answer about 100
            # growths by 0.1 s.
            gc.collect()
            gc.freeze()
            self._ready()


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, OverflowError) as error:
        raise ServerError(f"cannot serve on {host}:{port}: {error}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ServerError(f"cannot serve on {host}:{port}: {error.strerror}") from error
    return listener


def _url(host: str, port: int) -> str:
    """Return a URL that works on this machine: the wildcard addresses accept no connections."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
