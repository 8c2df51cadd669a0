"""Checkpoints on disk, also those that are written in the background."""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier_core.types.advice import Action
from espalier_core.types.events import CheckpointSaved, Warned
from espalier_core.types.report import TrainerPhase
from espalier_lab.virtual_time import Scripted
from espalier_trainer.checkpoints import store as module
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.checkpoints.store import CheckpointStore, DamagedCheckpointError, read_checkpoint
from espalier_trainer.errors import SupersededError
from espalier_trainer.run.saving import CheckpointWriter


def test_what_is_read_is_what_was_saved(tmp_path, make_checkpoint):
    store = CheckpointStore(tmp_path / "made" / "here")
    saved = make_checkpoint(7)
    path = store.save(saved)
    read = store.load_latest()
    assert read.state == saved.state
    assert read.state.used_seconds == 1 / 3
    for name, tensor in saved.model.items():
        assert torch.equal(read.model[name], tensor)
    assert torch.equal(read.training["optimizer.w|step"], torch.tensor(3.0))
    assert path.name == "checkpoint-00000001"


def test_last_two_are_kept(tmp_path, make_checkpoint):
    store = CheckpointStore(tmp_path)
    for step in range(5):
        store.save(make_checkpoint(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-00000004", "checkpoint-00000005"]
    assert store.load_latest().state.step == 4


def test_nothing_there_is_no_checkpoint(tmp_path):
    assert CheckpointStore(tmp_path / "never").load_latest() is None


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["model.safetensors", "training.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", [_cut, _flip, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_every_kind_of_damage_is_found_and_the_one_before_is_used(tmp_path, file, damage, make_checkpoint):
    store = CheckpointStore(tmp_path)
    store.save(make_checkpoint(1))
    newest = store.save(make_checkpoint(2))
    if file == "manifest.json" and damage is _cut:
        (newest / file).write_text((newest / file).read_text().rstrip())  # its last byte is a line end
    damage(newest / file)
    with pytest.raises(DamagedCheckpointError):
        read_checkpoint(newest)
    assert store.load_latest().state.step == 1
    assert len(store.warnings) == 1
    assert str(newest) in store.warnings[0]
    # It is set aside, and does not count as one of the two that are kept.
    store.save(make_checkpoint(3))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-00000001",
        "checkpoint-00000002",
        "damaged-00000002",
    ]


def test_both_damaged_is_no_checkpoint_and_two_warnings(tmp_path, make_checkpoint):
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        _cut(store.save(make_checkpoint(step)) / "model.safetensors")
    assert store.load_latest() is None
    assert len(store.warnings) == 2
    assert [path.name for path in store.damaged()] == ["damaged-00000001", "damaged-00000002"]
    # Those of the next start that finds one take their place.
    _cut(store.save(make_checkpoint(3)) / "model.safetensors")
    assert store.load_latest() is None
    assert [path.name for path in tmp_path.iterdir()] == ["damaged-00000001"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.ENOMEM])
def test_a_checkpoint_that_cannot_be_read_now_is_kept_for_another_start(tmp_path, monkeypatch, make_checkpoint, number):
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        store.save(make_checkpoint(step))
    with monkeypatch.context() as patched:

        def fail(path):
            raise OSError(number, os.strerror(number), str(path))

        patched.setattr(Path, "read_bytes", fail)
        with pytest.raises(OSError, match=re.escape(os.strerror(number))):
            store.load_latest()
    assert store.load_latest().state.step == 2
    assert store.warnings == []


def test_a_disk_that_has_lost_a_file_is_a_damaged_checkpoint(tmp_path, monkeypatch, make_checkpoint):
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        newest = store.save(make_checkpoint(step))
    read = Path.read_bytes

    def fail(path):
        if path.parent == newest:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fail)
    assert store.load_latest().state.step == 1
    assert len(store.warnings) == 1


def test_state_of_a_future_version_is_not_guessed_at(tmp_path, make_checkpoint):
    store = CheckpointStore(tmp_path)
    path = store.save(make_checkpoint(1))
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2'))
    assert store.load_latest() is None
    assert "newer Espalier" in store.warnings[0]


@pytest.mark.parametrize("failing", ["model.safetensors", "training.safetensors", "state.json", "manifest.json"])
def test_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, failing, make_checkpoint):
    store = CheckpointStore(tmp_path)
    store.save(make_checkpoint(1))
    real = module._write

    def full(path, content):
        if path.name == failing:
            path.write_bytes(b"begun")
            raise OSError(28, "No space left on device")
        return real(path, content)

    monkeypatch.setattr(module, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        store.save(make_checkpoint(2))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001"]
    assert store.load_latest().state.step == 1


def test_leftovers_of_a_killed_writer_are_removed(tmp_path, make_checkpoint):
    leftover = tmp_path / "writing-00000001-999"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    store = CheckpointStore(tmp_path)
    assert store.load_latest() is None
    store.save(make_checkpoint(1))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000001"]


def test_an_error_of_the_file_system_keeps_its_number_where_tensors_are_written(tmp_path):
    """By it a full disk is told from what cannot be written at all."""
    (tmp_path / "there").mkdir()
    with pytest.raises(OSError, match="there") as found:
        module._write(tmp_path / "there", {"w": torch.zeros(3)})
    assert found.value.errno == errno.EISDIR


def test_a_copy_reuses_the_room_of_an_earlier_one_where_it_fits(make_checkpoint):
    first, changed = make_checkpoint(1), make_checkpoint(2)
    room = first.copied()
    kept = room.model["w"].data_ptr()
    changed.model["w"] += 1
    changed.model["row"] = torch.zeros(5)
    again = changed.copied(room)
    assert again.model["w"].data_ptr() == kept
    assert again.state == changed.state
    for name, tensor in changed.model.items():
        assert torch.equal(again.model[name], tensor)
        assert again.model[name].untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


def of(done: Any, kind: type) -> list[Any]:
    return [event for event in done.reporter.events if isinstance(event, kind)]


def test_training_goes_on_while_a_checkpoint_is_written(run, make_job, tmp_path, monkeypatch):
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


def test_a_checkpoint_that_fails_in_the_background_is_a_warning_of_its_step(run, make_job, tmp_path, monkeypatch):
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
def test_other_errors_of_the_background_end_the_run(run, make_job, tmp_path, monkeypatch, error):
    def broken(store: CheckpointStore, checkpoint: Checkpoint) -> Path:
        raise error

    monkeypatch.setattr(CheckpointStore, "save", broken)
    with pytest.raises(type(error), match=str(error)):
        run(make_job(timeBudgetSeconds=60, checkpoint={"intervalSeconds": 0.05}), store=tmp_path)


@given(st.lists(st.sampled_from(["start", "take", "wait"]), max_size=12))
def test_one_is_in_flight_at_most_and_each_is_taken_once(make_checkpoint, acts):
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


def test_memory_for_the_first_copy_is_made_before_and_with_every_tensor(run, make_job, tmp_path, monkeypatch):
    """Also for the copy after a growth."""
    copied, fits = Checkpoint.copied, []

    def watched(checkpoint: Checkpoint, room: Checkpoint | None = None) -> Checkpoint:
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


def test_a_copy_uses_the_memory_that_was_prepared(make_checkpoint):
    first, second = make_checkpoint(1), make_checkpoint(2)
    room = first.room()
    assert not any(tensor is first.model[name] for name, tensor in room.model.items())
    again = second.room(room)
    copy = second.copied(again)
    for name, tensor in second.model.items():
        assert copy.model[name] is again.model[name] is room.model[name]
        assert torch.equal(copy.model[name], tensor)
    assert copy.state.step == 2
