"""A run that is stopped and resumed ends in the same weights, bit for bit, as one that was not."""

from __future__ import annotations

import json
import shutil

import pytest

from espalier_core.types.advice import Action
from espalier_core.types.events import TrainerStarted, Warned
from espalier_core.types.report import AdaptationResult, TrainerPhase
from espalier_lab.virtual_time import Scripted
from espalier_trainer.errors import CheckpointMismatchError

pytestmark = pytest.mark.slow

SCRIPT = (Action.widen("block0.0"), Action.deepen("block0"), Action.widen("block0.0", 15))


def _spec(**training):
    return {
        "timeBudgetSeconds": 0.4,
        "adaptation": {"actions": ["Deepen", "Widen"]},
        "training": {"evaluateEveryEpochs": 10**6, **training},
    }


@pytest.fixture(scope="module")
def whole(run, make_job):
    """Return a run that was not stopped."""
    done = run(make_job(**_spec()), advisor=Scripted(SCRIPT), up_at=0.1)
    assert [one.result for one in done.result.adaptations] == [AdaptationResult.GROWN] * 3
    return done


# Boundaries passed before the stop: in the first epoch, at an epoch's end, at the growths (0.1 s is in the second
# epoch), between two of them, in the middle of a later epoch.
@pytest.mark.sweep("stops of a run")
@pytest.mark.parametrize("cut", [5, 17, 36, 53, 80])
def test_resumed_run_equals_uninterrupted_run(run, make_job, tmp_path, cut, stop_after, whole):
    job = make_job(**_spec())
    first = run(job, advisor=Scripted(SCRIPT), up_at=0.1, store=tmp_path, stop=stop_after(cut))
    assert first.result.phase is TrainerPhase.STOPPED
    assert first.result.steps < whole.result.steps
    second = run(job, advisor=Scripted(SCRIPT), up_at=0.1, store=tmp_path)
    assert second.result.steps == whole.result.steps
    assert second.result.used_seconds == whole.result.used_seconds
    assert second.result.test_loss == whole.result.test_loss
    assert second.trainer.network.architecture == whole.trainer.network.architecture
    assert second.trainer.network.history == whole.trainer.network.history
    second.assert_same_weights(whole)
    started = second.reporter.events[0]
    assert isinstance(started, TrainerStarted)
    assert started.resumed
    assert [a.decision_id for a in second.result.adaptations] == ["scripted-0", "scripted-1", "scripted-2"]


@pytest.mark.sweep("optimizers and schedules that resume")
@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": {"name": "AdamW", "weightDecay": 0.01}},
        {"optimizer": {"name": "SGD", "momentum": 0.9}},
        {"optimizer": {"name": "RMSprop", "momentum": 0.5, "learningRate": 0.001}},
        {"schedule": {"name": "Exponential", "decay": 0.5}},
        {"schedule": {"name": "Constant"}},
        {"schedule": {"name": "torch:CosineAnnealingLR", "options": {"T_max": 5}}},
        {"schedule": {"name": "torch:ReduceLROnPlateau", "options": {"patience": 0}}, "evaluateEveryEpochs": 1},
    ],
    ids=lambda training: "-".join(str(part["name"]) for part in training.values() if isinstance(part, dict)),
)
def test_every_optimizer_and_schedule_resumes_exactly(run, make_job, tmp_path, training, stop_after):
    job = make_job(**_spec(**training))
    whole = run(job, advisor=Scripted(SCRIPT), up_at=0.05)
    run(job, advisor=Scripted(SCRIPT), up_at=0.05, store=tmp_path, stop=stop_after(60))
    second = run(job, advisor=Scripted(SCRIPT), up_at=0.05, store=tmp_path)
    second.assert_same_weights(whole)


def test_models_that_draw_chance_resume_exactly(run, make_job, tmp_path, users_module, stop_after):
    layers = "nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10)"
    users_module("dropout_net", f"from torch import nn\ndef net(): return nn.Sequential({layers})\n")
    job = make_job(**_spec(model={"entrypoint": "dropout_net:net"}))
    whole = run(job)
    run(job, store=tmp_path / "store", stop=stop_after(60))
    run(job, store=tmp_path / "store").assert_same_weights(whole)


def test_finished_run_started_again_only_evaluates(run, make_job, tmp_path):
    first = run(make_job(), store=tmp_path)
    again = run(make_job(), store=tmp_path)
    assert again.result.phase is TrainerPhase.COMPLETED
    assert again.result.steps == first.result.steps
    assert again.result.test_accuracy == first.result.test_accuracy


def test_damaged_newest_checkpoint_is_passed_over_with_a_warning(run, make_job, tmp_path, stop_after):
    job = make_job(**_spec(), checkpoint={"intervalSeconds": 0.05})
    run(job, store=tmp_path, stop=stop_after(90))
    newest = max(tmp_path.glob("checkpoint-*"))
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (newest / "model.safetensors").write_bytes(content)
    whole = run(make_job(**_spec()))
    second = run(job, store=tmp_path)
    (warned,) = [event for event in second.reporter.events if isinstance(event, Warned)]
    assert warned.reason == "CheckpointDamaged"
    assert newest.name in warned.message
    started = second.reporter.events[0]
    assert started.step < 90
    assert started.step > 0
    second.assert_same_weights(whole)


def test_where_all_checkpoints_are_damaged_no_start_uses_the_rest_of_the_budget(run, make_job, tmp_path, stop_after):
    job = make_job(**_spec(), checkpoint={"intervalSeconds": 0.05})
    run(job, store=tmp_path, stop=stop_after(90))
    for checkpoint in tmp_path.glob("checkpoint-*"):
        (checkpoint / "model.safetensors").write_bytes(b"")
    for _ in range(2):  # what was set aside tells the next start
        with pytest.raises(CheckpointMismatchError, match=r"no usable checkpoint is left \(damaged-\d+, damaged-\d+\)"):
            run(job, store=tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"training": {"seed": 1}}, "seed: 0 there, 1 here"),
        ({"training": {"batchSize": 32}}, "batch_size: 64 there, 32 here"),
        ({"training": {"model": {"name": "digits", "options": {"classes": 12}}}}, "model: "),
        ({"training": {"optimizer": {"name": "SGD"}}}, "optimizer: 'Adam' there, 'SGD' here"),
        ({"training": {"schedule": {"name": "Exponential"}}}, "training.schedule"),
    ],
)
def test_checkpoint_of_another_run_is_refused_by_name(run, make_job, tmp_path, change, said, stop_after):
    run(make_job(), store=tmp_path, stop=stop_after(20))
    with pytest.raises(CheckpointMismatchError, match=r".*remove") as refused:
        run(make_job(**change), store=tmp_path)
    assert said in str(refused.value)


def test_checkpoint_of_another_job_is_refused(run, make_job, tmp_path, stop_after):
    run(make_job(), store=tmp_path, stop=stop_after(20))
    other = make_job()
    other = other.model_copy(update={"metadata": other.metadata.model_copy(update={"name": "other"})})
    with pytest.raises(CheckpointMismatchError, match="job: 'default/t' there, 'default/other' here"):
        run(other, store=tmp_path)


def test_checkpoint_whose_model_code_changed_is_refused(run, make_job, tmp_path, monkeypatch, stop_after):
    run(make_job(), store=tmp_path, stop=stop_after(20))
    from espalier_trainer.models import zoo as models

    monkeypatch.setitem(models._ZOO, "digits", lambda classes: models.SmallNet(1, 7, 8, classes))
    with pytest.raises(CheckpointMismatchError, match="does not fit the job's model"):
        run(make_job(), store=tmp_path)


def test_checkpoint_holds_no_pickle(run, make_job, tmp_path, stop_after):
    run(make_job(), store=tmp_path, stop=stop_after(20))
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "model.safetensors",
        "state.json",
        "training.safetensors",
    ]
    for name in ("manifest.json", "state.json"):
        assert json.loads((folder / name).read_text())["version"] == 1
    shutil.rmtree(folder)
