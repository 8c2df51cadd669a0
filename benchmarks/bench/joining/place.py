"""A folder with a job in it, the processes that train there, and the log of their steps; what schedulers do, by files.

Needs no torch.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

from bench.command import BenchError
from bench.joining.models import Model
from bench.load.processes import Process
from espalier_core.files.documents import json_lines, write_document
from espalier_core.types import environment
from espalier_core.types.allocation import Allocation, AllocationDocument, TimeBudget
from espalier_core.types.events import EVENT, AnyEvent
from espalier_core.types.job import AdaptiveTrainingJob, ElasticBatch
from espalier_core.types.reasons import Reason
from espalier_core.validation.reading import with_spec

T = TypeVar("T")

BATCH: Final = 64
BUDGET_SECONDS: Final = 86_400.0
PATIENCE_SECONDS: Final = 600.0
"""For anything that is waited for; far longer than it takes."""
STATE: Final = "state.pt"
"""The file of a script's checkpoint."""
BENCHMARKS: Final = Path(__file__).parents[2]
GROWS_ONCE: Final = {"mode": "Auto", "maxAdaptations": 1, "fallback": "Heuristic", "trials": "Off"}
"""`adaptation` of a job that grows by the heuristic when it is given an extra GPU, untried."""


class StuckError(BenchError):
    """Something that should have happened did not; the message says what, and what the processes last wrote."""


class Place:
    """One job's folder and processes; the processes end with it."""

    def __init__(
        self, folder: Path, model: Model, policy: ElasticBatch, changes: Mapping[str, Any] | None = None
    ) -> None:
        """Write the job: it grows by the heuristic when it is given an extra GPU, once. `changes` are of its spec."""
        self.folder = folder
        job = AdaptiveTrainingJob.model_validate(
            {
                "apiVersion": "espalier.dev/v1alpha1",
                "kind": "AdaptiveTrainingJob",
                "metadata": {"name": "bench"},
                "spec": {
                    "timeBudgetSeconds": BUDGET_SECONDS,
                    "maxReplicas": 8,
                    "adaptation": GROWS_ONCE,
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
        self.job = with_spec(job, **(changes or {}))
        self._path("job.json").write_text(json.dumps(self.job.to_json()))
        self.steps = Steps(self._path("steps"))
        self._generation = 0
        self.processes: dict[str, Process] = {}

    def allocate(self, replicas: int, base: int, stop: Reason | None = None) -> None:
        """Grant this number of workers, as a scheduler does; the leader grows its model if that is above `base`."""
        self._generation += 1
        allocation = Allocation(generation=self._generation, replicas=replicas, gpus=replicas)
        budget = TimeBudget(budget_seconds=BUDGET_SECONDS)
        document = AllocationDocument(
            job=self.job.key, allocation=allocation, time_budget=budget, base_replicas=base, stop=stop
        )
        write_document(self._path("allocation.json"), document)

    def lead(self) -> Process:
        """Start the leader."""
        return self.start("leader", ["-m", "bench.joining.trainer", str(self._path("steps"))])

    def follow(self, index: int) -> Process:
        """Start an extra worker, as its pod does."""
        variables = {environment.WORKER_ROLE: "extra", environment.WORKER_INDEX: str(index)}
        return self.start(f"extra-{index}", ["-m", "espalier_trainer"], variables)

    def start(
        self,
        name: str,
        arguments: list[str],
        variables: Mapping[str, str] | None = None,
        *,
        python: str = sys.executable,
        cores: frozenset[int] = frozenset(),
    ) -> Process:
        """Start Python with `arguments` where the job is, on `cores` only if there are any."""
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
        process = Process(name, [python, *arguments], self._path(f"{name}.log"), known, cores)
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


FOLLOWING: Final = 10
"""Steps after a change that still belong to it: the first of a new group may be slow."""


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step; `number` counts those that the weights have taken."""

    ended: float
    """Seconds of the monotonic clock, which all processes of a machine share."""
    number: int
    world: int
    """Workers that took it."""
    batches: int
    """Taken from the epoch."""
    grown: int = 0
    """Growths before it."""

    @classmethod
    def parsed(cls, line: str) -> Step:
        """Read a line of a log."""
        ended, *numbers = line.split()
        return cls(float(ended), *map(int, numbers))


class StepLog:
    """Appends steps to a file: a write of some µs each, so that a process that is killed has left all."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def ended(self, number: int, world: int, batches: int, grown: int = 0) -> None:
        """Write down a step that has just ended."""
        step = Step(time.monotonic(), number, world, batches, grown)
        os.write(self._handle, (" ".join(map(str, astuple(step))) + "\n").encode())


class Steps(list[Step]):
    """The steps of a log, as far as it was read."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._read = path, 0

    def look(self) -> Steps:
        """Read what has come since; half a line waits for its end."""
        if self._path.exists():
            with self._path.open("rb") as log:
                log.seek(self._read)
                whole, newline, _ = log.read().rpartition(b"\n")
            self._read += len(whole) + len(newline)
            self.extend(Step.parsed(line) for line in whole.decode().splitlines())
        return self


def first_of(steps: Sequence[Step], world: int, after: int, grown: int | None = None) -> int | None:
    """Return the index of the first step from `after` on with this number of workers (and growths), if there is one.

    Only once the steps that still belong to the change have followed.
    """
    for place in range(after, len(steps) - FOLLOWING):
        if steps[place].world == world and grown in (None, steps[place].grown):
            return place
    return None


def gap(steps: Sequence[Step], place: int) -> float:
    """Return the seconds between the ends of the step before and of this one."""
    return steps[place].ended - steps[place - 1].ended


def pause(steps: Sequence[Step], place: int) -> float:
    """Return the longest gap of a change whose first step is at `place`."""
    return max(gap(steps, each) for each in range(place, place + FOLLOWING + 1))


def redone(steps: Sequence[Step], place: int) -> int:
    """Return how many steps before `place` are taken again from there on."""
    return steps[place - 1].number + 1 - steps[place].number


def usual(steps: Sequence[Step], first: int, last: int) -> float:
    """Return the median gap of the steps from `first` to `last`, which is not included."""
    return statistics.median(gap(steps, place) for place in range(max(1, first), last))


def samples_a_second(steps: Sequence[Step], first: int, count: int, batch_size: int) -> float:
    """Return the examples trained on in a second of the `count` steps from `first` on."""
    taken = sum(step.batches for step in steps[first : first + count])
    return taken * batch_size / (steps[first + count - 1].ended - steps[first - 1].ended)
