"""A growth operation of an installed package: in a job, offered, carried out, saved and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from espalier_api import growth
from espalier_api.advice import Action
from espalier_api.report import AdaptationResult, TrainerPhase
from espalier_trainer.advisor import Scripted
from espalier_trainer.net2net import history

SITE = Path(__file__).parents[1] / "extensions" / "site"


def _forget() -> None:
    for known in (growth.operation, growth.operation_names, history.step_of):
        known.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package of `docs/extending.md`."""
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


def test_a_job_that_names_an_operation_of_no_package_is_refused(make_job):
    with pytest.raises(ValueError, match="Input should be 'Deepen', 'Widen' or 'AddBlock'"):
        make_job(adaptation={"actions": ["Twice"]})
