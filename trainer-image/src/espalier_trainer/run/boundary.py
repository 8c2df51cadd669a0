"""A step boundary: where a run sees its allocation, its deadline and demands to stop, saves and reports."""

from __future__ import annotations

from espalier_core.types.reasons import Reason
from espalier_core.types.report import TrainerPhase
from espalier_trainer.errors import SupersededError
from espalier_trainer.run.live import LiveRun
from espalier_trainer.training.hooks import Boundary
from espalier_trainer.training.progress import Ending


def looked(run: LiveRun) -> Ending | None:
    """Read the allocation, the deadline and demands; save and report when it is time. Returns an end that is due.

    Raises `SupersededError` if a later leader has taken over.
    """
    if by := run.services.superseded():
        raise SupersededError(by)
    scheduler = run.scheduler
    run.allocation = scheduler.allocation()
    run.update_members()
    if run.journal.acknowledge(run.allocation.generation):
        run.services.spans.acknowledged(run.allocation)
    if scheduler.time_left() <= 0:
        return _out_of_budget(run, Reason.BUDGET_EXHAUSTED)
    # Before demands to stop: no step follows a comparison that such a demand interrupts.
    run.change(
        run.hooks.at_boundary(
            Boundary(
                run.state.network,
                lambda: run.capture().state,
                run.allocation,
                run.progress.epoch,
                scheduler.time_left(),
                run.evaluation_seconds,
                run.cannot_go_on,
            )
        )
    )
    if reason := scheduler.stop_reason():
        if reason is Reason.GPU_BUDGET_EXHAUSTED:
            return _out_of_budget(run, reason)
        return Ending(TrainerPhase.STOPPED, reason, "the scheduler asked it to stop")
    if run.services.stop():
        return Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, "it was asked to stop")
    for warning in scheduler.take_warnings():
        run.journal.warn("AllocationUnreadable", warning)
    run.saver.look(run.journal, scheduler.used_seconds)
    if run.saver.is_due(scheduler.used_seconds()) and run.grown_from is None:
        run.save(wait=False)
        if scheduler.time_left() <= 0:  # a large model takes a while to copy
            return _out_of_budget(run, Reason.BUDGET_EXHAUSTED)
    elif run.progress.step > run.first_step:  # the optimizer has its state then
        run.saver.prepare(run.capture_all, scheduler.used_seconds())
    run.journal.report()
    return None


def _out_of_budget(run: LiveRun, reason: Reason) -> Ending:
    if run.progress.step == 0:  # earlier leaders, which failed, have used the budget
        return Ending(TrainerPhase.FAILED, Reason.NOTHING_TRAINED, "its budget was used up before it took a step")
    return Ending(TrainerPhase.COMPLETED, reason)
