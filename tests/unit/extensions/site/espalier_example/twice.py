"""A growth operation: two layers at one growth point."""

from __future__ import annotations

from typing import Literal

from espalier_core.growth.deepen import deepened
from espalier_core.growth.operation import GrowthOperation, Target
from espalier_core.types.advice import Action
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
