"""Runs whose batch size follows the goodput: in the ready loop, in a user's, alone and together."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from espalier_core.types.events import BatchSizeChanged
from espalier_core.types.job import AdaptiveTrainingJob, Insertion
from espalier_core.types.report import TrainerPhase
from espalier_lab.virtual_time import VirtualScheduler
from espalier_trainer.builtin_loop import steps
from espalier_trainer.checkpoints.store import CheckpointStore
from espalier_trainer.net2net.modules import copied
from espalier_trainer.net2net.randomness import seed_everything
from espalier_trainer.training.method import PLAIN
from espalier_trainer.training.network import new_network
from espalier_trainer.training.progress import TrainingResult
from trainer_processes import ended, until

pytestmark = pytest.mark.slow

Jobs = Callable[..., AdaptiveTrainingJob]
GOODPUT = {"batch": "Goodput", "maxBatchSize": 512, "schedule": {"name": "Constant"}, "evaluateEveryEpochs": 1000}


@dataclass
class Clock(VirtualScheduler):
    """Time that passes in steps: 10 ms each, and 10 µs more an example."""

    def step_finished(self, architecture: object) -> None:
        """Nothing: `pass_by` has moved the time."""

    def pass_by(self, examples: int) -> None:
        """Move the time by a step of `examples` examples."""
        self._used += 0.01 + 0.00001 * examples


@dataclass
class Timed:
    """A finished run, and how many examples each step was asked to take."""

    run: Any
    asked: list[int]

    @property
    def result(self) -> TrainingResult:
        return self.run.result

    @property
    def changes(self) -> list[BatchSizeChanged]:
        return [event for event in self.run.reporter.events if isinstance(event, BatchSizeChanged)]

    @property
    def sizes(self) -> list[int]:
        return [64, *(change.batch_size for change in self.changes)]


@pytest.fixture
def timed(run, monkeypatch):
    """Run the digits net on a device whose steps take a known time, and run out of memory beyond `capacity`."""
    # Every fourth step, whatever the estimate costs on this machine.
    monkeypatch.setattr("espalier_trainer.measuring.speeds.NoiseSampling.due", lambda self: self._steps >= 4)
    # The functions themselves: a test may run twice.
    plain, by_parts = steps.optimize, steps.accumulate

    def runner(job: AdaptiveTrainingJob, *, store: Path | None = None, capacity: int = 10**6, **options: Any) -> Timed:
        clock, asked = Clock(job.spec.time_budget_seconds, lambda _: 0.0), list[int]()

        def optimize(network: Any, inputs: Tensor, labels: Tensor, *rest: Any) -> Any:
            asked.append(len(labels))
            if len(labels) > capacity:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            clock.pass_by(len(labels))
            return plain(network, inputs, labels, *rest)

        def accumulate(
            network: Any, inputs: Tensor, labels: Tensor, method: Any, criterion: Any, passes: int, *rest: Any
        ) -> Any:
            asked.append(len(labels))
            for _ in range(passes):
                clock.pass_by(len(labels) // passes)
            return by_parts(network, inputs, labels, method, criterion, passes, *rest)

        monkeypatch.setattr(steps, "optimize", optimize)
        monkeypatch.setattr(steps, "accumulate", accumulate)
        return Timed(run(job, scheduler=clock, store=store, clock=clock.used_seconds, **options), asked)

    return runner


def test_the_batch_grows_within_its_limits_and_the_run_says_so(timed, make_job):
    done = timed(make_job(timeBudgetSeconds=2, adaptation={"mode": "Off"}, training=GOODPUT))
    assert done.result.phase is TrainerPhase.COMPLETED
    assert done.sizes[:3] == [64, 128, 256]
    assert max(done.sizes) <= 512
    report = done.run.reporter.report
    figures = {metric.name: metric.value for metric in report.metrics}
    assert figures["batch_size"] == done.sizes[-1]
    last = done.changes[-1]
    assert figures["learning_rate_factor"] == pytest.approx(last.learning_rate_factor)
    assert 1 < last.learning_rate_factor < (last.batch_size / 64) ** 0.5  # Adam: the square root of AdaScale's gain
    assert {speed.batch_size for speed in report.measurements.speeds} == set(done.sizes)
    # The device takes 10 ms a step and 0.64 ms for 64 examples: a batch of 512 takes 1.4 times as long as one of 64.
    fixed = timed(make_job(timeBudgetSeconds=2, adaptation={"mode": "Off"}, training={**GOODPUT, "batch": "Fixed"}))
    assert fixed.sizes == [64]
    assert done.result.epochs > 1.5 * fixed.result.epochs
    assert "batch_size" not in {metric.name for metric in fixed.run.reporter.report.metrics}


def test_the_same_seed_gives_the_same_run(timed, make_job):
    job = make_job(timeBudgetSeconds=1.5, adaptation={"mode": "Off"}, training=GOODPUT)
    one, other = (timed(job) for _ in range(2))
    assert one.sizes == other.sizes != [64]
    one.run.assert_same_weights(other.run)


def test_a_size_that_does_not_fit_into_memory_is_tried_once(timed, make_job):
    done = timed(make_job(timeBudgetSeconds=2, adaptation={"mode": "Off"}, training=GOODPUT), capacity=200)
    assert done.result.phase is TrainerPhase.COMPLETED
    assert sum(size > 200 for size in done.asked) == 1
    (back,) = (change for change in done.changes if change.goodput is None)
    assert (back.before, back.batch_size) == (256, 128)
    assert "out of memory" in back.message
    assert done.sizes[-1] == 128


def test_a_run_that_resumes_goes_on_with_its_size(timed, make_job, tmp_path, stop_after):
    job = make_job(timeBudgetSeconds=2, adaptation={"mode": "Off"}, training=GOODPUT)
    first = timed(job, store=tmp_path, stop=stop_after(120))
    assert first.result.phase is TrainerPhase.STOPPED
    assert first.sizes[-1] > 64
    kept = CheckpointStore(tmp_path).load_latest()
    assert kept.state.batching.batches == first.sizes[-1] // 64
    again = timed(job, store=tmp_path)
    left = 17 - kept.state.cursor  # of the 17 batches of the epoch
    assert again.asked[0] == min(first.sizes[-1], 64 * left)
    figures = {metric.name: metric.value for metric in again.run.reporter.report.metrics}
    assert figures["batch_size"] >= first.sizes[-1]
    assert again.run.trainer._run.batching.state().progress > kept.state.batching.progress


def test_gradients_that_add_up_over_passes_are_those_of_the_batch(digits, make_job):
    training = make_job().spec.training
    seed_everything(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    inputs, labels = digits.train.batch(torch.arange(101), None)
    found = []
    for passes in (1, 4):
        network, _ = new_network(copied(model), training.optimizer, digits.example_input(), Insertion.EXACT)
        if passes == 1:
            loss = steps.optimize(network, inputs, labels).loss
        else:
            loss = steps.accumulate(network, inputs, labels, PLAIN, lambda rows: None, passes).loss
        found.append((loss, [parameter.grad for parameter in network.module.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other)


DEAR_STEPS = """
import time, torch
from torch.nn import functional
from espalier_trainer.measuring.speeds import NoiseSampling
NoiseSampling.due = lambda self, after=0: self._steps + after >= 4
quick = functional.cross_entropy
def dear(logits, labels, **named):
    time.sleep(0.01)
    if len(labels) > {capacity}:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    return quick(logits, labels, **named)
functional.cross_entropy = dear
"""
"""A step costs the same however many examples it has, up to the memory of the device.

The gradient is measured every fourth step, whatever that costs on this machine."""

SAME_SECONDS = """
from espalier_trainer.measuring.speeds import StepSpeeds
add = StepSpeeds.add
StepSpeeds.add = lambda self, key, step_seconds, sync_seconds: add(self, key, 0.01, sync_seconds)
"""
"""Each step is measured to take 10 ms, whatever else this machine does."""


def changes(place: Any) -> list[BatchSizeChanged]:
    return [event for event in place.events() if isinstance(event, BatchSizeChanged)]


def test_two_processes_agree_on_the_size_and_on_giving_it_up(workplace, make_job):
    training = {**GOODPUT, "elasticBatch": "keepGlobal"}
    place = workplace(make_job(timeBudgetSeconds=3600, adaptation={"mode": "Off"}, training=training))
    place.allocate(2)
    place.prelude = DEAR_STEPS.format(capacity=10**6)
    leader = place.start()
    place.prelude = DEAR_STEPS.format(capacity=100)  # the other worker has the smaller device
    place.start(0)
    until(lambda: any(change.goodput is None for change in changes(place)), place)
    *grown, back = changes(place)[: [change.goodput for change in changes(place)].index(None) + 1]
    assert grown[-1].workers == 2
    assert grown[-1].batch_size > 200  # more than 100 examples for each
    assert back.batch_size <= 200
    assert "out of memory" in back.message
    before = place.report().step
    until(lambda: place.report().step > before + 30, place)
    assert "broke" not in place.log
    assert [change.batch_size for change in changes(place) if change.passes == 1][-1] <= 200
    os.kill(leader.pid, signal.SIGTERM)
    assert ended(leader, place) == 143
    kept = CheckpointStore(place.checkpoints).load_latest()
    assert kept.state.batching.pass_limit <= 100


SCRIPT = """
import torch
from torch import nn
from espalier_trainer.own import join
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(200, 8), torch.randint(0, 3, (200,)))
loader = torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=.01)
loop, batches = join(model, optimizer, loader)
for epoch in loop.epochs():
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loop.backward(loss)
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == .01  # scaled for the step alone
        optimizer.zero_grad()
"""


def test_a_script_of_the_user_gets_larger_batches_and_outlives_one_that_does_not_fit(workplace, make_job):
    training = {"batch": "Goodput", "batchSize": 20, "maxBatchSize": 160}
    job = make_job(timeBudgetSeconds=3600, adaptation={"mode": "Off"}, training=training)
    place = workplace(job, run=SCRIPT, prelude=DEAR_STEPS.format(capacity=60) + SAME_SECONDS)
    place.allocate(1)
    first = place.start()
    assert ended(first, place) != 0, place.log  # the error is the script's
    assert [change.batch_size for change in changes(place)] == [40, 80]
    failed_at = place.report().step
    again = place.start()
    until(lambda: place.report().step > failed_at + 60, place)
    place.allocate(1, budget=0.001)  # which is used up
    assert ended(again, place) == 0, place.log
    assert {change.batch_size for change in changes(place)[2:]} <= {60}
    assert {speed.batch_size for speed in place.report().measurements.speeds} <= {20, 40, 60}
    figures = {metric.name: metric.value for metric in place.report().metrics}
    assert figures["batch_size"] in (40, 60)
