#!/usr/bin/env python3
"""prometheus.py [OPTION...]: Debian's Prometheus, with the discovery of pods that it is built without.

The entrypoint of the image that `hack/cluster monitoring` builds if no container registry can be reached. It serves a
cluster's pods as Prometheus' own `kubernetes_sd_configs` with `role: pod` would find them, one target for each declared
port, and starts Prometheus with settings that use this service.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PODS = "https://kubernetes.default.svc/api/v1/pods"
CONFIG_OPTION = "--config.file="
OWN_CONFIG = Path("/data/prometheus.yml")
_DISCOVERY = re.compile(r"kubernetes_sd_configs: \[\{role: pod(?:, namespaces: \{names: \[(.*?)\]\})?\}\]")


def with_http_discovery(settings: str, address: str) -> str:
    """Return Prometheus' settings with requests for pods sent to `address` instead of the API server."""

    def replaced(found: re.Match[str]) -> str:
        return f'http_sd_configs: [{{url: "http://{address}/{found[1] or ""}", refresh_interval: 2s}}]'

    return _DISCOVERY.sub(replaced, settings)


def targets(pod: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the targets of a pod that has an address, with the labels that Prometheus documents for pods."""
    metadata, status = pod["metadata"], pod["status"]
    if not status.get("podIP"):
        return
    labels = {
        "__meta_kubernetes_namespace": metadata["namespace"],
        "__meta_kubernetes_pod_name": metadata["name"],
        "__meta_kubernetes_pod_phase": status["phase"],
    }
    for name, value in metadata.get("labels", {}).items():
        labels["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", name)] = value
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", ()):
            named = {**labels, "__meta_kubernetes_pod_container_port_name": port.get("name", "")}
            yield {"targets": [f"{status['podIP']}:{port['containerPort']}"], "labels": named}


class Discovery(BaseHTTPRequestHandler):
    """Answers GET /NAMESPACE with its targets, GET / with those of all namespaces."""

    def do_GET(self) -> None:
        request = urllib.request.Request(PODS, headers={"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"})
        trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        with urllib.request.urlopen(request, context=trusted, timeout=10) as answer:
            pods = json.load(answer)["items"]
        namespace = self.path.strip("/")
        some = [pod for pod in pods if namespace in ("", pod["metadata"]["namespace"])]
        body = json.dumps([target for pod in some for target in targets(pod)]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Do not log answers: there is one every second."""


def main(options: list[str]) -> None:
    """Serve the discovery in a forked process, and become Prometheus, which handles the container's signals."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Discovery)
    if os.fork() == 0:
        server.serve_forever()
    given = next(option for option in options if option.startswith(CONFIG_OPTION))
    settings = Path(given.removeprefix(CONFIG_OPTION)).read_text()
    OWN_CONFIG.write_text(with_http_discovery(settings, f"127.0.0.1:{server.server_port}"))
    others = [option for option in options if option != given]
    os.execv("/bin/prometheus", ["prometheus", f"{CONFIG_OPTION}{OWN_CONFIG}", *others])


if __name__ == "__main__":
    main(sys.argv[1:])
