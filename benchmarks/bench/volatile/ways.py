"""Ways to train on GPUs that come and go, each as its documentation says. GPU 0 always stays.

A way is told which GPU comes, which will go (SIGTERM, as a pod that is deleted gets it), and which is gone (SIGKILL).
What ends by itself is started again, as Kubernetes does.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Final

from bench.joining.models import Model
from bench.joining.place import GROWS_ONCE, STATE, Place
from bench.load.processes import Process
from bench.volatile.device import BATCH, COMPUTED, MOST_REPLICAS
from bench.volatile.traces import MOST_GPUS
from espalier_core.types import environment
from espalier_core.types.job import ElasticBatch
from espalier_core.types.reasons import Reason

MODEL: Final = Model("digits", {"name": "digits"}, {"entrypoint": "bench.volatile.device:rows"})
DEVICE: Final = ("-m", "bench.volatile.device")
_END_SECONDS: Final = 10.0
_STUCK_SECONDS: Final = 2.0
"""After which a worker that was asked to end waits for one that is gone."""


def free_port() -> int:
    """Return a port on the loopback interface that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Way:
    """One job on the GPUs that are there."""

    adaptation: ClassVar[dict[str, Any]] = {"mode": "Off"}
    peers: ClassVar[Path]
    """The environment of peers that the project does not install."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Write the job, and start nothing."""
        changes = {
            "adaptation": self.adaptation,
            "checkpoint": {"path": str(folder / "checkpoints"), "intervalSeconds": 2},
            "training": {"optimizer": {"learningRate": 0.002}, "seed": seed, "batchSize": BATCH},
        }
        self.folder = folder
        self.place = Place(folder, MODEL, ElasticBatch.SCALE_LINEAR, changes)
        (folder / "job.yaml").write_text((folder / "job.json").read_text())  # where the model is loaded from
        self.python, self.port = sys.executable, free_port()
        self.gpus: set[int] = set()
        """Those that stay."""
        self.there: dict[int, Process] = {}
        """The process of each GPU that the job has not given back."""
        self.mended = 0
        """Processes that had ended by themselves."""

    def begin(self, gpus: int) -> None:
        """Start on so many GPUs."""
        self.gpus = set(range(gpus))
        self.changed()
        self.there = {gpu: self.start(gpu) for gpu in self.gpus}

    def come(self, gpu: int) -> None:
        """Use a GPU that has come."""
        self.gpus.add(gpu)
        self.there[gpu] = self.start(gpu)
        self.changed()

    def warn(self, gpu: int) -> None:
        """Give a GPU back."""
        self.gpus.discard(gpu)
        self.changed()
        # A GPU that has come during a restart has no process yet.
        self.end([self.there[gpu]] if gpu in self.there else [], seconds=0)

    def gone(self, gpu: int) -> None:
        """Do without a GPU that has gone; its process ends."""
        self.gpus.discard(gpu)
        if gpu in self.there:
            self.there.pop(gpu).kill()
        self.changed()

    def changed(self) -> None:
        """Tell the job which GPUs stay."""

    def start(self, gpu: int) -> Process:
        """Start the process of a GPU."""
        raise NotImplementedError

    def mend(self) -> None:
        """Start again what has ended."""
        for gpu in self.gpus:
            if not self.there[gpu].running:
                self.mended += 1
                self.there[gpu] = self.start(gpu)

    def finish(self) -> Path:
        """Save, and end; return the file or folder of the last checkpoint."""
        self.end(self.there.values())
        return self.folder / STATE

    def end(self, processes: Iterable[Process], *, ask: bool = True, seconds: float = _END_SECONDS) -> None:
        """Ask processes to end, and wait for it."""
        living = [process for process in processes if process.running]
        for process in living if ask else ():
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while any(process.running for process in living) and time.monotonic() < deadline:
            time.sleep(0.05)

    def run(self, gpu: int, *arguments: str, **variables: str) -> Process:
        """Start Python for a GPU, on its core."""
        cores = sorted(os.sched_getaffinity(0))
        core, known = frozenset((cores[gpu % len(cores)],)), {COMPUTED: str(self.folder / "computed"), **variables}
        return self.place.start(f"gpu-{gpu}", list(arguments), known, python=self.python, cores=core)


class Espalier(Way):
    """Elastic workers. The scheduler, this benchmark, sees at once that a pod has ended."""

    def changed(self) -> None:
        """Grant the GPUs that stay, one of which is guaranteed."""
        self.place.allocate(len(self.gpus), 1)

    def start(self, gpu: int) -> Process:
        """Start the leader or an extra worker."""
        if gpu == 0:
            return self.run(gpu, *DEVICE, "bench.joining.trainer", str(self.folder / "steps"))
        role = {environment.WORKER_ROLE: "extra", environment.WORKER_INDEX: str(gpu - 1)}
        return self.run(gpu, *DEVICE, "espalier_trainer", **role)

    def finish(self) -> Path:
        """Suspend the job, which saves."""
        self.place.allocate(len(self.gpus), 1, Reason.SUSPENDED)
        self.end([self.there[0]], ask=False)
        return self.folder / "checkpoints"


class EspalierGrows(Espalier):
    """Elastic workers whose model grows once, where the heuristic says so."""

    adaptation: ClassVar[dict[str, Any]] = GROWS_ONCE


RENDEZVOUS: Final = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
"""torchrun's. By its defaults it waits 30 s after the least number of nodes for more, and a node that died is missed
after 15 s; here after 1 s and 3 s."""


class Torchrun(Way):
    """An agent of torchrun for each GPU; the first hosts the store."""

    def start(self, gpu: int) -> Process:
        """Start the agent of a node."""
        options = [f"--nnodes=1:{MOST_GPUS}", "--nproc-per-node=1", "--max-restarts=100", "--monitor-interval=0.1"]
        options += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=bench"]
        options += [f"--rdzv-conf={RENDEZVOUS},is_host={str(gpu == 0).lower()}", "--local-addr=127.0.0.1"]
        script = [*DEVICE, "bench.volatile.peers", "restarted", str(self.folder)]
        # With the store shared (torch 2.15's default) a node that joins waits for an address that never comes.
        unshared = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return self.run(gpu, "-m", "torch.distributed.run", *options, *script, **unshared)


class Restart(Way):
    """DistributedDataParallel, which is stopped and started again at each change: torch's, without an agent."""

    _stopping: float | None = None
    _world: frozenset[int] = frozenset()

    def start(self, gpu: int) -> Process:
        """Start the worker of a GPU in a world of those that stay."""
        self._world = frozenset(self.gpus)
        world = {"RANK": str(sorted(self.gpus).index(gpu)), "WORLD_SIZE": str(len(self.gpus))}
        world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}
        return self.run(gpu, *DEVICE, "bench.volatile.peers", "restarted", str(self.folder), **world)

    def come(self, gpu: int) -> None:
        """Stop, to start with one more."""
        self.gpus.add(gpu)
        self.changed()

    def changed(self) -> None:
        """Stop, to start with what stays."""
        if self.there and self._world != self.gpus and self._stopping is None:
            self._stopping = time.monotonic()
            self.end(self.there.values(), seconds=0)

    def mend(self) -> None:
        """Start all once all have ended, and end all once one has."""
        running = [process for process in self.there.values() if process.running]
        if self._stopping is None:
            if len(running) < len(self.gpus):
                self.mended += 1
                self._stopping = time.monotonic()
                self.end(running, seconds=0)
        elif not running:
            self._stopping, self.port = None, free_port()
            self.there = {gpu: self.start(gpu) for gpu in self.gpus}
        elif time.monotonic() - self._stopping > _STUCK_SECONDS:
            for process in running:
                process.kill()


class TorchFt(Way):
    """A replica of torchft for each GPU, and its lighthouse."""

    def begin(self, gpus: int) -> None:
        """Start the lighthouse and the replicas."""
        self.python = str(self.peers / "bin" / "python")
        lighthouse = [str(self.peers / "bin" / "torchft_lighthouse"), "--min_replicas", "1", "--quorum_tick_ms", "100"]
        lighthouse += ["--join_timeout_ms", "10000", "--heartbeat_timeout_ms", "1000"]
        self.place.start("lighthouse", [*lighthouse, "--bind", f"127.0.0.1:{self.port}"], python=self.python)
        super().begin(gpus)

    def start(self, gpu: int) -> Process:
        """Start a replica."""
        known = {"REPLICA_GROUP_ID": str(gpu), MOST_REPLICAS: str(MOST_GPUS)}
        known |= {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.port}"}
        return self.run(gpu, *DEVICE, "bench.volatile.peers", "torchft", str(self.folder), **known)


WAYS: Final[dict[str, type[Way]]] = {
    "Espalier": Espalier,
    "Espalier, grows": EspalierGrows,
    "torchft": TorchFt,
    "torchrun": Torchrun,
    "restart": Restart,
}
