"""DistributedDataParallel by gloo on the job in a folder: the trainer's model, data, shares, optimizer and steps.

`python -m bench.joining.ddp FOLDER WORLD RANK`: one of WORLD plain processes, which train the case of `case.json`
without an end. Each is started by itself, as elastic workers are: Linux divides a busy CPU among sessions, not
processes.

Buffers are not broadcast, because the models have none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from bench.joining.place import StepLog
from espalier_core.types.job import ElasticBatch
from espalier_core.validation.reading import load_job
from espalier_trainer.data.source import epoch_order
from espalier_trainer.elastic.membership import fixed_portion, shares
from espalier_trainer.launch.session import load
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.optimizers.building import build_optimizer


class Training:
    """The job of a folder, trained by `world` processes of a group."""

    def __init__(self, folder: Path, rank: int, world: int, log: str) -> None:
        self._training = load_job(folder / "job.json", resource=None).spec.training
        seed_everything(self._training.seed)
        self._rank, self._world = rank, world
        self._device = torch.device("cpu")
        self.data, self.model = load(self._training, self._device)
        self.optimizer = build_optimizer(self._training.optimizer, self.model)
        self._log = StepLog(folder / log) if rank == 0 else None
        self.step = 0

    @property
    def learning_rate(self) -> float:
        """Of one worker."""
        return self._training.optimizer.learning_rate

    @property
    def epoch_batches(self) -> int:
        """Batches of an epoch."""
        return max(1, len(self.data.train) // self._training.batch_size)

    def train(self, policy: ElasticBatch) -> Iterator[None]:
        """Train without an end; yield after each step."""
        wrapped: Any = DistributedDataParallel(self.model, broadcast_buffers=False)
        epoch, cursor = divmod(self.step, self.epoch_batches)
        training, world = self._training, self._world
        while True:
            order = epoch_order(len(self.data.train), training.batch_size, training.seed, epoch, self._device)
            while cursor < len(order):
                taken = fixed_portion(policy, world, cursor, len(order)).batches
                for options in self.optimizer.param_groups:
                    options["lr"] = self.learning_rate * taken
                own = shares(policy, world, cursor, order.rows, taken)[self._rank]
                inputs, labels = order.batch(self.data.train, own.batch, slice(own.first, own.last))
                self.optimizer.zero_grad(set_to_none=True)
                loss = nn.functional.cross_entropy(wrapped(inputs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                loss.item()
                self.step += 1
                cursor += taken
                if self._log is not None:
                    self._log.ended(self.step, world, taken)
                yield
            epoch, cursor = epoch + 1, 0


def plain(folder: Path, world: int, rank: int) -> None:
    """Train as one of `world` processes."""
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world)
    case = json.loads((folder / "case.json").read_text())
    for _ in Training(folder, rank, world, case["log"]).train(ElasticBatch(case["policy"])):
        pass


if __name__ == "__main__":
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first optimizer imports more of torch
    plain(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
