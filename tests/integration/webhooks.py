"""An admission webhook that a real API server asks: `Webhook`."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from apiserver import ApiServer

Raw = dict[str, Any]
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class Webhook:
    """A context manager: meanwhile `change` may change, or deny, each pod that is made in `namespace`."""

    def __init__(self, server: ApiServer, namespace: str, change: Callable[[Raw], list[Raw] | Raw]) -> None:
        """`change` returns the operations of a JSON patch for a pod, or the status with which it denies the pod.

        It is called in threads of its own.
        """
        self._server, self._namespace, self._change = server, namespace, change
        certificates = server.directory / "certificates"
        self._authority = (certificates / "apiserver.crt").read_bytes()  # it is its own, and for 127.0.0.1
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="webhook")

    def __enter__(self) -> Self:
        self._thread.start()
        webhook = {
            "name": "test.espalier.dev",
            "clientConfig": {
                "url": f"https://127.0.0.1:{self._http.server_port}/",
                "caBundle": base64.b64encode(self._authority).decode(),
            },
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        self._server.request("POST", _CONFIGURATIONS, {"metadata": {"name": self._namespace}, "webhooks": [webhook]})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.request("DELETE", f"{_CONFIGURATIONS}/{self._namespace}")
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        change = self._change

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
                given = change(review["object"])
                answer = {"uid": review["uid"], "allowed": isinstance(given, list)}
                if isinstance(given, list):
                    patch = base64.b64encode(json.dumps(given).encode()).decode()
                    answer |= {"patchType": "JSONPatch", "patch": patch}
                else:
                    answer |= {"status": given}
                whole = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
                body = json.dumps(whole).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler
