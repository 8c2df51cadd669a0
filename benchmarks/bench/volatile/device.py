"""`python -m bench.volatile.device MODULE ARGUMENT...`: run a module on a simulated device, which takes its time.

Each layer of a forward pass in training takes `LAYER_SECONDS` an example, in which the process sleeps. So workers that
share a core do not slow each other down, and a grown model costs what its layers cost. What the device has computed is
appended to the file that `COMPUTED` names, an example that is computed twice twice.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from typing import Any, Final

from bench.load.processes import end_with_parent

BATCH: Final = 64
LAYERS: Final = 4
LAYER_SECONDS: Final = 0.2 / BATCH / LAYERS
"""So that a step of the model as it starts takes a fifth of a second."""
EXAMPLES: Final = 12 * BATCH
COMPUTED: Final = "BENCH_COMPUTED"
"""Variable with the file of what devices have computed."""
MOST_REPLICAS: Final = "BENCH_MOST_REPLICAS"
"""Variable with the most replicas that there can be."""


def install() -> None:
    """Slow down the layers of this process."""
    import torch
    from torch import nn

    log = os.open(os.environ[COMPUTED], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def take_time(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not (isinstance(module, nn.Conv2d | nn.Linear) and module.training and torch.is_grad_enabled()):
            return
        rows = len(inputs[0])
        time.sleep(rows * LAYER_SECONDS)
        if isinstance(module, nn.Conv2d) and module.in_channels == 1:  # of grey images: the first layer
            os.write(log, f"{time.monotonic()} {rows}\n".encode())

    nn.modules.module.register_module_forward_pre_hook(take_time)


def rows() -> tuple[Any, Any, Any]:
    """Return the digits: to train on the first 768, which up to four workers share evenly, ten times an epoch."""
    from torch import cat

    from bench.joining import models

    train, *others = models.rows()
    return (tuple(cat([part[:EXAMPLES]] * 10) for part in train), *others)  # type: ignore[return-value]


rows.classes = 10  # type: ignore[attr-defined]

if __name__ == "__main__":
    end_with_parent(signal.SIGKILL, os.getppid())  # a node that dies takes its workers with it
    install()
    sys.argv[:] = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
