"""A real Prometheus on a port of its own, for tests: `PrometheusProcess`."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from espalier_core.files.documents import write_text_atomically
from ports import free_port
from tools import tool

_READY_SECONDS = 60.0


def prometheus_binaries() -> Path:
    """Return the folder with prometheus and promtool."""
    return tool("prometheus", "no Prometheus to test with; hack/prometheus gets it")


class PrometheusProcess:
    """Scrapes some addresses every second and evaluates rules; a context manager that ends it."""

    def __init__(
        self,
        binaries: Path,
        directory: Path,
        targets: Mapping[str, str],
        rules: Path,
        relabelling: Sequence[Mapping[str, object]] = (),
    ) -> None:
        """`targets`: host:port by the name of its scrape job. `directory` takes its data and its log.

        `relabelling`: `relabel_configs` for the pods that `find` names.
        """
        self._directory, self._binary = directory, binaries / "prometheus"
        self._pods = directory / "pods.json"
        self._pods.write_text("[]")
        self._port = free_port()
        scrapes: list[dict[str, Any]] = [
            {"job_name": name, "honor_labels": True, "static_configs": [{"targets": [address]}]}
            for name, address in targets.items()
        ]
        scrapes.append(
            {
                "job_name": "pods",
                "file_sd_configs": [{"files": [str(self._pods)], "refresh_interval": "1s"}],
                "relabel_configs": [dict(rule) for rule in relabelling],
            }
        )
        pace = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        # JSON is YAML.
        (directory / "prometheus.yaml").write_text(
            json.dumps({"global": pace, "rule_files": [str(rules)], "scrape_configs": scrapes})
        )
        self._api = httpx.Client(base_url=self.url, timeout=20, trust_env=False)

    def __enter__(self) -> Self:
        command = [
            str(self._binary),
            f"--config.file={self._directory / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
        ]
        with (self._directory / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + _READY_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end()
                raise AssertionError(f"Prometheus is not ready:\n{(self._directory / 'prometheus.log').read_text()}")
            time.sleep(0.05)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def find(self, pods: Mapping[str, dict[str, Any]]) -> None:
        """Let it scrape these pods alone, by host:port: what its Kubernetes discovery says of one that has a port.

        The labels are those of `kubernetes_sd_configs` with role `pod`, for one container port.
        """
        found = []
        for address, pod in pods.items():
            (port,) = pod["spec"]["containers"][0]["ports"]
            labels = {"namespace": pod["metadata"]["namespace"], "pod_container_port_name": port["name"]}
            for name, value in pod["metadata"]["labels"].items():
                labels[f"pod_label_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}"] = value
            meta = {f"__meta_kubernetes_{name}": value for name, value in labels.items()}
            found.append({"targets": [address], "labels": meta})
        write_text_atomically(self._pods, json.dumps(found))

    def get(self, path: str, **parameters: str) -> Any:
        """Return what its HTTP API answers; `AssertionError` with its words where it refuses."""
        answer = self._api.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", f"{path} {parameters}: {answer.get('error')}"
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression now."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def query_range(self, expression: str, since: float) -> list[dict[str, Any]]:
        """Return its series now and each second before, back to `since` (epoch seconds)."""
        now = time.time()
        asked = {"query": expression, "start": str(now - math.ceil(now - since)), "end": str(now), "step": "1s"}
        found: list[dict[str, Any]] = self.get("query_range", **asked)["result"]
        return found

    def _is_ready(self) -> bool:
        try:
            return self._api.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _end(self) -> None:
        self._api.close()
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
