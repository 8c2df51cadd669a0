"""Two leaders of one job: only the later one writes checkpoints, whatever the order of what they do."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

from espalier_core.types.environment import LEADER_FILE
from espalier_core.types.report import TrainerPhase
from espalier_trainer.checkpoints import store as module
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.errors import SupersededError
from espalier_trainer.own import join
from espalier_trainer.process.fencing import Fence, LeaderClaim
from own_loops import DATA, change_job, recorded, trained
from own_scripts import another_process
from trainer_processes import ended, of, until


def store_of(folder: Path, attempt: int, job: str = "uid", pod: str = "") -> CheckpointStore:
    """Return the store of a leader that has not claimed the folder yet."""
    claim = LeaderClaim(job_uid=job, attempt=attempt, incarnation=pod or f"pod-{attempt}")
    return CheckpointStore(folder, Fence(folder, claim))


def begun(folder: Path, attempt: int, job: str = "uid", pod: str = "") -> CheckpointStore:
    store = store_of(folder, attempt, job, pod)
    store.fence.take_over()
    return store


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_leader_that_was_replaced_writes_nothing_more(tmp_path, make_checkpoint):
    old = begun(tmp_path, 3)
    old.save(make_checkpoint(1))
    new = begun(tmp_path, 4)
    with pytest.raises(
        SupersededError, match=r"attempt 4 \(incarnation pod-4\) has taken over from attempt 3; .* ends"
    ):
        old.save(make_checkpoint(2))
    new.save(make_checkpoint(3))
    assert names(tmp_path) == ["checkpoint-00000001", "checkpoint-00000002", LEADER_FILE]
    assert new.load_latest().state.step == 3


def test_a_successor_that_starts_during_a_save_stops_it_before_the_rename(tmp_path, make_checkpoint, monkeypatch):
    old = begun(tmp_path, 0)
    old.save(make_checkpoint(1))
    real = module._write

    def write(path: Path, content: bytes) -> Any:
        if path.name == module.MANIFEST:
            begun(tmp_path, 1)
        return real(path, content)

    monkeypatch.setattr(module, "_write", write)
    with pytest.raises(SupersededError):
        old.save(make_checkpoint(2))
    assert names(tmp_path) == ["checkpoint-00000001", LEADER_FILE]


def test_a_successor_that_removes_what_is_being_written_is_no_full_disk(tmp_path, make_checkpoint, monkeypatch):
    """It clears leftovers as it loads; the old leader would otherwise warn, and train on."""
    old = begun(tmp_path, 0)
    real = module._write

    def write(path: Path, content: bytes) -> Any:
        if path.name == module.STATE:
            begun(tmp_path, 1).load_latest()
        return real(path, content)

    monkeypatch.setattr(module, "_write", write)
    with pytest.raises(SupersededError):
        old.save(make_checkpoint(1))


def test_an_earlier_attempt_that_starts_late_does_not_begin(tmp_path):
    begun(tmp_path, 4)
    with pytest.raises(SupersededError, match="attempt 4"):
        begun(tmp_path, 3)
    assert json.loads((tmp_path / LEADER_FILE).read_text())["attempt"] == 4


@pytest.mark.parametrize(
    ("first", "second"),
    [(("one", 7), ("two", 0)), (("", 0), ("", 0)), (("uid", 2), ("uid", 2))],
    ids=["a job created again", "no attempts known", "a container started twice"],
)
def test_what_cannot_be_compared_goes_by_who_started_last(tmp_path, make_checkpoint, first, second):
    old = begun(tmp_path, first[1], first[0], "a")
    new = begun(tmp_path, second[1], second[0], "b")
    with pytest.raises(SupersededError):
        old.save(make_checkpoint(1))
    new.save(make_checkpoint(2))


@pytest.mark.parametrize("damage", ["", "{", '{"version": 1, "kind": "Other"}'])
def test_a_damaged_claim_stops_who_writes_and_not_who_starts(tmp_path, make_checkpoint, damage):
    old = begun(tmp_path, 1)
    (tmp_path / LEADER_FILE).write_text(damage)
    with pytest.raises(SupersededError, match="cannot be read"):
        old.save(make_checkpoint(1))
    begun(tmp_path, 2).save(make_checkpoint(2))


def test_a_claim_that_was_removed_is_made_again(tmp_path, make_checkpoint):
    store = begun(tmp_path, 1)
    (tmp_path / LEADER_FILE).unlink()
    store.save(make_checkpoint(1))
    assert names(tmp_path) == ["checkpoint-00000001", LEADER_FILE]


def test_a_claim_that_could_not_be_written_is_made_up_for(tmp_path, make_checkpoint):
    """The disk was full as the leader started, and its predecessor's claim still lies there."""
    begun(tmp_path, 0, "", "old")
    store = store_of(tmp_path, 0, "", "new")
    store.save(make_checkpoint(1))
    assert json.loads((tmp_path / LEADER_FILE).read_text())["incarnation"] == "new"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["read", "claim", "save"])), max_size=24))
def test_the_latest_attempt_that_has_started_wins_however_claims_race(steps):
    """A claim reads and then writes, and others may do the same in between."""
    with tempfile.TemporaryDirectory() as folder:
        fences = [
            Fence(Path(folder), LeaderClaim(job_uid="uid", attempt=each, incarnation=str(each))) for each in range(4)
        ]
        read: dict[int, LeaderClaim | None] = {}
        running: set[int] = set()
        begun: set[int] = set()
        for each, step in steps:
            fence = fences[each]
            try:
                if step == "read" and each not in begun:
                    read[each] = fence._found()
                elif step == "claim" and each in read and each not in begun:
                    begun.add(each)
                    with pytest.MonkeyPatch.context() as patch:
                        patch.setattr(fence, "_found", lambda found=read[each]: found)
                        fence.take_over()
                    running.add(each)
                elif step == "save" and each in running:
                    fence.require()
            except SupersededError:
                running.discard(each)
                assert any(other > each for other in begun), "only a later attempt ends one"
        assert not begun or max(begun) in running, "the latest is never ended"
        for each in sorted(running, reverse=True):  # all save once more, the latest first
            if each == max(running):
                fences[each].require()
            else:
                with pytest.raises(SupersededError):
                    fences[each].require()


@pytest.mark.slow
def test_ready_trainer_ends_with_exit_code_4_where_a_later_leader_has_started(workplace, make_job):
    job = make_job(timeBudgetSeconds=600, checkpoint={"intervalSeconds": 0.1})
    place = workplace(job)
    place.allocate(1)
    place.prelude = "os.environ |= {'ESPALIER_JOB_UID': 'uid', 'ESPALIER_ATTEMPT': '0'}"
    old = place.start()
    until(lambda: len(of(place, "TrainerStarted")) == 1 and list(place.checkpoints.glob("checkpoint-*")), place)
    place.prelude = place.prelude.replace("'0'", "'1'")
    new = place.start()
    assert ended(old, place) == 4, place.log
    assert "attempt 1" in place.log
    assert "this leader was given up, writes nothing more, and ends" in place.log
    assert "Traceback" not in place.log
    place.prelude = place.prelude.replace("'1'", "'0'")
    late = place.start()
    assert ended(late, place) == 4, place.log
    until(lambda: len(of(place, "TrainerStarted")) == 2, place)
    os.kill(new.pid, signal.SIGTERM)
    assert ended(new, place) == 143, place.log
    assert [end.phase for end in of(place, "TrainerFinished")] == [TrainerPhase.STOPPED], (
        "the old leader says nothing about its end"
    )


def test_own_loop_ends_with_exit_code_4_where_a_later_leader_has_started(leader, tmp_path, monkeypatch):
    change_job(tmp_path, checkpoint={"intervalSeconds": 0.000001})
    folder = tmp_path / "checkpoints"
    monkeypatch.setenv("ESPALIER_ATTEMPT", "2")
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop, batches = join(model, optimizer, DataLoader(DATA, batch_size=4))
    saved: list[list[str]] = []

    def kept() -> list[str]:
        return [name for name in names(folder) if name.startswith("checkpoint-")]

    def superseded() -> None:
        if not saved and any(folder.glob("checkpoint-*")):
            begun(folder, 3, "")
            saved.append(kept())

    with pytest.raises(SystemExit) as end:
        trained(loop, batches, model, optimizer, 1000, after=superseded)
    assert end.value.code == 4
    at_exit[0]()
    assert saved == [kept()]
    assert recorded(tmp_path, "TrainerFinished") == []
    assert isinstance(CheckpointStore(folder).load_latest(), Checkpoint)
    another_process()
    with pytest.raises(SystemExit) as end:
        join(model, optimizer, DataLoader(DATA, batch_size=4))
    assert end.value.code == 4
