"""An HTTP server that answers as a test wants, and a client of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from espalier_core.k8s.client import Client, api_of_context
from espalier_core.k8s.errors import Retries

RETRIES = Retries(deadline=30.0, tries=3, first_wait=0.01)

Answer = tuple[int, bytes]


class Server:
    """An HTTP server on loopback that answers as `answer(query)` says."""

    def __init__(self) -> None:
        self.answer: Callable[[dict[str, str]], Answer] = lambda query: (200, b"{}")
        self.ahead = 0.0
        """Seconds by which its clock is ahead of ours."""
        self.headers: dict[str, str] = {}
        """Further headers of the answers."""
        self.asked: list[dict[str, str]] = []
        self.tokens: list[str | None] = []
        """What each request has shown."""
        self.patched: list[tuple[str, str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.patched.append((self.path, self.headers["Content-Type"], body))
                self.do_GET()

            def do_GET(self) -> None:
                query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
                server.asked.append(query)
                server.tokens.append(self.headers["Authorization"])
                status, body = server.answer(query)
                self.send_response_only(status)
                self.send_header("Date", formatdate(time.time() + server.ahead, usegmt=True))
                for name, value in server.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})

    def kubeconfig(self, path: Path, **user: str) -> Path:
        """Write a kubeconfig for it to `path`; with the fields of a user, if any."""
        whole: dict[str, Any] = {
            "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{self.http.server_address[1]}"}}],
            "users": [{"name": "x", "user": user}] if user else [],
            "contexts": [{"name": "x", "context": {"cluster": "x", **({"user": "x"} if user else {})}}],
        }
        path.write_text(json.dumps(whole))
        return path

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.http.shutdown()
        self._thread.join()
        self.http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def client(server: Server, tmp_path: Path) -> Iterator[Client]:
    client = Client(api_of_context(server.kubeconfig(tmp_path / "config"), None)[0], RETRIES)
    yield client
    client.close()
