"""The arms of one case and seed: the base is trained once, and every arm continues from its copy."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from espalier_core.estimates.gains import SHARES
from espalier_core.growth.architecture import Architecture, GrowthError
from espalier_core.growth.block import ADD_BLOCK
from espalier_core.growth.deepen import DEEPEN
from espalier_core.growth.widen import WIDEN
from espalier_core.types.advice import Action, CurvePoint, offered
from espalier_core.types.job import Insertion, Trials
from espalier_core.types.outcomes import MARKS, ArmRecord, CaseRecord, InsertedRecord, MomentRecord
from espalier_lab.growth.judge.case import JudgeCase
from espalier_lab.growth.judge.case_run import CaseRun, SplitScore, TrialSlice
from espalier_lab.growth.judge.records import rounded

OPERATIONS: Final = (DEEPEN.name, ADD_BLOCK.name)
MOMENTS: Final = (0.2, 0.5)
MAX_GROWTHS: Final = 8
EARLIER: Final = (0.25, 0.5)
"""Shares of the time until a moment at which the loss is measured too, so that its fall is known."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The decisions and their moments."""

    moments: tuple[float, ...] = MOMENTS
    """Shares of the budget, ascending."""
    operations: tuple[str, ...] = OPERATIONS
    most: int = MAX_GROWTHS
    """Maximum number of growths tried on a model, and again as many that widen: the first, and evenly spaced others."""
    grown: bool = False
    """Whether the model grows at the first moment, so that only the others are decided."""
    speed: float = 1.0
    """Speed-up of all arms."""
    inserted: tuple[Insertion, ...] = ()
    """Inexact ways to insert whole blocks."""
    only: str | None = None
    """The one operation by which models grow; None: all."""

    def inexact(self, growths: Iterable[Action]) -> list[tuple[Action, Insertion]]:
        """Return the whole blocks among `growths`, each with each inexact way."""
        return [(one, kind) for one in growths if one.kind == ADD_BLOCK.name for kind in self.inserted]

    def facts(self) -> tuple[object, ...]:
        """Return the facts that records depend on; settings other than the defaults add theirs."""
        ways = (("grown", self.grown), ("speed", self.speed), ("inserted", self.inserted), ("only", self.only))
        plain = Setting()
        return (
            self.moments,
            self.operations,
            self.most,
            *(way for way in ways if way[1] != getattr(plain, way[0])),
        )

    def growths(self, architecture: Architecture | None) -> tuple[Action, ...]:
        """Return the possible growths of a model; none if it cannot be described."""
        found = () if architecture is None else offered(architecture)
        return tuple(action for action in found if self.only in (None, action.kind))


def chosen(actions: Sequence[Action], most: int) -> tuple[Action, ...]:
    """Return at most `most` growths that add layers, and as many that widen, in their order."""
    adding = [action for action in actions if action.kind != WIDEN.name]
    widening = [action for action in actions if action.kind == WIDEN.name]
    found = {*_spaced(adding, most), *_spaced(widening, most)}
    return tuple(action for action in actions if action in found)


def _spaced(actions: Sequence[Action], most: int) -> tuple[Action, ...]:
    """Return at most `most` of the growths: first, last, and between them evenly spaced."""
    if len(actions) <= most or most < 2:
        return tuple(actions[:most])
    places = sorted({round(place * (len(actions) - 1) / (most - 1)) for place in range(most)})
    return tuple(actions[place] for place in places)


def decided(case: JudgeCase, seed: int, setting: Setting) -> CaseRecord:
    """Train all arms of a case at all moments; raise `CaseError`.

    There are no moments if the model cannot grow before them as required, or has no whole blocks where it may add these
    only.
    """
    run = CaseRun.begin(case, seed, setting.operations)
    shares: tuple[float, ...] = setting.moments
    grown: tuple[Action, ...] = ()
    if setting.grown:
        share, *rest = setting.moments
        run.advance(share * run.budget)
        run, grown = _grown_before(run, setting)
        shares = tuple(rest) if grown else ()
    growths = chosen(setting.growths(run.network.architecture), setting.most)
    if setting.only and not growths:
        shares = ()
    moments: list[MomentRecord] = []
    curve: list[CurvePoint] = []
    left_out: dict[str, str] = {}
    earlier = {share * part for share in shares for part in EARLIER}
    for share in sorted(share for share in {*shares, *earlier} if share * run.budget >= run.used):
        run.advance(share * run.budget)
        now = run.score(case.validation)
        if math.isfinite(now.loss):
            curve.append(CurvePoint(share=rounded(share), validation_loss=rounded(now.loss)))
        if share in shares:
            moment, refused = _moment(run, share, now, growths, setting)
            moments.append(moment)
            left_out |= refused
    refusals = tuple(f"{action}: {why}" for action, why in left_out.items())
    return run.record(curve, moments, grown=grown, speed=setting.speed, left_out=refusals)


def _grown_before(run: CaseRun, setting: Setting) -> tuple[CaseRun, tuple[Action, ...]]:
    """Return the run after a growth, the same one for all seeds, with that growth; unchanged if none is possible."""
    architecture = run.network.architecture
    exact = chosen(offered(architecture) if architecture is not None else (), setting.most)
    growths = [*exact, *(one.model_copy(update={"insertion": kind}) for one, kind in setting.inexact(exact))]
    random.Random(run.case.name).shuffle(growths)
    for action in growths:
        try:
            return run.grown(action, action.insertion or Insertion.EXACT), (action,)
        except GrowthError:
            continue
    return run, ()


def _moment(
    run: CaseRun, share: float, now: SplitScore, growths: Sequence[Action], setting: Setting
) -> tuple[MomentRecord, dict[str, str]]:
    refused: dict[str, str] = {}

    def trained(action: Action, insertion: Insertion) -> ArmRecord | None:
        """Return an arm trained to its end; None if the growth is not possible."""
        try:
            return _trained(replace(run.grown(action, insertion), speed=setting.speed), action)
        except GrowthError as error:
            refused[str(action) if insertion is Insertion.EXACT else f"{action}, {insertion}"] = str(error)
            return None

    arms = [trained(action, Insertion.EXACT) for action in (Action.nothing(), *growths)]
    inserted = [(trained(action, kind), kind) for action, kind in setting.inexact(growths)]
    moment = MomentRecord(
        share=share,
        validation_accuracy=rounded(now.accuracy),
        validation_loss=_finite(now.loss),
        train_loss=_finite(run.recent),
        arms=tuple(arm for arm in arms if arm is not None),
        inserted=tuple(InsertedRecord(insertion=kind, arm=arm) for arm, kind in inserted if arm is not None),
    )
    return moment, refused


def _trained(arm: CaseRun, action: Action) -> ArmRecord:
    """Train an arm to its end."""
    validation = arm.case.validation
    confirmed = _after_slice(arm, Trials.CONFIRM)
    losses, begun = [], arm.used
    for mark in MARKS:
        arm.advance(begun + mark * (arm.budget - begun))
        losses.append(_finite(arm.score(validation).loss))
    test = arm.finish()
    return ArmRecord(
        action=action,
        accuracy=rounded(test.accuracy),
        validation_loss=_finite(arm.score(validation).loss),
        step_cost=rounded(arm.cost),
        slice_loss=confirmed,
        losses=tuple(losses),
    )


def _after_slice(arm: CaseRun, manner: Trials) -> float | None:
    """Return the validation loss at the end of an arm's trial."""
    copy = arm.copied()
    part = TrialSlice(copy.used, copy.used + SHARES[manner] * (copy.budget - copy.used))
    copy.advance(part.ends, within=part)
    return _finite(copy.score(copy.case.validation).loss)


def _finite(loss: float) -> float | None:
    return rounded(loss) if math.isfinite(loss) else None
