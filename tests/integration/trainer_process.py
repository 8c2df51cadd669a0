"""A real trainer in place of the container of a leader's pod: `TrainerProcess`."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from apiserver import ApiServer

from espalier_core.types import environment
from espalier_core.types.job import ALLOCATION_ANNOTATION, JOB_ANNOTATION
from espalier_operator.kube.objects import names, worker_pod
from forked import Forked
from ports import free_port

_FILES = {worker_pod.JOB_FILE: JOB_ANNOTATION, worker_pod.ALLOCATION_FILE: ALLOCATION_ANNOTATION}


class TrainerProcess:
    """Runs what a pod that the operator has made would run; a context manager that ends it.

    Its variables are the pod's, its files the pod's annotations; it asks the API server as its ServiceAccount. Only its
    port is another: pods have an address each, tests share one.
    """

    def __init__(self, server: ApiServer, pod: dict[str, Any], directory: Path) -> None:
        """Not started yet; `directory`, which must be empty, takes its files, checkpoints and log."""
        self.port = free_port()
        place, job = pod["metadata"]["namespace"], pod["metadata"]["labels"]["espalier.dev/job"]
        moved = {path: directory / Path(path).name for path in _FILES}
        for path, annotation in _FILES.items():
            moved[path].write_text(pod["metadata"]["annotations"][annotation])
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig_text(server.token(place, names.account_name(job))))
        given = {
            entry["name"]: entry.get("value", pod["metadata"]["uid"]) for entry in pod["spec"]["containers"][0]["env"]
        }
        self._environment = {
            **{name: str(moved.get(value, value)) for name, value in given.items()},
            environment.CHECKPOINT_DIR: str(directory / "checkpoints"),
            environment.METRICS_PORT: str(self.port),
            "KUBECONFIG": str(kubeconfig),
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
        }
        self._log, self._directory = directory / "log", directory

    def __enter__(self) -> Self:
        self._process = Forked("espalier_trainer", env=self._environment, out=self._log, cwd=self._directory)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait(20)

    @property
    def address(self) -> str:
        """Where its metrics are."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text()

    def ended(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self._process.poll()
