"""The job in a folder, trained as the documentation of two peers advises: `peers.py restarted|torchft FOLDER`.

`restarted` is a worker of torchrun's agent, or of a job that is stopped and started again: DistributedDataParallel,
which continues from the last checkpoint (https://docs.pytorch.org/docs/stable/elastic/train_script.html). It writes one
every `CHECKPOINT_STEPS` steps, and when it is asked to end. `torchft` is a replica of torchft, as in its train_ddp.py.
Both train as Espalier does: each worker a batch, the learning rate times the number of workers.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
from torch import distributed, nn

from bench.joining.ddp import Training
from bench.joining.place import STATE, StepLog
from bench.volatile.device import BATCH, MOST_REPLICAS
from espalier_core.types.job import ElasticBatch

CHECKPOINT_STEPS: Final = 10


class Asked:
    """Whether this process was asked to end; it does so after its step."""

    def __init__(self) -> None:
        self.ended = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, *_: object) -> None:
        self.ended = True


def restarted(folder: Path, asked: Asked) -> None:
    """Train from the last checkpoint until this process is asked to end; then there is one more."""
    distributed.init_process_group("gloo")
    rank, file = distributed.get_rank(), folder / STATE
    training = Training(folder, rank, distributed.get_world_size(), "steps")
    if file.exists():
        saved = torch.load(file, weights_only=True)
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])
        training.step = saved["step"]
    for _ in training.train(ElasticBatch.SCALE_LINEAR):
        if asked.ended or (rank == 0 and training.step % CHECKPOINT_STEPS == 0):
            save(file, training.model, training.optimizer, training.step)
        if asked.ended:
            return


def save(file: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Write a checkpoint, whole or not at all."""
    new = file.with_suffix(f".{os.getpid()}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
    os.replace(new, file)


def torchft(folder: Path, asked: Asked) -> None:
    """Train as one replica until this process is asked to end."""
    from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo
    from torchft.checkpointing.pg_transport import PGTransport

    replica, device = int(os.environ["REPLICA_GROUP_ID"]), torch.device("cpu")
    training = Training(folder, replica, 1, "steps")
    model, data, rate = training.model, training.data, training.learning_rate
    group = ProcessGroupGloo(timeout=timedelta(seconds=5))
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optim"])

    manager = Manager(
        pg=group,
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
        replica_id=f"replica_{replica}",
        timeout=timedelta(seconds=30),
        checkpoint_transport=PGTransport(group, timeout=timedelta(seconds=10), device=device),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
    )
    wrapped: Any = DistributedDataParallel(manager, model, broadcast_buffers=False)
    optimizer = Optimizer(manager, training.optimizer)
    sampler = DistributedSampler(data.train, replica, int(os.environ[MOST_REPLICAS]), group_rank=0, num_replicas=1)
    log, epoch = StepLog(folder / "steps"), 0
    while True:
        sampler.set_epoch(epoch)
        own = torch.tensor(list(sampler))
        for batch in own[: len(own) // BATCH * BATCH].view(-1, BATCH):
            optimizer.zero_grad()
            inputs, labels = data.train.batch(batch, None)
            nn.functional.cross_entropy(wrapped(inputs), labels).backward()  # type: ignore[no-untyped-call]
            world, before = manager.num_participants(), manager.current_step()
            for options in optimizer.param_groups:
                options["lr"] = rate * world
            optimizer.step()
            if manager.current_step() > before:
                log.ended(manager.current_step(), world, world)
                if replica == 0 and (asked.ended or manager.current_step() % CHECKPOINT_STEPS == 0):
                    save(folder / STATE, model, training.optimizer, manager.current_step())
            if asked.ended:
                manager.shutdown(wait=False)
                return
        epoch += 1


if __name__ == "__main__":
    (torchft if sys.argv[1] == "torchft" else restarted)(Path(sys.argv[2]), Asked())
