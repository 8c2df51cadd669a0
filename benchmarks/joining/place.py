"""A folder with a job in it, and the processes that train there: what a scheduler does, by files."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from load.processes import Process

from espalier_core.files.documents import json_lines, write_document
from espalier_core.types import environment
from espalier_core.types.allocation import Allocation, AllocationDocument, TimeBudget
from espalier_core.types.events import EVENT, AnyEvent
from espalier_core.types.job import AdaptiveTrainingJob, ElasticBatch
from joining.models import Model
from joining.steps import Steps

T = TypeVar("T")

BATCH: Final = 64
BUDGET_SECONDS: Final = 86_400.0
PATIENCE_SECONDS: Final = 600.0
"""For anything that is waited for; far longer than it takes."""
BENCHMARKS: Final = Path(__file__).parents[1]


class StuckError(RuntimeError):
    """Something that should have happened did not; the message says what, and what the processes last wrote."""


class Place:
    """One job's folder and processes; the processes end with it."""

    def __init__(self, folder: Path, model: Model, policy: ElasticBatch) -> None:
        """Write the job: it grows by the heuristic when it is given an extra GPU, once."""
        self.folder = folder
        self.job = AdaptiveTrainingJob.model_validate(
            {
                "apiVersion": "espalier.dev/v1alpha1",
                "kind": "AdaptiveTrainingJob",
                "metadata": {"name": "bench"},
                "spec": {
                    "timeBudgetSeconds": BUDGET_SECONDS,
                    "maxReplicas": 8,
                    "adaptation": {"mode": "Auto", "maxAdaptations": 1, "fallback": "Heuristic"},
                    "checkpoint": {"intervalSeconds": BUDGET_SECONDS},
                    "training": {
                        "model": model.model,
                        "dataset": model.dataset,
                        "batchSize": BATCH,
                        "elasticBatch": policy,
                        # Nothing is to be learned: gradients of a net that knows all examples become denormal numbers,
                        # with which a CPU computes at half the speed.
                        "optimizer": {"name": "Adam", "learningRate": 1e-6},
                        "schedule": {"name": "Constant"},
                        "evaluateEveryEpochs": 1_000_000,
                    },
                },
            }
        )
        self._path("job.json").write_text(json.dumps(self.job.to_json()))
        self.steps = Steps(self._path("steps"))
        self._generation = 0
        self.processes: dict[str, Process] = {}

    def allocate(self, replicas: int, base: int) -> None:
        """Grant this number of workers, as a scheduler does; the leader grows its model if that is above `base`."""
        self._generation += 1
        allocation = Allocation(generation=self._generation, replicas=replicas, gpus=replicas)
        budget = TimeBudget(budget_seconds=BUDGET_SECONDS)
        document = AllocationDocument(job=self.job.key, allocation=allocation, time_budget=budget, base_replicas=base)
        write_document(self._path("allocation.json"), document)

    def lead(self) -> Process:
        """Start the leader."""
        return self.start("leader", ["-m", "joining.trainer", str(self._path("steps"))])

    def follow(self, index: int) -> Process:
        """Start an extra worker, as its pod does."""
        variables = {environment.WORKER_ROLE: "extra", environment.WORKER_INDEX: str(index)}
        return self.start(f"extra-{index}", ["-m", "espalier_trainer"], variables)

    def start(self, name: str, arguments: list[str], variables: dict[str, str] | None = None) -> Process:
        """Start Python with `arguments` where the job is."""
        known = {
            **os.environ,
            **one_thread(),
            "TMPDIR": str(self.folder),  # torch leaves caches
            environment.JOB_FILE: str(self._path("job.json")),
            environment.ALLOCATION_FILE: str(self._path("allocation.json")),
            environment.REPORT_FILE: str(self._path("report.json")),
            environment.EVENTS_FILE: str(self._path("events.jsonl")),
            environment.CHECKPOINT_DIR: str(self._path("checkpoints")),
            environment.RENDEZVOUS: str(self._path("rendezvous")),
            **(variables or {}),
        }
        known.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each start compiles torch again
        process = Process(name, [sys.executable, *arguments], self._path(f"{name}.log"), known)
        self.processes[name] = process
        return process

    def signal(self, names: Iterable[str], number: signal.Signals) -> None:
        """Send a signal to processes and what they have started."""
        for name in names:
            self.processes[name].signal(number)

    def kill(self, name: str) -> None:
        """End a process without notice."""
        self.processes.pop(name).kill()

    def until(self, condition: Callable[[], T | None], what: str) -> T:
        """Return what `condition` returns once that is something; looks at the steps before each time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self.steps.look()
            if (found := condition()) is not None:
                return found
            for process in self.processes.values():
                process.check()
            if time.monotonic() > deadline:
                raise StuckError(f"not within {PATIENCE_SECONDS:.0f} s: {what}\n{self._last_words()}")
            time.sleep(0.01)

    def some_more(self, count: int = 12, seconds: float = 0.3) -> int:
        """Let it train for this number of steps and this time; returns the total number of steps then."""
        wanted, since = len(self.steps.look()) + count, time.monotonic() + seconds
        self.until(lambda: True if len(self.steps) >= wanted and time.monotonic() > since else None, "some more steps")
        return len(self.steps)

    def events(self) -> list[AnyEvent]:
        """Return what the leader has reported."""
        path = self._path("events.jsonl")
        lines = json_lines(path.read_text()) if path.exists() else []
        return [EVENT.validate_json(line) for line in lines if line.endswith("}")]

    def end(self) -> None:
        """End all processes: none has anything to put away."""
        for process in self.processes.values():
            process.kill()
        self.processes.clear()

    def _path(self, name: str) -> Path:
        return self.folder / name

    def _last_words(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {' | '.join(log.read_text(errors='replace').splitlines()[-4:])}" for log in logs)


@contextmanager
def placed(model: Model, policy: ElasticBatch = ElasticBatch.KEEP_GLOBAL) -> Iterator[Place]:
    """Give a place in a folder that goes afterwards, and end what was started there."""
    with TemporaryDirectory(prefix="espalier-elastic-") as name:
        place = Place(Path(name), model, policy)
        try:
            yield place
        finally:
            place.end()


def one_thread() -> dict[str, str]:
    """Return the variables of all processes: one thread each, on the CPU, by the loopback interface."""
    path = os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH")]))
    loopback: dict[str, Any] = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
    return {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path, **loopback}
