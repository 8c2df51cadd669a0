"""The interface of a run and its loop: properties of the loop, the next step, recovery from a failed one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from espalier_core.causes import in_one_line
from espalier_core.types.job import Optimise
from espalier_trainer.elastic.step import StepPlan
from espalier_trainer.errors import LossNotFiniteError
from espalier_trainer.growth.consultation import undone
from espalier_trainer.net2net.modules import ExampleInput
from espalier_trainer.optimizers.schedules import Moment
from espalier_trainer.run.attempts import NOT_OURS
from espalier_trainer.run.batching import Batching, FixedBatching, Resized
from espalier_trainer.run.growing import Study
from espalier_trainer.training.hooks import Hooks
from espalier_trainer.training.network import Network

if TYPE_CHECKING:
    from espalier_trainer.run.optimising import Optimiser
    from espalier_trainer.run.run import Run

_ENDLESS: Final = 1 << 60
"""Number of batches of an epoch that does not end."""


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """Properties of a loop."""

    example: ExampleInput | None = None
    """Inputs [2, ...] of the network; None if it does not grow."""
    cannot_grow: str = ""
    """Reason why the network cannot grow ('' if it can), and the consequence."""
    cannot_try: str = ""
    """Reason why other workers cannot try growths as `adaptation.trials` says ('' if they can), and the remedy."""
    loss: Callable[[nn.Module], float | None] = lambda _module: None
    """Returns the loss of a module on one batch, by which inexact growth is judged; None where it is unknown."""
    base_loss: Callable[[], float | None] | None = None
    """Measures the validation loss of the network for trials; None if the metrics have it after each epoch."""
    hooks: Hooks = field(default_factory=Hooks)
    batching: Batching = field(default_factory=FixedBatching)
    announces: bool = False
    """Whether other workers need no command for each step, as all steps of an epoch are the same."""
    optimiser: Optimiser | None = None
    """Search for a faster computation of steps; None if the job requests none, or the script computes them."""
    study: Study = field(default_factory=Study)


def next_step(run: Run, batches: int, rate: Callable[[], float], moment: Moment) -> StepPlan:
    """Return the next step of an epoch of `batches` batches, after which other workers may go on by themselves.

    `rate` and `moment` are described at `Run.steps`. Raises `GroupBrokenError`.
    """
    team, progress, place = run.team, run.progress, run.place
    if run.hooks.may_grow:  # a trial compares steps of one size
        _choose_batch_size(run)
    portion = run.batching.portion(place.workers, progress.cursor, batches)
    scaled = rate() * portion.rate
    if team is None or team.world == 1:
        measured = run.meter.begin()
        return StepPlan(None, scaled, run.batching.measurable(portion) if measured else portion, measured)
    team.share_news(run.saver.capture)
    measured = run.meter.begin(may=not team.announced)
    after, then = progress.cursor + portion.batches, None
    if run.loop.announces and after < batches and not (run.meter.soon or run.state.network.unfolds):
        then = run.batching.portion(place.workers, after, batches)
    group = team.begin_step(
        progress.epoch, progress.cursor, portion=portion, measured=measured, moment=moment, then=then
    )
    return StepPlan(group, scaled, portion, measured, team.announces)


def _choose_batch_size(run: Run) -> None:
    if run.batching.batch_size is None:
        return
    begins, parameters = run.progress.cursor == 0, run.state.network.parameters
    if changed := run.batching.choose(run.meter.measured, run.place, parameters, epoch_begins=begins):
        _resize(run, changed)
        if changed.untested:
            run.saver.save()  # a restart after a lack of memory then knows the size


def _resize(run: Run, changed: Resized, message: str = "") -> None:
    """Continue with another batch size, announce it to all members, and report it."""
    workers = run.place.workers
    run.journal.batch_changed(changed, workers, run.batching.portion(workers, 0, _ENDLESS).rate, message)
    run.share_state()


def warn_of_rewrites(run: Run) -> None:
    """Warn where the job requests rewritten steps that it will not get."""
    refused = NOT_OURS if run.optimiser is None else run.optimiser.refused
    if refused and run.job.spec.adaptation.optimise is not Optimise.OFF:
        run.journal.warn("RewritesNotPossible", refused)


def optimise(run: Run) -> None:
    """Search for a faster computation of steps if due, once a step has shown that the network fits."""
    if run.optimiser is None or run.grown_from is not None or not run.hooks.may_grow:
        return  # where it may not grow, a smaller network is on trial

    def until() -> bool:
        run.journal.report()
        return run.cannot_go_on()

    network, made = run.state.network, run.progress.adaptations
    run.change(run.optimiser.look(network, made, run.allocation, run.place.workers, until))


def computed(run: Run) -> Network:
    """Return the network that computes the next step: the run's, or the same with an execution on probation."""
    network = run.state.network
    return network if run.optimiser is None else run.optimiser.computed(network)


def usable(run: Run, loss: float) -> bool:
    """Return whether a step with this loss counts; raises `LossNotFiniteError` where training cannot continue."""
    if math.isfinite(loss):
        return True
    if _reverted(run, f"the loss is {loss}"):
        return False
    change = run.hooks.failed(f"the smaller model's loss is {loss}")
    if change is None:
        raise LossNotFiniteError(
            f"the loss of step {run.progress.step + 1} (epoch {run.progress.epoch}) is {loss}",
            run.state.network.optimizer.param_groups[0]["lr"],
        )
    run.change(change)
    return False


def recover(run: Run, error: torch.OutOfMemoryError) -> None:
    """Continue with a network that fits into the memory of the device; raises `error` if there is none."""
    message = f"out of memory: {in_one_line(str(error))}"
    if _reverted(run, message):
        return
    if smaller := run.batching.out_of_memory(run.place.workers):
        _resize(run, smaller, message)
    elif run.grown_from is not None:
        before, run.grown_from = run.grown_from, None
        run.use(before)
        run.hooks.growth_undone()
        undo = undone(run.progress.adaptations[-1], before, message)
        run.progress.adaptations[-1] = undo
        run.journal.adapted(undo, None)
    elif change := run.hooks.failed(message):
        run.change(change)
    else:
        raise error


def _reverted(run: Run, problem: str) -> bool:
    """Return to computing steps by the module, if they were computed in another way; return whether they were."""
    if run.optimiser is None:
        return False
    change = run.optimiser.reverted(run.state.network, run.allocation, problem)
    run.change(change)
    return change is not None
