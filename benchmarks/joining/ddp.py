"""`python -m joining.ddp FOLDER WORLD`: plain DistributedDataParallel by gloo on the job in the folder.

Model, data, shares of a batch, optimizer and steps are the trainer's. Buffers are not broadcast, as they are not there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from load.processes import end_with_parent
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from espalier_api.validation import load_job
from espalier_trainer.data.batches import epoch_order
from espalier_trainer.elastic.batches import consumed, shares
from espalier_trainer.optimizers import build_optimizer
from espalier_trainer.randomness import seed_everything
from espalier_trainer.session import load
from joining.cases import Case
from joining.steps import StepLog


def main(folder: Path, world: int) -> None:
    """Take part in all cases, as one of `world` processes."""
    rank = _forked(world)
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world)
    body = json.loads((folder / "cases.json").read_text())
    cases = [Case.parsed(each) for each in body]
    groups = {each: distributed.new_group(list(range(each))) for each in sorted({case.world for case in cases})}
    for case in cases:
        if rank < case.world:
            _train(folder, case, rank, groups[case.world])
        distributed.barrier()


def _forked(world: int) -> int:
    """Become `world` processes, which have imported all; returns the rank."""
    parent = os.getpid()
    for rank in range(1, world):
        if os.fork() == 0:
            end_with_parent(signal.SIGKILL, parent)
            return rank
    return 0


def _train(folder: Path, case: Case, rank: int, group: Any) -> None:
    training = load_job(folder / "job.json", resource=None).spec.training
    seed_everything(training.seed)
    device = torch.device("cpu")
    data, model = load(training, device)
    wrapped: Any = DistributedDataParallel(model, process_group=group, broadcast_buffers=False)
    optimizer = build_optimizer(training.optimizer, model)
    log = StepLog(folder / case.log) if rank == 0 else None
    step = epoch = cursor = 0
    order = epoch_order(len(data.train), training.batch_size, training.seed, epoch, device)
    while step < case.steps:
        taken = consumed(case.policy, case.world, cursor, len(order))
        for options in optimizer.param_groups:
            options["lr"] = training.optimizer.learning_rate * taken
        own = shares(case.policy, case.world, cursor, len(order), order.rows)[rank]
        inputs, labels = order.batch(data.train, own.batch, slice(own.first, own.last))
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(wrapped(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()
        step += 1
        cursor += taken
        if log is not None:
            log.ended(step, case.world, taken)
        if cursor >= len(order):
            epoch, cursor = epoch + 1, 0
            order = epoch_order(len(data.train), training.batch_size, training.seed, epoch, device)


if __name__ == "__main__":
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first optimizer imports more of torch
    main(Path(sys.argv[1]), int(sys.argv[2]))
