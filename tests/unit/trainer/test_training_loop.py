"""Algorithm 1 under virtual time: budget, consultations, growth, schedules, failure."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from espalier_core.types.advice import Action, AdviceRequest, ExpectedGain, Familiarity, OutcomeReport
from espalier_core.types.events import (
    NOT_GROWABLE,
    AdaptationFinished,
    EpochFinished,
    TrainerFinished,
    TrainerStarted,
    Warned,
)
from espalier_core.types.job import Fallback
from espalier_core.types.reasons import Reason
from espalier_core.types.report import AdaptationResult, AdaptationSource, TrainerPhase
from espalier_lab.virtual_time import ReplicaChange, Scripted, VirtualScheduler
from espalier_trainer.builtin_loop import steps
from espalier_trainer.checkpoints.document import Checkpoint
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.data import Data, TensorSource
from espalier_trainer.growth.advisor import AdvisorDecision, AdvisorError, FallbackPolicy, NoAgent, WithFallback
from espalier_trainer.run.growing import Study
from espalier_trainer.run.saving import CheckpointWriter

pytestmark = pytest.mark.slow

BLOCK0, WIDEN = Action.deepen("block0"), Action.widen("block0.0")
BOTH = {"actions": ["Deepen", "Widen"]}
STEPS_AN_EPOCH = 17


@pytest.fixture(scope="module")
def run(run):
    """Let a step cost 4 ms: half as many fit into a budget."""
    return partial(run, step=0.004)


def test_budget_ends_in_the_middle_of_an_epoch_and_is_kept_to_one_step(run, make_job):
    done = run(make_job(timeBudgetSeconds=0.4))
    assert done.result.steps == 100
    assert done.result.epochs == 100 // STEPS_AN_EPOCH
    assert 0.4 <= done.result.used_seconds < 0.4 + 0.004
    assert (done.result.phase, done.result.reason) == (TrainerPhase.COMPLETED, Reason.BUDGET_EXHAUSTED)


def test_reports_begin_with_the_budget_and_end_with_the_test_accuracy(run):
    done = run()
    first, *middle, last = done.reporter.events
    assert isinstance(first, TrainerStarted)
    assert first.used_seconds == 0
    assert not first.resumed
    assert sum(isinstance(event, EpochFinished) for event in middle) == done.result.epochs
    assert isinstance(last, TrainerFinished)
    assert last.test_accuracy == done.result.test_accuracy
    report = done.reporter.report
    assert report.phase is TrainerPhase.COMPLETED
    assert report.progress_percentage == 100
    assert {metric.name for metric in report.metrics} >= {"train_loss", "validation_accuracy", "test_accuracy"}


def test_training_begins_when_the_base_workers_that_others_hold_are_let_go(run, make_job, monkeypatch):
    monkeypatch.setattr("espalier_trainer.run.run._LOOK_WALL_SECONDS", 0.0)
    held = iter([True, True, False])
    monkeypatch.setattr(VirtualScheduler, "waits_for_workers", lambda self: next(held))
    done = run(make_job(timeBudgetSeconds=0.4))
    assert next(held, None) is None
    assert (done.reporter.events[0].used_seconds, done.result.steps) == (0, 100)


def test_who_waits_for_held_workers_can_be_stopped(run, make_job, monkeypatch):
    monkeypatch.setattr(VirtualScheduler, "waits_for_workers", lambda self: True)
    done = run(make_job(), stop=lambda: True)
    assert (done.result.phase, done.result.steps) == (TrainerPhase.STOPPED, 0)


def test_it_learns(run, make_job):
    done = run(make_job(timeBudgetSeconds=2))
    assert done.result.test_accuracy > 0.6  # chance is .1; seeds 0 to 4 came to .68 to .79


def test_extra_gpus_are_answered_by_growth_at_the_next_epoch(run, make_job):
    advisor = Scripted((BLOCK0,))
    done = run(make_job(), advisor=advisor, up_at=0.1)
    grown, *rest = done.result.adaptations
    # 0.1 s are 25 steps, in the second epoch; it ends at step 34.
    assert grown.used_seconds == pytest.approx(0.136)
    assert advisor.asked[0].progress.step == 34
    assert advisor.asked[0].time_left_seconds == pytest.approx(0.264)
    assert grown.result is AdaptationResult.GROWN
    assert (grown.depth_before, grown.depth_after) == (4, 5)
    assert grown.generation == 1
    assert grown.accuracy_before is not None
    assert grown.accuracy_after is not None
    assert [adaptation.result for adaptation in rest] == [AdaptationResult.DECLINED] * 2
    assert done.trainer.network.architecture.growth_history == {"block0": 1}
    assert done.reporter.report.acknowledged_generation == 1


class Stranger(Scripted):
    """Has learned from other models than those that it is asked about."""

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        found = super().advise(request, wall_seconds)
        gains = {str(BLOCK0): ExpectedGain(mean=0.02, low=0.01, high=0.03)}
        return replace(found, familiarity=Familiarity(known=False, outside=("log parameters 21.3",)), gains=gains)


@pytest.mark.parametrize(
    ("trials", "advised", "result"),
    [
        ("Off", (BLOCK0,), AdaptationResult.GROWN),  # the advice decides
        ("Off", (), AdaptationResult.UNKNOWN),
        ("Auto", (BLOCK0,), AdaptationResult.UNKNOWN),  # nobody can try it: extra workers are not there
    ],
)
def test_advice_about_a_model_that_the_policy_does_not_know_is_unknown(run, make_job, trials, advised, result):
    job = make_job(adaptation={"trials": trials, "maxAdaptations": 1}, training={"elasticBatch": "keepGlobal"})
    done = run(job, advisor=Stranger(advised), up_at=0.1)
    (adaptation,) = done.result.adaptations
    assert adaptation.result is result
    assert adaptation.outside == ("log parameters 21.3",)
    if result is AdaptationResult.UNKNOWN:
        assert adaptation.message == "not learned from: log parameters 21.3"
        assert (adaptation.basis, adaptation.outcome) == ("unknown", "Unknown")
        assert done.trainer.network.depth == 4


def test_consultations_are_one_an_epoch_and_no_more_than_max_adaptations(run, make_job):
    advisor = Scripted((BLOCK0, BLOCK0, Action.deepen("block2"), BLOCK0))
    done = run(make_job(adaptation={"maxAdaptations": 3}), advisor=advisor, up_at=0.0)
    assert [request.progress.epoch for request in advisor.asked] == [0, 1, 2]
    assert done.trainer.network.architecture.growth_history == {"block0": 2, "block2": 1}


def test_nobody_is_asked_after_the_extra_gpus_are_gone(run, make_job):
    advisor = Scripted((BLOCK0, BLOCK0, BLOCK0))
    arrivals = (ReplicaChange(0.1, 2), ReplicaChange(0.15, 1))
    done = run(make_job(adaptation={"maxAdaptations": 9}), advisor=advisor, arrivals=arrivals)
    assert len(advisor.asked) == 1
    assert done.reporter.report.acknowledged_generation == 2


@pytest.mark.parametrize("mode", ["Off", "DryRun"])
def test_modes_that_change_nothing_train_the_same_weights(run, make_job, mode):
    plain = run(make_job())
    advisor = Scripted((BLOCK0, BLOCK0))
    done = run(make_job(adaptation={"mode": mode}), advisor=advisor, up_at=0.1)
    done.assert_same_weights(plain)
    assert [adaptation.result for adaptation in done.result.adaptations][:2] == (
        [] if mode == "Off" else [AdaptationResult.DRY_RUN] * 2
    )


def test_growth_restarts_the_schedule_and_ends_at_zero_again(run, make_job):
    job = make_job(adaptation={"maxAdaptations": 1}, training={"evaluateEveryEpochs": 1})
    done = run(job, advisor=Scripted((BLOCK0,)), up_at=0.1)
    rates = {event.step: event.learning_rate for event in done.reporter.events if isinstance(event, EpochFinished)}
    # Step 34 is the last of the second epoch, begun at 0.132 s; after growth at 0.136 s a step costs 5 ms.
    assert rates[34] == pytest.approx(0.01 * 0.268 / 0.4)
    assert rates[51] == pytest.approx(0.01 * (0.264 - 16 * 0.005) / 0.264)
    assert {metric.name: metric.value for metric in done.reporter.report.metrics}["learning_rate"] < 2e-4


def test_restart_only_is_a_control_that_moves_the_rate_and_nothing_else(run, make_job):
    job = make_job(adaptation={"maxAdaptations": 1})
    done = run(job, advisor=Scripted((BLOCK0,)), up_at=0.1, study=Study(restart_only=True))
    assert done.result.depth_after == 4
    assert done.result.adaptations[0].result is AdaptationResult.DRY_RUN
    rates = {event.step: event.learning_rate for event in done.reporter.events if isinstance(event, EpochFinished)}
    assert rates[51] == pytest.approx(0.01 * (0.264 - 16 * 0.004) / 0.264)
    declined = run(job, advisor=Scripted((Action.nothing(),)), up_at=0.1, study=Study(restart_only=True))
    rates = {event.step: event.learning_rate for event in declined.reporter.events if isinstance(event, EpochFinished)}
    assert rates[51] == pytest.approx(0.01 * (0.264 - 16 * 0.004) / 0.4)


def test_growth_that_fails_is_recorded_and_training_goes_on(run, make_job):
    advisor = Scripted((Action.deepen("block9"),))
    done = run(make_job(adaptation={"maxAdaptations": 1}), advisor=advisor, up_at=0.1)
    (failed,) = done.result.adaptations
    assert failed.result is AdaptationResult.FAILED
    assert "block9" in failed.message
    assert failed.depth_after == 4
    assert done.result.phase is TrainerPhase.COMPLETED
    assert done.result.steps == 100


@pytest.mark.parametrize("growth", [BLOCK0, WIDEN], ids=str)
def test_growth_that_does_not_fit_into_memory_is_taken_back(run, make_job, monkeypatch, tmp_path, growth):
    real, before = steps.optimize, 306

    def small_device(network, *given):
        if network.parameters > before:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(network, *given)

    monkeypatch.setattr(steps, "optimize", small_device)
    job = make_job(adaptation=BOTH | {"maxAdaptations": 1})
    done = run(job, advisor=Scripted((growth,)), up_at=0.1, store=tmp_path)
    (failed,) = done.result.adaptations
    assert failed.result is AdaptationResult.FAILED
    assert "out of memory" in failed.message
    assert failed.parameters_before == failed.parameters_after == before
    assert done.trainer.network.history == ()
    assert (done.result.depth_after, done.result.phase) == (4, TrainerPhase.COMPLETED)


def test_away_agent_is_a_warning_with_its_reason(run, make_job):
    advisor = WithFallback(NoAgent(), FallbackPolicy(Fallback.HEURISTIC))
    done = run(make_job(adaptation={"maxAdaptations": 1}), advisor=advisor, up_at=0.1)
    assert done.result.adaptations[0].policy == "Heuristic"
    assert done.result.depth_after == 5
    (warned,) = [event for event in done.reporter.events if isinstance(event, Warned)]
    assert warned.reason == Reason.AGENT_UNAVAILABLE
    assert any(isinstance(event, AdaptationFinished) for event in done.reporter.events)


class Away:
    """An agent that does not answer its first questions."""

    def __init__(self, silences, then):
        self.left, self.then, self.asked = silences, then, []

    def advise(self, request, wall_seconds):
        self.asked.append(request)
        self.left -= 1
        if self.left >= 0:
            raise AdvisorError(Reason.AGENT_UNAVAILABLE, "nobody is there")
        return self.then.advise(request, wall_seconds)

    def report_outcome(self, outcome):
        self.then.report_outcome(outcome)


def test_an_agent_that_does_not_answer_is_asked_again_and_later_each_time(run, make_job):
    """All three consultations were gone in a tenth of a second."""
    agent = Away(1000, Scripted(()))
    job = make_job(timeBudgetSeconds=1, adaptation={"maxAdaptations": 3})
    done = run(job, advisor=WithFallback(agent, FallbackPolicy(Fallback.NONE)), up_at=0.0)
    assert done.reporter.report.consultations == 0
    asked = [1 - request.time_left_seconds for request in agent.asked]
    waits = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert 3 <= len(waits) <= 7
    assert all(wait >= 0.01 * 2**count for count, wait in enumerate(waits)), waits


def test_an_agent_that_is_there_late_still_advises_as_often_as_the_job_allows(run, make_job):
    agent = Away(2, Scripted((BLOCK0, BLOCK0, BLOCK0, BLOCK0)))
    job = make_job(timeBudgetSeconds=0.8, adaptation={"maxAdaptations": 3})
    done = run(job, advisor=WithFallback(agent, FallbackPolicy(Fallback.NONE)), up_at=0.0)
    assert [entry.result for entry in done.result.adaptations] == ["Declined"] * 2 + ["Grown"] * 3
    assert done.reporter.report.consultations == 3


def test_a_fallback_that_grows_the_model_uses_a_consultation_up(run, make_job):
    agent = Away(1000, Scripted(()))
    done = run(make_job(), advisor=WithFallback(agent, FallbackPolicy(Fallback.HEURISTIC)), up_at=0.0)
    assert [entry.result for entry in done.result.adaptations] == ["Grown"] * 3
    assert len(agent.asked) == 3


def test_a_model_without_growth_points_says_so_and_nobody_is_asked(run, make_job, users_module):
    text = "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    users_module("flat_net", text)
    advisor = Scripted((BLOCK0,))
    job = make_job(training={"model": {"entrypoint": "flat_net:net"}})
    done = run(job, advisor=advisor, up_at=0.0)
    assert advisor.asked == []
    (warned,) = [event for event in done.reporter.events if isinstance(event, Warned)]
    assert warned.reason == NOT_GROWABLE
    assert "no place of it can grow ('1': no activation follows '1'" in warned.message
    assert "allow Widen or AddBlock in adaptation.actions" in warned.message
    assert "mark places with espalier_trainer.net2net.DeepenBlock" in warned.message
    assert done.reporter.report.cannot_grow == warned.message
    job = make_job(training={"model": {"entrypoint": "flat_net:net"}}, adaptation={"mode": "Off"})
    assert run(job).reporter.report.cannot_grow == "", "nobody wanted it to grow"


def test_a_bound_that_allows_no_growth_is_said_before_anyone_is_asked(run, make_job):
    """The agent was asked three times, and was said not to know the model."""
    advisor = Scripted((BLOCK0,))
    report = run(make_job(adaptation={"maxParameters": 1}), advisor=advisor, up_at=0.0).reporter.report
    assert (advisor.asked, report.grows) == ([], False)
    assert report.cannot_grow.startswith("adaptation.maxParameters is 1, which each growth of its ")


def test_outcome_is_reported_for_the_agents_decisions(run, make_job):
    advisor = Scripted((BLOCK0,))
    done = run(make_job(), advisor=advisor, up_at=0.1)
    (outcome,) = advisor.outcomes
    assert outcome.decision_ids == ("scripted-0", "scripted-1", "scripted-2")
    assert outcome.final_accuracy == done.result.test_accuracy


def _with_bad_value(digits: Data, index: int, value: float) -> Data:
    inputs = digits.train.inputs.clone()
    inputs[index, 0, 0, 0] = value
    return Data("bad", TensorSource(inputs, digits.train.labels), digits.validation, digits.test, 10)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint(
    run, make_job, digits, value, tmp_path, stop_after
):
    good = run(make_job(checkpoint={"intervalSeconds": 0.02}), store=tmp_path, stop=stop_after(40))
    assert good.result.phase is TrainerPhase.STOPPED
    before = sorted(path.name for path in tmp_path.iterdir())
    bad = run(make_job(checkpoint={"intervalSeconds": 1}), store=tmp_path, data=_with_bad_value(digits, 5, value))
    assert (bad.result.phase, bad.result.reason) == (TrainerPhase.FAILED, Reason.LOSS_NOT_FINITE)
    assert "learningRate" in bad.result.message
    assert bad.result.test_accuracy is None
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_weights_that_are_not_finite_are_never_saved(run, make_job, tmp_path, monkeypatch):
    real = steps.optimize

    def poisoned(network, inputs, labels, *rest):
        joint = real(network, inputs, labels)
        with torch.no_grad():
            next(network.module.parameters()).view(-1)[0] = math.nan
        return joint

    monkeypatch.setattr(steps, "optimize", poisoned)
    done = run(make_job(checkpoint={"intervalSeconds": 0.002}), store=tmp_path)
    assert done.result.reason is Reason.LOSS_NOT_FINITE
    assert list(tmp_path.iterdir()) == []


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 10)
        self.register_buffer("mask", torch.full((8, 8), -math.inf).triu(1))

    def forward(self, images):
        rows = self.first(images.squeeze(1))
        weights = (rows @ rows.transpose(1, 2) + self.mask).softmax(-1)
        return self.last(torch.relu(weights @ rows)).mean(1)


def test_a_mask_of_infinities_is_saved_and_resumed_from(run, make_job, tmp_path, stop_after):
    job = make_job(training={"model": {"entrypoint": f"{__name__}:Masked"}}, checkpoint={"intervalSeconds": 0.02})
    assert run(job, store=tmp_path, stop=stop_after(40)).result.phase is TrainerPhase.STOPPED
    done = run(job, store=tmp_path)
    assert (done.result.phase, done.result.reason) == (TrainerPhase.COMPLETED, Reason.BUDGET_EXHAUSTED)
    assert torch.isinf(done.trainer.network.module.mask).any()


def test_a_checkpoint_that_takes_an_interval_to_write_is_not_written_at_every_step(
    run, make_job, tmp_path, monkeypatch
):
    clocks, saves = [], []
    start, save, take = VirtualScheduler.start, CheckpointStore.save, CheckpointWriter.take

    def started(scheduler, used_seconds):
        clocks.append(scheduler)
        start(scheduler, used_seconds)

    def saved(store, checkpoint):
        saves.append(checkpoint)
        return save(store, checkpoint)

    def slow(writer, *, wait=False):
        """Write within one step, whatever else the machine does, and let it take an interval of virtual time."""
        written = take(writer, wait=True)
        if written is not None:
            clocks[0]._used += 0.05
        return written

    monkeypatch.setattr(VirtualScheduler, "start", started)
    monkeypatch.setattr(CheckpointStore, "save", saved)
    monkeypatch.setattr(CheckpointWriter, "take", slow)
    done = run(make_job(timeBudgetSeconds=1, checkpoint={"intervalSeconds": 0.05}), store=tmp_path)
    # Half of the time is trained in, half of it saved: 10 checkpoints, and the one at the end.
    assert 9 <= len(saves) <= 12
    assert done.result.steps > 10 * len(saves)


def test_evaluation_every_few_epochs(run, make_job):
    done = run(make_job(training={"evaluateEveryEpochs": 2}))
    assert [event.epoch for event in done.reporter.events if isinstance(event, EpochFinished)] == [2, 4]


def test_model_that_cannot_be_described_is_trained_as_it_is(run, make_job, tmp_path, monkeypatch):
    from espalier_core.growth.architecture import GrowthError
    from espalier_trainer.training import network

    def opaque(*_args, **_options):
        raise GrowthError("the model cannot be traced")

    monkeypatch.setattr(network, "describe", opaque)
    done = run(make_job(timeBudgetSeconds=0.1), advisor=Scripted((BLOCK0,)), up_at=0.0, store=tmp_path)
    assert done.result.phase is TrainerPhase.COMPLETED
    assert done.result.adaptations == ()
    assert done.result.depth_after == 4
    assert [event.reason for event in done.reporter.events if isinstance(event, Warned)] == ["NotGrowable"]


class UsesUpTheBudget:
    """An advisor whose answer comes when no budget is left."""

    def __init__(self) -> None:
        self.scheduler: VirtualScheduler | None = None

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        self.scheduler.start(request.time_budget_seconds)
        return AdvisorDecision("late", BLOCK0, AdaptationSource.AGENT, "late")

    def report_outcome(self, outcome: OutcomeReport) -> None:
        return


def test_advice_that_takes_the_rest_of_the_budget_neither_grows_nor_trains(run, make_job):
    job = make_job()
    scheduler = VirtualScheduler(job.spec.time_budget_seconds, lambda _: 0.002, (ReplicaChange(0.1, 2),))
    advisor = UsesUpTheBudget()
    advisor.scheduler = scheduler
    result = run(job, scheduler=scheduler, advisor=advisor).result
    (adaptation,) = result.adaptations
    assert adaptation.result is AdaptationResult.FAILED
    assert "ran out" in adaptation.message
    assert result.depth_after == result.depth_before
    assert result.steps == 51
    assert result.reason is Reason.BUDGET_EXHAUSTED


def test_checkpoint_that_takes_the_rest_of_the_budget_is_followed_by_no_step(run, make_job, tmp_path, monkeypatch):
    job = make_job(checkpoint={"intervalSeconds": 0.1})
    scheduler, copied = VirtualScheduler(job.spec.time_budget_seconds, lambda _: 0.002), Checkpoint.copied

    def slow(checkpoint: Checkpoint, room: Checkpoint | None = None) -> Checkpoint:
        scheduler.start(job.spec.time_budget_seconds)
        return copied(checkpoint, room)

    monkeypatch.setattr(Checkpoint, "copied", slow)
    result = run(job, scheduler=scheduler, store=tmp_path).result
    assert result.steps == 50
    assert result.phase is TrainerPhase.COMPLETED
    assert result.test_accuracy is not None


def test_final_checkpoint_is_announced_with_the_evaluation(run, make_job, tmp_path, monkeypatch):
    reporters, phases, save = [], [], CheckpointStore.save

    def saved(store, checkpoint):
        phases.append(reporters[0].report.phase)
        return save(store, checkpoint)

    monkeypatch.setattr(CheckpointStore, "save", saved)
    run(make_job(timeBudgetSeconds=0.05), store=tmp_path, wrap=lambda one: reporters.append(one) or one)
    assert phases == [TrainerPhase.EVALUATING]
