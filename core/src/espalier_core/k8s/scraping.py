"""Metrics over TLS for scrapers that the API server authenticates: GET /metrics, protected as by controller-runtime.

The bearer of a token must be allowed to `get` the path /metrics (a nonResourceURL of a ClusterRole): the API server
reviews the token, then the access of its user. The certificate is read again when its files have changed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from espalier_core.k8s.client import Client, api_of_context, api_of_process
from espalier_core.k8s.errors import ApiError, Retries
from espalier_core.k8s.resources import ACCESS_REVIEWS, TOKEN_REVIEWS, Resource

logger = logging.getLogger(__name__)

PATH: Final = "/metrics"
NOBODY_ASKED, TOKEN_REVIEW = AUTHENTICATIONS = ("None", "TokenReview")
"""Methods of authentication for scrapers."""
CERTIFICATE, KEY = "tls.crt", "tls.key"
"""The files of a Secret of the type kubernetes.io/tls."""
KEPT_SECONDS: Final = 30.0
"""Seconds for which an answer of the API server holds: a revoked token is accepted for that long."""
_KEPT: Final = 100
"""Maximum number of answers that are kept."""
_REVIEW_SECONDS: Final = 5.0
_LONGEST_TOKEN: Final = 16_384
_CONNECTION_SECONDS: Final = 10.0
"""Seconds without data after which a connection is closed."""


class CertificateError(OSError):
    """No certificate can be served. The message names the files and the reason."""


class Scrapers:
    """Authorises scrapers by reviews of their tokens. Safe to use from several threads."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        """`client` reaches the API server that reviews tokens."""
        self._client, self._clock = client, clock
        self._known: dict[str, tuple[float, int]] = {}

    def status(self, authorization: str) -> int:
        """Return the HTTP status for a header: 200, 401 (unknown), 403 (not allowed), 503 (the API server is away)."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _LONGEST_TOKEN:
            return 401
        key, now = hashlib.sha256(token.encode()).hexdigest(), self._clock()
        until, status = self._known.get(key, (now, 0))
        if until <= now:
            try:
                status = self._reviewed(token)
            except ApiError as error:
                logger.warning("cannot authorise a scrape of %s: %s", PATH, error)
                return 503
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = now + KEPT_SECONDS, status
        return status

    def _reviewed(self, token: str) -> int:
        found = self._review(TOKEN_REVIEWS, {"token": token})
        user = found.get("user")
        if found.get("authenticated") is not True or not isinstance(user, dict):
            return 401
        who = {("user" if name == "username" else name): value for name, value in user.items()}
        allowed = self._review(ACCESS_REVIEWS, {**who, "nonResourceAttributes": {"path": PATH, "verb": "get"}})
        return 200 if allowed.get("allowed") is True else 403

    def _review(self, resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        status = self._client.create(resource, resource.review(spec)).get("status")
        return status if isinstance(status, dict) else {}


def scrapers_of(user_agent: str, kubeconfig: Path | None = None) -> Scrapers:
    """Return the authorisation by the API server of this process, or of `kubeconfig`. Raise `NoAccessError`."""
    if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        api = api_of_process(user_agent)
    else:
        api, _ = api_of_context(kubeconfig, None)
    return Scrapers(Client(api, Retries(deadline=_REVIEW_SECONDS, tries=1)))


@contextmanager
def serve_metrics(
    host: str, port: int, folder: Path, scrape: Callable[[], tuple[str, bytes]], scrapers: Scrapers | None
) -> Iterator[int]:
    """Serve /metrics over TLS with the certificate in `folder`, in separate threads; yield the port.

    `scrape` returns the type of the content, and the content. Without `scrapers`, everybody may scrape. Raise
    `CertificateError`, or `OSError` if it cannot listen.
    """
    server = _Server((host, port), _Certificate(folder), scrape, scrapers)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Certificate:
    """The current certificate."""

    def __init__(self, folder: Path) -> None:
        self._files = folder / CERTIFICATE, folder / KEY
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            self._seen = self._look()
            self.context.load_cert_chain(*self._files)
        except (OSError, ssl.SSLError) as error:
            names = " and ".join(map(str, self._files))
            raise CertificateError(f"{names}: no certificate to serve metrics with: {error}") from error

    def refresh(self) -> None:
        """Read it again if it has changed; if the new one cannot be used, the old one stays in service."""
        try:
            seen = self._look()
            if seen != self._seen:
                self._seen = seen
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(*self._files)
                self.context.load_cert_chain(*self._files)
                logger.info("reloaded the certificate of %s", PATH)
        except (OSError, ssl.SSLError) as error:
            logger.warning("%s: cannot use the new certificate: %s; keeping the old one", self._files[0], error)

    def _look(self) -> list[tuple[int, int, int]]:
        found = [os.stat(file) for file in self._files]
        return [(each.st_mtime_ns, each.st_ino, each.st_size) for each in found]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        certificate: _Certificate,
        scrape: Callable[[], tuple[str, bytes]],
        scrapers: Scrapers | None,
    ) -> None:
        self.certificate, self.scrape, self.scrapers = certificate, scrape, scrapers
        self.one_at_a_time = threading.Lock()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; its thread does the TLS handshake when it reads."""
        self.certificate.refresh()
        connection, address = super().get_request()
        secured = self.certificate.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return secured, address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log broken connections for debugging only."""
        logger.debug("a connection for %s broke off", PATH, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CONNECTION_SECONDS

    def do_GET(self) -> None:
        """Answer a scrape."""
        if self.path.partition("?")[0] != PATH:
            self._answer(404)
            return
        scrapers = self.server.scrapers
        status = 200 if scrapers is None else scrapers.status(self.headers.get("Authorization", ""))
        if status != 200:
            self._answer(status)
            return
        with self.server.one_at_a_time:
            content_type, body = self.server.scrape()
        self._answer(200, content_type, body)

    def _answer(self, status: int, content_type: str = "text/plain", body: bytes = b"") -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log scrapes."""
