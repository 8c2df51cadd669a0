"""Checkpoints are written from a copy while training goes on: one at a time, all reported, none lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.advice import Action
from espalier_core.types.events import CheckpointSaved, Warned
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.report import TrainerPhase
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.checkpoints.store import CheckpointStore, read_checkpoint
from espalier_trainer.errors import SupersededError
from espalier_trainer.growth.advisor import Scripted
from espalier_trainer.run.saving import CheckpointWriter


def of(done: Any, kind: type) -> list[Any]:
    return [event for event in done.reporter.events if isinstance(event, kind)]


def test_training_goes_on_while_a_checkpoint_is_written(
    run: Callable[..., Any],
    make_job: Callable[..., AdaptiveTrainingJob],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one is held up until another 40 boundaries have passed: it is of its own step, and others wait."""
    save, passed, held = CheckpointStore.save, threading.Event(), []
    boundaries = [0]

    def slow(store: CheckpointStore, checkpoint: Checkpoint) -> Path:
        if not held:
            held.append((checkpoint.state.step, {name: each.clone() for name, each in checkpoint.model.items()}))
            assert passed.wait(30)
        return save(store, checkpoint)

    def stop() -> bool:
        boundaries[0] += 1
        if held and boundaries[0] > held[0][0] + 40:
            passed.set()
        return False

    monkeypatch.setattr(CheckpointStore, "save", slow)
    done = run(make_job(checkpoint={"intervalSeconds": 0.02}), store=tmp_path, stop=stop)
    saved = of(done, CheckpointSaved)
    step, model = held[0]
    assert saved[0].step == step
    assert saved[1].step > step + 40
    assert saved[-1].step == done.result.steps
    assert len(saved) == len({event.step for event in saved})
    last = done.trainer.network.module.state_dict()
    assert any(not torch.equal(model[name], tensor) for name, tensor in last.items())
    written = read_checkpoint(Path(saved[-1].path)).model
    assert all(torch.equal(written[name], tensor) for name, tensor in last.items())


def test_a_checkpoint_that_fails_in_the_background_is_a_warning_of_its_step(
    run: Callable[..., Any],
    make_job: Callable[..., AdaptiveTrainingJob],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save, failed = CheckpointStore.save, []

    def full(store: CheckpointStore, checkpoint: Checkpoint) -> Path:
        if not failed:
            failed.append(checkpoint.state.step)
            raise OSError(28, "No space left on device")
        return save(store, checkpoint)

    monkeypatch.setattr(CheckpointStore, "save", full)
    done = run(make_job(checkpoint={"intervalSeconds": 0.05}), store=tmp_path)
    (warned,) = of(done, Warned)
    assert warned.reason == "CheckpointFailed"
    assert f"no checkpoint of step {failed[0]} was written" in warned.message
    assert "No space left" in warned.message
    assert done.result.phase is TrainerPhase.COMPLETED


@pytest.mark.parametrize("error", [SupersededError("attempt 2 has taken over"), ZeroDivisionError("a mistake")])
def test_other_errors_of_the_background_end_the_run(
    run: Callable[..., Any],
    make_job: Callable[..., AdaptiveTrainingJob],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def broken(store: CheckpointStore, checkpoint: Checkpoint) -> Path:
        raise error

    monkeypatch.setattr(CheckpointStore, "save", broken)
    with pytest.raises(type(error), match=str(error)):
        run(make_job(timeBudgetSeconds=60, checkpoint={"intervalSeconds": 0.05}), store=tmp_path)


@given(st.lists(st.sampled_from(["start", "take", "wait"]), max_size=12))
def test_one_is_in_flight_at_most_and_each_is_taken_once(
    make_checkpoint: Callable[..., Checkpoint], acts: list[str]
) -> None:
    class Store(CheckpointStore):
        steps: list[int]

        def save(self, checkpoint: Checkpoint) -> Path:
            self.steps.append(checkpoint.state.step)
            return self.folder

    store = Store(Path("nowhere"))
    store.steps = []
    writer, started, taken = CheckpointWriter(store, lambda: 0.0), 0, []
    for act in acts:
        if act == "start" and writer.busy:
            with pytest.raises(RuntimeError):
                writer.start(make_checkpoint(started))
        elif act == "start":
            writer.start(make_checkpoint(started))
            started += 1
        elif (written := writer.take(wait=act == "wait")) is not None:
            taken.append(written.step)
        assert started - len(taken) == writer.busy
    if (written := writer.take(wait=True)) is not None:
        taken.append(written.step)
    assert taken == store.steps == list(range(started))


def test_memory_for_the_first_copy_is_made_before_and_with_every_tensor(
    run: Callable[..., Any],
    make_job: Callable[..., AdaptiveTrainingJob],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for the copy after a growth."""
    copied, fits = Checkpoint.copied, []

    def watched(checkpoint: Checkpoint, room: Checkpoint | None = None) -> Checkpoint:
        assert room is not None
        fits.append(
            all(
                name in there and there[name].shape == tensor.shape
                for tensors, there in ((checkpoint.model, room.model), (checkpoint.training, room.training))
                for name, tensor in tensors.items()
            )
        )
        return copied(checkpoint, room)

    monkeypatch.setattr(Checkpoint, "copied", watched)
    job = make_job(timeBudgetSeconds=2, checkpoint={"intervalSeconds": 0.3}, adaptation={"maxAdaptations": 1})
    done = run(job, store=tmp_path, advisor=Scripted((Action.deepen("block0"),)), up_at=0.4)
    assert done.result.phase is TrainerPhase.COMPLETED
    assert done.result.parameters_after > done.result.parameters_before
    assert len(fits) > 2
    assert all(fits)


def test_a_copy_uses_the_memory_that_was_prepared(make_checkpoint: Callable[..., Checkpoint]) -> None:
    first, second = make_checkpoint(1), make_checkpoint(2)
    room = first.room()
    assert not any(tensor is first.model[name] for name, tensor in room.model.items())
    again = second.room(room)
    copy = second.copied(again)
    for name, tensor in second.model.items():
        assert copy.model[name] is again.model[name] is room.model[name]
        assert torch.equal(copy.model[name], tensor)
    assert copy.state.step == 2
