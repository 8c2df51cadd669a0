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

OPERATION = '''
from typing import Literal

from espalier_api.advice import Action
from espalier_api.growth.deepen import deepened
from espalier_api.growth.operation import GrowthOperation, Target
from espalier_trainer.net2net.deepening.deepen import deepen
from espalier_trainer.net2net.history import GrowthStep
from espalier_trainer.net2net.optimizer import grow_optimizer


class Twice(GrowthOperation):
    """Two layers more at a growth point."""

    name, verb, participle = "Twice", "deepen twice", "deepened twice"
    target_is, targets_are, summary = "growth point", "growth points", "Two layers more."

    def targets(self, architecture):
        return architecture.targets["Twice"]

    def grown(self, architecture, target, width=None):
        return deepened(deepened(architecture, target), target)

    def seen(self, architecture):
        return tuple(Target((architecture.growth_point(one).after,), ()) for one in self.targets(architecture))


class DeepenedTwice(GrowthStep):
    kind: Literal["DeepenedTwice"] = "DeepenedTwice"
    point: str

    @classmethod
    def described(cls, traced, architecture, before):
        points = tuple(point.id for point in architecture.growth_points)
        return architecture.model_copy(update={"targets": {**(architecture.targets or {}), "Twice": points}})

    @classmethod
    def planned(cls, action, architecture, insertion, seed):
        return cls(point=action.target)

    @property
    def action(self):
        return Action(kind="Twice", target=self.point)

    def again(self, model, example_input):
        return deepen(deepen(model, self.point, example_input), self.point, example_input)

    def grown(self, model, optimizer, example_input):
        deeper = self.again(model, example_input)
        return deeper, grow_optimizer(optimizer, model, deeper)


TWICE = Twice()
'''


def _forget() -> None:
    for known in (growth.operation, growth.operation_names, history.step_of):
        known.cache_clear()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with an operation of its own."""
    info = tmp_path / "packages" / "twice-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twice\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[espalier.growth]\nTwice = growing_twice:TWICE\n"
        "[espalier.growth.steps]\nTwice = growing_twice:DeepenedTwice\n",
        encoding="utf-8",
    )
    (info.parent / "growing_twice.py").write_text(OPERATION, encoding="utf-8")
    monkeypatch.syspath_prepend(str(info.parent))
    _forget()
    yield
    monkeypatch.undo()
    _forget()


@pytest.mark.usefixtures("installed")
def test_an_operation_of_a_package_works_in_a_job(run, make_job, tmp_path, stop_after):
    twice = Action(kind="Twice", target="block1")
    job = make_job(timeBudgetSeconds=0.4, adaptation={"actions": ["Deepen", "Twice"], "maxAdaptations": 2})
    script = Scripted((twice, Action.deepen("block0")))
    first = run(job, advisor=script, up_at=0.1, store=tmp_path / "run", stop=stop_after(80))
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
    with pytest.raises(ValueError, match="Input should be 'Deepen' or 'Widen'"):
        make_job(adaptation={"actions": ["Twice"]})
