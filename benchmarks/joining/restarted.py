"""`torchrun … -m joining.restarted FOLDER`: a script as torchrun wants it, on the job in the folder.

It is restarted at each change and goes on from its checkpoint, which it writes every `CHECKPOINT_STEPS` steps. Model,
data, shares of a batch and optimizer are the trainer's.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from load.processes import end_with_parent

from joining.steps import StepLog

CHECKPOINT_STEPS: Final = 50


def main(folder: Path) -> None:
    """Train until it is ended."""
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    from espalier_api.job import ElasticBatch
    from espalier_api.validation import load_job
    from espalier_trainer.data.batches import epoch_order
    from espalier_trainer.elastic.batches import shares
    from espalier_trainer.optimizers import build_optimizer
    from espalier_trainer.randomness import seed_everything
    from espalier_trainer.session import load

    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    training = load_job(folder / "job.json", resource=None).spec.training
    seed_everything(training.seed)
    device = torch.device("cpu")
    data, model = load(training, device)
    optimizer = build_optimizer(training.optimizer, model)
    step, file = 0, folder / "torchrun.pt"
    if file.exists():
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    wrapped: Any = DistributedDataParallel(model, broadcast_buffers=False)
    log = StepLog(folder / "steps") if rank == 0 else None
    while True:
        epoch = step // max(1, len(data.train) // training.batch_size)
        order = epoch_order(len(data.train), training.batch_size, training.seed, epoch, device)
        for cursor in range(step % len(order), len(order)):
            own = shares(ElasticBatch.KEEP_GLOBAL, world, cursor, len(order), order.rows)[rank]
            inputs, labels = order.batch(data.train, own.batch, slice(own.first, own.last))
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(wrapped(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss.item()
            step += 1
            if log is not None:
                log.ended(step, world, 1)
                if step % CHECKPOINT_STEPS == 0:
                    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    torch.save(content, file.with_suffix(".new"))
                    os.replace(file.with_suffix(".new"), file)


if __name__ == "__main__":
    end_with_parent(signal.SIGKILL, os.getppid())  # a node that dies takes its workers with it
    main(Path(sys.argv[1]))
