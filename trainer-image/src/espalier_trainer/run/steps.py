"""The next step of a run: its batches, its workers, and what is measured in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from espalier_trainer.elastic.batches import ONE, Portion
from espalier_trainer.elastic.group import Group
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.run.live import LiveRun
from espalier_trainer.run.meter import Place


@dataclass(frozen=True, slots=True)
class Due:
    """A step to take."""

    group: Group | None
    """All members of it; None: this worker is alone."""
    rate: float
    """The learning rate."""
    portion: Portion = ONE
    """Of the epoch, in this step."""
    measured: bool = False
    """Measure times and norms of gradients in it."""
    follows: bool = False
    """Tell the other members in it that another one follows."""


def next_step(run: LiveRun, batches: int, rate: Callable[[], float], moment: Moment, *, foretells: bool) -> Due:
    """Return the next step of an epoch of `batches` batches, after which other workers may go on by themselves.

    `rate`, `moment` and `foretells` are as `Run` takes them. Raises `GroupBrokenError`.
    """
    team, progress, place = run.team, run.progress, run.place
    if run.hooks.may_grow:  # a trial compares steps of one size
        _choose_batch_size(run, place)
    portion = run.batching.portion(place.workers, progress.cursor, batches)
    scaled = rate() * portion.rate
    if team is None or team.world == 1:
        measured = run.meter.begin()
        return Due(None, scaled, run.batching.measurable(portion) if measured else portion, measured)
    team.share_news(run.capture)
    measured = run.meter.begin(may=not team.foretold)
    after, then = progress.cursor + portion.batches, None
    if foretells and after < batches and not (run.meter.soon or run.state.network.unfolds):
        then = run.batching.portion(place.workers, after, batches)
    group = team.begin_step(
        progress.epoch, progress.cursor, portion=portion, measured=measured, moment=moment, then=then
    )
    return Due(group, scaled, portion, measured, team.foretells)


def _choose_batch_size(run: LiveRun, place: Place) -> None:
    if run.batching.batch_size is None:
        return
    begins, parameters = run.progress.cursor == 0, run.state.network.parameters
    if changed := run.batching.choose(run.meter.measured, place, parameters, epoch_begins=begins):
        run.resized(changed)
        if changed.untested:
            run.save()  # if there is no memory for it, whoever starts again knows
