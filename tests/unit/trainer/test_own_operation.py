"""A growth operation of an installed package: in a job, offered, carried out, saved and resumed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from espalier_core import growth
from espalier_core.files.documents import dumps
from espalier_core.types.advice import Action
from espalier_core.types.report import AdaptationResult, TrainerPhase
from espalier_lab.virtual_time import Scripted
from espalier_trainer.checkpoints.document import CheckpointState
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.elastic.delivery import Head, received
from espalier_trainer.errors import CheckpointMismatchError, ExportError
from espalier_trainer.exporting.loading import read_run
from espalier_trainer.net2net import history

SITE = Path(__file__).parents[1] / "extensions" / "site"


def _forget() -> None:
    for known in (growth.operation, growth.operation_names, history.step_of, history.package_of):
        known.cache_clear()


@pytest.fixture
def installed(monkeypatch):
    """Install the package of `docs/research.md`."""
    monkeypatch.syspath_prepend(str(SITE))
    _forget()
    yield
    monkeypatch.undo()
    _forget()


@pytest.mark.usefixtures("installed")
def test_an_operation_of_a_package_works_in_a_job(run, make_job, tmp_path, stop_after):
    twice = Action(kind="Twice", target="block1")
    job = make_job(timeBudgetSeconds=0.4, adaptation={"actions": ["Deepen", "Twice"], "maxAdaptations": 2})
    script = Scripted((twice, Action.deepen("block0")))
    first = run(job, advisor=script, up_at=0.1, store=tmp_path / "run", stop=stop_after(45))
    assert first.result.phase is TrainerPhase.STOPPED
    done = run(job, advisor=script, up_at=0.1, store=tmp_path / "run")
    assert [str(action) for action in script.asked[0].actions()] == [
        *(f"Deepen(block{i})" for i in range(3)),
        *(f"Twice(block{i})" for i in range(3)),
        "Nothing",
    ]
    assert [one.result for one in done.result.adaptations] == [AdaptationResult.GROWN] * 2
    assert [(one.action, one.depth_after - one.depth_before) for one in done.result.adaptations] == [
        ("Twice(block1)", 2),
        ("Deepen(block0)", 1),
    ]
    assert done.trainer.network.architecture.growth_history == {"block0": 1, "block1": 2}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("missing", r"'DeepenedTwice' is not a known kind of growth; known: Deepened, Widened, BlockAdded"),
        ("of another version", r"'DeepenedTwice' is of another version \(gap: Field required\)"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_a_checkpoint_waits_for_the_package_whose_operation_has_grown_its_model(
    run, make_job, tmp_path, stop_after, monkeypatch, how, said
):
    script = Scripted((Action(kind="Twice", target="block1"),))
    job = make_job(timeBudgetSeconds=0.4, adaptation={"actions": ["Deepen", "Twice"], "maxAdaptations": 1})
    run(job, advisor=script, up_at=0.1, store=tmp_path / "checkpoints", stop=stop_after(45))
    there = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    state = CheckpointStore(tmp_path / "checkpoints").load_latest()
    head, note = (bytearray(dumps(each).encode()) for each in (Head.of(state, hashed=False), state.state))
    with monkeypatch.context() as changed:
        if how == "missing":
            changed.setattr(sys, "path", [path for path in sys.path if path != str(SITE)])
        else:
            from espalier_example import twice

            changed.setattr(
                twice, "DeepenedTwice", type("Newer", (twice.DeepenedTwice,), {"__annotations__": {"gap": int}})
            )
        _forget()
        remedy = "install the package espalier-example 1.0 where the trainer runs"
        with pytest.raises(CheckpointMismatchError, match=rf"{said}.*{remedy}"):
            run(make_job(timeBudgetSeconds=0.4), store=tmp_path / "checkpoints")
        with pytest.raises(ExportError, match=remedy):
            read_run(tmp_path)
        for sent, kind in ((head, Head), (note, CheckpointState)):  # to a worker without the package
            with pytest.raises(
                CheckpointMismatchError, match=rf"^the training state of the leader: .*{said}.*{remedy}"
            ):
                received(bytes(sent), kind)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()} == there
    _forget()
    done = run(job, advisor=script, store=tmp_path / "checkpoints")
    assert done.trainer.network.architecture.growth_history == {"block1": 2}


def test_a_package_that_cannot_be_loaded_is_not_asked_about_growth_by_others(
    run, make_job, tmp_path, stop_after, monkeypatch
):
    job = make_job(timeBudgetSeconds=0.4, adaptation={"maxAdaptations": 1})
    script = Scripted((Action.deepen("block0"),))
    run(job, advisor=script, up_at=0.1, store=tmp_path / "checkpoints", stop=stop_after(45))
    info = tmp_path / "site" / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[espalier.growth]\nBroken = broken_nowhere:BROKEN\n")
    monkeypatch.syspath_prepend(str(info.parent))
    _forget()
    store = CheckpointStore(tmp_path / "checkpoints")
    assert len(store.load_latest().state.growth) == 1
    assert store.warnings == []
    monkeypatch.undo()
    _forget()


def test_a_job_that_names_an_operation_of_no_package_is_refused(make_job):
    *others, last = map(repr, growth.operation_names())
    with pytest.raises(ValueError, match=f"Input should be {', '.join(others)} or {last}"):
        make_job(adaptation={"actions": ["Twice"]})
