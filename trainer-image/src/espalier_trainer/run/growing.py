"""Growth in a run: consultations, trials of the answer on extra workers, and the network to continue with."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from espalier_core.base import number_of
from espalier_core.types.advice import Action, offered
from espalier_core.types.events import NOT_GROWABLE
from espalier_core.types.job import AdaptationMode, Insertion, Trials
from espalier_core.types.reasons import Reason
from espalier_core.types.report import AdaptationResult, Arm, TrainerPhase
from espalier_core.types.task import Score
from espalier_trainer.checkpoints.document import Checkpoint, CheckpointIdentity
from espalier_trainer.elastic.group import GroupBrokenError
from espalier_trainer.elastic.team import Team
from espalier_trainer.growth.advisor import AdvisorBackoff
from espalier_trainer.growth.consultation import Adapter, Advised, Consultation
from espalier_trainer.growth.forecasting import Forecasting, report_outcome
from espalier_trainer.run.bidding import Bidding
from espalier_trainer.training.network import Network
from espalier_trainer.training.progress import Ending

if TYPE_CHECKING:
    from espalier_trainer.run.run import Run
    from espalier_trainer.trials.growth_trial import GrowthTrial


_START_SHARE: Final = 0.1
"""Share of the budget for which advice waits for starting extra workers; then the present ones try it, or it is carried
out untried."""


@dataclass(frozen=True, slots=True)
class Study:
    """Options for studies, which no job uses."""

    restart_only: bool = False
    """Whether advice to grow only restarts the learning rate's schedule, as a control."""
    stop_before_decision: int | None = None
    """Number of the decision (from 0) at which the run ends as `Stopped`, with a checkpoint, so that several runs can
    continue from it with different decisions."""


class Growth:
    """Growth of a run's network: consults the advisor, tries the advice if the job says so, and carries it out."""

    def __init__(self, run: Run, identity: CheckpointIdentity) -> None:
        """The network does not grow without an advisor or an example input."""
        loop, cannot_try = run.loop, run.loop.cannot_try
        job, services = run.job, run.services
        self._run, self._adapter = run, _adapter(run, identity)
        self._study, self._cannot_grow = loop.study, loop.cannot_grow
        self._backoff = AdvisorBackoff()
        if not cannot_try and job.spec.adaptation.mode is not AdaptationMode.AUTO:
            cannot_try = f"adaptation.mode is {job.spec.adaptation.mode}; set it to Auto"
        self._cannot_try, self._base_loss = cannot_try, loop.base_loss
        alone = job.spec.training.elastic_batch is None
        self._trials = Trials.OFF if cannot_try or alone else job.spec.adaptation.trials
        self._trial: GrowthTrial | None = None
        self._forecasting = Forecasting(services.forecaster, services.scheduler, self._trials)
        self._bidding = Bidding(services.clock)
        self._began: tuple[int, float] | None = None
        """Number of the newest epoch, and used seconds at its beginning."""
        self._epoch_seconds = 0.0
        """Duration of the epoch before it; 0 while none is known."""
        self._lent: tuple[int, float] | None = None
        """Generation of the allocation whose extra workers growth waits for, and used seconds when waiting began."""
        self._awaited: tuple[int, bool] | None = None
        """Generation of the allocation in which advice was asked for and is to be tried once extra workers are ready,
        and whether the model grows without a trial, so that waiting costs something."""

    def warn(self) -> None:
        """Warn about requests of the job that will not be met."""
        spec, journal = self._run.job.spec.adaptation, self._run.journal
        if spec.trials not in (self._trials, Trials.AUTO) and spec.mode is not AdaptationMode.OFF:
            message = f"no growth is tried first (adaptation.trials: {spec.trials}): {self._cannot_try}"
            journal.warn("TrialsNotPossible", message)
        why = "" if spec.mode is AdaptationMode.OFF else self._cannot_grow or self._cannot_grow_within_bound
        journal.cannot_grow, journal.grows = why, not why or self._allows()
        if why and self._adapter is not None:  # a script that does not let its model grow knows that
            journal.warn(NOT_GROWABLE, why)

    @property
    def is_trying(self) -> bool:
        """Whether extra workers are trying a growth."""
        return self._trial is not None

    def abandon(self) -> None:
        """Give up a trial in progress, as the run ends."""
        if self._trial is not None:
            self._trial = None
            ended = "the run ended before its workers were done; the model stays as it is"
            self._run.journal.warn("TrialAbandoned", ended)

    def outcome(self, final: Score) -> None:
        """Report the score of a complete run to the agent that advised it."""
        if self._adapter is None:
            return
        quality = final.quality
        if quality is not None:
            report_outcome(self._run.job, self._adapter.advisor, self._run.progress, final, quality)
        else:
            least = "[0, 1]" if final.by.higher_is_better else "[0, infinity)"
            score = f"the {final.by.title} {final.value:g} is not in {least}"
            self._run.journal.warn("OutcomeNotReported", f"{score}, so the agent does not learn from this job")

    def adapted(self) -> bool:
        """If a decision is due, request advice; return whether to train an epoch after that."""
        run = self._run
        network, progress = run.state.network, run.progress
        if self._trial is not None and self._adapter is not None:
            return self._trial_over(self._adapter, self._trial)
        if (
            self._adapter is None
            or run.allocation.replicas <= run.scheduler.base_replicas()
            or self._backoff.holds(run.scheduler.used_seconds())
            or not self._may_grow
        ):
            return True
        if progress.consultations == self._study.stop_before_decision:
            message = f"decision {progress.consultations} is left to the leader that continues from here"
            run.ending = Ending(TrainerPhase.STOPPED, Reason.INTERRUPTED, message)
            return False
        if self._waits_to_try():
            return True
        run.journal.enter(TrainerPhase.ADAPTING)
        asked = self._asked(self._adapter, network)
        if asked.decision.problem is not None and run.services.stop():
            return False  # the request was cancelled; the resumed run repeats it
        decided = self._untried(asked)
        if decided is None:
            run.journal.enter(TrainerPhase.TRAINING)
            return run.scheduler.time_left() > 0
        self._carry_out(self._adapter, decided)
        return run.scheduler.time_left() > 0

    @property
    def _may_grow(self) -> bool:
        """Whether the network has places to grow at, and the job allows another growth."""
        run = self._run
        may = run.progress.consultations < run.job.spec.adaptation.max_adaptations and run.hooks.may_grow
        return may and self._allows(run.state.network.waiting)

    @property
    def _cannot_grow_within_bound(self) -> str:
        """Why `maxParameters` allows no growth of the network; '' if it does."""
        spec, found = self._run.job.spec.adaptation, self._run.state.network.architecture
        if self._adapter is None or found is None or spec.max_parameters is None or self._allows():
            return ""
        offers = any(action.kind in spec.actions for action in offered(found))
        most = f"adaptation.maxParameters is {spec.max_parameters:,}"
        return f"{most}, which each growth of its {found.parameters:,} exceeds; raise it" if offers else ""

    def _allows(self, waiting: Set[Action] = frozenset()) -> bool:
        """Return whether any growth of the network may be advised that does not have to wait."""
        run = self._run
        return self._adapter is not None and self._adapter.may_grow(run.state.network, run.progress, waiting)

    def look_ahead(self) -> None:
        """Report the expected gain of growing to the scheduler, unless a trial is measuring it."""
        run = self._run
        before, self._began = self._began, (run.progress.epoch, run.scheduler.used_seconds())
        if before is not None and self._began[0] > before[0]:
            self._epoch_seconds = (self._began[1] - before[1]) / (self._began[0] - before[0])
        if self._trial is not None or run.job.spec.max_replicas <= run.scheduler.base_replicas():
            return
        question = None
        if self._adapter is not None and self._may_grow:
            question = partial(self._adapter.question, run.state.network, run.progress, run.allocation)
        run.meter.growth = self._forecasting.look(question, self._epoch_seconds)
        run.meter.bids = self._bidding.look(run, self._trials, self._epoch_seconds)

    def _asked(self, adapter: Adapter, network: Network) -> Advised:
        run = self._run
        with run.services.spans.stage("consult", run.allocation) as attributes:
            asked = adapter.ask(network, run.progress, run.allocation)
            attributes |= {
                "espalier.decision.id": asked.decision.id,
                "espalier.decision.action": str(asked.decision.action),
                "espalier.decision.source": str(asked.decision.source),
            }
        return asked

    def _carry_out(self, adapter: Adapter, asked: Advised, arms: Sequence[Arm] = ()) -> None:
        """Grow as advised, and continue with the result."""
        run = self._run
        with run.services.spans.stage("adapt", asked.allocation) as attributes:
            consultation = adapter.carried_out(asked, run.state.network, run.progress, arms)
            self._settled(consultation)
            done = consultation.adaptation
            attributes |= {
                "espalier.decision.id": done.decision_id,
                "espalier.adaptation.action": done.action,
                "espalier.adaptation.result": str(done.result),
            }

    def _waits_to_try(self) -> bool:
        """Return whether a request waits for starting extra workers, which must try the advice.

        `Auto` waits only once it knows that a trial pays. The wait is limited, unless nothing grows without a trial.
        Where the base takes part in the race, a request also waits for the first epoch, after which the base's loss is
        known.
        """
        run = self._run
        if self._trials is Trials.OFF or run.team is None:
            return False
        loss_unknown = self._base_loss is None and run.progress.epoch == 0
        if self._trials is Trials.AUTO and not self._tries_awaited:
            return loss_unknown and _base_of(run.team) == 1
        if not run.team.extra_members and self._awaited == (run.allocation.generation, False):
            return True
        if len(run.team.extra_members) >= self._extra:
            self._lent = None
            return loss_unknown and self._races_base(run.team, len(run.team.extra_members))
        used, generation = run.scheduler.used_seconds(), run.allocation.generation
        if self._lent is None or self._lent[0] != generation:
            self._lent = generation, used
        return used - self._lent[1] < _START_SHARE * run.scheduler.time_budget()

    @property
    def _tries_awaited(self) -> bool:
        """Whether advice of this allocation is to be tried once extra workers are ready."""
        return self._awaited is not None and self._awaited[0] == self._run.allocation.generation

    @property
    def _extra(self) -> int:
        """Number of extra workers that the allocation has, ready or not."""
        return self._run.allocation.replicas - self._run.scheduler.base_replicas()

    def _untried(self, asked: Advised) -> Advised | None:
        """Start a trial of the advice on extra workers, if the job wants it and they can.

        Return None if a trial started or waits for workers; else the advice, with the worth of a trial for `Auto`.
        """
        run, adapter, team = self._run, self._adapter, self._run.team
        if adapter is None or team is None or self._trials is Trials.OFF:
            return asked
        from espalier_trainer.trials.growth_trial import TrialConditions, begun, weighed

        # `Auto` counts workers that are starting, too; once it has waited for them, those that are ready.
        workers = self._extra if self._trials is Trials.AUTO and not self._tries_awaited else len(team.extra_members)
        now = TrialConditions(
            self._trials,
            team.extra_members,
            run.allocation.replicas,
            run.scheduler.wall_time_left(),
            run.state.trial_rates(run.progress.metrics.get("learning_rate"), adapter.restarts(AdaptationResult.GROWN)),
            adapter.growth_seed(run.state.network),
            base=_base_of(team),
            loss=self._loss_of_base() if self._races_base(team, workers) else None,
            moment=run.moment(),
            confirms=Insertion.UNFOLD not in run.job.spec.adaptation.insertions(run.job.spec.training.task),
            epoch=self._epoch_seconds / max(run.scheduler.time_left(), self._epoch_seconds, 1e-9),
        )
        if self._trials is Trials.AUTO:
            asked = weighed(asked, now, workers)
            if asked.worth is not None and asked.worth.pays and asked.worth.workers > len(now.workers):
                action, tried_by = asked.decision.action, number_of(asked.worth.workers, "extra worker")
                self._awaited = run.allocation.generation, action.grows and not asked.outside
                late = f"a trial by {tried_by} pays; the request is repeated once they are ready"
                run.journal.warn("TrialsNotPossible", f"{action} is advised, and {late}")
                return None
        trial = begun(asked, run.state.network, now, run.services.clock)
        if trial is None:
            action, auto = asked.decision.action, self._trials is Trials.AUTO
            if action.grows and not team.extra_members and (self._tries_awaited or not auto):
                late = f"no extra worker was ready within {_START_SHARE:.0%} of the budget"
                run.journal.warn("TrialsNotPossible", f"{action} is not tried first: {late}")
            elif not auto and not team.extra_members:
                # A trial may still overrule the advice: the request is repeated once a worker can run one.
                self._awaited = run.allocation.generation, False
                late = "no extra worker is ready to try a growth; the request is repeated once one is"
                run.journal.warn("TrialsNotPossible", f"{action} is advised, and {late}")
                return None
            elif not auto and action.grows:
                late = f"an epoch takes {now.epoch:.0%} of the time left"
                run.journal.warn("TrialsNotPossible", f"{action} is advised, and not tried: {late}")
                return None
            return asked
        try:
            team.send_trial_orders(
                {worker: order.model_dump_json() for worker, order in trial.orders.items()}, run.saver.capture
            )
        except GroupBrokenError:
            return None  # the next boundary gathers the members, the next epoch asks again
        self._trial = trial
        run.journal.trials_started(trial.actions, len(trial.orders), trial.seconds)
        return None

    def _races_base(self, team: Team, workers: int) -> bool:
        from espalier_trainer.trials.rules import races_base

        return races_base(self._trials, workers, _base_of(team))

    def _loss_of_base(self) -> float | None:
        return self._run.progress.metrics.get("validation_loss") if self._base_loss is None else self._base_loss()

    def _trial_over(self, adapter: Adapter, trial: GrowthTrial) -> bool:
        """Decide if the trial is over; return whether to train an epoch after that."""
        run = self._run
        team, network, progress = run.team, run.state.network, run.progress
        parameters = network.parameters
        if self._base_loss is None or trial.base_due:
            trial.base_measured(self._loss_of_base())
        if team is not None:
            for worker in trial.narrowed(team.reported() | team.results()):
                team.dismiss(worker)
        results = {} if team is None else team.results()
        verdict = trial.verdict(results, network, run.allocation.replicas)
        if verdict is None or team is None:
            return True
        self._trial = None
        took_over = verdict.winner is not None and self._takes_over(team, verdict.winner)
        if not took_over:
            team.bring_back()
        if verdict.best is None or (verdict.winner is not None and not took_over):
            run.journal.warn("TrialAbandoned", f"{verdict.why or 'the winner is gone'}; the model stays as it is")
            if run.allocation.replicas >= trial.replicas:  # the cause of a worker's end may recur
                self._backoff.record(False, run.scheduler.used_seconds(), run.scheduler.time_budget())
            return True
        if not verdict.grows:
            consultation = adapter.declined(trial.asked, network, progress, verdict.arms)
        elif took_over:
            taken = trial.action(verdict.best)
            consultation = adapter.taken_over(
                trial.asked, taken, network, run.state.network, progress, verdict.arms, parameters
            )
        else:
            self._carry_out(adapter, trial.asked.choosing(trial.action(verdict.best)), verdict.arms)
            return run.scheduler.time_left() > 0
        self._settled(consultation)
        return run.scheduler.time_left() > 0

    def _takes_over(self, team: Team, winner: str) -> bool:
        """Continue with the state of the worker that won a trial; return False if it is gone."""
        run = self._run
        progress, measured, before, taken = run.progress, run.meter.measured(), run.state.network, False

        def take_over(checkpoint: Checkpoint) -> Network:
            nonlocal taken
            taken = True
            # The worker has the hooks' state from the beginning of the trial, without later changes and the growth.
            return run.saver.take_over(
                replace(checkpoint, state=checkpoint.state.model_copy(update={"shrinking": kept}))
            )

        run.hooks.grew(before, lambda: run.saver.capture().state)
        kept = run.hooks.capture()[0]
        team.bring_back(winner)
        team.update_members(run.allocation.replicas, before, progress.step, run.saver.capture, take_over)
        if not taken:
            run.hooks.growth_undone()
            return False
        # The reported values of the run stay; the position of its training is the worker's.
        now = run.progress
        now.adaptations, now.consultations, now.metrics = progress.adaptations, progress.consultations, progress.metrics
        now.max_step_gap_seconds = progress.max_step_gap_seconds
        run.meter.restore(measured)
        run.saver.wanted = True
        return True

    def _settled(self, consultation: Consultation) -> None:
        """Use the result of a consultation, and record it."""
        run = self._run
        run.loss_jump.report(run.progress.adaptations)
        network = run.state.network
        self._backoff.record(consultation.answered, run.scheduler.used_seconds(), run.scheduler.time_budget())
        run.progress.consultations += consultation.answered
        if consultation.network is not network:
            if run.state.in_place:
                # Where the grown one does not fit, the process ends; a restart continues from here, without growth.
                run.saver.save()
            run.hooks.grew(network, lambda: run.saver.capture().state)
            run.use(consultation.network)
            run.grown_from = network
        run.progress.adaptations.append(consultation.adaptation)
        if consultation.restart_schedule:
            now, at = run.moment(), consultation.restarted_at
            run.state.restart_schedule(now if at is None else replace(now, used_seconds=at))
        run.share_state()
        run.loss_jump.settled(consultation, run.progress.adaptations)
        run.journal.enter(TrainerPhase.TRAINING)


def _adapter(run: Run, identity: CheckpointIdentity) -> Adapter | None:
    job, services, loop = run.job, run.services, run.loop
    advisor = None if job.spec.adaptation.mode is AdaptationMode.OFF else services.advisor
    if advisor is None or loop.example is None:
        return None
    return Adapter(
        job,
        advisor,
        services.scheduler,
        loop.example,
        lambda: run.batching.batch_size or identity.batch_size,
        loop.study.restart_only,
        services.clock,
        identity.seed,
        loop.loss,
    )


def _base_of(team: Team) -> int:
    """Return the number of a team's workers, leader included, that are not extra workers."""
    return team.world - len(team.extra_members)
