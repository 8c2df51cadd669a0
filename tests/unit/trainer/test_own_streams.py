"""A script's loop over an `IterableDataset`: one worker reads it, and a run that resumes goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from espalier_core.files.documents import read_document
from espalier_core.types.report import Report
from espalier_trainer.errors import OwnLoopError
from espalier_trainer.own import join
from espalier_trainer.user_loop.feed import StreamFeed
from own_loops import change_job
from own_scripts import another_process


class Numbers(IterableDataset[Any]):
    """Gives the numbers of an epoch, in batches of its own where it is told so."""

    def __init__(self, count: int, batch: int | None = None) -> None:
        self.count, self.batch = count, batch

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            example = torch.full((2,), float(number))
            yield example if self.batch is None else example.repeat(self.batch, 1)


class Once(Numbers):
    """Gives its numbers once."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        self.count = 0


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _trained(loop: Any, batches: Any, model: nn.Module, optimizer: torch.optim.Optimizer, stop: int = 99) -> list[Any]:
    seen: list[Any] = []
    for epoch in loop.epochs(2):
        for batch in batches:
            optimizer.zero_grad()
            loop.backward(model(batch / 10).square().mean())
            optimizer.step()
            seen.append((epoch, batch[:, 0].tolist()))
            if len(seen) == stop:
                loop._stop._asked = True
                loop._run.saver.save()
                loop.stop()
                return seen
    return seen


@pytest.mark.parametrize("workers", [0, 1])
def test_every_epoch_reads_the_stream_from_its_beginning(leader, tmp_path, workers):
    model, optimizer = _model()
    loop, batches = join(model, optimizer, DataLoader(Numbers(7), batch_size=2, num_workers=workers))
    once = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert _trained(loop, batches, model, optimizer) == [(epoch, batch) for epoch in (0, 1) for batch in once]
    report = read_document(tmp_path / "report.json", Report)
    assert (report.epoch, report.step) == (2, 6)


def test_a_resumed_run_drops_what_it_has_trained_on(leader):
    model, optimizer = _model()
    loader: DataLoader[Any] = DataLoader(Numbers(8), batch_size=2)
    before = _trained(*join(model, optimizer, loader), model, optimizer, stop=6)
    another_process()
    again, its = _model()
    after = _trained(*join(again, its, loader), again, its)
    # The step in which the script left its batches may count, or come again.
    assert len(after) in (2, 3)
    whole = [(epoch, [2.0 * at, 2.0 * at + 1]) for epoch in (0, 1) for at in range(4)]
    assert before[: 8 - len(after)] + after == whole


def test_a_stream_may_give_whole_batches_and_a_step_may_take_several():
    feed = StreamFeed(DataLoader(Numbers(5, batch=3), batch_size=None), seed=0, accumulate=2)
    taken = []
    cursor = 0
    while feed.batches(0, cursor) > cursor:
        part = feed.part(0, cursor, 0, 1)
        taken.append([part.load()[0, 0].item() for _ in part.pieces])
        cursor += 1
    assert taken == [[0.0, 1.0], [2.0, 3.0]]


def test_what_a_stream_cannot_do_is_refused_with_the_remedy(leader, tmp_path):
    model, optimizer = _model()
    loop, batches = join(model, optimizer, DataLoader(Once(4), batch_size=2))
    with pytest.raises(OwnLoopError, match=r"Once gave no full batch of 2 in epoch 1; let its __iter__ begin again"):
        _trained(loop, batches, model, optimizer)
    change_job(tmp_path, training={"elasticBatch": "keepGlobal"})
    another_process()
    with pytest.raises(OwnLoopError, match=r"leave training.elasticBatch out of the job: then one worker trains"):
        join(*_model(), DataLoader(Numbers(4), batch_size=2))
