"""One repetition of what a change costs under torchrun: it restarts all workers from their checkpoint."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Final

from joining.models import Model
from joining.place import Place, placed
from joining.steps import first_of, pause, redone

CONFIG: Final = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
"""Of its rendezvous. By its defaults it waits 30 s after the least number of nodes for more, and a node that died is
missed after 15 s; here after 1 s and 3 s."""
MONITOR: Final = 0.1
VARIABLES: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""With the store shared (torch 2.15's default) a node that joins waits for an address that never comes."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """Seconds, and steps taken again."""

    start: float
    """From the start of the second node's torchrun to the end of the first joint step."""
    join: float
    join_redone: int
    death: float
    death_redone: int


def restarts(model: Model) -> Restarts:
    """Measure once, in new processes: a node joins, and dies."""
    with placed(model) as place:
        try:
            return _measured(place)
        finally:
            for process in place.processes.values():
                process.end()  # asked to: it ends its workers, which may just be starting


def _measured(place: Place) -> Restarts:
    port = _free_port()
    _node(place, "first", port)
    before = place.some_more(60)
    started = time.monotonic()
    _node(place, "second", port)
    joined = place.until(lambda: first_of(place.steps, 2, before), "a joint step under torchrun")
    before = place.some_more(40)
    place.kill("second")  # its worker dies with it
    alone = place.until(lambda: first_of(place.steps, 1, before), "a step under torchrun after a death")
    steps = place.steps
    return Restarts(
        start=steps[joined].ended - started,
        join=pause(steps, joined),
        join_redone=redone(steps, joined),
        death=pause(steps, alone),
        death_redone=redone(steps, alone),
    )


def _node(place: Place, name: str, port: int) -> None:
    host = "true" if name == "first" else "false"
    options = ["--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=100", f"--monitor-interval={MONITOR}"]
    options += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench"]
    options += [f"--rdzv-conf={CONFIG},is_host={host}", "--local-addr=127.0.0.1"]
    script = ["-m", "joining.ddp", str(place.folder)]
    place.start(name, ["-m", "torch.distributed.run", *options, *script], VARIABLES)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
