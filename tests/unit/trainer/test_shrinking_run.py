"""`onReclaim: Distill` in whole runs: what is tried, what is kept, and that a stop loses neither model."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from espalier_core.growth.architecture import Architecture
from espalier_core.types.advice import Action, AdviceRequest, OutcomeReport
from espalier_core.types.events import AdaptationFinished, TrialStarted
from espalier_core.types.job import AdaptiveTrainingJob
from espalier_core.types.reasons import Reason
from espalier_core.types.report import AdaptationResult, AdaptationSource, TrainerPhase
from espalier_lab.virtual_time import ReplicaChange, Scripted, VirtualScheduler
from espalier_trainer.builtin_loop import steps
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.distillation import ShrinkRule
from espalier_trainer.distillation.shrinking import Shrinker, ShrinkOptions
from espalier_trainer.distillation.trial import MEASURED_STEPS
from espalier_trainer.elastic.step import StepResult
from espalier_trainer.growth.advisor import Advisor, AdvisorDecision
from espalier_trainer.run.run import Run as Core

pytestmark = pytest.mark.slow

Run = Callable[..., Any]


COME, GONE = 0.1, 0.3
SCRIPT = (Action.deepen("block0"), Action.deepen("block2"))


@pytest.fixture(scope="module")
def make_job(make_job):
    """Make digits jobs with `onReclaim: Distill`."""

    def make(**spec: Any) -> AdaptiveTrainingJob:
        adaptation = {"onReclaim": "Distill", "maxAdaptations": 2, **spec.pop("adaptation", {})}
        merged = {"timeBudgetSeconds": 1.5, "training": {"evaluateEveryEpochs": 10**6}, **spec}
        return make_job(adaptation=adaptation, **merged)

    return make


def step_seconds(architecture: Architecture | None) -> float:
    """A step costs 4 ms, and as much again for each layer added."""
    return 0.004 * (1 + sum(architecture.growth_history.values() if architecture else ()))


@pytest.fixture(scope="module")
def reclaimed(run, make_job):
    """Train with a second GPU that makes steps `speed` times as fast: it comes at COME and goes at GONE."""

    def runner(
        job: AdaptiveTrainingJob | None = None,
        *,
        arrivals: tuple[ReplicaChange, ...] = (ReplicaChange(COME, 2), ReplicaChange(GONE, 1)),
        speed: float = 3.0,
        cost: Callable[[Architecture | None], float] = step_seconds,
        advisor: Advisor | None = None,
        **options: Any,
    ) -> Any:
        job = job or make_job()
        scheduler = VirtualScheduler(
            job.spec.time_budget_seconds, cost, arrivals, speedup=lambda replicas: 1 + (replicas - 1) * (speed - 1)
        )
        return run(job, advisor=advisor or Scripted(SCRIPT), scheduler=scheduler, **options)

    return runner


def decided_by(done: Any) -> list[Any]:
    """Return the records of reclaims."""
    return [each for each in done.result.adaptations if each.action == "Distill"]


INSIST = ShrinkOptions(insist=True)


def started(done: Any) -> TrialStarted:
    """Return the event of the trial's beginning."""
    (found,) = [event for event in done.reporter.events if isinstance(event, TrialStarted)]
    return found


def judged_at(done: Any) -> int:
    """Return the step at which the two were compared."""
    (decided,) = decided_by(done)
    return started(done).step + int(decided.message.split(" steps")[0].rpartition(" ")[2])


MANNERS = {"smaller-kept": INSIST, "as-compared": ShrinkOptions()}


@pytest.fixture(scope="module")
def whole(reclaimed):
    """Return the run that nothing stopped, by the name of its options: several tests ask what happened in it."""

    @functools.cache
    def of(shrink_options: str) -> Any:
        return reclaimed(shrink_options=MANNERS[shrink_options])

    return of


def test_a_smaller_model_is_tried_and_the_better_one_kept(whole):
    done = whole("as-compared")
    assert done.result.phase is TrainerPhase.COMPLETED
    (decided,) = decided_by(done)
    begun = started(done)
    assert decided.source is AdaptationSource.RECLAIM
    assert (decided.depth_before, begun.depth) == (6, 4)
    # The reclaim is seen at the next step boundary; then ten steps of the grown model are measured, 12 ms each.
    assert begun.used_seconds == pytest.approx(0.3 + MEASURED_STEPS * 0.012, abs=0.012)
    assert begun.seconds == pytest.approx((1.5 - begun.used_seconds) / 4)
    assert decided.used_seconds == pytest.approx(begun.used_seconds + begun.seconds, abs=0.006)
    assert decided.accuracy_before is not None
    assert decided.accuracy_after is not None
    kept = decided.result is AdaptationResult.KEPT
    assert decided.reason is (Reason.LARGER_IS_BETTER if kept else Reason.DISTILLED)
    assert decided.accuracy_after >= decided.accuracy_before
    assert done.result.depth_after == decided.depth_after == (6 if kept else 4)
    assert done.trainer.hooks.kept is None
    events = [event.adaptation for event in done.reporter.events if isinstance(event, AdaptationFinished)]
    assert decided in events


def test_one_that_is_kept_has_the_rest_and_is_taught_on_without_the_larger(whole):
    done = whole("smaller-kept")
    (decided,) = decided_by(done)
    assert decided.result is AdaptationResult.SHRUNK
    assert done.result.depth_after == done.result.depth_before == 4
    assert done.trainer.network.architecture.growth_history == {}
    teacher = done.trainer.hooks.teacher
    assert teacher.tensors()["known"].all()
    assert teacher.asked < 2 * 1300  # each of the training examples was answered once, give or take a batch
    # Three steps in the time of one of the grown model's, from the trial on.
    left = 1.5 - started(done).used_seconds
    assert done.result.steps - started(done).step == pytest.approx(left / 0.004, abs=2)


def test_the_larger_goes_on_as_if_nothing_had_been_tried(reclaimed, monkeypatch):
    monkeypatch.setattr("espalier_trainer.distillation.shrinking.better", lambda smaller, larger, examples: False)
    taken: list[Any] = []
    real = Core.change

    def changed(self: Any, change: Any) -> None:
        if change is not None:
            tensors = {name: tensor.clone() for name, tensor in change.network.module.state_dict().items()}
            kept = self.hooks.kept
            taken.append((change, tensors, None if kept is None else _weights(kept)))
        real(self, change)

    monkeypatch.setattr(Core, "change", changed)
    done = reclaimed()
    (_, _, before), (back, after, _) = taken
    assert back.adaptation.reason is Reason.LARGER_IS_BETTER
    assert set(before) == set(after)
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    assert back.network.optimizer.state
    assert done.result.depth_after == 6


def _weights(network: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in network.module.state_dict().items()}


MOMENTS = {
    "measured": lambda begin, end: (begin - 4, begin - 4),
    "begun": lambda begin, end: (begin + 1, begin + 1),
    "middle": lambda begin, end: ((begin + end) // 2,) * 2,
    "comparing": lambda begin, end: (end + 1, end),
    "after": lambda begin, end: (end + 2, end),
}
"""By the steps at which a trial begins and ends: the step boundary at which a stop comes, and the steps taken then."""


@pytest.mark.sweep("stops of a trial")
@pytest.mark.parametrize("shrink_options", MANNERS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stop_at_any_moment_changes_nothing(reclaimed, make_job, whole, tmp_path, stop_after, shrink_options, moment):
    job, how, done = make_job(), MANNERS[shrink_options], whole(shrink_options)
    begin, end = started(done).step, judged_at(done)
    cut, taken = MOMENTS[moment](begin, end)
    first = reclaimed(job, shrink_options=how, store=tmp_path, stop=stop_after(cut))
    assert (first.result.phase, first.result.steps) == (TrainerPhase.STOPPED, taken)
    checkpoint = CheckpointStore(tmp_path).load_latest()
    assert any(key.startswith("kept.") for key in checkpoint.training) == (begin < cut < end + 2)
    second = reclaimed(job, shrink_options=how, store=tmp_path)
    assert second.result.steps == done.result.steps
    assert second.result.depth_after == done.result.depth_after
    second.assert_same_weights(done)
    assert [each.result for each in decided_by(second)] == [each.result for each in decided_by(done)]


def test_gpus_that_come_back_end_the_trial(reclaimed):
    done = reclaimed(arrivals=(ReplicaChange(0.1, 2), ReplicaChange(0.3, 1), ReplicaChange(0.45, 2)))
    (decided,) = decided_by(done)
    assert (decided.result, decided.reason) == (AdaptationResult.KEPT, Reason.GPUS_CAME_BACK)
    assert done.result.depth_after == 6


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"speed": 1.0}, Reason.STILL_CARRIED),
        ({"cost": lambda architecture: 0.004}, Reason.NOT_CHEAPER),
        ({"arrivals": (ReplicaChange(0.1, 2), ReplicaChange(1.2, 1))}, Reason.TOO_LATE_TO_DISTIL),
    ],
)
def test_where_it_cannot_pay_it_is_not_tried(reclaimed, options, reason):
    done = reclaimed(**options)
    (decided,) = decided_by(done)
    assert (decided.result, decided.reason) == (AdaptationResult.KEPT, reason)
    assert "s are left" in decided.message
    assert done.result.depth_after == 6
    assert not any(isinstance(event, TrialStarted) for event in done.reporter.events)


def test_a_model_that_never_grew_and_a_job_that_keeps_are_left_alone(reclaimed, make_job):
    assert decided_by(reclaimed(make_job(adaptation={"maxAdaptations": 0}))) == []
    kept = reclaimed(make_job(adaptation={"onReclaim": "Keep"}))
    assert decided_by(kept) == []
    assert not isinstance(kept.trainer.hooks, Shrinker)


@pytest.mark.parametrize("error", ["", "no room for two"])
def test_a_smaller_model_that_diverges_or_has_no_room_is_dropped(reclaimed, monkeypatch, error):
    real = steps.optimize

    def broken(network: Any, inputs: Any, labels: Any, method: Any, judge: Any = None) -> StepResult:
        if judge is None:
            return real(network, inputs, labels)
        if error:
            raise torch.OutOfMemoryError(error)
        return StepResult(math.nan, (), examples=len(labels))

    monkeypatch.setattr(steps, "optimize", broken)
    done = reclaimed()
    (decided,) = decided_by(done)
    assert (decided.result, decided.reason) == (AdaptationResult.KEPT, Reason.TRIAL_FAILED)
    assert error in decided.message
    assert done.result.phase is TrainerPhase.COMPLETED
    assert done.result.depth_after == 6


def test_a_budget_that_ends_within_a_trial_leaves_the_larger(reclaimed):
    done = reclaimed(shrink_options=ShrinkOptions(rule=ShrinkRule(share=1.0), insist=True))
    (decided,) = decided_by(done)
    assert (decided.result, decided.reason) == (AdaptationResult.KEPT, Reason.TRIAL_FAILED)
    assert done.result.phase is TrainerPhase.COMPLETED
    assert done.result.depth_after == 6


def test_a_job_changed_to_keep_within_a_trial_goes_on_with_the_larger(reclaimed, whole, make_job, tmp_path, stop_after):
    cut = started(whole("as-compared")).step + 10
    first = reclaimed(store=tmp_path, stop=stop_after(cut))
    assert first.trainer.network.depth == 4
    second = reclaimed(make_job(adaptation={"onReclaim": "Keep"}), store=tmp_path)
    assert second.result.depth_after == 6


class ByNeed:
    """Advises the first block once, and later the second once."""

    def advise(self, request: AdviceRequest, wall_seconds: float) -> AdvisorDecision:
        point = "block0" if request.time_left_seconds > 1 else "block1"
        grown = point in request.architecture.growth_history
        action = Action.nothing() if grown else Action.deepen(point)
        return AdvisorDecision(f"d-{request.progress.adaptations}", action, AdaptationSource.AGENT, "by need")

    def report_outcome(self, outcome: OutcomeReport) -> None:
        """Nothing learns here."""


def test_a_smaller_model_grows_again_and_is_then_taught_no_more(reclaimed, make_job):
    arrivals = (ReplicaChange(0.1, 2), ReplicaChange(0.3, 1), ReplicaChange(1.2, 2))
    job = make_job(adaptation={"maxAdaptations": 100}, timeBudgetSeconds=2)
    cost = 0.004
    done = reclaimed(
        job,
        shrink_options=INSIST,
        arrivals=arrivals,
        advisor=ByNeed(),
        cost=lambda architecture: cost * (1 + 2 * sum(architecture.growth_history.values())),
    )
    results = [each.result for each in done.result.adaptations if each.result is not AdaptationResult.DECLINED]
    assert results == [AdaptationResult.GROWN, AdaptationResult.SHRUNK, AdaptationResult.GROWN]
    assert done.trainer.network.architecture.growth_history == {"block1": 1}
    assert done.trainer.hooks.teacher is None
